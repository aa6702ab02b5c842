//! Pressure on the memory for states: its metrics, and a log line when it begins and when it is
//! over.
//!
//! ```text
//!   forgotten or refused rises:  WARN             one for forgetting, one for refusing
//!   a minute without either:          INFO        with what it has come to
//! ```
//!
//! Looked at once a second. Because only a quiet minute ends it, there are at most three lines a
//! minute, whatever is sent.

use std::time::{Duration, Instant};

use tollway_memory::{MemoryStore, Pressure};
use tracing::{info, warn};

use crate::metrics::Exposition;
use crate::service::Service;

/// How long nothing must be forgotten or refused until the pressure is over.
const QUIET: Duration = Duration::from_secs(60);

/// Remembers what was seen last.
#[derive(Debug, Default)]
pub(crate) struct PressureWatch {
    /// `None` before the first look: what a restored snapshot had no room for is told at the start.
    seen: Option<Pressure>,
    episode: Option<Episode>,
}

/// From the first key that was forgotten or refused to the last.
#[derive(Clone, Copy, Debug)]
struct Episode {
    before: Pressure,
    began: Instant,
    latest: Instant,
    told: Told,
}

/// What the log was told of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    forgets: bool,
    refuses: bool,
}

/// What there is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Forgets,
    Refuses,
    Over { lasted: Duration, forgotten: u64, refused: u64 },
}

impl PressureWatch {
    /// Looks at the store in this process, if it is there, and tells the log what is new.
    pub(crate) fn look(&mut self, service: &Service) {
        let Some(memory) = service.enforcer.memory() else { return };
        for news in self.see(memory.pressure(), Instant::now()).into_iter().flatten() {
            tell(news, memory, service);
        }
    }

    /// What is new at `now`.
    fn see(&mut self, pressure: Pressure, now: Instant) -> [Option<News>; 2] {
        let before = self.seen.replace(pressure).unwrap_or(pressure);
        let forgets = pressure.forgotten > before.forgotten;
        let refuses = pressure.refused > before.refused;
        if forgets || refuses {
            let fresh = Episode { before, began: now, latest: now, told: Told::default() };
            let episode = self.episode.get_or_insert(fresh);
            episode.latest = now;
            let is_new = (forgets && !episode.told.forgets, refuses && !episode.told.refuses);
            episode.told.forgets |= forgets;
            episode.told.refuses |= refuses;
            return [is_new.0.then_some(News::Forgets), is_new.1.then_some(News::Refuses)];
        }
        let over = self.episode.take_if(|episode| now.duration_since(episode.latest) >= QUIET);
        let news = over.map(|episode| News::Over {
            lasted: episode.latest.duration_since(episode.began),
            forgotten: pressure.forgotten - episode.before.forgotten,
            refused: pressure.refused - episode.before.refused,
        });
        [news, None]
    }
}

fn tell(news: News, memory: &MemoryStore, service: &Service) {
    let Pressure { forgotten, refused, .. } = memory.pressure();
    match news {
        News::Forgets => warn!(
            forgotten_total = forgotten,
            most_of = worst(memory, service, |pressure| pressure.forgotten),
            "memory for states is full: keys are forgotten before their time; \
             give it more --memory-bytes, or look at the top keys"
        ),
        News::Refuses => warn!(
            refused_total = refused,
            most_of = worst(memory, service, |pressure| pressure.refused),
            "memory for states is full of keys with nothing left: new keys are denied; \
             give it more --memory-bytes, look at the top keys, or set when_full"
        ),
        News::Over { lasted, forgotten, refused } => {
            let lasted_s = lasted.as_secs();
            info!(
                lasted_s,
                forgotten,
                refused,
                "for a minute no key was forgotten or refused for want of memory"
            );
        }
    }
}

