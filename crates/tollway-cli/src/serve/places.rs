//! The flags that say where each front listens.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use tollway_server::Front;

/// What the flag of each front says.
#[derive(Debug, Default)]
pub(super) struct Places(pub(super) [Option<String>; Front::ALL.len()]);

impl FromArgMatches for Places {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(Self(Front::ALL.map(|front| matches.get_one::<String>(front.name()).cloned())))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Places {
    fn augment_args(command: Command) -> Command {
        let forms = ": address:port, unix:/path, unix:/path?mode=0660&group=www-data or off";
        let flag = |command: Command, front: Front| {
            // Said of the first, and the same for all.
            let forms = if front == Front::ALL[0] { forms } else { "" };
            let (title, port) = (front.title(), front.port());
            let help = format!("Where {title} listens{forms} [default: 127.0.0.1:{port}]");
            command.arg(Arg::new(front.name()).long(front.name()).value_name("WHERE").help(help))
        };
        Front::ALL.into_iter().fold(command, flag)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
