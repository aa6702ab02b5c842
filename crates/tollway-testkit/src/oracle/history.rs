//! Random histories with the oracle's answers: scenarios that nobody had to write.
//!
//! The same seed and mix make the same history, and a shorter history is the beginning of a longer
//! one, so a failure can be shortened by asking for fewer steps. Times are drawn where answers
//! change: the oracle is asked along the way, and the next step often falls exactly on a wait that
//! it named, or one tick of the clock before.

mod draw;

use std::sync::Arc;
use std::time::Duration;

use tollway_core::dice::Dice;
use tollway_core::{Cost, Mode, OnChange, Policy, Timestamp};

use super::Oracle;
use crate::conformance::{
    Ask, Capabilities, Figures, Operation, Outcome, Scenario, Step, Subject, Verb, Wait, run,
};

/// What a history is made of.
#[derive(Clone, Debug)]
pub struct Mix {
    /// How many steps.
    pub steps: usize,
    /// Which algorithms; a policy of each.
    pub kinds: &'static [Kind],
    /// How many keys there are for each policy.
    pub keys: u64,
    /// What the subject can express: verbs, charges in a request, counting, and its clock.
    pub capabilities: Capabilities,
    /// Whether a request may name the same key twice.
    pub repeats: bool,
    /// Whether a reservation may count a charge.
    pub counted_reservations: bool,
    /// When it starts.
    pub start: Timestamp,
    /// Whether some steps come late: their time is before that of steps before them. What a key is
    /// told then may depend on what became of others in the same place, so there is to be one key
    /// and one kind.
    pub late: bool,
    /// Whether all policies have one name and this rule for a change of numbers: then every step
    /// may be under other ones. A request then has one charge.
    pub changes: Option<OnChange>,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            steps: 80,
            kinds: &Kind::ALL,
            keys: 2,
            capabilities: Capabilities { charges_max: 3, ..Capabilities::FULL },
            repeats: true,
            counted_reservations: true,
            start: Timestamp::from_millis(1_700_000_000_000),
            late: false,
            changes: None,
        }
    }
}

/// An algorithm, without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the algorithm of the same name")]
pub enum Kind {
    Gcra,
    LeakyBucket,
    SlidingWindow,
    FixedWindow,
    Concurrency,
    CalendarWindow,
    Shares,
}

impl Kind {
    /// Every algorithm of one bucket for a key.
    pub const ALL: [Self; 6] = [
        Self::Gcra,
        Self::LeakyBucket,
        Self::SlidingWindow,
        Self::FixedWindow,
        Self::Concurrency,
        Self::CalendarWindow,
    ];
}

/// The history that `seed` names, as a scenario with the oracle's answers as expectations. Its
/// times are absolute.
///
/// # Panics
///
/// If the mix has no kinds, no keys or no verbs.
pub fn history(seed: u64, mix: &Mix) -> Scenario {
    let mut dice = Dice::new(seed).child(0);
    let era = draw::era(&mut dice);
    let mut policies = Vec::new();
    let has_namesakes = (1..mix.kinds.len()).any(|at| mix.kinds[..at].contains(&mix.kinds[at]));
    // Two of each kind, so that numbers change within a kind too.
    for kind in mix.kinds.repeat(1 + usize::from(mix.changes.is_some())) {
        let mut policy = draw::policy(kind, era, &mut dice);
        // A million units carried back to one a month would be the end of time.
        while mix.changes.is_some() && policy.algorithm().limit() > 100 {
            policy = draw::policy(kind, era, &mut dice);
        }
        policies.push(Arc::new(match mix.changes {
            Some(rule) => draw::renamed(&policy, "changing").on_change(rule),
            // Several of one kind have one name, and all numbers are to count for themselves.
            None if has_namesakes => policy.on_change(OnChange::Reset),
            None => policy,
        }));
    }
    let mut writer = Writer {
        mix,
        dice: Dice::new(seed).child(1),
        oracle: Oracle::new(),
        hot: draw::one_of(&mut dice, &policies).clone(),
        policies,
        labels: 0,
        now: mix.start,
    };
    let steps = (0..mix.steps).map(|_| writer.step()).collect();
    let tags: &[&str] = if mix.late { &["history", "late-reading"] } else { &["history"] };
    Scenario {
        name: format!("history {seed}"),
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        policies: writer.policies,
        align: Duration::from_nanos(1),
        absolute: true,
        steps,
    }
}

