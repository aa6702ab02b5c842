//! An upstream that enforces a limit itself, with windows that the client cannot see.

use std::collections::VecDeque;
use std::time::Duration;

use tollway_core::Timestamp;

/// What an upstream counts.
#[derive(Clone, Debug)]
pub(crate) struct Enforcer {
    units: usize,
    window: Duration,
    kind: Kind,
    counted: VecDeque<Timestamp>,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Windows that start at multiples of their length plus this.
    Fixed(Duration),
    /// A window starts with the first call after the last one ended.
    Anchored(Option<Timestamp>),
    /// The last calls, whenever they were.
    Sliding,
    /// A theoretical arrival time, in nanoseconds times units.
    Gcra(u128),
    /// A bucket that loses one call per this long: how full it is, and when it lost the last one.
    Leaky(Duration, usize, Timestamp),
}

impl Enforcer {
    pub(crate) fn fixed(units: usize, window: Duration, offset: Duration) -> Self {
        Self { units, window, kind: Kind::Fixed(offset), counted: VecDeque::new() }
    }

    pub(crate) fn anchored(units: usize, window: Duration) -> Self {
        Self { units, window, kind: Kind::Anchored(None), counted: VecDeque::new() }
    }

    pub(crate) fn sliding(units: usize, window: Duration) -> Self {
        Self { units, window, kind: Kind::Sliding, counted: VecDeque::new() }
    }

    pub(crate) fn gcra(units: usize, window: Duration) -> Self {
        Self { units, window, kind: Kind::Gcra(0), counted: VecDeque::new() }
    }

    pub(crate) fn leaky(units: usize, interval: Duration) -> Self {
        let kind = Kind::Leaky(interval, 0, Timestamp::MIN);
        Self { units, window: interval, kind, counted: VecDeque::new() }
    }

    /// A call arrives: `None` if it is served, how long to wait if it is refused. Refused calls do
    /// not count.
    pub(crate) fn call(&mut self, at: Timestamp) -> Option<Duration> {
        let (units, window_ns) = (self.units as u128, self.window.as_nanos());
        match &mut self.kind {
            Kind::Gcra(arrival) => {
                let now = u128::from(at.as_nanos()) * units;
                let next = (*arrival).max(now) + window_ns;
                let early = next.saturating_sub(now + units * window_ns);
                if early == 0 {
                    *arrival = next;
                }
                return (early > 0).then(|| Duration::from_nanos(early.div_ceil(units) as u64));
            }
            Kind::Leaky(interval, level, lost) => {
                let losses = at.since(*lost).as_nanos() / interval.as_nanos();
                if losses >= *level as u128 {
                    (*level, *lost) = (0, at);
                } else {
                    *level -= losses as usize;
                    *lost = lost.after(*interval * losses as u32);
                }
                if *level < self.units {
                    *level += 1;
                    return None;
                }
                return Some(lost.after(*interval).since(at));
            }
            _ => {}
        }
        let reset = self.forget(at);
        if self.counted.len() >= self.units {
            return Some(reset.since(at));
        }
        self.counted.push_back(at);
        None
    }

    /// Forgets what does not count any more; when something more will not.
    fn forget(&mut self, at: Timestamp) -> Timestamp {
        match &mut self.kind {
            Kind::Fixed(offset) => {
                let window_ns = self.window.as_nanos() as u64;
                let number = (at.as_nanos() - offset.as_nanos() as u64) / window_ns;
                let start = Timestamp::from_nanos(number * window_ns).after(*offset);
                self.counted.retain(|call| *call >= start);
                start.after(self.window)
            }
            Kind::Anchored(start) => {
                let over = start.is_none_or(|start| start.after(self.window) <= at);
                if over {
                    *start = Some(at);
                    self.counted.clear();
                }
                start.expect("set above").after(self.window)
            }
            Kind::Sliding => {
                self.counted.retain(|call| call.after(self.window) > at);
                self.counted.front().map_or(at, |first| first.after(self.window))
            }
            Kind::Gcra(_) | Kind::Leaky(..) => at,
        }
    }
}
