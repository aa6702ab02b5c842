//! `tollgate validate FILE`: whether a configuration would be taken, and if not, what to change.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use tollgate_server::config::{Config, Overrides};
use tollgate_server::metrics::Metrics;

/// Check configuration files without serving them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files in TOML or YAML, or envoyproxy/ratelimit's YAML, as `serve` would be given
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Says what the files hold; an error names file, line and field.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = Config::load(&args.files, &Overrides::default(), &Metrics::default())?;
    let mut out = std::io::stdout().lock();
    let (policies, domains) = (config.rules.rules().len(), config.rules.domains().count());
    writeln!(out, "valid: {policies} policies, {domains} domains")?;
    Ok(())
}
