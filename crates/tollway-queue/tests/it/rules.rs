//! Leases, retries, dead letters, cancellation, keys, calendars: one rule per test, on every
//! backend.

mod back;
mod bench;
mod bounds;
mod clocks;
mod deadlines;
mod ends;
mod input;
mod limits;
mod pages;
mod past;
mod told;
mod versions;

use std::time::Duration;

use tollway_core::fields::Lines;
use tollway_queue::{
    Backoff, Beat, Cancelled, ErrorKind, Group, JobState, Limit, Outcome, Progress, QueueSettings,
    Recurring, Settled, feedback,
};

use crate::world::{AtMoment as _, START, after, get, group, job, now_or_soon, queue};
use back::*;
use bench::{At, Bench};
use bounds::*;
use clocks::*;
use deadlines::*;
use ends::*;
use input::*;
use limits::*;
use pages::*;
use past::*;
use told::*;
use versions::*;

const DONE: Outcome = Outcome::Done { result: None };

macro_rules! rules {
    (in $place:ident, at $at:ident: $($rule:ident)*) => {
        mod $place {
            $(#[test]
            fn $rule() {
                if super::At::$at.is_available() {
                    super::$rule(super::At::$at);
                }
            })*
        }
    };
    (on every backend: $($rule:ident)*; on embedded ones: $($embedded:ident)*) => {
        rules!(in memory, at Memory: $($rule)* $($embedded)*);
        #[cfg(feature = "redb")]
        rules!(in file, at File: $($rule)* $($embedded)*);
        #[cfg(feature = "redis")]
        rules!(in redis, at Redis: $($rule)*);
        #[cfg(feature = "redis")]
        rules!(in valkey, at Valkey: $($rule)*);
    };
}

rules! {
    on every backend:
    a_group_starts_its_jobs_by_priority_and_then_in_order
    the_age_of_the_oldest_job_is_that_of_those_that_wait
    a_group_whose_limit_an_answer_calls_spent_waits_and_its_job_goes_on
    a_delayed_job_takes_its_place_when_its_time_comes
    an_expired_lease_returns_its_job_to_the_head_and_keeps_its_slot_for_a_window
    a_heartbeat_prolongs_a_lease_and_a_lost_one_says_so
    a_settlement_may_be_sent_twice
    a_failed_job_waits_for_its_backoff_and_is_dead_after_the_last_attempt
    a_limited_job_returns_to_the_head_uncharged_and_its_group_waits
    a_waiting_job_is_cancelled_at_once_and_a_running_one_by_its_worker
    a_key_names_one_job_for_as_long_as_its_window_even_when_it_is_done
    a_recurring_job_comes_at_its_times_once_however_long_nobody_looked
    what_is_paused_starts_nothing_and_resumes_where_it_was
    several_limits_are_taken_all_or_none
    a_heavy_job_waits_for_all_it_needs_and_nobody_of_its_group_goes_before
    a_limit_that_is_changed_counts_at_once_and_forgets_nothing
    progress_and_results_can_be_seen
    a_job_tells_how_each_attempt_ended_that_did_not_get_it_done
    a_dead_letter_tells_of_its_attempts_and_still_does_when_it_lives_again
    jobs_that_run_are_listed_with_their_workers_page_by_page
    of_many_attempts_the_last_are_told_and_long_reasons_are_cut
    groups_are_listed_page_by_page_in_order
    a_page_of_jobs_ends_with_the_one_that_fills_it
    a_lease_call_ends_with_the_job_that_fills_it
    a_job_that_one_limit_refuses_takes_nothing_of_the_others
    limits_of_the_queue_and_shared_ones_are_changed_while_jobs_run
    what_is_named_twice_in_one_call_happens_once
    a_due_job_is_counted_and_told_in_its_place_before_anybody_leases
    a_paused_group_counts_its_due_jobs_too
    an_estimate_knows_that_groups_take_turns
    a_job_that_misses_its_deadline_is_a_dead_letter_and_does_not_start
    a_job_that_runs_at_its_deadline_may_end_but_is_not_tried_again
    jobs_that_miss_their_deadline_are_dropped_if_the_settings_say_so
    jobs_that_fail_together_are_tried_again_apart_and_no_later_than_the_jitter
    before_any_answer_a_tenth_of_a_second_is_expected_of_it
    what_is_kept_of_jobs_that_are_over_is_bounded_in_number_and_age
    a_revived_job_weighs_what_it_did
    a_limit_that_goes_and_comes_back_is_held_by_nobody
    a_queue_that_is_removed_holds_nothing_of_what_it_shared
    a_queue_that_shares_other_limits_keeps_what_it_holds_of_those_that_stay
    released_jobs_give_their_units_back_to_a_long_sliding_window
    queues_whose_names_look_like_keys_are_queues_of_their_own
    a_result_longer_than_a_payload_is_refused_and_its_lease_holds
    a_clock_that_jumps_ahead_ends_leases_and_frees_slots_as_it_says
    a_clock_that_jumps_ahead_and_back_exceeds_no_limit_and_loses_nothing
    what_is_outside_its_bounds_is_refused_by_name
    what_asks_for_more_than_a_call_may_give_is_given_that
    a_file_changes_a_queue_only_by_what_is_new
    a_change_that_expects_another_version_is_refused
    a_shared_limit_is_changed_by_what_is_new_and_kept_while_it_is_used
    a_queue_is_removed_only_without_jobs_and_dead_letters
    a_recurring_job_keeps_its_time_zone
    jobs_are_listed_in_the_order_in_which_they_ended
    a_page_of_jobs_that_ended_is_bounded_by_their_results
    a_job_is_given_another_time_to_start
    ;
    // On Redis the server's clock counts, which is mended in another way, who waits for a queue is
    // told by a task, and a group without jobs is a key with a TTL; `redis` has its own tests of
    // it.
    on embedded ones:
    an_idle_group_is_forgotten
    queues_that_share_a_limit_wait_for_each_other
    a_clock_that_is_set_back_neither_grants_twice_nor_locks_a_group
    a_clock_that_jumps_ahead_and_back_delays_no_job_beyond_what_it_was_told
}