/// The first answer of `subject` to a history that is not the oracle's, with what led to it.
///
/// # Errors
///
/// If there is one.
pub fn judge(subject: &mut dyn Subject, scenario: &Scenario) -> Result<(), String> {
    let report = run(subject, std::slice::from_ref(scenario));
    let Some(first) = report.mismatches.first() else {
        return if report.passed() { Ok(()) } else { Err(report.to_string()) };
    };
    let led = scenario.steps[..=first.step].iter().map(|step| format!("\n    {step}"));
    Err(format!("{first}\nunder {:#?}\nafter{}", scenario.policies, led.collect::<String>()))
}

struct Writer<'a> {
    mix: &'a Mix,
    dice: Dice,
    oracle: Oracle,
    policies: Vec<Arc<Policy>>,
    hot: Arc<Policy>,
    labels: u64,
    now: Timestamp,
}

impl Writer<'_> {
    fn step(&mut self) -> Step {
        let operation = self.operation();
        let at = self.now.before(self.delay(&operation));
        let expect = self.oracle.apply(at, &operation).expect("the oracle always answers");
        self.now = self.now.after(self.pause(&operation, &expect));
        Step { offset_ns: at.as_nanos().into(), operation, expect }
    }

    fn operation(&mut self) -> Operation {
        loop {
            let verb = draw::verb(&mut self.dice);
            if self.mix.capabilities.verbs.contains(&verb) {
                return self.operation_of(verb);
            }
        }
    }

    fn operation_of(&mut self, verb: Verb) -> Operation {
        match verb {
            Verb::Check => Operation::Check(self.asks(self.mix.capabilities.counts)),
            Verb::Peek => Operation::Peek(self.asks(self.mix.capabilities.counts)),
            Verb::Take => Operation::Take(self.ask(false)),
            Verb::Refund => Operation::Refund(self.ask(false)),
            Verb::Reset => Operation::Reset(self.ask(false)),
            Verb::Reserve => {
                self.labels += 1;
                let counts = self.mix.capabilities.counts && self.mix.counted_reservations;
                Operation::Reserve { label: self.labels.to_string(), asks: self.asks(counts) }
            }
            Verb::Commit => Operation::Commit { label: self.label(), costs: self.costs() },
            Verb::Cancel => Operation::Cancel { label: self.label() },
        }
    }

    fn asks(&mut self, counts: bool) -> Vec<Ask> {
        let many = draw::below(&mut self.dice, 4) == 0;
        let many = many && self.mix.changes.is_none();
        let most = if many { self.mix.capabilities.charges_max.min(4) as u64 } else { 1 };
        let wanted = 1 + draw::below(&mut self.dice, most);
        let mut asks: Vec<Ask> = Vec::new();
        for _ in 0..wanted {
            let ask = self.ask(counts);
            let same = |other: &Ask| other.policy() == ask.policy();
            let known = |other: &Ask| same(other) && other.key() == ask.key();
            // What one owner took of a tree may change who lends to the next.
            let is_tree = ask.policy().shares().is_some() && asks.iter().any(same);
            if !is_tree && (self.mix.repeats || !asks.iter().any(known)) {
                asks.push(ask);
            }
        }
        asks
    }

    /// One charge, of the hot policy and the hot key more often than not: what is spread evenly
    /// over many keys is seldom denied.
    fn ask(&mut self, counts: bool) -> Ask {
        let hot = draw::below(&mut self.dice, 2) == 0;
        let any = draw::one_of(&mut self.dice, &self.policies).clone();
        let policy = if hot { self.hot.clone() } else { any };
        let key = draw::below(&mut self.dice, self.mix.keys * 3).saturating_sub(self.mix.keys * 2);
        let limit = policy.algorithm().limit();
        // Floors are much smaller than what is at the root.
        let usual = if policy.shares().is_some() { limit / 8 + 1 } else { limit };
        let units = self.units(usual);
        // Sums of counted units stop at what a `u64` holds, and there the core is not exact.
        let counted = counts && units <= limit && draw::below(&mut self.dice, 8) == 0;
        let mode = if counted { Mode::Count } else { Mode::Enforce };
        let cost = Cost::new(units).unwrap_or(Cost::ONE);
        Ask::new(policy, format!("key {key}"), cost, mode).expect("the key is short")
    }

    fn units(&mut self, limit: u64) -> u64 {
        match draw::below(&mut self.dice, 16) {
            0 => limit,
            1..=4 => limit / 2 + 1,
            5..=7 => 1 + draw::below(&mut self.dice, limit),
            8 => *draw::one_of(&mut self.dice, &[limit, limit, limit + 1, u64::MAX]),
            _ => 1 + draw::below(&mut self.dice, limit.min(2)),
        }
    }

    /// A recent reservation, settled or not, or one that never was.
    fn label(&mut self) -> String {
        let back = draw::one_of(&mut self.dice, &[0, 0, 0, 1, 1, 2, 5]);
        self.labels.saturating_sub(*back).to_string()
    }

    fn costs(&mut self) -> Vec<u64> {
        let some = draw::below(&mut self.dice, 3);
        (0..some).map(|_| draw::below(&mut self.dice, 5)).collect()
    }

    /// How long ago whoever asks read the clock: often just now, sometimes several periods ago.
    fn delay(&mut self, operation: &Operation) -> Duration {
        if !self.mix.late {
            return Duration::ZERO;
        }
        let tick = self.mix.capabilities.clock.max(Duration::from_nanos(1));
        let policy = operation.asks().first().map_or(&self.policies[0], |ask| ask.policy());
        let scale = draw::scale(policy.algorithm());
        match draw::below(&mut self.dice, 8) {
            0..=3 => Duration::ZERO,
            4 => tick,
            5 => up(scale.mul_f64(self.dice.unit() / 8.0), tick),
            6 => up(scale, tick),
            _ => up(scale.mul_f64(self.dice.unit() * 3.0), tick),
        }
    }

    /// How long until the next step: often none, often exactly a wait that was just named or a tick
    /// less, sometimes anything, sometimes long.
    fn pause(&mut self, operation: &Operation, expect: &Outcome) -> Duration {
        let tick = self.mix.capabilities.clock.max(Duration::from_nanos(1));
        let policy = operation.asks().first().map_or(&self.policies[0], |ask| ask.policy());
        let scale = draw::scale(policy.algorithm());
        let mut waits: Vec<Duration> = expect.figures.iter().flat_map(waits).collect();
        waits.extend(expect.expires_after);
        waits.push(scale / 3);
        let wait = up(*draw::one_of(&mut self.dice, &waits), tick).min(scale * 4);
        match draw::below(&mut self.dice, 16) {
            0..=7 => Duration::ZERO,
            8..=10 => up(wait, tick),
            11..=12 => up(wait, tick).saturating_sub(tick),
            13 => tick,
            14 => up(scale.mul_f64(self.dice.unit() / 8.0), tick),
            _ => up(scale.mul_f64(self.dice.unit() * 3.0), tick),
        }
    }
}

fn waits(figures: &Figures) -> Vec<Duration> {
    let retry = match figures.retry {
        Some(Wait::After(wait)) => Some(wait),
        _ => None,
    };
    [retry, figures.next_after, figures.reset_after].into_iter().flatten().collect()
}

/// The first multiple of `tick` that is not before `wait`.
fn up(wait: Duration, tick: Duration) -> Duration {
    let nanos = wait.as_nanos().div_ceil(tick.as_nanos()) * tick.as_nanos();
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
