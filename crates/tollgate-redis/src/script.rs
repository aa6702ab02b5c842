//! The scripts: put together from the parts that a batch needs.
//!
//! A script creates its functions anew on every run, so one that holds only the algorithms of its
//! batch is faster than one that holds all. There are 31 of them, made when first needed; most
//! deployments use one or two. Checks on GCRA alone have a script that does without functions, with
//! the whole one to fall back on. The parts are the files in `scripts/`, which draw what they
//! store.

use std::sync::OnceLock;

/// A script and the name that the server gives it.
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) sha: String,
}

const TIME: &str = include_str!("scripts/time.lua");
const DIVISION: &str = include_str!("scripts/division.lua");
const GCRA_CHECK: &str = include_str!("scripts/gcra_check.lua");
const DECIDE: &str = include_str!("scripts/decide.lua");
const ALGORITHMS: [&str; 5] = [
    include_str!("scripts/gcra.lua"),
    include_str!("scripts/leaky_bucket.lua"),
    include_str!("scripts/fixed_window.lua"),
    include_str!("scripts/sliding_window.lua"),
    include_str!("scripts/concurrency.lua"),
];

/// The script for the algorithms whose kinds (1 to 5) are set in `kinds`, bit by bit.
pub(crate) fn script(kinds: u8) -> &'static Script {
    static SCRIPTS: [OnceLock<Script>; 32] = [const { OnceLock::new() }; 32];
    let set = usize::from(kinds >> 1 & 31);
    SCRIPTS[set].get_or_init(|| Script::new(source(set)))
}

/// The short way for checks on GCRA states; answers nil where the whole script is needed.
pub(crate) fn short() -> &'static Script {
    static SHORT: OnceLock<Script> = OnceLock::new();
    SHORT.get_or_init(|| Script::new([TIME, GCRA_CHECK].concat()))
}

impl Script {
    fn new(source: String) -> Self {
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }
}

/// The bit of a kind.
pub(crate) const fn bit(kind: u8) -> u8 {
    1 << kind
}

fn source(set: usize) -> String {
    let mut parts = vec![TIME, "local algorithms = {}\n"];
    // GCRA adds and compares; all others divide.
    if set & !1 != 0 {
        parts.push(DIVISION);
    }
    let chosen = ALGORITHMS.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1);
    parts.extend(chosen.map(|(_, algorithm)| *algorithm));
    parts.push(DECIDE);
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_holds_only_the_algorithms_of_its_batch() {
        let gcra = script(bit(1));
        assert!(
            gcra.source.contains("algorithms[1] =") && !gcra.source.contains("algorithms[2] =")
        );
        assert_ne!(gcra.sha, script(bit(1) | bit(3)).sha);
        assert!(script(bit(1) | bit(5)).source.contains("algorithms[5] ="));
    }
}
