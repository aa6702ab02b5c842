//! Additive increase, multiplicative decrease: what is left when a server only says 429.

/// The part of the refill rate that is gained each second, per unit of refill rate.
const GAIN: f64 = 0.001;
/// What a 429 leaves of the rate.
const CUT: f64 = 0.7;
/// Requests per second to begin with when nothing at all is known.
const RATE_START: f64 = 1.0;
/// Requests per second beyond which an unknown server is not pushed.
const RATE_MAX: f64 = 1_000.0;
/// Seconds of idleness that still earn speed: a night off is not a licence for a burst.
const EARNING_S_MAX: f64 = 60.0;

const NANOS_PER_S: f64 = 1e9;

/// A rate that rises by addition and falls by multiplication.
#[derive(Clone, Debug)]
pub(super) struct Aimd {
    /// Requests per second.
    rate: f64,
    /// The server's rate, if known: the highest sensible one, and what the gain scales with.
    refill: Option<f64>,
    raised_ns: u64,
    cut_ns: Option<u64>,
}

impl Aimd {
    pub(super) fn new(now_ns: u64) -> Self {
        Self { rate: RATE_START, refill: None, raised_ns: now_ns, cut_ns: None }
    }

    /// Takes note of the server's refill rate, one unit per `unit_ns`.
    pub(super) fn know(&mut self, unit_ns: f64) {
        let refill = NANOS_PER_S / unit_ns;
        if self.refill.is_none() {
            // A quarter: a stranger on a shared token had better not begin with all of it.
            self.rate = refill / 4.0;
        }
        self.refill = Some(refill);
        self.rate = self.rate.min(refill);
    }

    /// Time between requests.
    pub(super) fn interval_ns(&self) -> f64 {
        NANOS_PER_S / self.rate
    }

    pub(super) fn on_accepted(&mut self, now_ns: u64) {
        let idle_s = now_ns.saturating_sub(self.raised_ns) as f64 / NANOS_PER_S;
        let gain = GAIN * self.refill.unwrap_or(self.rate.max(RATE_START));
        let ceiling = self.refill.unwrap_or(RATE_MAX);
        self.rate = (self.rate + gain * idle_s.min(EARNING_S_MAX)).min(ceiling);
        self.raised_ns = now_ns;
    }

    /// Slows down, once for all the 429s of one burst.
    pub(super) fn on_limited(&mut self, now_ns: u64, slowest_ns: f64) {
        self.raised_ns = now_ns;
        let quiet_ns = 2.0 * self.interval_ns();
        if self.cut_ns.is_some_and(|cut| (now_ns.saturating_sub(cut) as f64) < quiet_ns) {
            return;
        }
        self.cut_ns = Some(now_ns);
        self.rate = (self.rate * CUT).max(NANOS_PER_S / slowest_ns);
    }

    /// Moves remembered moments back with a clock that stepped back.
    pub(super) fn shift(&mut self, back_ns: u64) {
        self.raised_ns = self.raised_ns.saturating_sub(back_ns);
        self.cut_ns = self.cut_ns.map(|cut| cut.saturating_sub(back_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_429s_of_one_burst_count_once() {
        let mut aimd = Aimd::new(0);
        for _ in 0..20 {
            aimd.on_limited(5 * S, 3_600e9);
        }
        assert_eq!(aimd.interval_ns(), 1e9 / CUT);
    }

    #[test]
    fn the_rate_stays_between_the_longest_pause_and_the_refill() {
        let mut aimd = Aimd::new(0);
        aimd.know(0.8e9);
        for hour in 0..1_000 {
            aimd.on_accepted(hour * 3_600 * S);
        }
        assert_eq!(aimd.interval_ns(), 0.8e9);
        for hour in 1_000..2_000 {
            aimd.on_limited(hour * 3_600 * S, 600e9);
        }
        assert_eq!(aimd.interval_ns(), 600e9);
    }
}
