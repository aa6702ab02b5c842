//! What the queues have done of late: looked at every two seconds, for metrics and for the page.
//!
//! ```text
//!   Queue::stats ── every 2 s ──> the last figures ──> /metrics, sums in the events of the page
//!                                └─> five minutes of points ──> /dashboard/queue
//!   a lease in this process ──> how long its job had waited (histogram)
//! ```
//!
//! **Invariants.** A queue's name is chosen by the operator and may be a label; a group's never is.
//! At most [`QUEUES_MAX`] queues are looked at, the first by name, and each keeps [`POINTS_MAX`]
//! points. A store that does not answer leaves a gap.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tollway_core::Timestamp;
use tollway_http::metrics::{BUCKETS, Bounds, Exposition, Histogram};
use tollway_queue::{Lease, Stats, Totals};

use crate::drain::Stop;
use crate::service::Service;

const EVERY: Duration = Duration::from_secs(2);
/// Five minutes.
const POINTS_MAX: usize = 150;
/// The most queues that are looked at.
const QUEUES_MAX: usize = 200;
/// Jobs that could start are taken within milliseconds where there is a worker.
const NO_WORKER: Duration = Duration::from_secs(10);
/// Jobs that run may take long; where none starts or ends for so long, somebody should look.
const NONE_ENDS: Duration = Duration::from_secs(300);

/// From what a free worker takes to what a limit of a day takes.
#[derive(Debug)]
pub(crate) struct WaitBounds;

impl Bounds for WaitBounds {
    const NS: [u64; BUCKETS - 1] = [
        1_000_000,
        10_000_000,
        100_000_000,
        1_000_000_000,
        5_000_000_000,
        30_000_000_000,
        120_000_000_000,
        600_000_000_000,
        3_600_000_000_000,
        21_600_000_000_000,
    ];
}

/// What the queues have done of late.
#[derive(Debug, Default)]
pub(crate) struct QueueWatch {
    seen: Mutex<BTreeMap<String, Seen>>,
    waits: Mutex<BTreeMap<String, Arc<Histogram<WaitBounds>>>>,
}

/// What was seen of one queue.
#[derive(Debug, Default)]
struct Seen {
    at: Timestamp,
    stats: Stats,
    points: VecDeque<Point>,
    /// Since when jobs wait that nothing but a pause, a missing worker or other jobs holds up.
    held_since: Option<(Held, Timestamp)>,
}

/// What holds up jobs that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Paused,
    NoWorker,
    NoneEnds,
}

/// One look at a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    at_ms: u64,
    waiting: u64,
    delayed: u64,
    running: u64,
    /// Per second since the look before: enqueued, started, done, failed or refused.
    rates: [f64; 4],
}

impl Seen {
    /// Notes a look; `stats` are those of `now`.
    fn note(&mut self, stats: Stats, now: Timestamp) {
        let passed = now.since(self.at).as_secs_f64();
        let is_first = self.points.is_empty();
        let before = std::mem::replace(&mut self.stats, stats);
        self.at = now;
        let (before, after) = (counted(&before.totals), counted(&self.stats.totals));
        let moves = before[1..] != after[1..];
        let held = held(&self.stats, now).filter(|held| *held == Held::Paused || !moves);
        let since = self.held_since.filter(|(before, _)| held == Some(*before));
        self.held_since = held.map(|held| (held, since.map_or(now, |(_, since)| since)));
        let mut rates = [0.0; 4];
        // What was counted before the first look did not happen in the last seconds.
        if !is_first && passed > 0.0 {
            for (rate, (before, after)) in rates.iter_mut().zip(before.into_iter().zip(after)) {
                *rate = after.saturating_sub(before) as f64 / passed;
            }
        }
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        let counts = self.stats.queue;
        self.points.push_back(Point {
            at_ms: now.as_nanos() / 1_000_000,
            waiting: counts.waiting,
            delayed: counts.delayed,
            running: counts.running,
            rates,
        });
    }

    /// How long the oldest job that waits has waited, as of the last look.
    fn oldest(&self) -> Duration {
        self.stats.oldest.map_or(Duration::ZERO, |oldest| self.at.since(oldest))
    }
}

