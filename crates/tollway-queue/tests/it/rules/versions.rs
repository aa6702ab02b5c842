//! Which change of settings wins, and what may be removed.

use tollway_queue::{Author, Changed, ErrorKind, Outcome, QueueSettings, Recurring};

use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, group, job, now_or_soon, queue};

fn file(text: u8, is_edit: bool) -> Author {
    Author::File { digest: [text; 16], is_edit }
}

fn settings(limit: &str) -> QueueSettings {
    QueueSettings::with_limit(limit.parse().expect("a limit"))
}

pub(super) fn a_file_changes_a_queue_only_by_what_is_new(at: At) {
    let (bench, name) = (Bench::new(at, "slots 1/10s"), queue("roles"));
    let change = |limit: &str, author| -> Changed {
        get(bench.queues().change(&name, settings(limit), author, START))
    };
    let in_force = || get(bench.queues().describe(&name, START)).settings;
    let made = change("slots 1/10s", file(b'a', false));
    assert!(made.taken && made.version.is_from_file && made.version.number == 1, "{made:?}");
    assert!(!change("slots 1/10s", file(b'a', false)).taken, "a restart");

    let called = change("slots 2/10s", Author::CALL);
    assert!(called.taken && !called.version.is_from_file && called.version.number == 2);
    let kept = change("slots 1/10s", file(b'a', false));
    assert!(!kept.taken && kept.version == called.version, "{kept:?}");
    assert_eq!(in_force(), settings("slots 2/10s"));

    assert!(change("slots 3/10s", file(b'b', false)).taken);
    assert!(!change("slots 1/10s", file(b'a', false)).taken, "a service with an old file");
    assert!(!change("slots 3/10s", file(b'b', true)).taken, "an edit that was seen already");
    assert_eq!(in_force(), settings("slots 3/10s"));
    assert!(change("slots 1/10s", file(b'a', true)).taken, "an edit");
    let described = get(bench.queues().describe(&name, START));
    assert_eq!((described.settings, described.version.number), (settings("slots 1/10s"), 4));
}

pub(super) fn a_change_that_expects_another_version_is_refused(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    let change = |expected| {
        let author = Author::Call { expected: Some(expected) };
        now_or_soon(bench.queues().change(&bench.name, settings("slots 2/10s"), author, START))
    };
    let refused = change(7).expect_err("another version");
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("found version 1, expected 7"), "{refused}");
    assert_eq!(get(bench.queues().describe(&bench.name, START)).settings, settings("slots 1/10s"));
    assert_eq!(change(1).expect("this version").version.number, 2);
    let unknown = now_or_soon(bench.queues().describe(&queue("other"), START));
    assert_eq!(unknown.expect_err("no queue").kind(), ErrorKind::UnknownQueue);
}

pub(super) fn a_shared_limit_is_changed_by_what_is_new_and_kept_while_it_is_used(at: At) {
    let bench = Bench::with(at, QueueSettings::default());
    let change = |limit: &str, author| -> Changed {
        let limit = limit.parse().expect("a limit");
        get(bench.queues().change_shared(&queue("all"), limit, author, START))
    };
    assert!(change("concurrent 1", file(b'a', false)).taken);
    let shared = vec![queue("all")];
    let bound = QueueSettings { shared, ..QueueSettings::default() };
    get(bench.queues().put_queue(&bench.name, bound, START));
    get(bench.queues().enqueue(&bench.name, vec![job("g"); 5], START));
    assert_eq!(bench.lease(START).len(), 1);
    assert!(change("concurrent 3", Author::CALL).taken);
    assert!(!change("concurrent 1", file(b'a', false)).taken);
    assert_eq!(bench.lease(after(0.1)).len(), 2, "at once");
    let listed = get(bench.queues().shared());
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].1.limit.to_string().as_str(), listed[0].1.version.number),
        ("concurrent 3", 2)
    );

    let used = now_or_soon(bench.queues().remove_shared(&queue("all"))).expect_err("used");
    assert_eq!(used.kind(), ErrorKind::Conflict);
    assert!(used.to_string().contains("queue q shares all"), "{used}");
    get(bench.queues().put_queue(&bench.name, QueueSettings::default(), START));
    assert!(get(bench.queues().remove_shared(&queue("all"))));
    assert!(!get(bench.queues().remove_shared(&queue("all"))));
    assert!(get(bench.queues().shared()).is_empty());
}

pub(super) fn a_queue_is_removed_only_without_jobs_and_dead_letters(at: At) {
    let bench = Bench::new(at, "concurrent 5");
    let remove = || now_or_soon(bench.queues().remove_empty(&bench.name, START));
    let id = bench.put(job("g"), START);
    assert_eq!(remove().expect_err("a job waits").kind(), ErrorKind::Conflict);
    let lease = bench.lease(START).remove(0);
    let dead = Outcome::Failed { reason: "no".to_owned(), retry: false };
    bench.settle(lease.token(), dead, START);
    let refused = remove().expect_err("a dead letter").to_string();
    assert!(refused.contains("0 jobs and 1 dead letters"), "{refused}");
    assert!(get(bench.queues().revive(&bench.name, lease.id, START)));
    assert_eq!(bench.ids(START), [id]);
    let again = get(bench.queues().cancel(&bench.name, lease.id, START));
    assert_eq!(again, tollway_queue::Cancelled::Requested);
    let token = tollway_queue::LeaseToken { id: lease.id, attempt: lease.attempt + 1 };
    bench.settle(token, Outcome::Released, START);
    assert!(remove().expect("nothing is left"));
    assert!(!remove().expect("gone"));
    let refused = now_or_soon(bench.queues().enqueue(&bench.name, vec![job("g")], START));
    assert_eq!(refused.expect_err("no queue").kind(), ErrorKind::UnknownQueue);
}

/// 2026-11-14 02:30 in Berlin is 01:30 UTC; the time of `START` is later that day.
pub(super) fn a_recurring_job_keeps_its_time_zone(at: At) {
    let bench = Bench::new(at, "concurrent 5");
    let berlin = "TZ=Europe/Berlin 30 2 * * *";
    let recurring = Recurring::cron("nightly", berlin, group("g"), "x");
    if !cfg!(feature = "zones") {
        assert!(recurring.expect_err("no zones").to_string().contains("time zone"));
        return;
    }
    get(bench.queues().put_recurring(&bench.name, recurring.expect("a calendar"), START));
    let stored = get(bench.queues().recurring(&bench.name)).remove(0);
    let next = stored.rhythm.next_after(START).expect("a time");
    assert_eq!(next.as_nanos() / 60_000_000_000 % 1_440, 90, "{next:?}");
    assert!(bench.lease(next.before(std::time::Duration::from_millis(1))).is_empty());
    assert_eq!(bench.lease(next).len(), 1);
}
