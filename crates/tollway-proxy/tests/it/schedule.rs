//! The burst of the proxy in virtual time: the same budgets, profile and fake upstream, no network.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use tollway_core::Timestamp;
use tollway_core::fields::Lines;
use tollway_sim::fake_api::{Request, Response, Spec, Upstream};
use tollway_upstream::budget::{Budgets, Claim, Granted, Settings, Ticket, Waiter};
use tollway_upstream::profile::{self, Profile};

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
/// How long a request or an answer travels.
const WAY: Duration = Duration::from_millis(25);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(usize, Ticket),
    ProxyReply(usize, Ticket),
    Look,
}

struct Burst {
    budgets: Budgets,
    upstream: Upstream,
    targets: Vec<String>,
    agenda: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    sequence: u64,
    waiting: HashMap<Waiter, usize>,
    answers: HashMap<usize, Response>,
    profile: std::sync::Arc<Profile>,
    answered: usize,
    limited: usize,
    ended: Timestamp,
}

impl Burst {
    fn of(spec: Spec, targets: Vec<String>) -> Self {
        let profile = Profile::builtin("discord").unwrap();
        Self {
            budgets: Budgets::new(profile.clone(), Settings::default()),
            upstream: Upstream::new(spec),
            targets,
            agenda: BinaryHeap::new(),
            sequence: 0,
            waiting: HashMap::new(),
            answers: HashMap::new(),
            profile,
            answered: 0,
            limited: 0,
            ended: START,
        }
    }

    /// All requests at once, until all are served; how long it took.
    fn run(&mut self) -> Duration {
        for number in 0..self.targets.len() {
            self.ask(number, START);
        }
        while let Some(Reverse((now, _, event))) = self.agenda.pop() {
            match event {
                Event::Arrive(number, ticket) => self.arrive(number, ticket, now),
                Event::ProxyReply(number, ticket) => self.answer(number, ticket, now),
                Event::Look => {}
            }
            while let Some((waiter, ticket)) = self.budgets.next(now) {
                let number = self.waiting.remove(&waiter).unwrap();
                self.at(now.after(WAY), Event::Arrive(number, ticket));
            }
            if let Some(at) = self.budgets.earliest(now).filter(|at| *at > now) {
                self.at(at, Event::Look);
            }
            if self.answered == self.targets.len() {
                break;
            }
        }
        self.ended.since(START)
    }

    fn ask(&mut self, number: usize, now: Timestamp) {
        let route = self.profile.route("POST", &self.targets[number]);
        match self.budgets.claim(&Claim::new(route), now).unwrap() {
            Granted::Now(ticket) => self.at(now.after(WAY), Event::Arrive(number, ticket)),
            Granted::Later(waiter) => {
                self.waiting.insert(waiter, number);
            }
        }
    }

    fn arrive(&mut self, number: usize, ticket: Ticket, now: Timestamp) {
        let target = &self.targets[number];
        let request = Request { method: "POST", target, credential: Some("Bot one"), body: b"{}" };
        let response = self.upstream.answer(&request, now);
        let back = now.after(WAY + response.delay);
        self.answers.insert(number, response);
        self.at(back, Event::ProxyReply(number, ticket));
    }

    fn answer(&mut self, number: usize, ticket: Ticket, now: Timestamp) {
        let response = self.answers.remove(&number).unwrap();
        let lines: Lines<'_> =
            response.fields.iter().map(|(name, value)| (&**name, value.as_bytes())).collect();
        let observation = self.profile.read(&profile::Response {
            status: response.status,
            lines: &lines,
            body: response.body.as_bytes(),
            now: now.since(Timestamp::MIN),
        });
        self.budgets.observe(ticket, &observation, now);
        if response.status == 429 {
            self.limited += 1;
            return self.ask(number, now);
        }
        assert_eq!(response.status, 200);
        self.answered += 1;
        self.ended = now;
    }

    fn at(&mut self, at: Timestamp, event: Event) {
        self.sequence += 1;
        self.agenda.push(Reverse((at, self.sequence, event)));
    }
}

fn burst(kind: &str) -> Vec<String> {
    (0..500).map(|number| format!("/api/v10/{kind}/{}/messages", number % 20)).collect()
}

#[test]
fn the_makespan_of_500_over_20_fixed_buckets_is_within_a_twentieth_of_the_bound() {
    // 25 requests per channel, five per window of 5 s: the last five of each leave when four
    // periods have passed since the probe arrived. Those are 100, of which 50 a second may arrive;
    // and the answer must travel back.
    let mut run = Burst::of(Spec::named("discord").unwrap(), burst("channels"));
    let took = run.run();
    let bound = WAY + 4 * Duration::from_secs(5) + Duration::from_secs(1) + WAY;
    assert_eq!((run.answered, run.limited), (500, 0));
    assert!(took >= bound && took.as_secs_f64() <= bound.as_secs_f64() * 1.05, "{took:?}");
}

#[test]
fn the_makespan_over_sliding_buckets_is_within_a_twentieth_of_the_bound() {
    let text = r#"
        fields = [
            ["X-RateLimit-Limit", "limit"],
            ["X-RateLimit-Remaining", "remaining"],
            ["X-RateLimit-Reset-After", "reset-after-decimal"],
            ["X-RateLimit-Bucket", "bucket"],
        ]
        [buckets]
        messages = { limit = 5, per = "5s", window = "sliding" }
        [[routes]]
        path = "/channels/{+channel}/messages"
        bucket = "messages"
    "#;
    // Five at once, then one a second: 20 more take 20 s. The upstream has no limit over all
    // routes, but the profile does, and it is not in the way.
    let mut run = Burst::of(Spec::from_toml(text).unwrap(), burst("channels"));
    let took = run.run();
    let bound = WAY + Duration::from_secs(20) + WAY;
    assert_eq!((run.answered, run.limited), (500, 0));
    assert!(took >= bound && took.as_secs_f64() <= bound.as_secs_f64() * 1.05, "{took:?}");
}

#[test]
fn a_renamed_bucket_vanishing_fields_and_late_answers_cost_at_most_one_429_each() {
    let faults = r#"
        faults = [
            { do = "rename-buckets", at-request = 60 },
            { do = "hide-fields", on = true, at-request = 120 },
            { do = "hide-fields", on = false, at-request = 130 },
            { do = "late", count = 40, by = "6s", at-request = 200 },
            { do = "garble", count = 10, at-request = 300 },
            { do = "html", count = 1, at-request = 400 },
            { do = "skew", ahead-ms = -40000, at-request = 450 },
        ]
    "#;
    let mut spec = Spec::named("discord").unwrap();
    spec.faults = Spec::from_toml(faults).unwrap().faults;
    let mut run = Burst::of(spec, burst("channels"));
    let took = run.run();
    assert_eq!(run.answered, 500);
    // Seven causes, the HTML page certain.
    assert!((1..=7).contains(&run.limited), "{} refusals in {took:?}", run.limited);
    assert!(took < Duration::from_secs(60), "a stall: {took:?}");
}
