//! A limit in flags, each named as the field of a policy in a configuration.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Result, bail};
use tollway_core::calendar_window::CalendarWindow;
use tollway_core::spelling::unknown;
use tollway_core::{Algorithm, Factor, GivenLimit, Parameters, ParseQuotaError, Quota};

use crate::amounts::duration;

/// What `tollway check` tries without a limit of one's own.
const EXAMPLE: &str = "100/1m burst 20";

#[derive(Debug, clap::Args)]
pub(super) struct LimitFlags {
    /// gcra, leaky-bucket, sliding-window, fixed-window, concurrency, calendar-window, or legacy
    /// [default: calendar-window for a quota per hour, day, week, month, quarter or year, or else
    /// gcra].
    #[arg(long)]
    algorithm: Option<String>,
    /// The quota: units per period, such as 100/1m or "10/s burst 50", or units per civil unit, such
    /// as "10000/month tz Europe/Berlin anchor 15" [default for gcra: 100/1m burst 20].
    #[arg(long)]
    quota: Option<String>,
    /// Units that an idle key may take at once; overrides the burst of --quota.
    #[arg(long)]
    burst: Option<u64>,
    /// Sliding window: the number of parts that the period is counted in; exact if left out.
    #[arg(long)]
    buckets: Option<u64>,
    /// Fixed window: where it begins, epoch or first-request.
    #[arg(long)]
    anchor: Option<String>,
    /// Leaky bucket: the units that it holds.
    #[arg(long)]
    size: Option<u64>,
    /// Leaky bucket: the units that leave with each drip [default: 1].
    #[arg(long)]
    drip_size: Option<u64>,
    /// Leaky bucket: the time between drips, such as 1s.
    #[arg(long)]
    drip_interval: Option<String>,
    /// Concurrency: the units that may be in flight at once.
    #[arg(long)]
    limit: Option<u64>,
    /// Concurrency: the longest time that a unit is in flight.
    #[arg(long)]
    lease: Option<String>,
    /// Legacy limit: calls per --duration.
    #[arg(long)]
    max: Option<u64>,
    /// Legacy limit: the time for --max.
    #[arg(long)]
    duration: Option<String>,
    /// Legacy limit: the shortest time between two calls.
    #[arg(long)]
    min_interval: Option<String>,
    /// Leaky bucket or legacy limit: stricter above 1, laxer below 1.
    #[arg(long)]
    factor: Option<String>,
}

impl LimitFlags {
    /// The limit that the flags describe.
    pub(super) fn read(&self) -> Result<GivenLimit> {
        let algorithm = self.algorithm();
        let reading = Reading { flags: self, asked: RefCell::default(), wrong: RefCell::default() };
        let Some(limit) = GivenLimit::from_parameters(algorithm, &reading) else {
            bail!("--algorithm: {}", unknown("algorithm", algorithm, GivenLimit::NAMES));
        };
        let (asked, mut wrong) = (reading.asked.into_inner(), reading.wrong.into_inner());
        for name in Algorithm::PARAMETERS {
            if !asked.contains(&name) && self.is_given(name) {
                wrong.push(format!("{}: {algorithm} takes none", flag(name)));
            }
        }
        if self.burst.is_some() && !asked.contains(&"quota") {
            wrong.push(format!("--burst: {algorithm} takes none"));
        }
        match limit {
            Some(limit) if wrong.is_empty() => Ok(limit),
            _ => bail!("invalid {}", wrong.join("\nalso invalid: ")),
        }
    }

    fn algorithm(&self) -> &str {
        let is_civil = self.quota.as_deref().is_some_and(CalendarWindow::is_meant_by);
        let default = if is_civil { "calendar-window" } else { "gcra" };
        self.algorithm.as_deref().unwrap_or(default)
    }

