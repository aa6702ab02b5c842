//! `tollway demo`: a real server, real processes, real HTTP, on this machine.

mod client;
mod fleet;
mod gcra;
mod record;
mod server;
mod tally;
mod tour;
mod traffic;

use anyhow::Result;

/// Show a limit enforced, the dashboard under load, and 25 clients that share a token fairly.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    demo: Option<Demo>,
    #[command(flatten)]
    tour: tour::Tour,
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
        Some(Demo::Gcra(args)) => gcra::run(args),
        Some(Demo::GcraClient(args)) => client::run(&args),
        None => tour::run(&args.tour),
    }
}
