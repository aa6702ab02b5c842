//! What budgets cost: bytes per idle bucket, nanoseconds and allocations per request.
//!
//! `cargo bench -p tollway-upstream --bench budgets`

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tollway_core::Timestamp;
use tollway_upstream::budget::{Budgets, Claim, Granted, Settings};
use tollway_upstream::profile::{Observation, Profile, Reading, Route};

/// Counts the bytes that are in use, and the allocations.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BUCKETS: u64 = 100_000;
const REQUESTS: u64 = 1_000_000;

fn main() {
    let profile = Profile::builtin("discord").expect("it is shipped");
    // Nothing is to be forgotten in the 40 minutes that the filling takes in virtual time.
    let settings = Settings { idle: Duration::from_secs(86_400), ..Settings::default() };
    let mut budgets = Budgets::new(profile.clone(), settings);
    let answer = Observation {
        bucket: Some("80c17d2f203122d936070c88c8d10f33".into()),
        readings: vec![Reading {
            limit: Some(5),
            remaining: Some(4),
            reset_after: Some(Duration::from_secs(5)),
            told_after: true,
            ..Reading::default()
        }],
        ..Observation::default()
    };
    let before = IN_USE.load(Ordering::Relaxed);
    let mut now = Timestamp::from_millis(1_000);
    for channel in 0..BUCKETS {
        let target = format!("/api/v10/channels/{}/messages", 1_183_442_331_236_106_270 + channel);
        request(&mut budgets, &profile.route("POST", &target), &answer, now);
        now = now.after(Duration::from_millis(25));
    }
    let bytes = IN_USE.load(Ordering::Relaxed) - before;
    println!("{} idle buckets: {} bytes each", budgets.bucket_count(), bytes / BUCKETS as usize);

    let routes: Vec<Route> = (0..1_000)
        .map(|channel| profile.route("POST", &format!("/api/v10/channels/{channel}/messages")))
        .collect();
    let (start, allocated) = (Instant::now(), ALLOCATIONS.load(Ordering::Relaxed));
    for number in 0..REQUESTS {
        let route = &routes[(number % 1_000) as usize];
        request(&mut budgets, route, &answer, now);
        now = now.after(Duration::from_millis(25));
    }
    let per = start.elapsed().as_nanos() / u128::from(REQUESTS);
    println!("claim and observe: {per} ns, {:.1} allocations", allocations(allocated));

    let (start, allocated) = (Instant::now(), ALLOCATIONS.load(Ordering::Relaxed));
    for number in 0..REQUESTS {
        let target = "/api/v10/channels/1183442331236106270/messages/1183442331236106271";
        black_box(profile.route(black_box("GET"), target));
        black_box(number);
    }
    let per = start.elapsed().as_nanos() / u128::from(REQUESTS);
    println!("route: {per} ns, {:.1} allocations", allocations(allocated));
}

/// Allocations for each of the requests since there were so many.
fn allocations(before: usize) -> f64 {
    (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64 / REQUESTS as f64
}

fn request(budgets: &mut Budgets, route: &Route, answer: &Observation, now: Timestamp) {
    match budgets.claim(&Claim::new(route.clone()), now) {
        Ok(Granted::Now(ticket)) => budgets.observe(ticket, answer, now),
        other => panic!("{other:?}"),
    }
}
