//! The conformance file and random histories: decisions equal to the core's, charge for charge.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::runtime::Runtime;
use tollway_core::{Charge, Grant, Policy, ReservationId, Reserved, Store, Timestamp};
use tollway_redis::{RedisStore, Settings};
use tollway_testkit::conformance::{
    Ask, Capabilities, Failure, Figures, OnCore, Operation, Outcome, Scenario, Subject, run,
    scenarios,
};
use tollway_testkit::oracle::{Kind, Mix, history};

use tollway_testkit::servers::{Engine, full};

/// A store on a real server that decides at the times it is given.
pub(crate) struct OnServer {
    url: String,
    runtime: Runtime,
    store: RedisStore,
    reservations: HashMap<String, ReservationId>,
    /// Settles with a store that has not made the reservation.
    settles_elsewhere: bool,
    elsewhere: RedisStore,
    /// Gives all keys one hash tag, so that a cluster can decide them together.
    has_one_tag: bool,
}

impl OnServer {
    pub(crate) fn new(url: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let prefix = fresh_prefix();
        let store = runtime.block_on(connect(url, &prefix, false));
        let elsewhere = runtime.block_on(connect(url, &prefix, false));
        let reservations = HashMap::new();
        let url = url.to_owned();
        Self {
            url,
            runtime,
            store,
            reservations,
            settles_elsewhere: false,
            elsewhere,
            has_one_tag: false,
        }
    }

    pub(crate) fn settling_elsewhere(self) -> Self {
        Self { settles_elsewhere: true, ..self }
    }

    pub(crate) fn with_one_tag(self) -> Self {
        Self { has_one_tag: true, ..self }
    }

    /// The same operation on keys as this subject wants them.
    fn tagged(&self, operation: &Operation) -> Operation {
        let tag = |ask: &Ask| {
            let key = [b"{c}".as_slice(), ask.key()].concat();
            Ask::new(Arc::clone(ask.policy()), key, ask.cost(), ask.mode()).unwrap()
        };
        let all = |asks: &[Ask]| asks.iter().map(tag).collect();
        match operation.clone() {
            operation if !self.has_one_tag => operation,
            Operation::Check(asks) => Operation::Check(all(&asks)),
            Operation::Peek(asks) => Operation::Peek(all(&asks)),
            Operation::Take(ask) => Operation::Take(tag(&ask)),
            Operation::Refund(ask) => Operation::Refund(tag(&ask)),
            Operation::Reset(ask) => Operation::Reset(tag(&ask)),
            Operation::Reserve { label, asks } => Operation::Reserve { label, asks: all(&asks) },
            settled => settled,
        }
    }

    fn reservation(&self, label: &str) -> ReservationId {
        self.reservations.get(label).copied().unwrap_or(ReservationId(0))
    }

    fn settler(&self) -> &RedisStore {
        if self.settles_elsewhere { &self.elsewhere } else { &self.store }
    }

    fn reserved(&mut self, label: &str, reserved: Reserved, operation: &Operation) -> Outcome {
        let outcome = Outcome::of_verdict(&reserved.verdict, operation);
        let Some(reservation) = reserved.reservation else { return outcome };
        self.reservations.insert(label.to_owned(), reservation.id);
        Outcome { expires_after: Some(reservation.expires_after), ..outcome }
    }
}

async fn connect(url: &str, prefix: &str, key_tags: bool) -> RedisStore {
    let timeout = std::time::Duration::from_secs(20);
    let settings = Settings { prefix: prefix.to_owned(), timeout, key_tags, ..Settings::default() };
    RedisStore::connect_with_callers_time(url, settings).await.unwrap()
}