/// The policy that it has cost most since the start: who is flooded, most likely.
fn worst(memory: &MemoryStore, service: &Service, cost: fn(&Pressure) -> u64) -> Option<String> {
    let rules = service.enforcer.rules();
    let costs = rules.rules().iter().map(|rule| {
        let policy = rule.policy();
        (cost(&memory.pressure_of(policy)), policy.name())
    });
    costs.filter(|(cost, _)| *cost > 0).max().map(|(_, name)| name.to_owned())
}

/// How full the store is, and what that has cost.
pub(crate) fn write(memory: &MemoryStore, service: &Service, text: &mut Exposition) {
    let now = service.clock().now();
    let pressure = memory.pressure();
    text.gauge("tollway_keys", "Keys with a state in memory.", pressure.used as f64);
    let (forgotten, refused) = (pressure.forgotten, pressure.refused);
    text.counter("tollway_keys_forgotten_total", "Forgotten early: no room.", forgotten);
    text.counter("tollway_keys_refused_total", "New keys refused for lack of memory.", refused);
    let help = "Keys of the snapshot for which there was no room at the start.";
    text.counter("tollway_snapshot_keys_dropped_total", help, memory.dropped());
    write_policies(memory, service, text);
    let fill = memory.fill(now);
    let rooms = [
        ("keys", fill.keys),
        ("wide_keys", fill.wide_keys),
        ("variable_bytes", fill.variable_bytes),
    ];
    text.family(
        "tollway_memory_fill_ratio",
        "gauge",
        "Share of the memory for states that is in use.",
    );
    for (room, ratio) in rooms {
        text.sample(&[("room", room)], ratio);
    }
}

/// What it has cost each policy.
fn write_policies(memory: &MemoryStore, service: &Service, text: &mut Exposition) {
    type Pick = fn(&Pressure) -> u64;
    let families: [(&str, &str, Pick); 2] = [
        ("tollway_policy_keys_forgotten_total", "Forgotten early, by policy.", |p| p.forgotten),
        ("tollway_policy_keys_refused_total", "Newcomers refused, by policy.", |p| p.refused),
    ];
    let rules = service.enforcer.rules();
    for (name, help, pick) in families {
        text.family(name, "counter", help);
        for policy in rules.rules().iter().map(|rule| rule.policy()) {
            let count = pick(&memory.pressure_of(policy));
            text.sample(&[("policy", policy.name())], count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressure(forgotten: u64, refused: u64) -> Pressure {
        Pressure { used: 0, forgotten, refused }
    }

    #[test]
    fn pressure_is_told_once_when_it_begins_and_once_when_it_is_over() {
        let (mut watch, start) = (PressureWatch::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watch.see(pressure(7, 0), at(0)), [None; 2], "what was before the first look");
        assert_eq!(watch.see(pressure(9, 0), at(1)), [Some(News::Forgets), None]);
        for second in 2..100 {
            assert_eq!(watch.see(pressure(9 + second, 0), at(second)), [None; 2]);
        }
        assert_eq!(watch.see(pressure(200, 5), at(100)), [None, Some(News::Refuses)]);
        assert_eq!(watch.see(pressure(200, 6), at(101)), [None; 2]);
        assert_eq!(watch.see(pressure(200, 6), at(160)), [None; 2], "not yet a minute");
        let lasted = Duration::from_secs(100);
        let over = News::Over { lasted, forgotten: 193, refused: 6 };
        assert_eq!(watch.see(pressure(200, 6), at(161)), [Some(over), None]);
        assert_eq!(watch.see(pressure(200, 6), at(162)), [None; 2]);
        assert_eq!(watch.see(pressure(200, 7), at(163)), [None, Some(News::Refuses)]);
    }

    #[test]
    fn pressure_that_comes_and_goes_is_one_episode() {
        let (mut watch, start) = (PressureWatch::default(), Instant::now());
        let told = (0..600).map(|second| {
            let flapping = pressure(second / 20, second / 30);
            let news = watch.see(flapping, start + Duration::from_secs(second));
            news.iter().flatten().count()
        });
        assert_eq!(told.sum::<usize>(), 2);
    }
}