fn a_group_starts_its_jobs_by_priority_and_then_in_order(at: At) {
    let bench = Bench::new(at, "concurrent 10");
    let low = bench.put(job("g"), START);
    let high = bench.put(job("g").priority(2), START);
    let next = bench.put(job("g"), START);
    let higher = bench.put(job("g").priority(9), START);
    assert_eq!(bench.ids(START), [higher, high, low, next]);
}

fn a_delayed_job_takes_its_place_when_its_time_comes(at: At) {
    let bench = Bench::new(at, "concurrent 1");
    let delayed = bench.put(job("g").after(Duration::from_secs(5)), START);
    let first = bench.put(job("g"), START);
    let second = bench.put(job("g"), after(6.0));
    for (expected, at) in [(first, 7.0), (delayed, 8.0), (second, 9.0)] {
        let leases = bench.lease(after(at));
        assert_eq!(leases[0].id.0, expected);
        bench.settle(leases[0].token(), DONE, after(at));
    }
}

fn an_expired_lease_returns_its_job_to_the_head_and_keeps_its_slot_for_a_window(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    let (first, _second) = (bench.put(job("g"), START), bench.put(job("g"), START));
    let lease = bench.lease(START).remove(0);
    // 30 s of lease, then 10 s of window: the call may have been made at the last moment.
    assert_eq!(bench.next(START), Some(after(30.0)));
    assert!(bench.lease(after(30.0)).is_empty());
    assert_eq!(bench.next(after(30.0)), Some(after(40.0)));
    let again = bench.lease(after(40.0)).remove(0);
    assert_eq!((again.id.0, again.attempt, again.failures), (first, 2, 1));
    // The first worker is fenced off.
    assert_eq!(bench.settle(lease.token(), DONE, after(41.0)), Settled::Lost);
    assert_eq!(bench.settle(again.token(), DONE, after(41.0)), Settled::Done);
}

