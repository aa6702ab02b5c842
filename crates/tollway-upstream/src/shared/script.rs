//! The scripts, from the files in `scripts/`.

use std::sync::OnceLock;

use tollway_redis::connection::Script;

macro_rules! script {
    ($(#[$doc:meta])* $name:ident = $source:expr) => {
        $(#[$doc])*
        pub(super) fn $name() -> &'static Script {
            static SCRIPT: OnceLock<Script> = OnceLock::new();
            SCRIPT.get_or_init(|| Script::new($source.to_owned()))
        }
    };
}

script!(
    /// Puts documents in the place of those that they were computed from.
    commit = include_str!("scripts/commit.lua")
);
script!(
    /// Takes tokens of the limit over all routes.
    tokens = include_str!("scripts/tokens.lua")
);
script!(
    /// Takes back tokens that were not used, or takes what was used beyond them.
    correct = include_str!("scripts/correct.lua")
);
script!(
    /// Says that a process is alive, and tells which ones are.
    beat = include_str!("scripts/beat.lua")
);
