//! What dividing quotas costs: 1,000 streams, 10,000 buckets of four holders each, virtual time.
//!
//! `cargo bench -p tollway-sim --bench division -- 24` plays so many hours (one by default). Each
//! holder reports every five seconds; load moves from holder to holder. At each step what all hold
//! is compared with the quota, and at the end what was used with what the rate gives.

use std::io::Write as _;
use std::time::{Duration, Instant};

use tollway_core::division::{Divisible, Division, Instruction, Order, Portion};
use tollway_core::{Quota, Timestamp};

const BUCKETS: usize = 10_000;
const STREAMS: u64 = 1_000;
const HOLDERS: u64 = 4;
const REPORTED: Duration = Duration::from_secs(5);
/// Load moves after so many reports.
const SHIFTED: u64 = 60;

fn main() -> std::io::Result<()> {
    let hours = std::env::args().filter_map(|word| word.parse::<u64>().ok()).next().unwrap_or(1);
    let quota: Quota = "100/s burst 100".parse().expect("a quota");
    let terms = Divisible::new(quota, Duration::from_secs(15)).expect("it can be divided");
    let whole = terms.whole();
    let before = resident_bytes();
    let mut buckets: Vec<Division> =
        (0..BUCKETS).map(|_| Division::new(terms.clone(), Timestamp::MIN)).collect();
    let mut portions = vec![[Portion::NONE; HOLDERS as usize]; BUCKETS];
    let began = Timestamp::from_millis(1_000_000);
    let steps = hours * 3_600 / REPORTED.as_secs();
    let (start, mut told, mut orders, mut used) = (Instant::now(), Vec::new(), 0_u64, 0.0);
    for step in 0..steps {
        let now = began.after(REPORTED * u32::try_from(step).unwrap_or(u32::MAX));
        for (index, division) in buckets.iter_mut().enumerate() {
            let busy = (index as u64 + step / SHIFTED) % HOLDERS;
            for place in 0..HOLDERS {
                let holder = (index as u64 + place * 250) % STREAMS;
                division.report(holder, if place == busy { 2_000 } else { 10 }, now);
            }
            for pass in 0..4 {
                let now = now.after(Duration::from_millis(1_100 * pass));
                division.instruct(now, &mut told);
                orders += told.len() as u64;
                for Instruction { holder, number, order } in told.drain(..) {
                    division.acknowledge(holder, number, now);
                    let place = (holder + STREAMS - index as u64 % STREAMS) % STREAMS / 250;
                    if let Order::Assign(portion) = order {
                        portions[index][place as usize] = portion;
                    }
                }
            }
            let (tokens, fill) = division.held();
            assert!(tokens <= u64::from(whole.max_tokens), "more tokens than the burst");
            assert!(fill <= u64::from(whole.tokens_per_fill), "more than the rate");
            let busy_fill = portions[index][busy as usize].tokens_per_fill;
            used += f64::from(busy_fill) / f64::from(whole.tokens_per_fill);
        }
    }
    let reports = steps * BUCKETS as u64 * HOLDERS;
    let nanos = start.elapsed().as_nanos() as f64 / reports as f64;
    let bytes = (resident_bytes() - before) / (BUCKETS as f64 * HOLDERS as f64);
    writeln!(
        std::io::stdout(),
        "{hours} h, {BUCKETS} buckets of {HOLDERS} holders on {STREAMS} streams: {reports} \
         reports, {nanos:.0} ns each with {:.2} orders; {bytes:.0} bytes a holder; {:.1} % of the \
         rate is where the load is",
        orders as f64 / reports as f64,
        used * 100.0 / (steps as f64 * BUCKETS as f64),
    )
}

fn resident_bytes() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(0.0) * 4096.0
}