fn a_heartbeat_prolongs_a_lease_and_a_lost_one_says_so(at: At) {
    let bench = Bench::new(at, "concurrent 1");
    bench.put(job("g"), START);
    let token = bench.lease(START).remove(0).token();
    let beat = |at: f64| get(bench.queues().heartbeat(&bench.name, &[token], after(at)))[0];
    assert_eq!(beat(20.0), Beat::Until(after(50.0)));
    assert_eq!(beat(49.9), Beat::Until(after(79.9)));
    assert_eq!(beat(80.0), Beat::Lost);
    let error = now_or_soon(bench.queues().settle_one(&bench.name, token, DONE, after(80.0)));
    assert_eq!(error.expect_err("over").kind(), ErrorKind::LeaseLost);
}

fn a_settlement_may_be_sent_twice(at: At) {
    let bench = Bench::new(at, "concurrent 1");
    bench.put(job("g"), START);
    let token = bench.lease(START).remove(0).token();
    assert_eq!(bench.settle(token, DONE, START), Settled::Done);
    assert_eq!(bench.settle(token, DONE, after(1.0)), Settled::Done);
}

fn a_failed_job_waits_for_its_backoff_and_is_dead_after_the_last_attempt(at: At) {
    let limit = "concurrent 1".parse().expect("a limit");
    let settings = QueueSettings { backoff_jitter: 0, ..QueueSettings::with_limit(limit) };
    let bench = Bench::with(at, settings);
    let backoff = Backoff { first: Duration::from_secs(2), max: Duration::from_secs(3) };
    bench.put(job("g").attempts_max(3).backoff(backoff), START);
    let fail = |at: f64| {
        let lease = bench.lease(after(at)).remove(0);
        let outcome = Outcome::Failed { reason: "no luck".into(), retry: true };
        bench.settle(lease.token(), outcome, after(at))
    };
    assert_eq!(fail(0.0), Settled::Waiting { from: after(2.0) });
    assert!(bench.lease(after(1.9)).is_empty());
    assert_eq!(fail(2.0), Settled::Waiting { from: after(5.0) });
    assert_eq!(fail(5.0), Settled::Dead);
    let dead = get(bench.queues().dead(&bench.name, None, 10, after(5.0)));
    assert_eq!(dead[0].state, JobState::Dead { at: after(5.0), reason: "no luck".into() });
    assert_eq!((&dead[0].payload[..], dead[0].failures), (&b"x"[..], 3));
    assert!(get(bench.queues().revive(&bench.name, dead[0].id, after(6.0))));
    let lease = bench.lease(after(6.0)).remove(0);
    assert_eq!((lease.failures, lease.attempt), (0, 4));
}

fn a_limited_job_returns_to_the_head_uncharged_and_its_group_waits(at: At) {
    let bench = Bench::new(at, "slots 2/10s");
    let first = bench.put(job("g"), START);
    let second = bench.put(job("g"), START);
    bench.put(job("other"), START);
    let leases = bench.lease(START);
    assert_eq!(leases.len(), 3);
    let lines: Lines<'_> = [("retry-after", &b"7"[..])].into_iter().collect();
    let wait = feedback::wait(&lines, START);
    let of = |id: u64| leases.iter().find(|lease| lease.id.0 == id).expect("leased").token();
    let settled = bench.settle(of(second), Outcome::Limited { wait }, after(1.0));
    assert_eq!(settled, Settled::Waiting { from: after(8.0) });
    bench.settle(of(first), Outcome::Limited { wait: Duration::from_secs(2) }, after(1.0));
    bench.put(job("g"), after(1.0));
    // The longest wait counts, for the whole group; the order is the old one; nothing is charged.
    assert!(bench.lease(after(7.9)).is_empty());
    let again = bench.lease(after(8.0));
    let seen: Vec<_> = again.iter().map(|l| (l.id.0, l.failures, l.attempt)).collect();
    assert_eq!(seen, [(first, 0, 2), (second, 0, 2)]);
}

