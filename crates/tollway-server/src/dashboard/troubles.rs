//! What is wrong with the service now, for the banners of the page: each kind with its figures.
//!
//! ```text
//!   outages, stale files, pressure, clock, snapshot, queues --look, once a second--> troubles
//! ```
//!
//! What fails now and then is told for a while after it was seen last, so that banners do not
//! flicker. The page says in words what to do about each kind.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tollway_core::Timestamp;

use crate::queues::Queues;
use crate::service::Service;

/// How long decisions without the store are told after the last one.
const DEGRADED_FOR: Duration = Duration::from_secs(10);
/// How long pressure is told after the last key that suffered by it.
const PRESSURE_FOR: Duration = Duration::from_secs(60);
/// How long a jump of the system's time is told.
const JUMP_FOR: Duration = Duration::from_secs(300);
/// A clock that is off by less is no trouble.
const OFF_MS: i64 = 2_000;

/// What was seen at the last look.
#[derive(Debug, Default)]
pub(super) struct Watch {
    degraded: Rising,
    forgotten: Rising,
    refused: Rising,
    jumps: Jumps,
}

/// A count that only grows: by how much it has grown of late.
#[derive(Debug, Default)]
struct Rising {
    last: Option<u64>,
    /// The count before it began to grow, and when it last did.
    episode: Option<(u64, Instant)>,
}

/// Jumps of the system's time against the time that passed.
#[derive(Debug, Default)]
struct Jumps {
    last: Option<(Instant, i64)>,
    jumped: Option<(i64, Instant)>,
}

impl Watch {
    /// Everything that is wrong, the worst first; `degraded` counts decisions without the store.
    pub(super) fn look(&mut self, service: &Service, degraded: u64) -> Vec<Value> {
        let (now, at) = (service.clock().now(), Instant::now());
        let mut troubles = Vec::new();
        if service.is_draining() {
            troubles.push(json!({"kind": "draining"}));
        }
        let without_store = self.degraded.see(degraded, at, DEGRADED_FOR);
        match service.enforcer.outages().current() {
            Some(outage) => troubles.push(json!({
                "kind": "store_down",
                "since_ms": outage.since.as_nanos() / 1_000_000,
                "reason": outage.reason,
                "unanswered": outage.unanswered,
            })),
            None if without_store > 0 => {
                troubles.push(json!({"kind": "degraded", "decisions": without_store}));
            }
            None => {}
        }
        if let Some(queues) = service.queues() {
            troubles.extend(of_queues(queues));
        }
        if let Some(reason) = service.reload_error() {
            troubles.push(json!({"kind": "config_stale", "reason": reason}));
        }
        troubles.extend(service.xds().into_iter().flat_map(|xds| xds.status().troubles()));
        troubles.extend(self.pressure(service, now, at));
        troubles.extend(self.clock(now, at));
        if let Some(old) = service.snapshots.old(now) {
            let age_ms = old.age.as_millis() as u64;
            troubles.push(json!({
                "kind": "snapshot_old", "age_ms": age_ms, "reason": old.failure,
            }));
        }
        troubles
    }

    fn pressure(&mut self, service: &Service, now: Timestamp, at: Instant) -> Option<Value> {
        let memory = service.enforcer.memory()?;
        let pressure = memory.pressure();
        let forgotten = self.forgotten.see(pressure.forgotten, at, PRESSURE_FOR);
        let refused = self.refused.see(pressure.refused, at, PRESSURE_FOR);
        (forgotten + refused > 0).then(|| {
            // Looked at only then: it is counted anew each time.
            let fill = memory.fill(now);
            let fill = fill.keys.max(fill.wide_keys).max(fill.variable_bytes);
            json!({"kind": "pressure", "forgotten": forgotten, "refused": refused, "fill": fill})
        })
    }

    fn clock(&mut self, now: Timestamp, at: Instant) -> Option<Value> {
        let system = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let system_ms = system.as_millis() as i64;
        let off_ms = (now.as_nanos() / 1_000_000) as i64 - system_ms;
        if off_ms.abs() >= OFF_MS {
            return Some(json!({"kind": "clock_off", "off_ms": off_ms}));
        }
        let jump_ms = self.jumps.see(system_ms, at)?;
        Some(json!({"kind": "clock_jumped", "jump_ms": jump_ms}))
    }
}

/// What is wrong with the queues and their store.
fn of_queues(queues: &Queues) -> Vec<Value> {
    let mut troubles = Vec::new();
    if let Some(outage) = queues.outages().current().filter(|_| queues.is_used()) {
        troubles.push(json!({
            "kind": "queue_store_down",
            "since_ms": outage.since.as_nanos() / 1_000_000,
            "reason": outage.reason,
        }));
    }
    if queues.health().is_full {
        troubles.push(json!({"kind": "queue_store_full"}));
    }
    troubles.extend(queues.watch().stuck());
    troubles
}

impl Rising {
    /// By how much it has grown since it began to, until it has stood still for so long.
    fn see(&mut self, count: u64, now: Instant, told_for: Duration) -> u64 {
        let before = self.last.replace(count).unwrap_or(count);
        if count > before {
            let (first, _) = self.episode.unwrap_or((before, now));
            self.episode = Some((first, now));
        }
        self.episode = self.episode.filter(|(_, last)| now.duration_since(*last) < told_for);
        self.episode.map_or(0, |(first, _)| count.saturating_sub(first))
    }
}

impl Jumps {
    /// The last jump, for a while after it.
    fn see(&mut self, system_ms: i64, now: Instant) -> Option<i64> {
        if let Some((at, before_ms)) = self.last.replace((now, system_ms)) {
            let passed_ms = now.duration_since(at).as_millis() as i64;
            let jump_ms = system_ms - before_ms - passed_ms;
            if jump_ms.abs() >= OFF_MS {
                self.jumped = Some((jump_ms, now));
            }
        }
        self.jumped = self.jumped.filter(|(_, at)| now.duration_since(*at) < JUMP_FOR);
        self.jumped.map(|(jump_ms, _)| jump_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn what_grows_is_told_until_it_has_stood_still_for_a_while() {
        let (mut count, start) = (Rising::default(), Instant::now());
        let told_for = Duration::from_secs(10);
        let looks = [(0, 7), (1, 7), (2, 9), (5, 12), (14, 12), (15, 12), (16, 13)];
        let told = looks.map(|(second, total)| count.see(total, after(start, second), told_for));
        // What was counted before the first look did not happen just now.
        assert_eq!(told, [0, 0, 2, 5, 5, 0, 1]);
    }

    #[test]
    fn a_jump_of_the_system_s_time_is_told_and_a_slow_look_is_none() {
        let (mut jumps, start) = (Jumps::default(), Instant::now());
        assert_eq!(jumps.see(1_000, start), None);
        assert_eq!(jumps.see(61_000, after(start, 60)), None, "a look a minute late");
        assert_eq!(jumps.see(3_662_000, after(start, 61)), Some(3_600_000));
        assert_eq!(jumps.see(3_663_000, after(start, 62)), Some(3_600_000));
        assert_eq!(jumps.see(63_000, after(start, 63)), Some(-3_601_000), "set back");
        assert_eq!(jumps.see(363_000, after(start, 363)), None);
    }
}
