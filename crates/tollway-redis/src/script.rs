//! The scripts: put together from the parts that a batch needs.
//!
//! A script creates its functions anew on every run, so one that holds only the algorithms of its
//! batch is faster than one that holds all. There are 31 of them, made when first needed; most
//! deployments use one or two. Checks on GCRA alone have scripts that do without functions, with
//! the whole one to fall back on; those for a single request, on one key or on one for each charge,
//! are written out for its number of charges and so do without loops and tables too. The parts are
//! the files in `scripts/`, which draw what they store.

use std::sync::OnceLock;

use crate::connection::Script;

const TIME: &str = include_str!("scripts/time.lua");
const DIVISION: &str = include_str!("scripts/division.lua");
const GCRA_CHECK: &str = include_str!("scripts/gcra_check.lua");
const GCRA_WHOLE: &str = include_str!("scripts/gcra_whole.lua");
const GCRA_FINE: &str = include_str!("scripts/gcra_fine.lua");
const GCRA_APART: &str = include_str!("scripts/gcra_apart.lua");
const GCRA_APART_FINE: &str = include_str!("scripts/gcra_apart_fine.lua");
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

/// The most charges that a script is written out for.
pub(crate) const WRITTEN_OUT_MAX: usize = 8;

/// What the checks of a request on GCRA states have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One key, and units of whole microseconds.
    Whole,
    /// One key.
    Fine,
    /// A key for each, and units of whole microseconds.
    Apart,
    /// A key for each.
    ApartFine,
}

impl Shape {
    pub(crate) const ALL: [Self; 4] = [Self::Whole, Self::Fine, Self::Apart, Self::ApartFine];

    const fn source(self) -> &'static str {
        match self {
            Self::Whole => GCRA_WHOLE,
            Self::Fine => GCRA_FINE,
            Self::Apart => GCRA_APART,
            Self::ApartFine => GCRA_APART_FINE,
        }
    }
}

/// The shortest way: one request of so many checks on GCRA states. `None` if it has too many.
pub(crate) fn written_out(charges: usize, shape: Shape) -> Option<&'static Script> {
    static SCRIPTS: [[OnceLock<Script>; WRITTEN_OUT_MAX]; Shape::ALL.len()] =
        [const { [const { OnceLock::new() }; WRITTEN_OUT_MAX] }; Shape::ALL.len()];
    let place = charges.checked_sub(1).filter(|_| charges <= WRITTEN_OUT_MAX)?;
    let script = &SCRIPTS[shape as usize][place];
    Some(script.get_or_init(|| Script::new(write_out(shape.source(), charges))))
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

/// A file in which lines between `--each` and `--end` stand once per charge, and so does what
/// stands in `@{…|…}`, with the text after the bar before all but the first; `@` is the number of
/// the charge.
fn write_out(source: &str, charges: usize) -> String {
    let each = |text: &str| -> Vec<String> {
        (1..=charges).map(|charge| text.replace('@', &charge.to_string())).collect()
    };
    let code = source.lines().filter(|line| !line.starts_with("-- "));
    let mut out = String::with_capacity(source.len() * charges);
    let mut block = None;
    for line in code.map(|line| write_out_lists(line, &each)) {
        match (line.as_str(), &mut block) {
            ("--each", _) => block = Some(String::new()),
            ("--end", Some(lines)) => {
                out.extend(each(lines));
                block = None;
            }
            (line, Some(lines)) => {
                lines.push_str(line);
                lines.push('\n');
            }
            (line, None) => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

fn write_out_lists(line: &str, each: &impl Fn(&str) -> Vec<String>) -> String {
    let mut parts = line.split("@{");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (list, rest) = part.split_once('}').unwrap_or((part, ""));
        let (item, between) = list.split_once('|').unwrap_or((list, ""));
        for (number, (item, between)) in each(item).iter().zip(each(between)).enumerate() {
            out.push_str(if number == 0 { "" } else { &between });
            out.push_str(item);
        }
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_holds_only_the_algorithms_of_its_batch() {
        let gcra = script(bit(1));
        assert!(
            gcra.source().contains("algorithms[1] =") && !gcra.source().contains("algorithms[2] =")
        );
        assert_ne!(gcra.hash(), script(bit(1) | bit(3)).hash());
        assert!(script(bit(1) | bit(5)).source().contains("algorithms[5] ="));
    }

    #[test]
    fn a_script_is_written_out_once_per_charge() {
        let source = "-- why\nlocal @{a@|, b@, } = 1\n--each\nset(a@, @{a@| .. })\n--end\nreturn";
        let expected = "local a1, b2, a2 = 1\nset(a1, a1 .. a2)\nset(a2, a1 .. a2)\nreturn\n";
        assert_eq!(write_out(source, 2), expected);
    }

    #[test]
    fn scripts_are_written_out_for_a_few_charges_only() {
        assert!(written_out(0, Shape::Whole).is_none());
        assert!(written_out(WRITTEN_OUT_MAX + 1, Shape::Fine).is_none());
        let [one, three] = [1, 3].map(|charges| written_out(charges, Shape::Whole).unwrap());
        assert!(!one.source().contains('@') && !three.source().contains('@'));
        assert!(three.source().contains("id3") && !three.source().contains("id4"));
        assert_ne!(written_out(1, Shape::Fine).unwrap().hash(), one.hash());
    }

    /// Every script that a store may run.
    fn all() -> Vec<(String, &'static Script)> {
        let sets = (1..32u8).map(|set| (format!("decide {set:05b}"), script(set << 1)));
        let written_out = (1..=WRITTEN_OUT_MAX).flat_map(|charges| {
            Shape::ALL.into_iter().filter_map(move |shape| {
                let name = format!("{charges} charges, {shape:?}");
                written_out(charges, shape).map(|script| (name, script))
            })
        });
        sets.chain([("batch".to_owned(), short())]).chain(written_out).collect()
    }

    /// The commands of Redis 6.2 that scripts may call, and the options that they may give them.
    const OLDEST: [(&str, &[&str]); 7] = [
        ("DEL", &[]),
        ("EXISTS", &[]),
        ("GET", &[]),
        ("MGET", &[]),
        ("SET", &["PX"]),
        ("SETRANGE", &[]),
        ("TIME", &[]),
    ];

    /// The words in capitals that stand in quotes after a call: the command, then its options.
    fn called(source: &str) -> Vec<Vec<&str>> {
        let is_word =
            |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
        let calls = source.split("call(").skip(1);
        calls
            .map(|call| {
                call.lines().take(2).flat_map(|line| line.split('\'')).filter(is_word).collect()
            })
            .collect()
    }

    #[test]
    fn scripts_call_nothing_that_redis_6_2_does_not_have() {
        for (name, script) in all() {
            let calls = called(script.source());
            assert!(!calls.is_empty(), "{name} calls nothing");
            for call in calls {
                let (command, options) = call.split_first().expect("a command is a literal");
                let known = OLDEST.iter().find(|(known, _)| known == command);
                let (_, known) = known.unwrap_or_else(|| panic!("{name} calls {command}"));
                // The line after may be another call.
                let options = options.iter().filter(|word| OLDEST.iter().all(|(c, _)| c != *word));
                options.for_each(|option| assert!(known.contains(option), "{name}: {option}"));
            }
            for newer in
                ["redis.setresp", "redis.acl_check_cmd", "redis.register_function", "#!lua"]
            {
                assert!(!script.source().contains(newer), "{name} uses {newer}");
            }
        }
    }
}
