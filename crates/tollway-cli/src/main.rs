//! The binary `tollway`: arguments to calls, nothing else.

#![forbid(unsafe_code)]

mod amounts;
mod check;
mod client;
mod completions;
mod config_files;
mod counted;
mod demo;
mod fake_upstream;
mod man;
mod misuse;
mod output;
mod profile;
mod proxy;
mod queue;
mod quota;
mod ratelimit;
mod serve;
mod shell_word;
mod simulate;
mod snapshot;
mod terminal_size;
mod top;
mod usage;
mod validate;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use output::say;

/// Enforce your own rate limits, and obey other people's.
#[derive(Debug, Parser)]
#[command(name = "tollway", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Check(check::Args),
    Completions(completions::Args),
    Demo(demo::Args),
    FakeUpstream(fake_upstream::Args),
    Man(man::Args),
    Profile(profile::Args),
    Proxy(proxy::Args),
    Queue(queue::Args),
    Quota(quota::Args),
    Ratelimit(ratelimit::Args),
    Serve(serve::Args),
    Simulate(simulate::Args),
    Top(top::Args),
    Usage(usage::Args),
    Validate(validate::Args),
}

fn main() -> ExitCode {
    match run(command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever cannot even be told has closed the terminal.
            let _ = writeln!(std::io::stderr(), "error: {}", tollway_core::explained(&*error));
            misuse::exit_code(&error)
        }
    }
}

/// The command that is meant: by the arguments, or by the name of the process.
fn command() -> Command {
    let name = std::env::args_os().next().map(PathBuf::from);
    let name = name.as_deref().and_then(Path::file_name);
    if name.is_some_and(|name| name == ratelimit::NAME) {
        return Command::Ratelimit(ratelimit::Args {});
    }
    Arguments::parse().command
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Check(args) => check::run(args),
        Command::Completions(args) => completions::run(&args, Arguments::command()),
        Command::Demo(args) => demo::run(args),
        Command::FakeUpstream(args) => fake_upstream::run(args),
        Command::Man(args) => man::run(&args, Arguments::command()),
        Command::Profile(args) => profile::run(args),
        Command::Proxy(args) => proxy::run(args),
        Command::Queue(args) => queue::run(args),
        Command::Quota(args) => quota::run(args),
        Command::Ratelimit(args) => ratelimit::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::Top(args) => top::run(args),
        Command::Usage(args) => usage::run(args),
        Command::Validate(args) => validate::run(args),
    }
}
