//! Storage that fails at every write, and processes that are killed.
//!
//! The promise: what was acknowledged is there, what was settled does not run again, and what was
//! leased does not run before its lease is over.

mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableHandle};
use tollway_core::Timestamp;
use tollway_queue::{
    AttemptEnd, Author, Backend, Embedded, Error, ErrorKind, FileOptions, JobId, JobState,
    LeaseToken, MissedDeadline, NewJob, Outcome, QueueSettings,
};

use crate::world::{AtMoment as _, START, after, get, group, job, now_or_soon, queue};
pub(crate) use tollway_testkit::disk::{Disk, Fault};

/// A path for one test, removed with it.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
        // A process that was killed leaves what it had set aside.
        drop(std::fs::remove_file(self.0.with_extension("redb.reserve")));
    }
}

pub(crate) fn scratch(name: &str) -> Scratch {
    let file = format!("tollway-queue-{}-{name}.redb", std::process::id());
    let path = std::env::temp_dir().join(file);
    drop(std::fs::remove_file(&path));
    Scratch(path)
}

/// How many rows every table has that has any.
pub(crate) fn rows(disk: &Disk) -> BTreeMap<&'static str, u64> {
    let database = Database::builder().create_with_backend(disk.clone()).expect("opens");
    let transaction = database.begin_read().expect("reads");
    let tables: Vec<_> = transaction.list_tables().expect("tables").collect();
    let count = |table: redb::UntypedTableHandle| {
        let name = table.name().to_owned();
        let rows = transaction.open_untyped_table(table).expect("opens").len().expect("counts");
        (&*name.leak(), rows)
    };
    tables.into_iter().map(count).filter(|(_, rows)| *rows > 0).collect()
}

/// What was acknowledged before the crash.
#[derive(Debug, Default)]
struct Acknowledged {
    enqueued: BTreeSet<u64>,
    leased: BTreeSet<u64>,
    settled: BTreeSet<u64>,
}

/// A short life of a queue; stops at the first failure.
fn live(queues: &Embedded, seen: &mut Acknowledged) -> Result<(), Error> {
    let name = queue("q");
    let settings = QueueSettings::with_limit("slots 4/10s".parse().expect("a limit"));
    now_or_soon(queues.put_queue(&name, settings, START))?;
    let mut tokens: Vec<LeaseToken> = Vec::new();
    for round in 0..4u8 {
        let now = after(f64::from(round) * 0.1);
        let jobs = (0..3).map(|index| job(&format!("g{index}"))).collect();
        let enqueued = now_or_soon(queues.enqueue(&name, jobs, now))?;
        seen.enqueued.extend(enqueued.iter().map(|job| job.id.0));
        let leased = now_or_soon(queues.lease(&name, 2, "w", now))?.leases;
        seen.leased.extend(leased.iter().map(|lease| lease.id.0));
        tokens.extend(leased.iter().map(tollway_queue::Lease::token));
        let token = tokens.remove(0);
        now_or_soon(queues.settle_one(&name, token, Outcome::Done { result: None }, now))?;
        seen.settled.insert(token.id.0);
    }
    Ok(())
}

/// Holds what was promised against what is there after the crash.
fn judge(queues: &Embedded, seen: &Acknowledged, context: &str) {
    let (name, now) = (queue("q"), after(5.0));
    if get(queues.queues()).is_empty() {
        assert!(seen.enqueued.is_empty(), "{context}: the queue is gone");
        return;
    }
    for id in &seen.enqueued {
        let job = get(queues.job(&name, tollway_queue::JobId(*id), now));
        let state = job.map(|job| job.state);
        if seen.settled.contains(id) {
            assert!(
                matches!(state, Some(JobState::Done { result: None, .. })),
                "{context}: job {id} was settled and is {state:?}"
            );
        } else if seen.leased.contains(id) {
            // Its settlement may have been stored without being acknowledged.
            assert!(
                !matches!(state, Some(JobState::Waiting { .. })),
                "{context}: job {id} was leased and is {state:?}"
            );
        } else {
            assert!(state.is_some(), "{context}: job {id} is lost");
        }
    }
    // Nothing that was leased is leased again before its lease is over.
    let again = get(queues.lease(&name, 1_000, "w", now)).leases;
    for lease in &again {
        assert!(!seen.leased.contains(&lease.id.0), "{context}: job {} runs twice", lease.id);
    }
    drain(queues, now, again.iter().map(tollway_queue::Lease::token).collect());
}

