//! What the operating system says about this process, under Prometheus's usual names.

use std::fs;

use crate::metrics::Exposition;

/// Linux counts processor time in hundredths of a second, whatever the kernel's own tick.
const TICKS_PER_SECOND: f64 = 100.0;

/// Writes the process's figures; those that the system does not tell are left out.
pub(crate) fn write(text: &mut Exposition) {
    if let Some(seconds) = started_at() {
        text.gauge("process_start_time_seconds", "When the process was started.", seconds);
    }
    if let Some(seconds) = cpu_seconds() {
        text.family("process_cpu_seconds_total", "counter", "Processor time used.");
        text.sample(&[], seconds);
    }
    if let Some(bytes) = resident_bytes() {
        text.gauge("process_resident_memory_bytes", "Memory in use.", bytes);
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        text.gauge("process_open_fds", "Open files and sockets.", entries.count() as f64);
    }
}

/// Seconds since the epoch: when the machine was started, and how much later this process was.
fn started_at() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let booted_at = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(booted_at.trim().parse::<f64>().ok()? + own_seconds(STARTED)?)
}

fn cpu_seconds() -> Option<f64> {
    Some(own_seconds(USER_TIME)? + own_seconds(SYSTEM_TIME)?)
}

/// Places in `/proc/self/stat`, counted from after the name.
const USER_TIME: usize = 11;
const SYSTEM_TIME: usize = 12;
const STARTED: usize = 19;

/// What the system says about this process in ticks, in seconds.
fn own_seconds(place: usize) -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process comes second, in parentheses, and may hold spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks: f64 = rest.split_ascii_whitespace().nth(place)?.parse().ok()?;
    Some(ticks / TICKS_PER_SECOND)
}

fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_start_is_the_process_s_own_and_not_the_first_look() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let file = fs::metadata("/proc/self/stat").map(|_| started_at().unwrap());
        // Whole seconds of the machine's start, and a clock that was set since.
        assert!(file.is_ok_and(|started| started > 0.0 && started <= now + 2.0));
        assert_eq!(started_at(), started_at(), "it does not move");
    }
}
