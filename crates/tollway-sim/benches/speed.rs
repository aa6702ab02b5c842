//! How fast simulated time passes: events per second, a day of every strategy, a week of many.
//!
//! `cargo bench -p tollway-sim --bench speed`; the best of five runs, since on a shared machine
//! only the best says something about the code.

use std::io::Write as _;
use std::time::{Duration, Instant};

use tollway_sim::measure::run;
use tollway_sim::{Kind, Scenario};

const DAY: Duration = Duration::from_secs(86_400);

fn main() -> std::io::Result<()> {
    let day = Scenario::named("five-by-five").expect("built in");
    for kind in Kind::ALL {
        report(&format!("five-by-five, a day, {kind}"), &day, kind, 5)?;
    }
    let thousand = "name = 'thousand'\nlength = '168h'\nreserve = 1200\n\
        [server]\nstart = 4500\n[[clients]]\nprocesses = 1000\n";
    let week = Scenario::from_toml(thousand).expect("valid").lasting(7 * DAY);
    report("1,000 clients, a week, ticket", &week, Kind::Ticket, 2)?;
    report("1,000 clients, a week, backoff", &week, Kind::Backoff, 1)
}

fn report(name: &str, scenario: &Scenario, kind: Kind, times: u32) -> std::io::Result<()> {
    let mut best = Duration::MAX;
    let mut events = 0;
    for _ in 0..times {
        let start = Instant::now();
        events = run(scenario, kind, 1).events;
        best = best.min(start.elapsed());
    }
    let per_second = events as f64 / best.as_secs_f64() / 1e6;
    writeln!(
        std::io::stdout(),
        "{name:<45} {:>9.1} ms {events:>10} events {per_second:>6.1} million/s",
        best.as_secs_f64() * 1e3,
    )
}
