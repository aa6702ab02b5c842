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
        let source = parts.concat();
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    fn with_base(part: &str) -> Self {
        let base = [
            include_str!("scripts/layout.lua"),
            include_str!("scripts/limits.lua"),
            include_str!("scripts/line.lua"),
            include_str!("scripts/groups.lua"),
            include_str!("scripts/jobs.lua"),
        ];
        Self::new(&[base[0], base[1], base[2], base[3], base[4], part])
    }
}

macro_rules! scripts {
    ($($name:ident $file:literal)*) => {$(
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::with_base(include_str!(concat!("scripts/", $file))));
    )*};
}

scripts! {
    ENQUEUE "enqueue.lua"
    LEASE "lease.lua"
    SETTLE "settle.lua"
    BEAT "beat.lua"
    LOOK "look.lua"
    CONTROL "control.lua"
}

pub(super) static PUT: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[include_str!("scripts/put.lua")]));
