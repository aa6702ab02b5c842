//! What must be refused, with a clear error and nothing changed.

use std::time::Duration;

use tollway_queue::{Embedded, ErrorKind, JobId, LeaseToken, Outcome, QueueSettings};

use crate::world::{AtMoment as _, START, get, job, now_or_soon, queue};

fn queues() -> Embedded {
    let queues = Embedded::memory();
    let settings =
        QueueSettings { payload_max: 10, jobs_max: 5, groups_max: 3, ..QueueSettings::default() };
    get(queues.put_queue(&queue("q"), settings, START));
    queues
}

#[test]
fn a_job_outside_its_bounds_is_refused_and_its_batch_with_it() {
    let queues = queues();
    let long = "x".repeat(11);
    let wrong = [
        tollway_queue::NewJob::new(crate::world::group("g"), long),
        job("g").weight(0),
        job("g").weight(2_000_000),
        job("g").key(""),
        job("g").key("k".repeat(257)),
        job("g").attempts_max(0),
        job("g").after(Duration::from_secs(11 * 365 * 86_400)),
        job("g").at(tollway_core::Timestamp::MAX),
    ];
    for job_refused in wrong {
        let batch = vec![job("g"), job_refused.clone()];
        let error = now_or_soon(queues.enqueue(&queue("q"), batch, START)).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{job_refused:?}");
    }
    assert_eq!(get(queues.stats(&queue("q"), None, 1, START)).queue, Default::default());
}

#[test]
fn a_full_queue_says_so_and_takes_no_part_of_a_batch() {
    let queues = queues();
    let put = |jobs| now_or_soon(queues.enqueue(&queue("q"), jobs, START));
    assert_eq!(put(vec![job("g"); 6]).expect_err("full").kind(), ErrorKind::Full);
    let groups = ["a", "b", "c", "d"].map(job).to_vec();
    assert_eq!(put(groups).expect_err("full").kind(), ErrorKind::Full);
    assert_eq!(put(vec![job("g"); 5]).expect("fits").len(), 5);
    assert_eq!(put(vec![job("g")]).expect_err("full").kind(), ErrorKind::Full);
}

#[test]
fn an_unknown_queue_and_an_oversized_batch_are_refused() {
    let queues = queues();
    let error = now_or_soon(queues.lease(&queue("nowhere"), 1, "w", START)).expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::UnknownQueue);
    let batch = vec![job("g"); 1_001];
    let error = now_or_soon(queues.enqueue(&queue("q"), batch, START)).expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let settings = QueueSettings { shared: vec![queue("nothing")], ..QueueSettings::default() };
    let error = now_or_soon(queues.put_queue(&queue("r"), settings, START)).expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_lease_that_never_was_is_lost() {
    let queues = queues();
    let token = LeaseToken { id: JobId(77), attempt: 1 };
    let done = Outcome::Done { result: None };
    let error = now_or_soon(queues.settle_one(&queue("q"), token, done, START)).expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
}

#[cfg(feature = "redb")]
mod file {
    use super::*;
    use crate::crash::{Disk, Fault, scratch};
    use tollway_queue::FileOptions;

    #[test]
    fn a_file_that_is_no_queue_is_refused_and_left_alone() {
        let path = scratch("garbage");
        let garbage = vec![0x5a; 100_000];
        std::fs::write(&path.0, &garbage).expect("written");
        let error = Embedded::open(&path.0).expect_err("no queue");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(std::fs::read(&path.0).expect("read") == garbage);
    }

    /// A file with a queue in it, and `damage` done to it.
    fn damaged(name: &str, damage: impl FnOnce(&redb::WriteTransaction)) -> ErrorKind {
        let path = scratch(name);
        let queues = Embedded::open(&path.0).expect("opens");
        get(queues.put_queue(&queue("q"), QueueSettings::default(), START));
        drop(queues);
        let database = redb::Database::create(&path.0).expect("opens");
        let transaction = database.begin_write().expect("begins");
        damage(&transaction);
        transaction.commit().expect("committed");
        drop(database);
        Embedded::open(&path.0).expect_err("damaged").kind()
    }