fn the_age_of_the_oldest_job_is_that_of_those_that_wait(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    let oldest = |now| get(bench.queues().stats(&bench.name, None, 0, now)).oldest;
    assert_eq!(oldest(START), None);
    let first = bench.put(job("g"), START);
    bench.put(job("g").after(Duration::from_secs(60)), START);
    bench.put(job("g"), after(2.0));
    bench.put(job("other"), after(3.0));
    assert_eq!(oldest(after(4.0)), Some(START));
    let leases = bench.lease(after(4.0));
    assert_eq!(leases.len(), 2);
    assert_eq!(oldest(after(5.0)), Some(after(2.0)), "neither what runs nor what is delayed waits");
    let first = leases.iter().find(|lease| lease.id.0 == first).expect("leased").token();
    bench.settle(first, Outcome::Released, after(6.0));
    assert_eq!(oldest(after(6.0)), Some(START), "it waits again");
}

fn a_group_whose_limit_an_answer_calls_spent_waits_and_its_job_goes_on(at: At) {
    let bench = Bench::new(at, "slots 5/10s");
    let first = bench.put(job("g"), START);
    let lease = bench.lease(START).remove(0);
    let hold = |seconds, now| {
        let wait = Duration::from_secs(seconds);
        get(bench.queues().hold(&bench.name, lease.token(), wait, now))
    };
    assert!(hold(7, after(1.0)));
    assert!(hold(2, after(1.0)), "the longest wait counts");
    assert_eq!(bench.settle(lease.token(), DONE, after(1.0)), Settled::Done);
    bench.put(job("g"), after(1.0));
    bench.put(job("other"), after(1.0));
    assert_eq!(bench.lease(after(7.9)).len(), 1, "other groups do not wait");
    assert!(!hold(60, after(7.9)), "job {first} is over");
    assert_eq!(bench.lease(after(8.0)).len(), 1);
}

fn a_waiting_job_is_cancelled_at_once_and_a_running_one_by_its_worker(at: At) {
    let bench = Bench::new(at, "concurrent 1");
    let (first, second) = (bench.put(job("g").key("k"), START), bench.put(job("g"), START));
    let cancel = |id: u64, at: f64| {
        get(bench.queues().cancel(&bench.name, tollway_queue::JobId(id), after(at)))
    };
    let token = bench.lease(START).remove(0).token();
    assert_eq!(cancel(second, 0.0), Cancelled::Removed);
    assert_eq!(cancel(second, 0.0), Cancelled::NotFound);
    assert_eq!(cancel(first, 0.0), Cancelled::Requested);
    let beats = get(bench.queues().heartbeat(&bench.name, &[token], after(1.0)));
    assert_eq!(beats, [Beat::Cancelled(after(31.0))]);
    let failed = Outcome::Failed { reason: "stopped".into(), retry: true };
    assert_eq!(bench.settle(token, failed, after(2.0)), Settled::Cancelled);
    // The key of a cancelled job may be used anew.
    assert_ne!(bench.put(job("g").key("k"), after(3.0)), first);
}

fn a_key_names_one_job_for_as_long_as_its_window_even_when_it_is_done(at: At) {
    let settings = QueueSettings {
        key_window: Duration::from_secs(60),
        keys_max: 2,
        ..QueueSettings::default()
    };
    let bench = Bench::with(at, settings);
    let first = bench.put(job("g").key("k"), START);
    let token = bench.lease(START).remove(0).token();
    bench.settle(token, DONE, START);
    let again = get(bench.queues().enqueue(&bench.name, vec![job("g").key("k")], after(59.0)));
    assert_eq!((again[0].id.0, again[0].duplicate), (first, true));
    let later = get(bench.queues().enqueue(&bench.name, vec![job("g").key("k")], after(60.0)));
    assert!(!later[0].duplicate && later[0].id.0 != first);
    // Beyond keys_max the oldest is forgotten, and nobody else.
    let l = bench.put(job("g").key("l"), after(61.0));
    let m = bench.put(job("g").key("m"), after(62.0));
    for (key, id) in [("l", l), ("m", m)] {
        assert_eq!(bench.put(job("g").key(key), after(63.0)), id);
    }
    let fresh = get(bench.queues().enqueue(&bench.name, vec![job("g").key("k")], after(63.0)));
    assert!(!fresh[0].duplicate);
}