fn fresh_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("conf{}:", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Subject for OnServer {
    /// The server's clock decides, one request at a time: nobody comes late.
    fn capabilities(&self) -> Capabilities {
        Capabilities { declines: &["late-reading"], ..Capabilities::FULL }
    }

    fn begin(&mut self, _policies: &[Arc<Policy>], _base: Timestamp) -> Result<(), Failure> {
        let prefix = fresh_prefix();
        self.store = self.runtime.block_on(connect(&self.url, &prefix, self.has_one_tag));
        self.elsewhere = self.runtime.block_on(connect(&self.url, &prefix, self.has_one_tag));
        self.reservations.clear();
        Ok(())
    }

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure> {
        let store = self.store.clone();
        let runtime = self.runtime.handle().clone();
        let operation = &self.tagged(operation);
        match operation {
            Operation::Check(asks) => {
                let verdict = runtime.block_on(store.check(&charges(asks), at))?;
                Ok(Outcome::of_verdict(&verdict, operation))
            }
            Operation::Peek(asks) => {
                let verdict = runtime.block_on(store.peek(&charges(asks), at))?;
                Ok(Outcome::of_verdict(&verdict, operation))
            }
            Operation::Take(ask) => {
                Ok(granted(runtime.block_on(store.take(&ask.charge(), at))?, ask))
            }
            Operation::Refund(ask) => {
                Ok(Outcome::of_snapshot(runtime.block_on(store.refund(&ask.charge(), at))?))
            }
            Operation::Reset(ask) => {
                runtime.block_on(store.reset(&ask.charge(), at))?;
                Ok(Outcome::default())
            }
            Operation::Reserve { label, asks } => {
                let reserved = runtime.block_on(store.reserve(&charges(asks), at))?;
                Ok(self.reserved(label, reserved, operation))
            }
            Operation::Commit { label, costs } => {
                let id = self.reservation(label);
                let settled = runtime.block_on(self.settler().commit(id, costs, at))?;
                Ok(Outcome::of_settlement(settled))
            }
            Operation::Cancel { label } => {
                let id = self.reservation(label);
                let settled = runtime.block_on(self.settler().cancel(id, at))?;
                Ok(Outcome::of_settlement(settled))
            }
        }
    }
}

fn charges(asks: &[Ask]) -> Vec<Charge<'_>> {
    asks.iter().map(Ask::charge).collect()
}

fn granted(grant: Grant, ask: &Ask) -> Outcome {
    let denied = !grant.decision.is_allowed();
    Outcome {
        allowed: Some(!denied),
        denied_by: denied.then(|| ask.policy().name().to_owned()),
        figures: vec![Figures::from(&grant.decision)],
        granted: Some(grant.granted),
        ..Outcome::default()
    }
}

#[test]
fn the_conformance_file_holds_on_a_real_server() {
    for engine in Engine::available() {
        let mut subject = OnServer::new(&engine.shared().url());
        let report = run(&mut subject, &scenarios().unwrap());
        assert!(report.passed(), "{engine:?}: {report}");
    }
}

#[test]
fn reservations_may_be_settled_by_a_process_that_did_not_make_them() {
    for engine in Engine::available() {
        let mut subject = OnServer::new(&engine.shared().url()).settling_elsewhere();
        let report = run(&mut subject, &scenarios().unwrap());
        assert!(report.passed(), "{engine:?}: {report}");
    }
}

#[test]
fn random_histories_are_answered_as_the_oracle_answers_them() {
    let histories: u64 = if full() { 5_000 } else { 250 };
    for engine in Engine::available() {
        let mut subject = OnServer::new(&engine.shared().url());
        let scenarios: Vec<_> =
            (0..histories).map(|seed| history(seed, &single_charges())).collect();
        let report = run(&mut subject, &scenarios);
        assert!(report.passed(), "{engine:?}: {report}");
        assert_eq!(report.ran.len() as u64, histories);
    }
}

/// Their states are one value: what is written of one must leave the others as they are, with open
/// reservations and without, in whatever order requests name them. (Time runs forwards here: a
/// state that has nothing to say is left out of the value as it would expire on its own.)
#[test]
fn states_that_share_a_value_do_not_disturb_each_other() {
    const KINDS: [Kind; 5] = [Kind::Gcra, Kind::Gcra, Kind::Gcra, Kind::Gcra, Kind::FixedWindow];
    let histories: u64 = if full() { 5_000 } else { 150 };
    for engine in Engine::available() {
        let mut subject = OnServer::new(&engine.shared().url());
        let mix = Mix { kinds: &KINDS, keys: 1, ..single_charges() };
        let scenarios: Vec<_> = (0..histories).map(|seed| history(seed, &mix)).collect();
        let report = run(&mut subject, &scenarios);
        assert!(report.passed(), "{engine:?}: {report}");
    }
}