    #[test]
    fn a_row_that_is_damaged_is_told_as_such() {
        let told = damaged("damaged", |transaction| {
            let queues: redb::TableDefinition<'_, (u32, u64), &[u8]> =
                redb::TableDefinition::new("queues");
            let mut queues = transaction.open_table(queues).expect("there");
            queues.insert((1, 0), &b"\x01"[..]).expect("written");
        });
        assert_eq!(told, ErrorKind::Corrupt);
    }

    #[test]
    fn a_journal_that_is_damaged_or_of_another_version_is_told_as_such() {
        for record in [&b"\x02\0\0\0\x03"[..], b"\x02\0\0\0\x2f\0\0\0\0", b"\x63\0\0\0", b""] {
            let told = damaged("journal", |transaction| {
                let journal: redb::TableDefinition<'_, u64, &[u8]> =
                    redb::TableDefinition::new("journal");
                let mut journal = transaction.open_table(journal).expect("made");
                journal.insert(0, record).expect("written");
            });
            assert_eq!(told, ErrorKind::Corrupt, "{record:?}");
        }
    }

    /// What a file with fifty jobs says when it is opened, and its jobs leased, after `damage`.
    fn read_after(path: &crate::crash::Scratch, bytes: &[u8]) -> Result<usize, ErrorKind> {
        std::fs::write(&path.0, bytes).expect("written");
        let queues = Embedded::open(&path.0).map_err(|error| error.kind())?;
        let leased = now_or_soon(queues.lease(&queue("q"), 100, "w", START));
        leased.map(|leased| leased.leases.len()).map_err(|error| error.kind())
    }

    #[test]
    fn a_file_that_is_cut_or_overwritten_anywhere_is_never_taken_for_an_empty_queue() {
        let path = scratch("rotten");
        let queues = Embedded::open(&path.0).expect("opens");
        get(queues.put_queue(&queue("q"), QueueSettings::default(), START));
        get(queues.enqueue(&queue("q"), vec![job("g"); 50], START));
        drop(queues);
        let whole = std::fs::read(&path.0).expect("read");
        assert_eq!(read_after(&path, &whole), Ok(50));
        let mut random = crate::world::Random::new(17);
        for round in 0..200 {
            // The first is cut to nothing.
            let at = if round == 0 { 0 } else { random.below(whole.len() as u64) as usize };
            let mut bytes = whole.clone();
            match round % 4 {
                0 => bytes.truncate(at),
                1 => bytes[at..].fill(0),
                2 => bytes[at..].iter_mut().take(512).for_each(|byte| *byte = !*byte),
                _ => bytes[at] ^= 1 << random.below(8),
            }
            match read_after(&path, &bytes) {
                // What was hit is not in use.
                Ok(jobs) => assert_eq!(jobs, 50, "round {round}, at {at}"),
                Err(kind) => assert_eq!(kind, ErrorKind::Corrupt, "round {round}, at {at}"),
            }
        }
    }

    #[test]
    fn a_new_file_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = scratch("mode");
        let _queues = Embedded::open(&path.0).expect("opens");
        let mode = std::fs::metadata(&path.0).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_in_use_is_refused() {
        let path = scratch("in-use");
        let _queues = Embedded::open(&path.0).expect("opens");
        assert_eq!(Embedded::open(&path.0).expect_err("in use").kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_full_disk_refuses_what_it_cannot_hold_and_keeps_what_it_has() {
        let disk = Disk::new();
        let maker = disk.clone();
        let queues =
            Embedded::open_with(FileOptions::on(move || Ok(maker.clone()))).expect("opens");
        get(queues.put_queue(&queue("q"), QueueSettings::default(), START));
        get(queues.enqueue(&queue("q"), vec![job("kept")], START));
        disk.set(Fault::Full);
        let large = tollway_queue::NewJob::new(crate::world::group("g"), vec![7; 200_000]);
        let mut refused = 0;
        for _ in 0..100 {
            if let Err(error) = now_or_soon(queues.enqueue(&queue("q"), vec![large.clone()], START))
            {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                refused += 1;
            }
        }
        assert!(refused > 0);
        disk.set(Fault::None);
        let stats = get(queues.stats(&queue("q"), None, 10, START));
        assert_eq!(stats.queue.waiting, 1 + 100 - refused);
        get(queues.enqueue(&queue("q"), vec![large], START));
        let leased = get(queues.lease(&queue("q"), 1, "w", START));
        assert_eq!(leased.leases[0].group.as_str(), "kept");
    }
}
