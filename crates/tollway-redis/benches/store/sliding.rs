//! A sliding window costs in proportion to its cells: how much.

use std::time::Duration;

use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Charge, Cost, Key, Policy, Quota, Store, Timestamp};
use tollway_redis::{RedisStore, Settings};
use tollway_testkit::servers::Server;

use crate::contenders::cpu_us;

const REQUESTS: u32 = 2_000;

pub(crate) fn run(server: &Server) {
    println!("\n| sliding window, cells in use | server CPU µs/request | bytes of the value |");
    println!("|---|---|---|");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for cells in [1, 10, 100, 1_000] {
        let prefix = format!("s{cells}:");
        // Patience for a busy machine: a call that times out would be a denial.
        let timeout = Duration::from_secs(10);
        let settings = Settings { prefix: prefix.clone(), timeout, ..Settings::default() };
        let (cpu, count) = runtime.block_on(measure(server, settings, cells));
        let keys = server.tell(&["KEYS", &format!("{prefix}*")]);
        let key = keys.lines().find(|line| line.starts_with(&prefix)).unwrap_or_default();
        let bytes = server.tell(&["STRLEN", key]);
        let bytes = bytes.trim().trim_start_matches(':');
        println!("| {cells} | {:.1} | {bytes} |", cpu / f64::from(count));
    }
}

/// Fills the cells of an hour at a time that is given, then charges at that time over and over.
async fn measure(server: &Server, settings: Settings, cells: u64) -> (f64, u32) {
    let store = RedisStore::connect_with_callers_time(&server.url(), settings).await.unwrap();
    let hour = Duration::from_secs(3_600);
    let window =
        SlidingWindow::new(Quota::new(1_000_000_000, hour).unwrap(), cells.max(2)).unwrap();
    let policy = Policy::new("window", window).unwrap();
    let start = Timestamp::from_nanos(1_800_000_000_000_000_000);
    let charge = Charge::new(&policy, Key::new("hot").unwrap()).cost(Cost::ONE);
    let step = hour / u32::try_from(cells).unwrap();
    let mut now = start;
    for cell in 0..u32::try_from(cells).unwrap() {
        now = start.after(step * cell);
        let _ = store.check(&[charge], now).await.unwrap();
    }
    let before = cpu_us(server);
    for _ in 0..REQUESTS {
        assert!(store.check(&[charge], now).await.unwrap().is_allowed());
    }
    (cpu_us(server) - before, REQUESTS)
}