fn a_recurring_job_comes_at_its_times_once_however_long_nobody_looked(at: At) {
    let bench = Bench::new(at, "concurrent 10");
    // START is 23:46:40; the next full quarters are 00:00, 00:15, 00:30.
    let recurring = Recurring::cron("report", "*/15 * * * *", group("g"), "report").expect("cron");
    get(bench.queues().put_recurring(&bench.name, recurring, START));
    let midnight = START.after(Duration::from_secs(800));
    assert_eq!(bench.next(START), Some(midnight));
    assert!(bench.lease(midnight.before(Duration::from_micros(1))).is_empty());
    let leases = bench.lease(midnight);
    assert_eq!((leases.len(), &leases[0].payload[..]), (1, &b"report"[..]));
    bench.settle(leases[0].token(), DONE, midnight);
    let hours_later = midnight.after(Duration::from_secs(4 * 3_600 + 1));
    assert_eq!(bench.lease(hours_later).len(), 1);
    assert!(get(bench.queues().remove_recurring(&bench.name, "report", hours_later)));
    assert!(get(bench.queues().recurring(&bench.name)).is_empty());
}

fn what_is_paused_starts_nothing_and_resumes_where_it_was(at: At) {
    let bench = Bench::new(at, "concurrent 10");
    let (a, b) = (bench.put(job("a"), START), bench.put(job("b"), START));
    let pause = |group: Option<&Group>, paused| {
        get(bench.queues().pause(&bench.name, group, paused, START));
    };
    pause(None, true);
    assert!(bench.lease(START).is_empty() && bench.next(START).is_none());
    pause(Some(&group("a")), true);
    pause(None, false);
    assert_eq!(bench.ids(START), [b]);
    pause(Some(&group("a")), false);
    assert_eq!(bench.ids(START), [a]);
}

fn several_limits_are_taken_all_or_none(at: At) {
    let settings = QueueSettings {
        group_limits: vec![
            Limit::slots(5, Duration::from_secs(10)).expect("a limit"),
            Limit::slots(2, Duration::from_secs(1)).expect("a limit"),
        ],
        queue_limits: vec![Limit::slots(3, Duration::ZERO).expect("a limit")],
        ..QueueSettings::default()
    };
    let bench = Bench::with(at, settings);
    for of in ["a", "a", "a", "b", "b", "b"] {
        bench.put(job(of), START);
    }
    // Two of each group by its second limit, three in all by the queue's.
    let leases = bench.lease(START);
    let of: Vec<&str> = leases.iter().map(|lease| lease.group.as_str()).collect();
    assert_eq!(of, ["a", "b", "a"]);
    for lease in &leases {
        bench.settle(lease.token(), DONE, after(0.5));
    }
    // The queue's slots are free at once; group a waits for its second window, b has one left.
    assert_eq!(bench.lease(after(0.5)).len(), 1);
    assert_eq!(bench.lease(after(1.5)).len(), 2);
}

fn queues_that_share_a_limit_wait_for_each_other(at: At) {
    let (subject, a, b) = (at.open(), queue("a"), queue("b"));
    let queues = subject.backend();
    let limit = "slots 2/10s".parse().expect("a limit");
    get(queues.put_shared(&queue("token"), limit, START));
    let settings = QueueSettings { shared: vec![queue("token")], ..QueueSettings::default() };
    get(queues.put_queue(&a, settings.clone(), START));
    get(queues.put_queue(&b, settings, START));
    get(queues.enqueue(&a, vec![job("g"), job("g")], START));
    get(queues.enqueue(&b, vec![job("g")], START));
    let leases = get(queues.lease(&a, 10, "w", START)).leases;
    assert_eq!(leases.len(), 2);
    let waiting = get(queues.lease(&b, 10, "w", START));
    assert!(waiting.leases.is_empty() && waiting.next.is_none());
    // An answer in one queue tells those who wait for the other.
    let mut changed = queues.changed(&b, waiting.seen);
    assert!(crate::world::poll(&mut changed).is_pending());
    get(queues.settle_one(&a, leases[0].token(), DONE, after(1.0)));
    let wake = get(changed);
    assert_eq!(wake.next, Some(after(11.0)));
    assert_eq!(get(queues.lease(&b, 10, "w", after(11.0))).leases.len(), 1);
}

