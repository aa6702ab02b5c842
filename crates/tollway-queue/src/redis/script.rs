//! The scripts, each put together from the parts that it needs.
//!
//! `scripts/layout.lua` draws what they all store; the head of each says what it is told and what it
//! answers.

use std::sync::LazyLock;

/// A script and the name that the server gives it.
pub(super) struct Script {
    pub(super) source: String,
    pub(super) sha: String,
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        // The server reads every byte, also of what is said to people.
        let lines = parts.iter().flat_map(|part| part.lines()).map(str::trim_start);
        let source: String = lines
            .filter(|line| !line.is_empty() && !line.starts_with("--"))
            .flat_map(|line| [line, "\n"])
            .collect();
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    /// A script of `first`, which may answer before anything else is looked at, and `rest`.
    fn of(first: &str, rest: &str) -> Self {
        Self::new(&[
            include_str!("scripts/layout.lua"),
            include_str!("scripts/plain_groups.lua"),
            include_str!("scripts/stored_jobs.lua"),
            first,
            include_str!("scripts/limits.lua"),
            include_str!("scripts/waiting_jobs.lua"),
            include_str!("scripts/groups.lua"),
            include_str!("scripts/group_turns.lua"),
            include_str!("scripts/jobs.lua"),
            rest,
        ])
    }
}

macro_rules! scripts {
    ($($name:ident $($first:literal)? then $rest:literal)*) => {$(
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::of(
                concat!($(include_str!(concat!("scripts/", $first)))?),
                include_str!(concat!("scripts/", $rest)),
            )
        });
    )*};
}

scripts! {
    ENQUEUE "enqueue_plain.lua" then "enqueue.lua"
    LEASE "lease_plain.lua" then "lease.lua"
    SETTLE "settle_plain.lua" then "settle.lua"
    HEARTBEAT then "heartbeat.lua"
    QUERY then "queries.lua"
    CONTROL then "control.lua"
}

pub(super) static MANAGE: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[include_str!("scripts/manage_queues.lua")]));
