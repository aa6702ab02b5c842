//! The scripts: put together from the parts that a batch needs.
//!
//! A script creates its functions anew on every run, so one that holds only the algorithms of its
//! batch is faster than one that holds all. There are 63 of them, made when first needed; most
//! deployments use one or two. Checks on GCRA alone take shorter ways, each with the whole script
//! to fall back on: `scripts/gcra_check.lua` for a batch of them, without functions, and
//! `scripts/gcra_one_request.lua` for a single request, written out for its number of charges and
//! so without loops and tables too. `bench/runs/2026-11-18/gcra-scripts.md` has what each of these
//! ways saves. The parts are the files in `scripts/`, which draw what they store.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use crate::connection::Script;

const TIME: &str = include_str!("scripts/time.lua");
const DIVISION: &str = include_str!("scripts/division.lua");
const GCRA_CHECK: &str = include_str!("scripts/gcra_check.lua");
const GCRA_ONE_REQUEST: &str = include_str!("scripts/gcra_one_request.lua");
const DECIDE: &str = include_str!("scripts/decide.lua");
const NUMBERS: &str = include_str!("scripts/numbers.lua");
const ALGORITHMS: [&str; 6] = [
    include_str!("scripts/gcra.lua"),
    include_str!("scripts/leaky_bucket.lua"),
    include_str!("scripts/fixed_window.lua"),
    include_str!("scripts/sliding_window.lua"),
    include_str!("scripts/concurrency.lua"),
    include_str!("scripts/calendar_window.lua"),
];

/// The script for the algorithms whose kinds (1 to 6) are set in `kinds`, bit by bit.
pub(crate) fn script(kinds: u8) -> &'static Script {
    static SCRIPTS: [OnceLock<Script>; 64] = [const { OnceLock::new() }; 64];
    let set = usize::from(kinds >> 1 & 63);
    SCRIPTS[set].get_or_init(|| Script::new(source(set)))
}

/// For a batch of checks on GCRA states; answers nil where the whole script is needed.
pub(crate) fn gcra_checks() -> &'static Script {
    static GCRA_CHECKS: OnceLock<Script> = OnceLock::new();
    GCRA_CHECKS.get_or_init(|| Script::new([TIME, GCRA_CHECK].concat()))
}

/// The most charges that a script is written out for: few requests have more, and every number of
/// them is one more script in the memory of the server.
pub(crate) const WRITTEN_OUT_MAX: usize = 8;

/// For one request of so many checks on GCRA states, on one key or on a key for each; `None` if it
/// is another or has too many. Answers nil where the whole script is needed.
pub(crate) fn gcra_one_request(charges: usize, keys: usize) -> Option<&'static Script> {
    static SCRIPTS: [[OnceLock<Script>; WRITTEN_OUT_MAX]; 2] =
        [const { [const { OnceLock::new() }; WRITTEN_OUT_MAX] }; 2];
    if keys != 1 && keys != charges {
        return None;
    }
    let script = SCRIPTS[usize::from(keys > 1)].get(charges.checked_sub(1)?)?;
    Some(script.get_or_init(|| Script::new(write_out(GCRA_ONE_REQUEST, charges, keys))))
}

/// Notes sets of numbers.
pub(crate) fn note_numbers() -> &'static Script {
    static NOTE: OnceLock<Script> = OnceLock::new();
    NOTE.get_or_init(|| Script::new(NUMBERS.to_owned()))
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

/// A template with its lists written out: `@{…|…@}` once per charge and `${…|…$}` once per key,
/// with the text after the bar before all but the first. The sign alone is the number of the charge
/// or the key. Lists of charges inside a list of keys have the charges of that key.
fn write_out(template: &str, charges: usize, keys: usize) -> String {
    let charges_of = |key| if keys == 1 { 1..=charges } else { key..=key };
    let by_key = write_lists(template, '$', 1..=keys, |key, text| {
        write_lists(&text, '@', charges_of(key), |_, text| text)
    });
    write_lists(&by_key, '@', 1..=charges, |_, text| text)
}

fn write_lists(
    template: &str,
    sign: char,
    numbers: RangeInclusive<usize>,
    write: impl Fn(usize, String) -> String,
) -> String {
    let (begin, end) = (format!("{sign}{{"), format!("{sign}}}"));
    let mut parts = template.split(&begin);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (list, rest) = part.split_once(&end).expect("a list of a template ends");
        let (item, between) = list.rsplit_once('|').expect("a list of a template has a bar");
        for number in numbers.clone() {
            let between = if number == *numbers.start() { "" } else { between };
            let text = format!("{between}{item}").replace(sign, &number.to_string());
            out.push_str(&write(number, text));
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
    fn a_template_is_written_out_once_per_charge_and_key() {
        let template = "get ${k$|, $} ${if k$ @{a@| and b@, @} |$}return @{a@|@}";
        let one_key = "get k1 if k1 a1 and b2, a2 return a1a2";
        assert_eq!(write_out(template, 2, 1), one_key);
        let two_keys = "get k1, k2 if k1 a1 if k2 a2 return a1a2";
        assert_eq!(write_out(template, 2, 2), two_keys);
    }

    #[test]
    fn scripts_are_written_out_for_a_few_charges_only() {
        assert!(gcra_one_request(0, 0).is_none() && gcra_one_request(3, 2).is_none());
        assert!(gcra_one_request(WRITTEN_OUT_MAX + 1, 1).is_none());
        let [one, three] = [1, 3].map(|charges| gcra_one_request(charges, 1).unwrap());
        assert!(!one.source().contains("id2") && !three.source().contains("id4"));
        assert!(three.source().contains("id3") && !three.source().contains("value2"));
        assert!(gcra_one_request(3, 3).unwrap().source().contains("value3"));
    }

    /// Every script that a store may run.
    fn all() -> Vec<(String, &'static Script)> {
        let sets = (1..64u8).map(|set| (format!("decide {set:06b}"), script(set << 1)));
        let written_out = (1..=WRITTEN_OUT_MAX).flat_map(|charges| {
            [1, charges].map(|keys| {
                let name = format!("{charges} charges on {keys} keys");
                (name, gcra_one_request(charges, keys).unwrap())
            })
        });
        let others = [("batch", gcra_checks()), ("numbers", note_numbers())];
        let others = others.map(|(name, script)| (name.to_owned(), script));
        sets.chain(others).chain(written_out).collect()
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
