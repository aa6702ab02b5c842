//! Instructions per check, counted by callgrind: the same on a busy machine as on an idle one.

use std::process::Command;

use crate::stream::{Mix, Stream, Workload};
use crate::subjects;

/// Runs this program under callgrind with one and with two rounds of checks: the difference is what
/// a round costs, start-up and filling excluded.
pub(crate) fn report() {
    println!("\n## instructions per check, 10k uniform keys (callgrind)");
    let program = std::env::current_exe().expect("a running program has a path");
    for name in subjects::NAMES {
        for mix in [Mix::Allow, Mix::Deny] {
            let count = |rounds: u32| {
                let output = Command::new("valgrind")
                    .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
                    .arg(&program)
                    .args(["--child", name, mix.name(), &rounds.to_string()])
                    .output()
                    .expect("valgrind is installed");
                collected(&String::from_utf8_lossy(&output.stderr))
            };
            let per_check = (count(2) - count(1)) / CHECKS as u64;
            println!("{name:<34} {:<6} {per_check:>6}", mix.name());
        }
    }
}

const CHECKS: usize = 1 << 20;

pub(crate) fn child(args: &[String]) {
    let mix = if args[1] == Mix::Allow.name() { Mix::Allow } else { Mix::Deny };
    let stream = Stream::new(Workload::Uniform10k);
    let subject = subjects::named(&args[0], Workload::Uniform10k.keys(), mix);
    subject.run(&stream.every_key());
    for _ in 0..args[2].parse::<u32>().expect("a number of rounds") {
        std::hint::black_box(subject.run(&stream));
    }
}

fn collected(report: &str) -> u64 {
    let line = report.lines().find(|line| line.contains("Collected"));
    let number = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    number.expect("callgrind says what it collected")
}
