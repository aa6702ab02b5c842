use tollway_sim::measure::run;
use tollway_sim::{Kind, Scenario};

use crate::log::{HELD_OUT, Log, hours, scenario};

const FIVE_BY_FIVE: &str = "length = '6h'\n[[clients]]\nprocesses = 5\nthreads = 5\n";

fn with(extra: &str) -> Scenario {
    scenario(&format!("{FIVE_BY_FIVE}{extra}"))
}

fn stays_fair(scenario: &Scenario, jain_least: f64, limited_most: u64) {
    for seed in HELD_OUT.take(5) {
        let figures = run(scenario, Kind::Ticket, seed).figures;
        assert!(figures.jain_process >= jain_least, "seed {seed}: {figures:?}");
        assert!(figures.limited <= limited_most, "seed {seed}: {figures:?}");
        assert!(figures.utilisation_last_hour >= 0.99, "seed {seed}: {figures:?}");
    }
}

#[test]
fn lost_requests_lost_answers_and_server_errors_do_not_upset_the_round() {
    let faults = "[faults]\nlost-requests = 0.02\nlost-answers = 0.02\nserver-errors = 0.05\n\
                  timeout = '10s'\n";
    stays_fair(&with(faults), 0.995, 5);
}

#[test]
fn noise_in_what_remains_averages_out() {
    stays_fair(&with("[server]\nnoise = 5.0\n"), 0.99, 10);
}

#[test]
fn clocks_that_run_wrong_and_step_do_no_harm() {
    let text = "length = '6h'\n\
        [[clients]]\nprocesses = 3\nthreads = 5\nclock-skew-ppm = 200\n\
        [[clients]]\nthreads = 5\nclock-step = { at = '2h', by_ms = -3600000 }\n\
        [[clients]]\nthreads = 5\nclock-step = { at = '3h', by_ms = 86400000 }\n";
    stays_fair(&scenario(text), 0.999, 5);
}

#[test]
fn round_trips_from_10_ms_to_2_s_share_equally() {
    let client = |time| {
        format!("[[clients]]\nthreads = 5\nlatency = {{ constant = {{ time = '{time}' }} }}\n")
    };
    let times = ["10ms", "50ms", "200ms", "500ms", "1s", "2s"];
    let text: String = times.iter().map(client).collect();
    stays_fair(&scenario(&format!("length = '6h'\n{text}")), 0.999, 6);
}

#[test]
fn a_rate_that_all_believe_wrongly_is_shared_equally_all_the_same() {
    for believed in [0.25, 0.5, 2.0, 4.0] {
        let text = format!("{FIVE_BY_FIVE}believes = {believed}\n");
        stays_fair(&scenario(&text), 0.99, 10);
    }
}

#[test]
fn rates_follow_weights() {
    let text = "length = '6h'\n[server]\nstart = 60\n\
        [[clients]]\nprocesses = 2\n[[clients]]\nweight = 2\n[[clients]]\nweight = 4\n";
    let log = Log::of(&scenario(text), Kind::Ticket, 1_001);
    let units = log.accepted(4, hours(1), hours(6));
    let whole: u64 = units.iter().sum();
    for (units, share) in units.iter().zip([0.125, 0.125, 0.25, 0.5]) {
        let got = *units as f64 / whole as f64;
        assert!((got - share).abs() < 0.01, "{got} instead of {share}");
    }
}

#[test]
fn expensive_requests_are_paid_for() {
    let text = "length = '6h'\n[server]\nstart = 60\n\
        [[clients]]\nprocesses = 4\nthreads = 2\n[[clients]]\nthreads = 2\ncost = 5\n";
    let figures = run(&scenario(text), Kind::Ticket, 1_001).figures;
    assert!(figures.jain_process >= 0.99, "{figures:?}");
    assert_eq!(figures.limited, 0, "{figures:?}");
}

#[test]
fn what_the_modest_leave_is_shared_by_the_rest() {
    let text = "length = '6h'\n[server]\nstart = 60\n\
        [[clients]]\nprocesses = 3\nthink = '20s'\n[[clients]]\nprocesses = 2\nthreads = 5\n";
    let log = Log::of(&scenario(text), Kind::Ticket, 1_001);
    let units = log.accepted(5, hours(1), hours(6));
    let per_second: Vec<f64> = units.iter().map(|units| *units as f64 / 18_000.0).collect();
    for modest in &per_second[..3] {
        assert!((0.04..0.051).contains(modest), "{per_second:?}");
    }
    for busy in &per_second[3..] {
        assert!((0.54..0.57).contains(busy), "{per_second:?}");
    }
}

#[test]
fn clients_that_come_and_go_are_never_refused() {
    let text = "length = '6h'\n[server]\nstart = 60\n\
        [[clients]]\nprocesses = 10\nthreads = 5\njoins-within = '5m'\n\
        duty = { on = '2m', off = '3m' }\n";
    let figures = run(&scenario(text), Kind::Ticket, 1_001).figures;
    assert_eq!(figures.limited, 0, "{figures:?}");
}

#[test]
fn refill_in_chunks_is_used_without_refusals_in_the_long_run() {
    let figures = run(&with("[server]\nlimiting = 'chunked'\n"), Kind::Ticket, 1_001).figures;
    assert!(figures.limited <= 15, "{figures:?}");
    assert!(figures.jain_process >= 0.85, "{figures:?}");
    assert!(figures.utilisation_last_hour >= 0.99, "{figures:?}");
}

#[test]
fn quotas_of_all_sizes_are_shared() {
    for (limit, period) in [(60, "1m"), (10, "1s"), (100_000, "1h"), (5_000, "1h"), (1_000, "24h")]
    {
        let text = format!(
            "length = '24h'\n[server]\nlimit = {limit}\nperiod = '{period}'\nstart = {limit}\n\
             [[clients]]\nprocesses = 3\nthreads = 3\n"
        );
        let figures = run(&scenario(&text), Kind::Ticket, 1_001).figures;
        assert_eq!(figures.limited, 0, "{limit} per {period}: {figures:?}");
        assert!(figures.jain_process >= 0.99, "{limit} per {period}: {figures:?}");
    }
}

#[test]
fn a_stampede_of_a_thousand_threads_settles() {
    let text = "length = '10m'\n\
        [server]\nlimit = 100\nperiod = '1s'\nburst = 1000\nstart = 1000\n\
        [[clients]]\nprocesses = 20\nthreads = 50\n\
        latency = { uniform = { least = '150ms', most = '250ms' } }\n";
    for seed in HELD_OUT.take(5) {
        let figures = run(&scenario(text), Kind::Ticket, seed).figures;
        // All of them are on their way before the first answer is back.
        assert!(figures.limited <= 1_000, "seed {seed}: {figures:?}");
        assert!(figures.jain_process >= 0.95, "seed {seed}: {figures:?}");
    }
}

#[test]
fn a_bucket_that_tells_everything_is_not_taken_for_a_window() {
    let told = "[server]\ntells-policy = true\ntells-reset = true\ntells-retry = true\n";
    stays_fair(&with(told), 0.999, 5);
    let full = "[server]\ntells-policy = true\ntells-reset = true\nstart = 4500\n";
    stays_fair(&with(full), 0.999, 0);
}
