//! Bytes per key: what the process has grown by once a subject holds a million keys.

use crate::stream::{Mix, Stream, Workload};
use crate::subjects;

pub(crate) fn report() {
    let stream = Stream::new(Workload::Zipf1M).every_key();
    println!("\n## resident bytes per key, 1M keys of 20 bytes");
    for name in subjects::NAMES {
        let before = resident();
        let subject = subjects::named(name, stream.len(), Mix::Deny);
        subject.run(&stream);
        let bytes = resident().saturating_sub(before);
        println!("{name:<34} {:>8.1}", bytes as f64 / stream.len() as f64);
    }
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux says how large we are");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("the second number is the resident size") * 4_096
}
