//! The scripts, each put together from the parts that it needs.
//!
//! `scripts/layout.lua` draws what they all store; the head of each says what it is told and what
//! it answers.

use std::sync::LazyLock;

use tollway_redis::connection::Script;

/// The parts without what is said to people: the server reads every byte.
fn joined(parts: &[&str]) -> Script {
    let lines = parts.iter().flat_map(|part| part.lines()).map(str::trim_start);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    Script::new(code.flat_map(|line| [line, "\n"]).collect())
}

/// A script of `first`, which may answer before anything else is looked at, and `rest`.
fn script_of(first: &str, rest: &str) -> Script {
    joined(&[
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

macro_rules! scripts {
    ($($name:ident $($first:literal)? then $rest:literal)*) => {$(
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            script_of(
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
    LazyLock::new(|| joined(&[include_str!("scripts/manage_queues.lua")]));
