//! `tollway completions SHELL`: what a shell needs to complete this command line.

use std::io::Write as _;

use anyhow::Result;
use clap_complete::Shell;

/// Print a shell completion script.
///
/// For bash: tollway completions bash > /etc/bash_completion.d/tollway
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script for `command`.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<()> {
    // Gathered first: the generator does not tell when whoever reads has left.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tollway", &mut script);
    crate::output::output().write_all(&script)?;
    Ok(())
}
