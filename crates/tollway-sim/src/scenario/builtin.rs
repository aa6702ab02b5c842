//! The scenarios that have names.

use std::time::Duration;

use super::{Client, Scenario};
use crate::fault::Faults;
use crate::latency::Latency;
use crate::simulated_server::{Limiting, OwnerSpec, ServerSpec};
use crate::strategy::Kind;

/// The names of the built-in scenarios.
pub const NAMES: [&str; 9] = [
    "lone",
    "five-by-five",
    "fast-slow",
    "flappy",
    "join-leave",
    "fixed-window",
    "latency",
    "many",
    "shares",
];

const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn find(name: &str) -> Option<Scenario> {
    match name {
        "lone" => Some(lone()),
        "five-by-five" => Some(five_by_five()),
        "fast-slow" => Some(fast_slow()),
        "flappy" => Some(flappy()),
        "join-leave" => Some(join_leave()),
        "fixed-window" => Some(fixed_window()),
        "latency" => Some(latency()),
        "many" => Some(many()),
        "shares" => Some(shares()),
        _ => None,
    }
}

fn scenario(name: &str, about: &str, start: u64, clients: Vec<Client>) -> Scenario {
    Scenario {
        name: name.to_owned(),
        about: about.to_owned(),
        length: DAY,
        server: ServerSpec { start, ..ServerSpec::default() },
        reserve: None,
        clients,
        faults: Faults::default(),
    }
}

fn processes(processes: u32, threads: u32) -> Client {
    Client { processes, threads, joins_within: Duration::from_secs(1), ..Client::default() }
}

fn sleeping(count: u32, sleep_s: u64) -> Client {
    Client { start_sleep: Duration::from_secs(sleep_s), ..processes(count, 5) }
}

fn lone() -> Scenario {
    let about = "one process with five threads finds a full bucket of 4,500";
    let alone = Client { joins_within: Duration::ZERO, ..processes(1, 5) };
    scenario("lone", about, 4_500, vec![alone])
}

fn five_by_five() -> Scenario {
    let about = "five processes with five threads each share an empty bucket, 4,500 per hour";
    scenario("five-by-five", about, 0, vec![processes(5, 5)])
}

fn fast_slow() -> Scenario {
    let about = "one process begins with a sleep of 4 s, the other with 20 s";
    scenario("fast-slow", about, 100, vec![sleeping(1, 4), sleeping(1, 20)])
}

fn flappy() -> Scenario {
    let about = "two processes begin with a sleep of 4 s, three with 40 s";
    scenario("flappy", about, 100, vec![sleeping(2, 4), sleeping(3, 40)])
}

fn join_leave() -> Scenario {
    const PHASE: Duration = Duration::from_secs(7_200);
    let clients = vec![
        processes(1, 5),
        Client { leaves: Some(2 * PHASE), ..processes(1, 5) },
        Client { joins: PHASE, leaves: Some(2 * PHASE), ..processes(8, 5) },
        Client { joins: 3 * PHASE, ..processes(24, 5) },
    ];
    let about = "2, then 10, then 1, then 25 processes, two hours each";
    scenario("join-leave", about, 4_500, clients).lasting(4 * PHASE)
}

fn fixed_window() -> Scenario {
    let about = "five by five against a window of 4,500 that starts anew every hour";
    let mut scenario = scenario("fixed-window", about, 4_500, vec![processes(5, 5)]);
    scenario.server.limiting = Limiting::FixedWindow;
    scenario.server.tells_reset = true;
    scenario.server.tells_retry = true;
    scenario
}

fn latency() -> Scenario {
    let latency = Latency::LogNormal { median: Duration::from_secs(1), sigma: 0.7 };
    let about = "five by five with round trips of a second, some of them many";
    scenario("latency", about, 0, vec![Client { latency, ..processes(5, 5) }])
}

fn many() -> Scenario {
    let about = "a hundred processes of one thread share an empty bucket";
    scenario("many", about, 0, vec![processes(100, 1)])
}

/// Every team asks for more than there is and takes no care: what each gets is the server's doing.
fn shares() -> Scenario {
    const QUARTER: Duration = Duration::from_secs(900);
    let owner = |key: &str, floor: &str| OwnerSpec {
        key: key.to_owned(),
        parent: None,
        floor: Some(floor.to_owned()),
        ceiling: None,
    };
    let team = |key: &str| Client {
        owner: Some(key.to_owned()),
        strategy: Some(Kind::Backoff),
        ..processes(1, 20)
    };
    let clients = vec![
        team("batch"),
        Client { joins: QUARTER, ..team("search") },
        Client { joins: 2 * QUARTER, leaves: Some(3 * QUARTER), ..team("chat") },
    ];
    let about = "600 a minute: batch (floor 20%), after 15 min search (50%), from 30 to 45 min chat \
                 (30%)";
    let mut scenario = scenario("shares", about, 600, clients).lasting(4 * QUARTER);
    scenario.server.limiting = Limiting::Shares;
    scenario.server.limit = 600;
    scenario.server.period = Duration::from_secs(60);
    scenario.server.owners =
        vec![owner("batch", "20%"), owner("search", "50%"), owner("chat", "30%")];
    scenario
}
