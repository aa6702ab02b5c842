//! `tollway profile`: the descriptions of how APIs speak of their limits.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow, bail};
use clap::Subcommand;
use tollway_upstream::profile::{Profile, Recording};

use crate::misuse::misuse;
use crate::output::output;

/// List, show and test profiles, which describe how APIs report their limits.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the shipped profiles.
    List,
    /// Print a shipped profile, as a start for your own.
    Show {
        /// Its name.
        name: String,
    },
    /// Show what Tollway learns from recorded responses.
    Test {
        /// A profile: a TOML file, or the name of a shipped one.
        profile: String,
        /// Responses in the format of `curl -i`, each optionally after a line such as `GET /path`.
        #[arg(long, value_name = "FILE")]
        headers: PathBuf,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::List => list(),
        Command::Show { name } => {
            let text = Profile::builtin_text(&name).ok_or_else(|| misuse(unknown(&name)))?;
            crate::say(text)
        }
        Command::Test { profile, headers } => test(&profile, &headers),
    }
}

/// The profile that is shipped under a name, or the one in a file.
pub(crate) fn open(profile: &str) -> anyhow::Result<Arc<Profile>> {
    if let Some(shipped) = Profile::builtin(profile) {
        return Ok(shipped);
    }
    let path = Path::new(profile);
    if !path.exists() {
        return Err(misuse(format_args!("no such file, and {}", unknown(profile))));
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {profile}"))?;
    let parsed = Profile::parse(&text).map_err(|error| anyhow!("{profile}: {error}"))?;
    Ok(Arc::new(parsed))
}

fn unknown(name: &str) -> String {
    tollway_core::spelling::unknown("profile", name, Profile::builtins())
}

fn list() -> anyhow::Result<()> {
    let mut out = output();
    for name in Profile::builtins() {
        let about = Profile::builtin(name).map(|profile| profile.about().to_owned());
        writeln!(out, "{name:<14} {}", about.unwrap_or_default())?;
    }
    Ok(())
}

fn test(profile: &str, headers: &Path) -> anyhow::Result<()> {
    let profile = open(profile)?;
    let shown = headers.display();
    let text = fs::read_to_string(headers).with_context(|| format!("cannot read {shown}"))?;
    let recordings = Recording::parse(&text).map_err(|error| anyhow!("{shown}: {error}"))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let mut out = output();
    let mut learned = 0;
    for (index, recording) in recordings.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        if let Some((method, target)) = &recording.request {
            writeln!(out, "{method} {target}")?;
        }
        writeln!(out, "status      {}", recording.status)?;
        write!(out, "{}", recording.explain(&profile, now))?;
        let seen = recording.read(&profile, now);
        learned += seen.readings.len() + usize::from(seen.is_limited());
    }
    if learned == 0 {
        bail!("profile {} learned nothing from {shown}", profile.name());
    }
    Ok(())
}