/// What holds up the jobs that wait, if it is not their limits.
fn held(stats: &Stats, now: Timestamp) -> Option<Held> {
    match stats {
        stats if stats.queue.waiting == 0 => None,
        Stats { paused: true, .. } => Some(Held::Paused),
        stats if stats.next.is_some_and(|next| next <= now) => Some(Held::NoWorker),
        stats if stats.next.is_none() && stats.queue.running > 0 => Some(Held::NoneEnds),
        _ => None,
    }
}

fn counted(totals: &Totals) -> [u64; 4] {
    [totals.enqueued, totals.leased, totals.done, totals.failed + totals.limited + totals.expired]
}

impl QueueWatch {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the waits of a queue's jobs are counted; nowhere beyond the bound on queues.
    pub(crate) fn waits(&self, queue: &str) -> Option<Arc<Histogram<WaitBounds>>> {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = waits.get(queue) {
            return Some(Arc::clone(known));
        }
        (waits.len() < QUEUES_MAX).then(|| Arc::clone(waits.entry(queue.to_owned()).or_default()))
    }

    /// Counts how long jobs had waited that were leased just now. Only first attempts: a job that
    /// is tried again did not wait all the time.
    pub(crate) fn leased<'a>(
        &self,
        queue: &str,
        leases: impl IntoIterator<Item = &'a Lease>,
        now: Timestamp,
    ) {
        let mut first = leases.into_iter().filter(|lease| lease.attempt == 1).peekable();
        if first.peek().is_none() {
            return;
        }
        let Some(waits) = self.waits(queue) else { return };
        first.for_each(|lease| waits.observe(now.since(lease.enqueued_at)));
    }

    /// Looks at every queue once.
    async fn look(&self, service: &Service) {
        let Some(queues) = service.queues() else { return };
        let Ok(listed) = queues.all().await else { return };
        let mut there = Vec::new();
        for queue in listed.iter().take(QUEUES_MAX) {
            let name = queue.name().as_str();
            // Not within the lock: a store may take its time.
            let Ok(stats) = queue.stats(None, 0).await else { return };
            self.seen().entry(name.to_owned()).or_default().note(stats, queue.now());
            there.push(name);
        }
        self.seen().retain(|name, _| there.contains(&&**name));
    }

    /// The sums over all queues, for the first view of the page; `None` before the first look.
    pub(crate) fn sums(&self) -> Option<Value> {
        let seen = self.seen();
        if seen.is_empty() {
            return None;
        }
        let sum = |pick: fn(&Seen) -> u64| seen.values().map(pick).sum::<u64>();
        let rate = |index: usize| {
            let last = |seen: &Seen| seen.points.back().map_or(0.0, |point| point.rates[index]);
            seen.values().map(last).sum::<f64>()
        };
        let oldest = seen.values().map(Seen::oldest).max().unwrap_or_default();
        Some(json!({
            "queues": seen.len(),
            "waiting": sum(|seen| seen.stats.queue.waiting),
            "delayed": sum(|seen| seen.stats.queue.delayed),
            "running": sum(|seen| seen.stats.queue.running),
            "dead": sum(|seen| seen.stats.dead),
            "started": rate(1),
            "done": rate(2),
            "oldest_ms": oldest.as_millis() as u64,
        }))
    }

    /// The queues in which jobs wait and nothing moves, and what holds them up.
    pub(crate) fn stuck(&self) -> Vec<Value> {
        let stuck = |(queue, seen): (&String, &Seen)| {
            let (held, since) = seen.held_since?;
            let (why, after) = match held {
                Held::Paused => ("paused", Duration::ZERO),
                Held::NoWorker => ("no_worker", NO_WORKER),
                Held::NoneEnds => ("none_ends", NONE_ENDS),
            };
            (seen.at.since(since) >= after).then(|| {
                json!({
                    "kind": "queue_stuck",
                    "queue": queue,
                    "why": why,
                    "waiting": seen.stats.queue.waiting,
                    "running": seen.stats.queue.running,
                    "oldest_ms": seen.oldest().as_millis() as u64,
                })
            })
        };
        self.seen().iter().filter_map(stuck).collect()
    }

    /// The last five minutes of a queue, if it was looked at.
    pub(crate) fn history(&self, queue: &str) -> Option<Value> {
        let seen = self.seen();
        let points = &seen.get(queue)?.points;
        let counts = |pick: fn(&Point) -> u64| points.iter().map(pick).collect::<Vec<_>>();
        let rates = |index: usize| {
            let rounded = |point: &Point| (point.rates[index] * 100.0).round() / 100.0;
            points.iter().map(rounded).collect::<Vec<_>>()
        };
        Some(json!({
            "at_ms": counts(|point| point.at_ms),
            "waiting": counts(|point| point.waiting),
            "delayed": counts(|point| point.delayed),
            "running": counts(|point| point.running),
            "enqueued": rates(0), "started": rates(1), "done": rates(2), "failed": rates(3),
        }))
    }

    /// Writes what there is to say by queue.
    pub(crate) fn write(&self, text: &mut Exposition) {
        let seen = self.seen();
        text.family("tollway_queue_jobs", "gauge", "Jobs by state.");
        for (queue, Seen { stats, .. }) in &*seen {
            let counts = stats.queue;
            let states = [
                ("waiting", counts.waiting),
                ("delayed", counts.delayed),
                ("running", counts.running),
                ("dead", stats.dead),
                ("done", stats.done),
            ];
            for (state, jobs) in states {
                text.sample(&[("queue", &**queue), ("state", state)], jobs as f64);
            }
        }
        let help = "Jobs enqueued, leased and so on since the queue was made or opened.";
        text.family("tollway_queue_jobs_total", "counter", help);
        for (queue, Seen { stats, .. }) in &*seen {
            for (event, count) in events(&stats.totals) {
                text.sample(&[("queue", &**queue), ("event", event)], count as f64);
            }
        }
        type Pick = fn(&Seen) -> f64;
        let gauges: [(&str, &str, Pick); 3] = [
            (
                "tollway_queue_oldest_seconds",
                "How long the oldest waiting job has waited; 0 if none waits.",
                |seen| seen.oldest().as_secs_f64(),
            ),
            ("tollway_queue_groups", "Groups with jobs or limits in use.", |seen| {
                seen.stats.groups_total as f64
            }),
            ("tollway_queue_paused", "Whether the whole queue is paused.", |seen| {
                f64::from(u8::from(seen.stats.paused))
            }),
        ];
        for (name, help, pick) in gauges {
            text.family(name, "gauge", help);
            for (queue, seen) in &*seen {
                text.sample(&[("queue", &**queue)], pick(seen));
            }
        }
        drop(seen);
        let help = "From enqueueing to the first lease given by this process, delays included.";
        text.family("tollway_queue_wait_seconds", "histogram", help);
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        for (queue, waits) in &*waits {
            waits.write(&[("queue", &**queue)], text);
        }
    }
}