/// Among plain policies, with takes, refunds, resets, and reservations that others settle.
#[test]
fn trees_of_owners_are_answered_as_the_oracle_answers_them() {
    let histories: u64 = if full() { 5_000 } else { 60 };
    let kinds: [&'static [Kind]; 2] =
        [&[Kind::Shares], &[Kind::Shares, Kind::Gcra, Kind::SlidingWindow, Kind::Concurrency]];
    for engine in Engine::available() {
        let mut subject = OnServer::new(&engine.shared().url()).settling_elsewhere();
        for kinds in kinds {
            let mix = Mix { kinds, keys: 4, ..single_charges() };
            let scenarios: Vec<_> = (0..histories).map(|seed| history(seed, &mix)).collect();
            let report = run(&mut subject, &scenarios);
            assert!(report.passed(), "{engine:?}: {report}");
        }
    }
}

#[test]
fn the_oldest_supported_redis_answers_the_same() {
    let Some(engine) = Engine::oldest() else { return };
    let mut subject = OnServer::new(&engine.shared().url());
    let report = run(&mut subject, &scenarios().unwrap());
    assert!(report.passed(), "{report}");
    let histories = if full() { 1_000 } else { 50 };
    let histories: Vec<_> = (0..histories).map(|seed| history(seed, &single_charges())).collect();
    let report = run(&mut subject, &histories);
    assert!(report.passed(), "{report}");
}

/// What the oracle judges: it takes several charges on one key for one, and the core does not.
pub(crate) fn single_charges() -> Mix {
    Mix { repeats: false, ..Mix::default() }
}

#[test]
fn histories_in_which_time_runs_backwards_are_answered_as_the_core_answers_them() {
    let histories: u64 = if full() { 2_000 } else { 100 };
    for engine in Engine::available() {
        let mut subject = OnServer::new(&engine.shared().url());
        for seed in 0..histories {
            let scenario = shuffled_time(history(seed, &Mix::default()), seed);
            let mut core = OnCore::by_server_clock();
            core.begin(&scenario.policies, Timestamp::MIN).unwrap();
            subject.begin(&scenario.policies, Timestamp::MIN).unwrap();
            for step in &scenario.steps {
                let at = step.at(Timestamp::MIN);
                let expected = core.apply(at, &step.operation).unwrap();
                let answered = subject.apply(at, &step.operation).unwrap();
                assert_eq!(answered, expected, "{engine:?}, history {seed}, {step}");
            }
        }
    }
}

/// The same history with its clock set back now and then, by up to ten seconds, and without
/// reservations: an expired one stays expired in a map and does not in a store with a clock.
fn shuffled_time(mut scenario: Scenario, seed: u64) -> Scenario {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut back_ns = 0;
    scenario.steps.retain(|step| {
        use tollway_testkit::conformance::Verb;
        !matches!(step.operation.verb(), Verb::Reserve | Verb::Commit | Verb::Cancel)
    });
    for step in &mut scenario.steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state.is_multiple_of(8) {
            back_ns = i128::from(state % 10_000_000_000);
        }
        step.offset_ns -= back_ns;
    }
    scenario
}

/// How many of the calls at these times are admitted.
fn saturate(quota: &str, calls: impl Iterator<Item = u64>) -> u64 {
    let policy = Arc::new(Policy::parse("saturated", quota).unwrap());
    let mut subject = OnServer::new(&Engine::Redis.shared().url());
    let ask = Ask::new(policy, "k", tollway_core::Cost::ONE, tollway_core::Mode::Enforce);
    let check = Operation::Check(vec![ask.unwrap()]);
    let answers = calls.map(|at_ns| {
        let at = Timestamp::from_nanos(1_700_000_000_000_000_000 + at_ns);
        subject.apply(at, &check).unwrap().allowed == Some(true)
    });
    answers.filter(|allowed| *allowed).count() as u64
}

#[test]
fn no_limit_drifts_from_the_slowest_to_the_fastest() {
    // A million a second, asked every half microsecond for 2 ms: one each microsecond.
    let calls = (0..4_000).map(|n| n * 500);
    assert_eq!(saturate("1000000/1s burst 1", calls), 2_000);
    // Seven a second, which is no whole number of nanoseconds, asked every 10 ms for 9.99 s: two at
    // once, and 69 that were due since.
    assert_eq!(saturate("7/1s burst 2", (0..1_000).map(|n| n * 10_000_000)), 2 + 69);
    // One a month, asked every three days for 25 years.
    let day_ns = 86_400_000_000_000;
    assert_eq!(saturate("1/30d", (0..3_000).map(|n| n * 3 * day_ns)), 300);
}
