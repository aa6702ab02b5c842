//! The scripts, put together from the files in `scripts/`.

use std::sync::OnceLock;

use tollway_redis::connection::Script;

const BUCKET: &str = include_str!("scripts/bucket.lua");
const METERS: &str = include_str!("scripts/meters.lua");

macro_rules! script {
    ($(#[$doc:meta])* $name:ident = $($part:expr),+) => {
        $(#[$doc])*
        pub(super) fn $name() -> &'static Script {
            static SCRIPT: OnceLock<Script> = OnceLock::new();
            SCRIPT.get_or_init(|| Script::new([$($part),+].concat()))
        }
    };
}

script!(
    /// Gives slots, or places in the line.
    claim = include_str!("scripts/claim_short.lua"), BUCKET, METERS, include_str!("scripts/claim.lua")
);
script!(
    /// The same without its short way: where more than one limit counts.
    claim_long = BUCKET, METERS, include_str!("scripts/claim.lua")
);
script!(
    /// Gives one slot where there is plenty, or nothing.
    claim_quick = include_str!("scripts/claim_quick.lua")
);
script!(
    /// The same beside clients that write the same keys.
    claim_beside = include_str!("scripts/claim_beside.lua")
);
script!(
    /// Learns from an answer.
    observe =
        include_str!("scripts/observe_short.lua"), BUCKET, METERS, include_str!("scripts/observe.lua")
);
script!(
    /// Gives up permits and places.
    leave = BUCKET, METERS, include_str!("scripts/leave.lua")
);
script!(
    /// Frees a bucket that nobody can leave.
    mend = BUCKET, include_str!("scripts/mend.lua")
);
script!(
    /// Keeps permits and places alive.
    renew = include_str!("scripts/renew.lua")
);
script!(
    /// Takes tokens of the limit over all routes.
    tokens = include_str!("scripts/tokens.lua")
);
script!(
    /// Counts the processes that are alive.
    beat = include_str!("scripts/beat.lua")
);
