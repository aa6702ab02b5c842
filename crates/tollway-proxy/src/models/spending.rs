//! Who used what: sums by budget, owner and model, for the metrics and for `/admin/models`.

use std::collections::HashMap;

use serde_json::{Value, json};
use tollway_http::metrics::Exposition;

use crate::events::shown;
use crate::models::usage::Usage;

/// Owners and models that are told apart; later ones are summed up together.
const SPENDERS_MAX: usize = 10_000;
/// How many of them a page shows: those who used most.
const SHOWN_MAX: usize = 100;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The provider told what it used, or it came to its own end.
    Served,
    /// A budget had no room: it was ended.
    Cut,
    /// The client left before the end.
    Abandoned,
    /// The provider refused it or broke off.
    Failed,
    /// No budget had room for it.
    Denied,
}

const OUTCOMES: [(Outcome, &str); 5] = [
    (Outcome::Served, "served"),
    (Outcome::Cut, "cut"),
    (Outcome::Abandoned, "abandoned"),
    (Outcome::Failed, "failed"),
    (Outcome::Denied, "denied"),
];

/// All sums.
#[derive(Debug, Default)]
pub(crate) struct Spending {
    by: HashMap<(usize, String, String), Sum>,
    outcomes: [u64; OUTCOMES.len()],
    used: Usage,
    /// Calls that used no more than was expected, and calls that used more.
    estimates: [u64; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: u64,
    denied: u64,
    usage: Usage,
    money: u64,
}

impl Outcome {
    /// Whether the answer was as long as it would have been without us.
    pub(crate) const fn teaches(self) -> bool {
        matches!(self, Self::Served)
    }
}

impl Usage {
    fn add(&mut self, other: Self) {
        self.input = self.input.saturating_add(other.input);
        self.cached = self.cached.saturating_add(other.cached);
        self.output = self.output.saturating_add(other.output);
    }
}

impl Spending {
    /// Counts the end of a call, and whether it used no more than was expected.
    pub(crate) fn ended(&mut self, outcome: Outcome, usage: Usage, is_enough: Option<bool>) {
        let place = OUTCOMES.iter().position(|(known, _)| *known == outcome);
        self.outcomes[place.unwrap_or_default()] += 1;
        self.used.add(usage);
        if let Some(is_enough) = is_enough.filter(|_| outcome.teaches()) {
            self.estimates[usize::from(!is_enough)] += 1;
        }
    }

    /// Counts what one owner used of one budget.
    pub(crate) fn spend(&mut self, who: (usize, &str, &str), usage: Usage, money: u64) {
        let sum = self.sum(who);
        sum.calls += 1;
        sum.usage.add(usage);
        sum.money = sum.money.saturating_add(money);
    }

    pub(crate) fn deny(&mut self, who: (usize, &str, &str)) {
        self.sum(who).denied += 1;
    }

    fn sum(&mut self, (rule, owner, model): (usize, &str, &str)) -> &mut Sum {
        let mut key = (rule, owner.to_owned(), model.to_owned());
        if self.by.len() >= SPENDERS_MAX && !self.by.contains_key(&key) {
            key = (rule, "others".to_owned(), "others".to_owned());
        }
        self.by.entry(key).or_default()
    }

    /// Those who used most, and how good the estimates are.
    pub(crate) fn view(&self, name: impl Fn(usize) -> String) -> Value {
        let mut sums: Vec<_> = self.by.iter().collect();
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse((sum.money, sum.usage.total())));
        let row = |(who, sum): &(&(usize, String, String), &Sum)| {
            json!({
                "budget": name(who.0), "owner": shown(&who.1), "model": shown(&who.2),
                "calls": sum.calls, "denied": sum.denied, "input": sum.usage.input,
                "cached": sum.usage.cached, "output": sum.usage.output,
                "money_millionths": sum.money,
            })
        };
        let [enough, short] = self.estimates;
        json!({
            "spenders": sums.iter().take(SHOWN_MAX).map(row).collect::<Vec<_>>(),
            "estimates": {"enough": enough, "short": short, "quantile": super::estimate::QUANTILE},
        })
    }

    pub(crate) fn write(&self, text: &mut Exposition) {
        let help = "Calls of models under budgets, by how they ended.";
        text.family("tollway_proxy_model_calls_total", "counter", help);
        for ((_, word), count) in OUTCOMES.iter().zip(self.outcomes) {
            text.sample(&[("outcome", word)], count as f64);
        }
        let help = "Tokens of models that were paid from budgets.";
        text.family("tollway_proxy_model_tokens_total", "counter", help);
        let Usage { input, cached, output } = self.used;
        for (word, count) in [("input", input), ("cached", cached), ("output", output)] {
            text.sample(&[("kind", word)], count as f64);
        }
        let help =
            "Answers of models that were no longer than expected (enough), or longer (short).";
        text.family("tollway_proxy_model_estimates_total", "counter", help);
        for (word, count) in ["enough", "short"].iter().zip(self.estimates) {
            text.sample(&[("result", word)], count as f64);
        }
    }
}
