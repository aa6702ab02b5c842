//! Decisions per second, bytes and instructions per decision: ours, governor's, and a bare floor.
//!
//! `cargo bench -p tollway-memory --bench decide [-- [--full] [--instructions] [--only WORKLOAD]
//! [--subjects NAME|NAME]]`
//!
//! Every subject of one table runs in the same process, in turns, on the same stream of keys; the
//! figures are the median and range over the turns. `cpu` is processor time per check and thread,
//! which a busy machine disturbs least; `wall` is elapsed time per check over all threads.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

mod instructions;
mod memory;
mod stream;
mod subjects;

use std::time::Instant;

use stream::{Mix, Stream, Workload};
use subjects::Subject;

const TURNS: usize = 7;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if let Some(at) = args.iter().position(|arg| arg == "--child") {
        return instructions::child(&args[at + 1..]);
    }
    if let Some(at) = args.iter().position(|arg| arg == "--resident") {
        return memory::child(&args[at + 1]);
    }
    let value =
        |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let (only, subjects) = (value("--only"), value("--subjects"));
    println!("# machine: {} cores, {}", cores(), std::env::consts::ARCH);
    if has("--instructions") {
        return instructions::report();
    }
    let mut workloads = vec![Workload::Hot, Workload::Uniform10k, Workload::Zipf1M];
    if has("--full") {
        workloads.push(Workload::Uniform10M);
    }
    for workload in workloads {
        if only.is_some_and(|only| !workload.name().contains(only.as_str())) {
            continue;
        }
        for mix in [Mix::Allow, Mix::Deny] {
            compare(workload, mix, subjects);
        }
    }
    if only.is_none() {
        memory::report();
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn compare(workload: Workload, mix: Mix, only: Option<&String>) {
    let stream = Stream::new(workload);
    let mut subjects = subjects::all(workload.keys(), mix);
    let wanted = |name| only.is_none_or(|only| only.split('|').any(|only| only == name));
    subjects.retain(|subject| wanted(subject.name()));
    for subject in &subjects {
        subject.run(&stream.every_key());
        subject.run(&stream);
    }
    println!("\n## {} keys, {}", workload.name(), mix.name());
    println!(
        "{:<34} {:>7} {:>24} {:>24}",
        "subject", "threads", "cpu ns [range]", "wall ns [range]"
    );
    for threads in [1, 2] {
        let mut figures = vec![(Vec::new(), Vec::new()); subjects.len()];
        for _ in 0..TURNS {
            for (subject, (cpu, wall)) in subjects.iter().zip(&mut figures) {
                let turn = time(&**subject, &stream, threads);
                cpu.push(turn.0);
                wall.push(turn.1);
            }
        }
        for (subject, (cpu, wall)) in subjects.iter().zip(figures) {
            println!(
                "{:<34} {threads:>7} {:>24} {:>24}",
                subject.name(),
                spread(cpu),
                spread(wall)
            );
        }
    }
}

/// CPU nanoseconds per check of a thread, and elapsed nanoseconds per check of all threads.
fn time(subject: &dyn Subject, stream: &Stream, threads: usize) -> (f64, f64) {
    let started = Instant::now();
    let cpu_ns: f64 = std::thread::scope(|scope| {
        let run = |at: usize| {
            let part = stream.part(at, threads);
            scope.spawn(move || {
                let before = thread_cpu_ns();
                std::hint::black_box(subject.run(&part));
                (thread_cpu_ns() - before) as f64
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().map(|thread| thread.join().expect("the thread ran")).sum()
    });
    let checks = stream.len() as f64;
    (cpu_ns / checks, started.elapsed().as_nanos() as f64 / checks)
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local that outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn spread(mut figures: Vec<f64>) -> String {
    figures.sort_by(f64::total_cmp);
    let (low, high) = (figures[0], figures[figures.len() - 1]);
    format!("{:.1} [{low:.1}-{high:.1}]", figures[figures.len() / 2])
}
