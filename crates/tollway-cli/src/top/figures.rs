//! What a service says of its keys and counts, and what that comes to between two looks.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::Value;

/// How often something happens, in times per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Over the last minute.
    pub(super) minute: f64,
    /// Over the last five.
    pub(super) five_minutes: f64,
}

/// A key; rates that the service did not tell are not zero but unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) key: String,
    pub(super) denied: Option<Rates>,
    pub(super) allowed: Option<Rates>,
    /// The policy that denied it last, or else allowed it.
    pub(super) policy: String,
    /// Why it was denied last.
    pub(super) reason: String,
}

/// Decisions since the service started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) allowed: f64,
    pub(super) denied: f64,
}

/// The answers to one look.
#[derive(Debug)]
pub(super) struct Answers {
    rows: Vec<Row>,
    counts: Option<Counts>,
}

/// What is known after some looks.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) rows: Vec<Row>,
    pub(super) counts: Option<Counts>,
    /// Decisions per second between the last two looks.
    pub(super) rates: Option<Counts>,
    pub(super) looked_at: Option<Instant>,
}

impl Figures {
    /// Takes in the answers to a look at `now`.
    pub(super) fn update(&mut self, answers: Answers, now: Instant) {
        self.rates = self.rates_until(answers.counts, now);
        (self.rows, self.counts) = (answers.rows, answers.counts);
        self.looked_at = Some(now);
    }

    fn rates_until(&self, counts: Option<Counts>, now: Instant) -> Option<Counts> {
        let (before, counts) = self.counts.zip(counts)?;
        let seconds = now.saturating_duration_since(self.looked_at?).as_secs_f64();
        // A service that counts less than before has started anew in between.
        let rate = |before: f64, now: f64| {
            (now >= before && seconds > 0.0).then(|| (now - before) / seconds)
        };
        let allowed = rate(before.allowed, counts.allowed)?;
        Some(Counts { allowed, denied: rate(before.denied, counts.denied)? })
    }
}

impl Answers {
    /// Reads the lists, and the counts out of the metrics; `None` if there are no lists.
    pub(super) fn read(top: &Value, metrics: Option<&str>) -> Option<Self> {
        let (denied, allowed) = (top["denied"].as_array()?, top["allowed"].as_array()?);
        let mut rows: Vec<Row> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for entry in denied.iter().chain(allowed) {
            let key = entry["key"].as_str()?;
            let place = *places.entry(key).or_insert(rows.len());
            if place == rows.len() {
                rows.push(Row { key: shown(key), ..Row::default() });
            }
            rows[place].take_in(entry);
        }
        Some(Self { rows, counts: metrics.and_then(Counts::read) })
    }
}

impl Row {
    fn take_in(&mut self, entry: &Value) {
        self.denied = rates(entry, "denied_1m", "denied_5m");
        self.allowed = rates(entry, "allowed_1m", "allowed_5m");
        let [denied, allowed] = [&entry["last_denied"], &entry["last_allowed"]];
        let last = if denied.is_object() { denied } else { allowed };
        let text = |value: &Value| shown(value.as_str().unwrap_or_default());
        self.policy = match last["domain"].as_str() {
            None | Some("") => text(&last["policy"]),
            Some(domain) => format!("{} {}", shown(domain), text(&last["policy"])),
        };
        self.reason = text(&denied["reason"]).replace('_', " ");
    }
}

fn rates(entry: &Value, minute: &str, five_minutes: &str) -> Option<Rates> {
    let rate = |name: &str| entry[name].as_f64();
    Some(Rates { minute: rate(minute)?, five_minutes: rate(five_minutes)? })
}

impl Counts {
    /// The sums over all policies; `None` if the metrics have none.
    fn read(metrics: &str) -> Option<Self> {
        let lines =
            metrics.lines().filter_map(|line| line.strip_prefix("tollway_decisions_total{"));
        let mut counts = None;
        for line in lines {
            let (labels, count) = line.rsplit_once("} ")?;
            let count: f64 = count.trim().parse().ok()?;
            let sums: &mut Self = counts.get_or_insert_default();
            // The last label, so no name of a policy is taken for it.
            if labels.ends_with("decision=\"allow\"") {
                sums.allowed += count;
            } else if labels.ends_with("decision=\"deny\"") {
                sums.denied += count;
            }
        }
        counts
    }
}

/// Text as a terminal may show it: a control character would move the cursor.
fn shown(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn entry(key: &str, allowed: f64, denied: f64) -> Value {
        json!({"key": key, "allowed_1m": allowed, "allowed_5m": allowed, "denied_1m": denied,
            "denied_5m": denied, "last_allowed": null, "last_denied": null})
    }

    #[test]
    fn a_key_that_both_lists_name_is_one_row() {
        let mut mallory = entry("mallory", 1.0, 9.0);
        mallory["last_denied"] = json!({"policy": "api", "domain": "", "reason": "too_costly"});
        let top = json!({"unit": "per second", "denied": [mallory],
            "allowed": [entry("a\u{1b}da", 5.0, 0.0), mallory]});
        let answers = Answers::read(&top, None).unwrap();
        let names: Vec<&str> = answers.rows.iter().map(|row| row.key.as_str()).collect();
        assert_eq!(names, ["mallory", "a\u{fffd}da"]);
        let Row { policy, reason, denied, .. } = &answers.rows[0];
        assert_eq!((policy.as_str(), reason.as_str()), ("api", "too costly"));
        assert_eq!(denied.map(|rates| rates.minute), Some(9.0));
    }

    #[test]
    fn what_a_service_does_not_say_is_unknown_and_not_zero() {
        let entry = json!({"key": "ada", "allowed_1m": 0.5, "allowed_5m": 0.1});
        let top = json!({"unit": "per second", "denied": [], "allowed": [entry]});
        let row = Answers::read(&top, None).unwrap().rows.remove(0);
        assert_eq!(row.allowed, Some(Rates { minute: 0.5, five_minutes: 0.1 }));
        assert_eq!(row.denied, None);
        assert!(Answers::read(&json!({"keys": []}), None).is_none());
    }

    #[test]
    fn totals_are_sums_and_rates_their_differences() {
        let metrics = |allowed, denied| {
            format!(
                "# HELP tollway_decisions_total Decisions by policy.\n\
                 tollway_decisions_total{{domain=\"\",policy=\"a\",decision=\"allow\"}} {allowed}\n\
                 tollway_decisions_total{{domain=\"\",policy=\"b\",decision=\"allow\"}} 1\n\
                 tollway_decisions_total{{domain=\"\",policy=\"a\",decision=\"deny\"}} {denied}\n\
                 tollway_decisions_total{{domain=\"\",policy=\"a\",decision=\"shadow_deny\"}} 7\n"
            )
        };
        let top = json!({"denied": [], "allowed": []});
        let answers =
            |allowed, denied| Answers::read(&top, Some(&metrics(allowed, denied))).unwrap();
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut figures = Figures::default();
        figures.update(answers(9, 4), begin);
        assert_eq!(figures.counts, Some(Counts { allowed: 10.0, denied: 4.0 }));
        assert_eq!(figures.rates, None);
        figures.update(answers(19, 5), begin + 2 * second);
        assert_eq!(figures.rates, Some(Counts { allowed: 5.0, denied: 0.5 }));
        figures.update(answers(0, 0), begin + 4 * second);
        assert_eq!(figures.rates, None, "a service that has started anew");
    }
}
