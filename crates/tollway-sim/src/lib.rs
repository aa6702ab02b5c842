//! Virtual-time world: servers, clients, strategies, measures, charts.
//!
//! [`World`] runs a [`Scenario`] with a strategy ([`Kind`], or one's own) from a seed, in virtual
//! time, with the production limiters and pacers. [`measure`] turns what happened into figures,
//! [`chart`] and [`report`] into pictures. The same seed gives the same bits on every machine.
//!
//! ```
//! use std::time::Duration;
//! use tollway_sim::{Kind, Scenario, measure};
//!
//! let scenario = Scenario::named("lone")?.lasting(Duration::from_secs(600));
//! let run = measure::run(&scenario, Kind::Ticket, 1);
//! assert_eq!(run.figures.limited, 0);
//! assert!(run.figures.drain_s.is_some_and(|seconds| seconds < 55.0));
//! # Ok::<(), tollway_sim::ScenarioError>(())
//! ```

#![forbid(unsafe_code)]

pub mod chart;
pub mod fake_api;
pub mod fault;
pub mod latency;
pub mod measure;
pub mod report;
pub mod scenario;
pub mod simulated_server;
pub mod strategy;
pub mod world;

pub use scenario::{Scenario, ScenarioError};
pub use strategy::{Kind, StrategyChoice};
pub use world::{Exchange, Witness, World};

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