/// Runs everything that is left, whatever leases were held.
fn drain(queues: &Embedded, mut now: Timestamp, mut tokens: Vec<LeaseToken>) {
    let name = queue("q");
    for _ in 0..1_000 {
        for token in tokens.drain(..) {
            get(queues.settle_one(&name, token, Outcome::Done { result: None }, now));
        }
        let leased = get(queues.lease(&name, 1_000, "w", now));
        tokens.extend(leased.leases.iter().map(tollway_queue::Lease::token));
        match leased.next {
            _ if !tokens.is_empty() => {}
            Some(next) => now = now.max(next),
            None => break,
        }
    }
    let stats = get(queues.stats(&name, None, 1, now));
    assert_eq!(stats.queue, Default::default());
}

/// A journal that is never folded, one that is at every commit, and one that is now and then.
const JOURNALS: [usize; 3] = [4 << 20, 0, 700];

pub(crate) fn on(disk: &Disk, two_phase: bool, journal_bytes: usize) -> FileOptions {
    let maker = disk.clone();
    FileOptions::on(move || Ok(maker.clone())).two_phase(two_phase).journal_bytes(journal_bytes)
}

/// Crashes at every write, sync and change of length that a life of a queue makes.
fn crash_everywhere(fault: fn(u64) -> Fault, two_phase: bool, journal_bytes: usize) {
    for point in 1.. {
        let disk = Disk::new();
        let mut seen = Acknowledged::default();
        let queues = Embedded::open_with(on(&disk, two_phase, journal_bytes)).expect("opens");
        disk.set(fault(point));
        let done = live(&queues, &mut seen).is_ok();
        drop(queues);
        disk.reboot(point);
        let queues = Embedded::open_with(on(&disk, two_phase, journal_bytes))
            .expect("a crash leaves a file that opens");
        judge(&queues, &seen, &format!("crash at {point}, journal of {journal_bytes}"));
        if done {
            assert!(point > 20, "the life of a queue has more writes than {point}");
            return;
        }
    }
}

#[test]
fn a_process_that_dies_at_any_write_loses_nothing_it_acknowledged() {
    JOURNALS.iter().for_each(|bytes| crash_everywhere(Fault::Kill, true, *bytes));
}

#[test]
fn a_machine_that_loses_power_at_any_write_loses_nothing_it_acknowledged() {
    for bytes in JOURNALS {
        crash_everywhere(Fault::PowerLoss, true, bytes);
        crash_everywhere(Fault::PowerLoss, false, bytes);
    }
}

#[test]
fn a_queue_survives_a_write_that_fails_and_goes_on() {
    for point in (1..120).step_by(3) {
        let (disk, journal_bytes) = (Disk::new(), JOURNALS[point as usize % 3]);
        let queues = Embedded::open_with(on(&disk, true, journal_bytes)).expect("opens");
        disk.set(Fault::Once(point));
        let mut seen = Acknowledged::default();
        let failed = live(&queues, &mut seen).is_err();
        disk.set(Fault::None);
        judge(&queues, &seen, &format!("write {point} failed: {failed}"));
    }
}

#[test]
fn payloads_are_bounded_in_bytes_whatever_their_number_and_after_a_restart() {
    let path = scratch("bytes");
    let settings = QueueSettings { bytes_max: 250, attempts_max: 1, ..QueueSettings::default() };
    let hundred = || NewJob::new(group("g"), vec![7; 100]);
    let full = |queues: &Embedded| {
        let refused = now_or_soon(queues.enqueue(&queue("q"), vec![hundred()], START));
        refused.is_err_and(|error| error.kind() == ErrorKind::Full)
    };
    let name = queue("q");
    for queues in [Embedded::memory(), Embedded::open(&path.0).expect("opens")] {
        get(queues.put_queue(&name, settings.clone(), START));
        get(queues.enqueue(&name, vec![hundred(), hundred()], START));
        assert!(full(&queues));
        // A dead letter is held as a job that waits is.
        let failed = get(queues.lease(&name, 1, "w", START)).leases[0].token();
        let outcome = Outcome::Failed { reason: String::new(), retry: true };
        get(queues.settle_one(&name, failed, outcome, START));
        assert!(full(&queues));
    }
    let queues = Embedded::open(&path.0).expect("opens again");
    assert!(full(&queues));
    assert_eq!(get(queues.queues())[0].1, settings);
    let done = get(queues.lease(&name, 1, "w", START)).leases[0].token();
    get(queues.settle_one(&name, done, Outcome::Done { result: None }, START));
    assert!(!full(&queues), "what is done is held no more");
}

