//! Pages that large jobs fill.

use tollway_queue::{NewJob, Outcome, PAGE_BYTES, QueueSettings};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, get, group, now_or_soon};

/// A queue with four jobs, three of which fill a page.
fn large(at: At) -> (Bench, Vec<u64>) {
    let payload_max = QueueSettings::PAYLOAD_MAX;
    let bench = Bench::with(at, QueueSettings { payload_max, ..QueueSettings::default() });
    let put = |fill: u8| {
        let payload = vec![fill; PAGE_BYTES / 3 + 1];
        bench.put(NewJob::new(group("g"), payload), START)
    };
    let ids = (0..4).map(put).collect();
    (bench, ids)
}

pub(super) fn a_page_of_jobs_ends_with_the_one_that_fills_it(at: At) {
    let (bench, ids) = large(at);
    let peek = |max| {
        let jobs = get(bench.queues().peek(&bench.name, &group("g"), max, START));
        jobs.iter().map(|job| job.id.0).collect::<Vec<_>>()
    };
    assert_eq!(peek(1_000), ids[..3]);
    assert_eq!(peek(2), ids[..2], "the number bounds it as well");
    // One at a time: however many a lease call gives.
    for _ in &ids {
        let leased = get(bench.queues().lease(&bench.name, 1, "w", START)).leases;
        let dead = Outcome::Failed { reason: "no".to_owned(), retry: false };
        bench.settle(leased[0].token(), dead, START);
    }
    let (mut after, mut pages) = (None, Vec::new());
    loop {
        let page = get(bench.queues().dead(&bench.name, after, 1_000, START));
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        assert!(page.iter().all(|job| job.payload.len() == PAGE_BYTES / 3 + 1));
        pages.push(page.iter().map(|job| job.id.0).collect::<Vec<_>>());
    }
    assert_eq!(pages, [&ids[..3], &ids[3..]]);
    // A payload that fills a page by itself is a page.
    let largest = NewJob::new(group("h"), vec![7; QueueSettings::PAYLOAD_MAX as usize]);
    get(bench.queues().enqueue(&bench.name, vec![largest.clone()], START));
    bench.put(largest, START);
    let page = get(bench.queues().peek(&bench.name, &group("h"), 1_000, START));
    assert_eq!(page.len(), 1);
    let over = NewJob::new(group("h"), vec![7; QueueSettings::PAYLOAD_MAX as usize + 1]);
    assert!(now_or_soon(bench.queues().enqueue(&bench.name, vec![over], START)).is_err());
}

pub(super) fn a_lease_call_ends_with_the_job_that_fills_it(at: At) {
    let (bench, ids) = large(at);
    let leased = get(bench.queues().lease(&bench.name, 1_000, "w", START));
    assert_eq!(leased.leases.iter().map(|lease| lease.id.0).collect::<Vec<_>>(), ids[..3]);
    // Whoever got a full page is told to come again at once.
    assert_eq!(leased.next, Some(START));
    assert_eq!(bench.ids(START), ids[3..]);
    for lease in &leased.leases {
        bench.settle(lease.token(), DONE, START);
    }
}