fn events(totals: &Totals) -> [(&'static str, u64); 9] {
    [
        ("enqueued", totals.enqueued),
        ("leased", totals.leased),
        ("done", totals.done),
        ("failed", totals.failed),
        ("limited", totals.limited),
        ("expired", totals.expired),
        ("dead", totals.dead),
        ("cancelled", totals.cancelled),
        ("missed", totals.missed),
    ]
}

/// Looks at the queues of `service` until told to stop.
pub(crate) async fn watch(service: Arc<Service>, mut stop: Stop) {
    let mut look = interval(EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while let Some(queues) = service.queues() {
        tokio::select! {
            () = stop.stopped() => return,
            _ = look.tick() => {}
        }
        tokio::select! {
            () = stop.stopped() => return,
            () = queues.watch().look(&service) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_queue::Counts;

    use super::*;

    fn stats(waiting: u64, enqueued: u64, done: u64) -> Stats {
        Stats {
            queue: Counts { waiting, ..Counts::default() },
            totals: Totals { enqueued, done, ..Totals::default() },
            oldest: (waiting > 0).then(|| Timestamp::from_millis(1_000)),
            ..Stats::default()
        }
    }

    fn noted(looks: &[(u64, Stats)]) -> QueueWatch {
        let watch = QueueWatch::default();
        for (at_ms, stats) in looks {
            let mut seen = watch.seen();
            let mail = seen.entry("mail".to_owned()).or_default();
            mail.note(stats.clone(), Timestamp::from_millis(*at_ms));
        }
        watch
    }

    #[test]
    fn rates_are_of_what_was_counted_between_two_looks() {
        let watch = noted(&[(2_000, stats(0, 100, 90)), (4_000, stats(5, 115, 100))]);
        let history = watch.history("mail").unwrap();
        assert_eq!(history["at_ms"], json!([2_000, 4_000]));
        assert_eq!(
            (&history["enqueued"], &history["done"]),
            (&json!([0.0, 7.5]), &json!([0.0, 5.0]))
        );
        assert_eq!(history["waiting"], json!([0, 5]));
        assert_eq!(watch.history("other"), None);
        let sums = watch.sums().unwrap();
        assert_eq!((&sums["waiting"], &sums["oldest_ms"]), (&json!(5), &json!(3_000)));
        // Counts that were set back, by a store that lost its data, are no rate below zero.
        let watch = noted(&[(2_000, stats(0, 100, 0)), (4_000, stats(0, 3, 0))]);
        assert_eq!(watch.history("mail").unwrap()["enqueued"], json!([0.0, 0.0]));
    }

    #[test]
    fn a_queue_is_stuck_when_jobs_wait_for_no_limit_and_nothing_moves() {
        let ready = |waiting, done| Stats {
            next: Some(Timestamp::from_millis(1_000)),
            ..stats(waiting, 9, done)
        };
        let why = |looks: &[(u64, Stats)]| {
            let stuck = noted(looks).stuck();
            stuck.first().map(|stuck| stuck["why"].as_str().unwrap().to_owned())
        };
        let told = |why: &str| Some(why.to_owned());
        let long = |stats: &dyn Fn() -> Stats, until_s: u64| -> Vec<(u64, Stats)> {
            (1..=until_s / 2).map(|look| (look * 2_000, stats())).collect()
        };
        assert_eq!(why(&long(&|| ready(3, 0), 10)), None, "a worker may be about to ask");
        assert_eq!(why(&long(&|| ready(3, 0), 12)), told("no_worker"));
        assert_eq!(why(&long(&|| ready(0, 0), 100)), None, "none waits");
        let far = Some(Timestamp::from_millis(9_000_000));
        let limited = || Stats { next: far, ..stats(3, 9, 0) };
        assert_eq!(why(&long(&limited, 1_000)), None, "its limit holds it up");
        assert_eq!(why(&[(2_000, Stats { paused: true, ..limited() })]), told("paused"));
        let moving: Vec<_> = (1..50).map(|look| (look * 2_000, ready(3, look))).collect();
        assert_eq!(why(&moving), None, "jobs are done");
        let full = || Stats {
            queue: Counts { waiting: 3, running: 2, ..Counts::default() },
            ..stats(3, 9, 0)
        };
        assert_eq!(why(&long(&full, 300)), None);
        assert_eq!(why(&long(&full, 302)), told("none_ends"));
    }

    #[test]
    fn points_and_queues_are_bounded() {
        let looks: Vec<_> = (0..400).map(|look| (look * 2_000, stats(look, look, 0))).collect();
        let history = noted(&looks).history("mail").unwrap();
        let waiting = history["waiting"].as_array().unwrap();
        assert_eq!((waiting.len(), &waiting[0]), (POINTS_MAX, &json!(250)));
        let watch = QueueWatch::default();
        let counted = (0..1_000).filter(|number| watch.waits(&format!("q{number}")).is_some());
        assert_eq!(counted.count(), QUEUES_MAX);
    }

    #[test]
    fn a_queue_is_a_label_and_its_figures_are_samples() {
        let watch = noted(&[(4_000, stats(2, 9, 7))]);
        watch.waits("mail").unwrap().observe(Duration::from_millis(50));
        let mut text = Exposition::default();
        watch.write(&mut text);
        let text = text.finish();
        for line in [
            r#"tollway_queue_jobs{queue="mail",state="waiting"} 2"#,
            r#"tollway_queue_jobs_total{queue="mail",event="enqueued"} 9"#,
            r#"tollway_queue_oldest_seconds{queue="mail"} 3"#,
            r#"tollway_queue_paused{queue="mail"} 0"#,
            r#"tollway_queue_wait_seconds_bucket{queue="mail",le="0.1"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