#[test]
fn on_a_full_disk_jobs_are_read_leased_and_settled_and_new_ones_are_refused() {
    for journal_bytes in JOURNALS {
        let disk = Disk::new();
        let options = || on(&disk, true, journal_bytes).reserve(disk.reserve(8 << 20));
        let (queues, name) = (Embedded::open_with(options()).expect("opens"), queue("q"));
        get(queues.put_queue(&name, QueueSettings::default(), START));
        let large = || NewJob::new(group("g"), vec![7; 100_000]);
        let first = get(queues.enqueue(&name, vec![large(), large(), large()], START));
        let leased = get(queues.lease(&name, 1, "w", START)).leases;
        disk.set(Fault::Full);
        let mut kept: Vec<JobId> = first.iter().map(|job| job.id).collect();
        let refused = loop {
            assert!(kept.len() < 1_000, "a full disk takes no more");
            match now_or_soon(queues.enqueue(&name, vec![large()], START)) {
                Ok(enqueued) => kept.push(enqueued[0].id),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(queues.health().is_full && queues.health().failed_commits > 0);
        let totals = get(queues.stats(&name, None, 1, START)).totals;
        assert_eq!((totals.enqueued, totals.leased), (kept.len() as u64, 1), "they do not fall");
        let done = || Outcome::Done { result: None };
        get(queues.settle_one(&name, leased[0].token(), done(), START));
        assert_eq!(get(queues.stats(&name, None, 1, START)).queue.waiting, kept.len() as u64 - 1);
        let next = get(queues.lease(&name, 1, "w", START)).leases;
        assert_eq!(next[0].payload.len(), 100_000);
        get(queues.settle_one(&name, next[0].token(), done(), START));
        let refused = now_or_soon(queues.enqueue(&name, vec![large()], START)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(get(queues.job(&name, kept[2], START)).is_some());
        disk.set(Fault::None);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while now_or_soon(queues.enqueue(&name, vec![large()], START)).is_err() {
            assert!(std::time::Instant::now() < deadline, "there is room again");
            std::thread::yield_now();
        }
        assert!(!queues.health().is_full);
        drop(queues);
        disk.reboot(1);
        let queues = Embedded::open_with(options()).expect("opens again");
        let waiting = get(queues.stats(&name, None, 1, START)).queue.waiting;
        assert_eq!(waiting, kept.len() as u64 - 2 + 1, "what was acknowledged, and nothing else");
    }
}

#[test]
fn a_job_holds_after_a_restart_what_it_held_before() {
    let path = scratch("held");
    let (queues, name) = (Embedded::open(&path.0).expect("opens"), queue("q"));
    let settings = |limit: &str| QueueSettings::with_limit(limit.parse().expect("a limit"));
    get(queues.put_queue(&name, settings("slots 2/10s"), START));
    get(queues.enqueue(&name, vec![job("g").weight(3), job("g")], START));
    assert_eq!(get(queues.lease(&name, 2, "w", START)).leases.len(), 1, "it takes all there is");
    get(queues.put_queue(&name, settings("slots 3/10s"), START));
    drop(queues);
    let queues = Embedded::open(&path.0).expect("opens again");
    assert_eq!(get(queues.lease(&name, 2, "w", START)).leases.len(), 1, "two units, not three");
}

#[test]
fn which_texts_of_files_were_given_is_known_after_a_restart() {
    let (path, name) = (scratch("versions"), queue("q"));
    let file = |text| Author::File { digest: [text; 16], is_edit: false };
    let change = |queues: &Embedded, text| {
        get(queues.change(&name, QueueSettings::default(), file(text), START))
    };
    let limit = "slots 1/1s".parse().expect("a limit");
    {
        let queues = Embedded::open(&path.0).expect("opens");
        assert!(change(&queues, b'a').taken && change(&queues, b'b').taken);
        assert!(get(queues.change_shared(&name, limit, file(b'c'), START)).taken);
        assert!(get(queues.change_shared(&queue("gone"), limit, file(b'c'), START)).taken);
        assert!(get(queues.remove_shared(&queue("gone"))));
    }
    let queues = Embedded::open(&path.0).expect("opens again");
    let known = change(&queues, b'a');
    assert_eq!((known.taken, known.version.number, known.version.at), (false, 2, START));
    assert!(!get(queues.change_shared(&name, limit, file(b'c'), START)).taken);
    assert_eq!(get(queues.shared()).len(), 1);
}

#[test]
fn a_secret_is_chosen_once_and_kept_with_the_queues() {
    let path = scratch("secret");
    {
        let queues = Embedded::open(&path.0).expect("opens");
        assert_eq!(get(queues.secret([1; 32])), [1; 32]);
        assert_eq!(get(queues.secret([2; 32])), [1; 32]);
        get(queues.put_queue(&queue("q"), QueueSettings::default(), START));
    }
    let queues = Embedded::open(&path.0).expect("opens");
    assert_eq!(get(queues.secret([3; 32])), [1; 32]);
    assert_eq!(get(queues.queues()).len(), 1);
    let queues = Embedded::memory();
    assert_eq!([get(queues.secret([4; 32])), get(queues.secret([5; 32]))], [[4; 32]; 2]);
}

#[test]
fn totals_deadlines_and_told_edges_survive_a_restart() {
    let path = scratch("kept");
    let name = queue("q");
    let open = || Embedded::open(&path.0).expect("opens");
    let second = Duration::from_secs(1);
    let before = {
        let queues = open();
        let limit = "window 2/10s".parse().expect("a limit");
        let settings = QueueSettings {
            missed_deadline: MissedDeadline::Drop,
            backoff_jitter: 3,
            ..QueueSettings::with_limit(limit)
        };
        get(queues.put_queue(&name, settings, START));
        let jobs = vec![job("g"), job("g"), job("g").start_within(second * 5), job("g")];
        get(queues.enqueue(&name, jobs, START));
        let leased = get(queues.lease(&name, 9, "w", START)).leases;
        let limited = Outcome::Limited { wait: Duration::from_millis(3_500) };
        let answers = [Outcome::Done { result: None }, limited];
        for (lease, outcome) in leased.iter().zip(answers) {
            get(queues.settle_one(&name, lease.token(), outcome, START.after(second)));
        }
        get(queues.stats(&name, None, 1, START.after(second))).totals
    };
    assert_eq!((before.enqueued, before.leased, before.done, before.limited), (4, 2, 1, 1));
    let queues = open();
    let limited = get(queues.job(&name, JobId(2), START.after(second))).expect("it is there");
    let wait = Duration::from_millis(3_500);
    assert_eq!(limited.past.last().map(|past| &past.end), Some(&AttemptEnd::Limited { wait }));
    let at = |seconds: f64| START.after(Duration::from_secs_f64(seconds));
    let settings = get(queues.queues()).remove(0).1;
    assert_eq!((settings.missed_deadline, settings.backoff_jitter), (MissedDeadline::Drop, 3));
    assert_eq!(get(queues.stats(&name, None, 1, at(2.0))).totals, before);
    // The upstream's edge, and what started there, not the clock's.
    assert!(get(queues.lease(&name, 1, "w", at(4.4))).leases.is_empty());
    let lease = get(queues.lease(&name, 1, "w", at(4.5))).leases.remove(0);
    get(queues.settle_one(&name, lease.token(), Outcome::Done { result: None }, at(4.5)));
    let stats = get(queues.stats(&name, None, 1, at(5.0)));
    assert_eq!((stats.totals.missed, stats.totals.done, stats.queue.waiting), (1, 2, 1));
}