fn a_heavy_job_waits_for_all_it_needs_and_nobody_of_its_group_goes_before(at: At) {
    let bench = Bench::new(at, "slots 4/10s");
    let light: Vec<u64> = (0..3).map(|_| bench.put(job("g"), START)).collect();
    let heavy = bench.put(job("g").weight(3), START);
    let last = bench.put(job("g"), START);
    let leases = bench.lease(START);
    assert_eq!(leases.iter().map(|lease| lease.id.0).collect::<Vec<_>>(), light);
    for (lease, at) in leases.iter().zip([0.1, 0.2, 0.3]) {
        bench.settle(lease.token(), DONE, after(at));
    }
    assert_eq!(bench.next(after(1.0)), Some(after(10.2)));
    assert_eq!(bench.ids(after(10.2)), [heavy]);
    assert_eq!(bench.ids(after(10.3)), [last]);
}

fn a_limit_that_is_changed_counts_at_once_and_forgets_nothing(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    for _ in 0..4 {
        bench.put(job("g"), START);
    }
    let token = bench.lease(START).remove(0).token();
    let limits = |text: &str, at: f64| {
        let limits = Some(vec![text.parse().expect("a limit")]);
        get(bench.queues().set_limits(&bench.name, &group("g"), limits, after(at)));
    };
    limits("slots 2/10s", 1.0);
    assert_eq!(bench.lease(after(1.0)).len(), 1);
    limits("slots 1/10s", 1.0);
    bench.settle(token, DONE, after(2.0));
    // One is still in flight, and one slot is all there is.
    assert!(bench.lease(after(15.0)).is_empty());
    limits("slots 3/5s", 15.0);
    assert_eq!(bench.lease(after(15.0)).len(), 2);
}

fn progress_and_results_can_be_seen(at: At) {
    let bench = Bench::new(at, "concurrent 1");
    let id = tollway_queue::JobId(bench.put(job("g"), START));
    let token = bench.lease(START).remove(0).token();
    let progress = Progress { done: 3, total: 10 };
    assert!(get(bench.queues().progress(&bench.name, token, progress, START)));
    let seen = get(bench.queues().job(&bench.name, id, START)).expect("it runs").state;
    assert!(matches!(seen, JobState::Running { progress: Some(p), .. } if p == progress));
    let result = Some(bytes::Bytes::from_static(b"42"));
    bench.settle(token, Outcome::Done { result: result.clone() }, after(1.0));
    let seen = get(bench.queues().job(&bench.name, id, after(2.0))).expect("kept").state;
    assert_eq!(seen, JobState::Done { at: after(1.0), result });
    // An hour later it is forgotten.
    assert!(get(bench.queues().job(&bench.name, id, after(3_601.0))).is_none());
}

fn an_idle_group_is_forgotten(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    for index in 0..100 {
        bench.put(job(&format!("g{index}")), START);
    }
    for lease in bench.lease(START) {
        bench.settle(lease.token(), DONE, START);
    }
    let groups = |at| get(bench.queues().stats(&bench.name, None, 10, at)).groups_total;
    assert_eq!((groups(START), groups(after(9.9)), groups(after(10.0))), (100, 100, 0));
}

fn groups_are_listed_page_by_page_in_order(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    for index in 0..25 {
        bench.put(job(&format!("g{index:02}")), START);
    }
    let (mut after_group, mut names) = (None, Vec::new());
    loop {
        let page = get(bench.queues().stats(&bench.name, after_group.as_ref(), 10, START));
        names.extend(page.groups.iter().map(|group| group.group.to_string()));
        match page.after {
            Some(last) => after_group = Some(last),
            None => break,
        }
    }
    assert_eq!(names, (0..25).map(|index| format!("g{index:02}")).collect::<Vec<_>>());
}
