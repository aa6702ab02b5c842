//! What the operating system says about this process, under Prometheus's usual names.

use std::fs;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::metrics::Exposition;

/// Linux counts processor time in hundredths of a second, whatever the kernel's own tick.
const TICKS_PER_SECOND: f64 = 100.0;

static STARTED_AT: LazyLock<f64> = LazyLock::new(|| {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
});

/// Writes the process's figures; those that the system does not tell are left out.
pub(crate) fn write(text: &mut Exposition) {
    text.family("process_start_time_seconds", "gauge", "When the process began to count.");
    text.sample(&[], *STARTED_AT);
    if let Some(seconds) = cpu_seconds() {
        text.family("process_cpu_seconds_total", "counter", "Processor time used.");
        text.sample(&[], seconds);
    }
    if let Some(bytes) = resident_bytes() {
        text.family("process_resident_memory_bytes", "gauge", "Memory in use.");
        text.sample(&[], bytes);
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        text.family("process_open_fds", "gauge", "Open files and sockets.");
        text.sample(&[], entries.count() as f64);
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process comes second, in parentheses, and may hold spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let ticks = |field: Option<&str>| field?.parse::<f64>().ok();
    Some((ticks(fields.next())? + ticks(fields.next())?) / TICKS_PER_SECOND)
}

fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}
