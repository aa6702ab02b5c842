//! `tollway man FOLDER`: manual pages, one for the command and one for each of its verbs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap_mangen::Man;

/// Write the manual pages into a folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder; created if it does not exist
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Writes `tollway.1` and `tollway-VERB.1`.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<()> {
    fs::create_dir_all(&args.folder).with_context(|| args.folder.display().to_string())?;
    // Building gives every verb its full name, which the page carries in its head.
    command.build();
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        let name = format!("tollway-{}", verb.get_name());
        write(&args.folder, verb.clone(), &name)?;
    }
    write(&args.folder, command, "tollway")
}

fn write(folder: &Path, command: clap::Command, name: &str) -> Result<()> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    let path = folder.join(format!("{name}.1"));
    fs::write(&path, page).with_context(|| path.display().to_string())
}
