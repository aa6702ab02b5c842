//! Instructions per check of a calendar window beside a fixed one, counted by callgrind.
//!
//! `cargo bench -p tollway-zones --bench calendar`: the program runs itself under valgrind with one
//! and with two rounds of checks; the difference is what a round costs. Time is given, so no clock
//! is read. In `same window` all checks are within one window; in `moving` a check comes a minute
//! after the one before it, so that a key finds a new day at each of its checks.

#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has no figure")]

use std::process::Command;
use std::time::Duration;

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::{Charge, Key, Policy, Timestamp};
use tollway_memory::{Capacity, MemoryStore};
use tollway_zones::calendar_window;

const CHECKS: u64 = 100_000;
const KEYS: u64 = 2_000;
const SUBJECTS: [&str; 4] = [
    "fixed window, 1 day",
    "1000000000/day",
    "1000000000/day tz Europe/Berlin anchor 02:30",
    "1000000000/month tz America/New_York anchor 31",
];
const MOVES: [(&str, Duration); 2] =
    [("same window", Duration::ZERO), ("moving", Duration::from_secs(60))];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--child") {
        let [subject, moves, rounds] = [1, 2, 3].map(|next| arguments[at + next].parse().unwrap());
        return child(subject, moves, rounds as u64);
    }
    println!("| instructions per check | same window | / fixed | moving | / fixed |");
    println!("|---|---|---|---|---|");
    let fixed = [0, 1].map(|moves| per_check(0, moves));
    for (subject, name) in SUBJECTS.into_iter().enumerate() {
        let costs = [0, 1].map(|moves| per_check(subject, moves));
        let [same, moving] =
            [0, 1].map(|at| format!("{:.1} | {:.2}", costs[at], costs[at] / fixed[at]));
        println!("| {name} | {same} | {moving} |");
    }
}

fn per_check(subject: usize, moves: usize) -> f64 {
    let count = |rounds: u64| {
        let numbers = [subject.to_string(), moves.to_string(), rounds.to_string()];
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().unwrap())
            .arg("--child")
            .args(numbers)
            .output()
            .expect("valgrind is installed");
        let told = String::from_utf8_lossy(&output.stderr);
        let line = told.lines().find(|line| line.contains("Collected")).expect("a count");
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    (count(2) - count(1)) / CHECKS as f64
}

fn child(subject: usize, moves: usize, rounds: u64) {
    let policy = match subject {
        0 => {
            let quota = "1000000000/1d".parse().unwrap();
            Policy::new("plan", FixedWindow::new(quota, Anchor::Epoch)).unwrap()
        }
        _ => Policy::new("plan", calendar_window(SUBJECTS[subject]).unwrap()).unwrap(),
    };
    let store = MemoryStore::new(Capacity::keys(100_000));
    let keys: Vec<String> = (0..KEYS).map(|key| format!("customer-{key:011}")).collect();
    // Noon of a day in 2026.
    let start = Timestamp::from_millis(1_794_744_000_000);
    for check in 0..rounds * CHECKS {
        let now = start.after(MOVES[moves].1 * check as u32);
        let key = Key::new(&keys[(check % KEYS) as usize]).unwrap();
        let decision = store.check(&Charge::new(&policy, key), now);
        assert!(std::hint::black_box(decision).is_allowed());
    }
}
