//! `tollway ratelimit`: the service in place of envoyproxy/ratelimit, by the environment of that.
//!
//! A process that is started by the name `ratelimit` does the same, whatever its arguments: so one
//! `image:` field replaces the service where others have written its command and its environment.

mod environment;
mod redis_url;
mod variables;

use anyhow::Result;

use crate::misuse::OrMisuse as _;
use crate::serve;

/// Serve in place of envoyproxy/ratelimit: its environment variables, ports, endpoints and metrics.
///
/// Tollway's own variables (TOLLWAY_TOKEN, ...) count as well. What each of ratelimit's variables
/// does here stands in docs/how-to/envoy.md.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// The name by which a process is this command.
pub(crate) const NAME: &str = "ratelimit";

/// Serves until a signal says stop.
pub(crate) fn run(_: &Args) -> Result<()> {
    let variable = |name: &str| std::env::var(name).ok();
    serve::run_as(environment::read(&variable).or_misuse()?)
}
