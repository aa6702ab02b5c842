//! `tollgate demo`: a real server, real processes, real HTTP, on this machine.

mod client;
mod gcra;
mod server;
mod tally;

use anyhow::Result;

/// Watch the parts of Tollgate at work on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    demo: Demo,
}

#[derive(Debug, clap::Subcommand)]
enum Demo {
    /// Clients that do not know of each other share a GCRA server, 4,500 per hour
    Gcra(gcra::Args),
    /// One client process of that demo
    #[command(hide = true)]
    GcraClient(client::Args),
}

/// Runs the demo that `args` name.
pub(crate) fn run(args: Args) -> Result<()> {
    match args.demo {
        Demo::Gcra(args) => gcra::run(args),
        Demo::GcraClient(args) => client::run(&args),
    }
}
