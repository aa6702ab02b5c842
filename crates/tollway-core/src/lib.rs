//! The pure part of Tollway: words, exact algorithms, header-field text, limiter and store traits.
//!
//! No clock, no I/O, no dependency, no `unsafe`: time and state are arguments, so every answer can
//! be replayed, simulated and judged. The stores (`tollway-memory`, `tollway-redis`) keep the
//! states and call what is here.
//!
//! ```
//! use tollway_core::{Cost, Decision, Quota, Retry, Timestamp, gcra::{Gcra, State}};
//! use core::time::Duration;
//!
//! let limit = Gcra::new("10/1s burst 2".parse::<Quota>()?);
//! let now = Timestamp::from_millis(1_000);
//! let (first, state) = limit.decide(State::default(), Cost::ONE, now);
//! let (second, state) = limit.decide(state, Cost::ONE, now);
//! let (third, _) = limit.decide(state, Cost::ONE, now);
//! assert!(first.is_allowed() && second.is_allowed());
//! assert_eq!(third.retry(), Some(Retry::After(Duration::from_millis(100))));
//! # Ok::<(), tollway_core::ParseQuotaError>(())
//! ```
//!
//! # Glossary
//!
//! | word | means |
//! |---|---|
//! | [`Quota`] | units, period, burst: numbers only |
//! | [`Calendar`](civil::Calendar) | windows that begin with an hour, a day, a month of a time zone
//! |
//! | [`Policy`] | a named quota with its [`Algorithm`] and failure mode |
//! | [`Key`] | opaque bounded bytes: who is limited |
//! | [`Cost`] | units asked, never zero |
//! | [`Charge`] | policy + key + cost asked together; a request is one or more, all or nothing |
//! | [`Decision`] | allow, or deny with when to [`Retry`] |
//! | [`Verdict`] | the decisions on one request, and which charge denied it |
//! | [`State`] / [`Snapshot`] | what is stored / what is reported |
//! | [`Store`] | decides atomically |
//! | [`Clock`], [`Timestamp`] | source of time; nanoseconds |
//! | [`StoreLimiter`] | policies + store + clock |
//! | [`Permit`] | a slot in flight, released on drop |
//!
//! Verbs: *check* (take if allowed), *peek* (look), *take* (as many as there are), *reserve* (take
//! now, settle later: *commit* or *cancel*), *refund*, *reset*.
//!
//! # Deliberately absent
//!
//! Anything that waits, listens, or reads the time; configuration files; hashing and tables.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod calendar_window;
pub mod civil;
pub mod concurrency;
pub mod dice;
pub mod division;
pub mod fields;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod legacy;
pub mod outages;
pub mod shares;
pub mod sliding_window;
pub mod spelling;

mod algorithm;
mod carry;
mod charge;
mod cidr;
mod decision;
mod factor;
mod given_limit;
mod limiter;
mod named_enum;
mod plain_error;
mod plan_source;
mod policy;
mod quota;
mod requests;
mod size;
mod store;
mod time;

pub use algorithm::{Algorithm, Parameters, State};
pub use carry::OnChange;
pub use charge::{Charge, Cost, Key, KeyError, Mode};
pub use cidr::{Cidr, CidrError, masked};
pub use decision::{Decision, Retry, Snapshot, Verdict};
pub use factor::{Factor, ParseFactorError};
pub use given_limit::GivenLimit;
pub use limiter::{ChargeError, Permit, StoreLimiter, UnknownPolicy};
pub use plan_source::PlanSource;
pub use policy::{OnExpiry, OnStoreError, Policy, PolicyError, ReservationTerms};
pub use quota::{ParseQuotaError, Quota, QuotaError, parse_duration};
pub use requests::{Held, decide_all};
pub use size::{ParseSizeError, parse_size};
pub use store::{
    Answer, ErrorKind, Grant, Outage, Reservation, ReservationId, Reserved, Settlement, Store,
    StoreError, explained,
};
pub use time::{Clock, SKEW, Timestamp};
#[cfg(target_has_atomic = "64")]
pub use time::{SteadyClock, VirtualClock};

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
