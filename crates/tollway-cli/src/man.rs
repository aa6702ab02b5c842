//! `tollway man FOLDER`: manual pages, one for the command and one for each of its verbs, however
//! deep.

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

/// Writes `tollway.1`, `tollway-VERB.1`, `tollway-VERB-VERB.1` and so on.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<()> {
    fs::create_dir_all(&args.folder).with_context(|| args.folder.display().to_string())?;
    // Building gives every verb its full name, which the page carries in its head.
    command.build();
    write_all(&args.folder, command, "tollway")
}

/// The page of a command, and those of its verbs.
fn write_all(folder: &Path, command: clap::Command, name: &str) -> Result<()> {
    let is_shown = |verb: &&clap::Command| verb.get_name() != "help" && !verb.is_hide_set();
    for verb in command.get_subcommands().filter(is_shown) {
        write_all(folder, verb.clone(), &format!("{name}-{}", verb.get_name()))?;
    }
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    let path = folder.join(format!("{name}.1"));
    fs::write(&path, page).with_context(|| path.display().to_string())
}
