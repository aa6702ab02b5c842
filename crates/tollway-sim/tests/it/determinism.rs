use tollway_sim::Kind;
use tollway_sim::measure::run;
use tollway_sim::scenario::NAMES;

use crate::log::{Log, hours, named, scenario};

/// A short scenario with everything in it that draws from a generator.
const BUSY: &str = "length = '2h'\n\
    [server]\nnoise = 2.0\n\
    [faults]\nlost-requests = 0.01\nlost-answers = 0.01\nserver-errors = 0.01\ntimeout = '5s'\n\
    [[clients]]\nprocesses = 3\nthreads = 3\njoins-within = '10s'\n\
    latency = { log-normal = { median = '300ms', sigma = 0.7 } }\n";

#[test]
fn the_same_seed_gives_the_same_run() {
    for kind in Kind::ALL {
        for name in NAMES {
            let scenario = named(name).lasting(hours(1));
            assert_eq!(run(&scenario, kind, 7), run(&scenario, kind, 7), "{name}, {kind}");
        }
    }
}

#[test]
fn another_seed_gives_another_run() {
    for kind in Kind::ALL {
        let requests = |seed| Log::of(&scenario(BUSY), kind, seed).0;
        assert_ne!(requests(1), requests(2), "{kind}");
    }
}

/// Every request of every strategy, folded into one number each. They were computed on x86-64;
/// another machine must find the same, because only IEEE 754's exact operations are used.
#[test]
fn the_runs_are_the_same_on_every_machine() {
    let found: Vec<String> = Kind::ALL
        .iter()
        .map(|&kind| format!("{kind} {:016x}", fold(&Log::of(&scenario(BUSY), kind, 42))))
        .collect();
    let golden = include_str!("golden/runs.txt");
    assert_eq!(found.join("\n"), golden.trim_end(), "if meant, update golden/runs.txt");
}

/// FNV-1a over the times and outcomes of all requests.
fn fold(log: &Log) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for exchange in &log.0 {
        for word in [exchange.at_ns, exchange.task as u64, exchange.outcome as u64] {
            for byte in word.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    hash
}
