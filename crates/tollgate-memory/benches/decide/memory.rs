//! Bytes per key: what each subject has allocated once it holds a million keys.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::stream::{Mix, Stream, Workload};
use crate::subjects;

/// The system's allocator, counting what is live.
pub(crate) struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on as it came; counting changes nothing about the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as our caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as our caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as our caller promised.
        unsafe { System.dealloc(place, layout) }
    }
}

pub(crate) fn report() {
    let stream = Stream::new(Workload::Zipf1M).every_key();
    println!("\n## live bytes per key, 1M keys of 20 bytes");
    for name in subjects::NAMES {
        let before = LIVE.load(Ordering::Relaxed);
        let subject = subjects::named(name, stream.len(), Mix::Deny);
        subject.run(&stream);
        let bytes = LIVE.load(Ordering::Relaxed) - before;
        println!("{name:<34} {:>8.1}", bytes as f64 / stream.len() as f64);
    }
}
