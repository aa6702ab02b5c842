//! What idle buckets take, counted as the allocator counts it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use tollway_core::Timestamp;
use tollway_upstream::budget::{Budgets, Claim, Granted, Settings};
use tollway_upstream::profile::{Observation, Profile, Reading};

/// Counts what the thread that asks has in use: other tests run beside this one.
struct Counting;

thread_local! {
    static IN_USE: Cell<isize> = const { Cell::new(0) };
}

/// What a usual allocator takes for so many bytes: eight for itself, in steps of sixteen.
fn taken(layout: Layout) -> isize {
    ((layout.size() + 8).next_multiple_of(16)).max(32) as isize
}

fn count(bytes: isize) {
    // A thread that is ending counts no more.
    let _ = IN_USE.try_with(|in_use| in_use.set(in_use.get() + bytes));
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(taken(layout));
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-taken(layout));
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Where tables of the usual kind, which are seven eighths full at most, double.
const DOUBLING: u64 = (1 << 17) / 8 * 7;

#[test]
fn an_idle_bucket_takes_less_than_two_hundred_bytes_at_any_count_from_a_hundred_thousand_on() {
    let mut counts = vec![100_000, DOUBLING, DOUBLING + 1, 120_000, (1 << 17) - 1, 1 << 17];
    counts.extend([(1 << 17) + 1, 140_000]);
    if std::env::var_os("TOLLWAY_FULL").is_some() {
        counts.extend([2 * DOUBLING, 2 * DOUBLING + 1, (1 << 18) + 1, 4 * DOUBLING + 1, 1 << 20]);
    }
    let before = IN_USE.get();
    let profile = Profile::builtin("discord").expect("it is shipped");
    // Nothing is to be forgotten in the time that the filling takes in virtual time.
    let idle = Duration::from_secs(864_000);
    let settings = Settings { buckets_max: 2 << 20, idle, ..Settings::default() };
    let mut budgets = Budgets::new(profile.clone(), settings);
    let answer = of_five();
    let mut now = Timestamp::from_millis(1_000);
    for channel in 0..*counts.last().expect("there are some") {
        let target = format!("/api/v10/channels/{}/messages", 1_183_442_331_236_106_270 + channel);
        let claim = Claim::new(profile.route("POST", &target));
        let Ok(Granted::Now(ticket)) = budgets.claim(&claim, now) else {
            panic!("it goes at once")
        };
        budgets.observe(ticket, &answer, now);
        now = now.after(Duration::from_millis(25));
        if counts.contains(&(channel + 1)) {
            assert_eq!(budgets.bucket_count() as u64, channel + 1);
            let each = (IN_USE.get() - before) as u64 / (channel + 1);
            assert!((100..200).contains(&each), "{each} bytes at {}", channel + 1);
        }
    }
}

/// An answer of a bucket of five.
fn of_five() -> Observation {
    let reading = Reading {
        limit: Some(5),
        remaining: Some(4),
        reset_after: Some(Duration::from_secs(5)),
        told_after: true,
        ..Reading::default()
    };
    let bucket = Some("80c17d2f203122d936070c88c8d10f33".into());
    Observation { bucket, readings: vec![reading], ..Observation::default() }
}
