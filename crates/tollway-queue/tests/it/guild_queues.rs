//! The scenarios of guild-queues (`tests/delay.test.ts` there): reservoir 3 per 3 s.
//!
//! There, "delayed" jobs are those that did not start at once, and the counter `enqueued` of a
//! group says how many of its jobs wait. Here the jobs that wait in a group are counted themselves.

use std::time::Duration;

use tollway_core::Timestamp;
use tollway_queue::{Embedded, NewJob, Outcome, QueueSettings};

use crate::world::{AtMoment as _, get, group, queue};

const WINDOW: Duration = Duration::from_secs(3);

/// Enqueues `jobs` round the groups, starts what may start, and says what waits per group.
fn enqueue_and_start(
    queues: &Embedded,
    jobs: usize,
    groups: usize,
    now: Timestamp,
) -> (usize, Vec<u64>) {
    let name = queue("delay");
    let new = |index: usize| NewJob::new(group(&format!("group {}", index % groups)), "x");
    get(queues.enqueue(&name, (0..jobs).map(new).collect(), now));
    let leased = get(queues.lease(&name, 1_000, "w", now));
    let done = leased.leases.iter().map(|l| (l.token(), Outcome::Done { result: None })).collect();
    get(queues.settle(&name, done, now));
    let stats = get(queues.stats(&name, None, 100, now));
    let waiting = stats.groups.iter().map(|group| group.counts.waiting).collect();
    (jobs - leased.leases.len(), waiting)
}

fn window_queue() -> Embedded {
    let queues = Embedded::memory();
    let settings = QueueSettings::with_limit("window 3/3s".parse().expect("a limit"));
    get(queues.put_queue(&queue("delay"), settings, Timestamp::MIN));
    queues
}

#[test]
fn ten_jobs_in_two_groups_leave_four_delayed_and_two_waiting_in_each() {
    let queues = window_queue();
    let (delayed, waiting) = enqueue_and_start(&queues, 10, 2, Timestamp::from_millis(300_000));
    assert_eq!((delayed, waiting), (4, vec![2, 2]));
}

#[test]
fn sixty_jobs_in_four_groups_leave_forty_eight_delayed_and_twelve_waiting_in_each() {
    let queues = window_queue();
    let start = Timestamp::from_millis(300_000);
    enqueue_and_start(&queues, 10, 2, start);
    // The test there waits for one interval: what was delayed runs first, in the new window.
    let name = queue("delay");
    let next = start.after(WINDOW);
    let leased = get(queues.lease(&name, 1_000, "w", next));
    assert_eq!(leased.leases.len(), 4);
    let done = leased.leases.iter().map(|l| (l.token(), Outcome::Done { result: None })).collect();
    get(queues.settle(&name, done, next));
    let (delayed, waiting) = enqueue_and_start(&queues, 60, 4, next.after(WINDOW));
    assert_eq!((delayed, waiting), (48, vec![12; 4]));
}

#[test]
fn the_estimate_is_the_next_window_plus_whole_windows_for_who_waits() {
    // The worked example of the facts: window 10 s, reservoir 10, 25 jobs at once.
    let queues = Embedded::memory();
    let name = queue("discord");
    let settings = QueueSettings::with_limit("window 10/10s".parse().expect("a limit"));
    let now = Timestamp::from_millis(123_456_789);
    get(queues.put_queue(&name, settings, now));
    let jobs = (0..25).map(|_| NewJob::new(group("guild"), "x")).collect();
    let enqueued = get(queues.enqueue(&name, jobs, now));
    for (index, job) in enqueued.iter().enumerate() {
        let expected = match index {
            0..10 => now,
            10..20 => Timestamp::from_millis(123_460_000),
            _ => Timestamp::from_millis(123_470_000),
        };
        assert_eq!(job.ready.expect("not paused").expected, expected, "job {index}");
        assert_eq!(job.ready.expect("not paused").latest, expected, "job {index}");
    }
    // And with the reservoir spent: `nextWindowStart + floor(waiting / reservoir) * window`.
    let leased = get(queues.lease(&name, 10, "w", now));
    let done = leased.leases.iter().map(|l| (l.token(), Outcome::Done { result: None })).collect();
    get(queues.settle(&name, done, now));
    let next = get(queues.lease(&name, 10, "w", now)).next;
    assert_eq!(next, Some(Timestamp::from_millis(123_460_000)));
    let again = get(queues.enqueue(&name, vec![NewJob::new(group("guild"), "x")], now));
    let waiting = 15;
    let expected = Timestamp::from_millis(123_460_000 + waiting / 10 * 10_000);
    assert_eq!(again[0].ready.expect("not paused").expected, expected);
}

#[test]
fn nothing_is_left_of_a_group_when_its_window_is_over() {
    let queues = window_queue();
    let start = Timestamp::from_millis(300_000);
    enqueue_and_start(&queues, 6, 2, start);
    let stats = get(queues.stats(&queue("delay"), None, 10, start));
    assert_eq!(stats.groups_total, 2);
    let stats = get(queues.stats(&queue("delay"), None, 10, start.after(WINDOW)));
    assert_eq!((stats.groups_total, stats.queue), (0, Default::default()));
}
