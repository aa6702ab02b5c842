//! `tollgate validate FILE`: whether a configuration would be taken, and if not, what to change.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use tollgate_server::config::{Config, ConfigError, Overrides};
use tollgate_server::metrics::Metrics;

/// Check configuration files without serving them: each for itself, then all of them together.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files in TOML or YAML, or envoyproxy/ratelimit's YAML, as `serve` would be given
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Says what the files hold; an error names file, line and field. All files are looked at before
/// the command fails.
pub(crate) fn run(args: Args) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut wrong = 0;
    for file in &args.files {
        match load(std::slice::from_ref(file)) {
            Ok((holds, notes)) => {
                notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
                writeln!(out, "{}: valid: {holds}", file.display())?;
            }
            Err(error) => {
                wrong += 1;
                writeln!(out, "{error}")?;
            }
        }
    }
    if wrong > 0 {
        bail!("{wrong} of {} files wrong", args.files.len());
    }
    if args.files.len() > 1 {
        writeln!(out, "together: valid: {}", load(&args.files)?.0)?;
    }
    Ok(())
}

/// What the files hold, and what of it has no effect.
fn load<P: AsRef<Path>>(files: &[P]) -> Result<(String, Vec<ConfigError>)> {
    let files: Vec<PathBuf> = files.iter().map(|file| file.as_ref().to_path_buf()).collect();
    let config = Config::load(&files, &Overrides::default(), &Metrics::default())?;
    let (policies, domains) = (config.rules.rules().len(), config.rules.domains().count());
    Ok((format!("{policies} policies, {domains} domains"), config.notes))
}
