//! Obey: header profiles, learned budgets, pacing, client layers.
//!
//! ```text
//!  request ─► Profile::route ─► Claim ─► Ledger::claim ─► Permit ─► upstream
//!                                 ▲                         │
//!                  waiters go ────┘          status, fields ▼
//!                        Permit::complete ◄── Observation ◄── Profile::read
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`profile`] | how an API reports its limits, as data: routes, fields, units, signals |
//! | [`budget`] | what an upstream has left: claim before a request, observe after it |
//! | [`pace`] | one token shared fairly with clients that cannot be seen |
//! | `shared` (feature `redis`) | budgets shared through Redis, key-compatible with Spectacles |
//! | `client` (features `tower`, `reqwest`) | budgets around an HTTP client |
//! | `message` (feature `http`) | messages of the `http` crate, as profiles read them |
//!
//! Use [`pace`] for a token that others use whom this program cannot see, and [`budget`] for one
//! that this process, or a fleet on one Redis, has to itself. Both are pure: time is an argument.

#![forbid(unsafe_code)]

pub mod budget;
#[cfg(any(feature = "tower", feature = "reqwest"))]
pub mod client;
mod fair_queue;
#[cfg(feature = "http")]
pub mod message;
pub mod pace;
pub mod profile;
#[cfg(feature = "redis")]
pub mod shared;

/// The program of the README is compiled and run with the tests.
#[cfg(all(doctest, feature = "redis", feature = "reqwest"))]
#[doc = include_str!("../README.md")]
struct Readme;
