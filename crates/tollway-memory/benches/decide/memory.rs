//! Bytes per key: what the process has grown by once a subject holds a million keys.

use std::process::Command;

use crate::stream::{Mix, Stream, Workload};
use crate::subjects;

/// Each subject in a process of its own: memory that another has freed would count for nothing.
pub(crate) fn report() {
    println!("\n## resident bytes per key, 1M keys of 20 bytes");
    let program = std::env::current_exe().expect("a running program has a path");
    for name in subjects::NAMES {
        let output = Command::new(&program).args(["--resident", name]).output();
        let printed = output.expect("a program can run itself").stdout;
        print!("{}", String::from_utf8_lossy(&printed));
    }
}

pub(crate) fn child(name: &str) {
    let stream = Stream::new(Workload::Zipf1M).every_key();
    let before = resident();
    let subject = subjects::named(name, stream.len(), Mix::Deny);
    subject.run(&stream);
    let bytes = resident().saturating_sub(before);
    println!("{name:<34} {:>8.1}", bytes as f64 / stream.len() as f64);
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux says how large we are");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("the second number is the resident size") * 4_096
}
