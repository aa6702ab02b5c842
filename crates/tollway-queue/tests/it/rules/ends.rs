//! Jobs that ended, in the order in which they did, and jobs that are given another time to start.

use std::time::Duration;

use bytes::Bytes;
use tollway_queue::{
    EndMark, ErrorKind, Job, JobId, JobState, NewJob, Outcome, PAGE_BYTES, QueueSettings, Start,
};

use super::DONE;
use super::bench::{At, Bench};
use crate::world::{AtMoment as _, START, after, get, group, job, now_or_soon};

/// The ids of all jobs that ended after `mark`, in pages of `max`.
fn pages(bench: &Bench, mut mark: EndMark, max: usize, at: f64) -> Vec<Vec<u64>> {
    let mut pages = Vec::new();
    loop {
        let ended = get(bench.queues().ended(&bench.name, Some(mark), max, after(at)));
        if ended.jobs.is_empty() {
            assert_eq!(ended.mark, mark, "there it goes on");
            return pages;
        }
        mark = ended.mark;
        pages.push(ended.jobs.iter().map(|job| job.id.0).collect());
    }
}

pub(super) fn jobs_are_listed_in_the_order_in_which_they_ended(at: At) {
    let bench = Bench::new(at, "concurrent 50");
    // Ids of one and of two digits.
    let ids: Vec<u64> = (0..12).map(|_| bench.put(job("g"), START)).collect();
    let tokens: Vec<_> = bench.lease(START).iter().map(|lease| lease.token()).collect();
    let dead = Outcome::Failed { reason: "no".into(), retry: false };
    bench.settle(tokens[5], DONE, after(1.0));
    bench.settle(tokens[2], dead.clone(), after(2.0));
    bench.settle(tokens[11], DONE, after(3.0));
    let begin = get(bench.queues().ended(&bench.name, None, 10, after(3.0)));
    assert!(begin.jobs.is_empty());
    // Together, so that nothing but the ids tells them apart.
    let rest = [0, 1, 3, 4, 6, 7, 8, 9].map(|one| (tokens[one], DONE));
    get(bench.queues().settle(&bench.name, rest.to_vec(), after(4.0)));
    bench.settle(tokens[10], dead, after(4.0));
    let all: Vec<u64> = pages(&bench, EndMark::FIRST, 100, 4.0).concat();
    assert_eq!(all[..3], [5, 2, 11].map(|one: usize| ids[one]));
    for max in 1..=4 {
        assert_eq!(pages(&bench, EndMark::FIRST, max, 4.0).concat(), all, "{max} at a time");
    }
    let since = pages(&bench, begin.mark, 100, 4.0).concat();
    assert_eq!(since, all[3..], "what ended since");
    let mut sorted = all.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ids, "each of them once");
    // They say what became of them.
    let ended = get(bench.queues().ended(&bench.name, Some(EndMark::FIRST), 2, after(4.0)));
    let states: Vec<JobState> = ended.jobs.into_iter().map(|job| job.state).collect();
    let (done, dead) = (after(1.0), after(2.0));
    let reason = "no".to_owned();
    let expected = [JobState::Done { at: done, result: None }, JobState::Dead { at: dead, reason }];
    assert_eq!(states, expected);
    let text = begin.mark.to_string();
    assert_eq!(text.parse::<EndMark>().expect("as it was written"), begin.mark);
}

pub(super) fn a_page_of_jobs_that_ended_is_bounded_by_their_results(at: At) {
    let payload_max = QueueSettings::PAYLOAD_MAX;
    let bench = Bench::with(at, QueueSettings { payload_max, ..QueueSettings::default() });
    for second in 0..4 {
        bench.put(job("g"), START);
        let token = bench.lease(START)[0].token();
        let result = Some(Bytes::from(vec![7; PAGE_BYTES / 3 + 1]));
        bench.settle(token, Outcome::Done { result }, after(f64::from(second)));
    }
    let sizes: Vec<usize> =
        pages(&bench, EndMark::FIRST, 1_000, 9.0).iter().map(Vec::len).collect();
    assert_eq!(sizes, [3, 1]);
}

pub(super) fn a_job_is_given_another_time_to_start(at: At) {
    let bench = Bench::new(at, "slots 1/10s");
    let id = |id| JobId(id);
    let move_to = |job: u64, start: Start, now: f64| -> Option<Job> {
        get(bench.queues().reschedule(&bench.name, id(job), start, after(now)))
    };
    let delayed = bench.put(job("a").after(Duration::from_secs(3_600)), START);
    let waits = bench.put(job("b"), START);
    let heavy = bench.put(job("b").weight(3).priority(2), START);
    // Forward, and back.
    let told = move_to(delayed, Start::Now, 1.0).expect("it is there");
    assert!(matches!(told.state, JobState::Waiting { ready: Some(_), .. }), "{told:?}");
    for one in [waits, heavy] {
        let told = move_to(one, Start::After(Duration::from_secs(60)), 1.0).expect("there");
        let JobState::Waiting { due_at, .. } = told.state else { panic!("{told:?}") };
        assert_eq!(due_at, after(61.0));
    }
    let counts = get(bench.queues().stats(&bench.name, None, 1, after(1.0))).queue;
    assert_eq!((counts.waiting, counts.delayed), (1, 2));
    let lease = bench.lease(after(1.0)).remove(0);
    assert_eq!(lease.id.0, delayed);
    assert_eq!(bench.next(after(1.0)), Some(after(31.0)), "the end of its lease");
    bench.settle(lease.token(), DONE, after(1.0));
    assert_eq!(bench.next(after(1.0)), Some(after(61.0)));
    move_to(waits, Start::At(after(70.0)), 2.0).expect("there");
    assert_eq!(bench.ids(after(61.0)), [heavy], "its weight and priority are its own");
    // Not what runs, is over, or never was.
    let runs =
        now_or_soon(bench.queues().reschedule(&bench.name, id(heavy), Start::Now, after(62.)));
    assert_eq!(runs.expect_err("it runs").kind(), ErrorKind::Conflict);
    assert_eq!(move_to(delayed, Start::Now, 62.0), None);
    assert_eq!(move_to(99_999, Start::Now, 62.0), None);
    let far = Start::After(NewJob::DELAY_MAX + Duration::from_secs(1));
    let far = now_or_soon(bench.queues().reschedule(&bench.name, id(waits), far, after(62.0)));
    assert_eq!(far.expect_err("too far").kind(), ErrorKind::Invalid);
    get(bench.queues().pause(&bench.name, Some(&group("b")), true, after(62.0)));
    let told = move_to(waits, Start::Now, 62.0).expect("there");
    assert!(matches!(told.state, JobState::Waiting { ready: None, .. }), "{told:?}");
}