    fn number(&self, name: &str) -> Option<u64> {
        match name {
            "buckets" => self.buckets,
            "size" => self.size,
            "drip_size" => self.drip_size,
            "limit" => self.limit,
            "max" => self.max,
            _ => None,
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        match name {
            "quota" => self.quota.as_deref(),
            "anchor" => self.anchor.as_deref(),
            "drip_interval" => self.drip_interval.as_deref(),
            "lease" => self.lease.as_deref(),
            "duration" => self.duration.as_deref(),
            "min_interval" => self.min_interval.as_deref(),
            "factor" => self.factor.as_deref(),
            _ => None,
        }
    }

    fn is_given(&self, name: &str) -> bool {
        self.number(name).is_some() || self.text(name).is_some()
    }
}

/// The flag of a parameter.
fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

/// Flags while they are read, with what is found wrong.
struct Reading<'a> {
    flags: &'a LimitFlags,
    asked: RefCell<Vec<&'static str>>,
    wrong: RefCell<Vec<String>>,
}

impl Reading<'_> {
    fn ask(&self, name: &'static str) {
        self.asked.borrow_mut().push(name);
    }

    fn tell<T>(&self, name: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|why| self.wrong.borrow_mut().push(format!("{}: {why}", flag(name)))).ok()
    }

    fn needed(&self, name: &'static str) -> Option<&str> {
        self.ask(name);
        let missing = || format!("missing; {} needs it", self.flags.algorithm());
        self.tell(name, self.flags.text(name).ok_or_else(missing))
    }
}

impl Parameters for Reading<'_> {
    fn quota(&self) -> Option<Quota> {
        self.ask("quota");
        let is_example = self.flags.quota.is_none() && self.flags.algorithm() == "gcra";
        let text = if is_example { EXAMPLE } else { self.needed("quota")? };
        let quota = text.parse().map_err(|error: ParseQuotaError| {
            let right = "expected UNITS/PERIOD, for example 100/1m";
            format!("{right}\n{}", error.pointing_into(text))
        });
        let quota: Quota = self.tell("quota", quota)?;
        let Some(burst) = self.flags.burst else { return Some(quota) };
        let with_burst = Quota::with_burst(quota.units(), quota.period(), burst);
        self.tell("burst", with_burst.map_err(|error| error.to_string()))
    }

    fn calendar_window(&self) -> Option<CalendarWindow> {
        let text = self.needed("quota")?;
        let window = tollway_zones::calendar_window(text).map_err(|error| {
            let right = "expected UNITS/UNIT, for example 10000/month tz Europe/Berlin anchor 15";
            format!("{right}\n{}", error.pointing_into(text))
        });
        let window = self.tell("quota", window);
        if self.flags.burst.is_some() {
            let why = "a calendar window has none; carry and grace are part of --quota";
            self.wrong.borrow_mut().push(format!("--burst: {why}"));
        }
        window
    }

    fn means_calendar_window(&self) -> bool {
        self.flags.quota.as_deref().is_some_and(CalendarWindow::is_meant_by)
    }

    fn number(&self, name: &'static str) -> Option<u64> {
        self.ask(name);
        let missing = || format!("missing; {} needs it", self.flags.algorithm());
        self.tell(name, self.flags.number(name).ok_or_else(missing))
    }

    fn duration(&self, name: &'static str) -> Option<Duration> {
        let text = self.needed(name)?;
        self.tell(name, duration(text))
    }

    fn has(&self, name: &'static str) -> bool {
        self.ask(name);
        self.flags.is_given(name)
    }

    fn factor(&self, name: &'static str) -> Option<Factor> {
        let text = self.needed(name)?;
        self.tell(
            name,
            text.parse().map_err(|error: tollway_core::ParseFactorError| error.to_string()),
        )
    }

    fn choice(&self, name: &'static str, words: &[&'static str]) -> usize {
        self.ask(name);
        let Some(text) = self.flags.text(name) else { return 0 };
        let found = words.iter().position(|word| *word == text);
        let wrong = || unknown("choice", text, words.iter().copied());
        self.tell(name, found.ok_or_else(wrong)).unwrap_or(0)
    }

    fn refuse(&self, name: &'static str, why: String) {
        let of = if name.is_empty() { "algorithm" } else { name };
        self.tell(of, Err::<(), _>(why));
    }
}
