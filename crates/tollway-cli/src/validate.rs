//! `tollway validate FILE`: whether a configuration would be taken, and if not, what to change.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use tollway_server::Metrics;
use tollway_server::config::{Config, ConfigError, Mistakes, Overrides};

use crate::config_files;
use crate::counted::counted;
use crate::misuse::misuse;
use crate::output::output;

/// Check configuration files without serving them: each separately, then all of them together.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files in TOML or YAML, or envoyproxy/ratelimit's YAML, as for `serve --config` [default: the
    /// file that `serve` would use]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Says what the files hold, and everything that is wrong with them, by file, line and field; each
/// mistake is told up to a bound. All files are looked at before the command fails.
pub(crate) fn run(args: Args) -> Result<()> {
    let mut out = output();
    let is_searched = args.files.is_empty();
    let found = config_files::find(args.files)?;
    if is_searched {
        writeln!(out, "config  {found}")?;
    }
    let files = &found.files;
    if files.is_empty() {
        return Err(misuse("there is no configuration to check: name a file"));
    }
    let (mut wrong, mut mistakes) = (0, 0);
    for file in files {
        match load(std::slice::from_ref(file)) {
            Ok((holds, notes)) => {
                notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
                writeln!(out, "{}: valid: {holds}", file.display())?;
            }
            Err(error) => {
                wrong += 1;
                mistakes += error.count();
                writeln!(out, "{error}")?;
            }
        }
    }
    if wrong > 0 {
        let mistakes = counted(mistakes as u64, "mistake", "mistakes");
        match files.len() {
            1 => bail!("the file is wrong: {mistakes}"),
            all => bail!("{wrong} of {all} files {}: {mistakes}", is_or_are(wrong)),
        }
    }
    if files.len() > 1 {
        let together = load(files).inspect_err(|error| drop(writeln!(out, "{error}")));
        let (holds, _) =
            together.map_err(|_| anyhow!("the files are valid alone, not together"))?;
        writeln!(out, "together: valid: {holds}")?;
    }
    Ok(())
}

/// What the files hold, and what of it has no effect.
fn load(files: &[PathBuf]) -> Result<(String, Vec<ConfigError>), Mistakes> {
    let config = Config::check(files, &Overrides::default(), &Metrics::default())?;
    let (policies, domains) = (config.rules.rules().len(), config.rules.domains().count());
    let queues = config.queues.queues.len();
    let holds = [
        counted(policies as u64, "policy", "policies"),
        counted(domains as u64, "domain", "domains"),
        counted(queues as u64, "queue", "queues"),
    ];
    Ok((holds.join(", "), config.notes))
}

const fn is_or_are(wrong: usize) -> &'static str {
    if wrong == 1 { "is wrong" } else { "are wrong" }
}
