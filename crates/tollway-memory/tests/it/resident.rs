use std::process::Command;

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::{Charge, Key, Policy, Timestamp};
use tollway_memory::{Capacity, MemoryStore};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const MIB: usize = 1 << 20;
/// What the child is asked for: the kind of key and how many.
const ASKED: &str = "TOLLWAY_TEST_RESIDENT";

/// Bytes that a process with a store of the service's default size has resident, with so many keys.
fn resident_with(kind: &str, keys: usize) -> usize {
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program)
        .args(["--exact", "resident::child", "--ignored", "--nocapture"])
        .env(ASKED, format!("{kind} {keys}"))
        .output()
        .unwrap();
    let printed = String::from_utf8(child.stdout).unwrap();
    let bytes = printed.split("resident bytes: ").nth(1).and_then(|rest| rest.split(' ').next());
    bytes.unwrap_or_else(|| panic!("{printed}")).parse().unwrap()
}

/// A process of its own, because memory that other tests have freed would count.
#[test]
#[ignore = "run by the tests below"]
fn child() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let (kind, keys) = asked.split_once(' ').unwrap();
    let policy = match kind {
        "gcra" => Policy::parse("api", "5/1h").unwrap(),
        _ => {
            let window = FixedWindow::new("5/1h".parse().unwrap(), Anchor::Epoch);
            Policy::new("api", window).unwrap()
        }
    };
    let store = MemoryStore::new(Capacity::bytes(256 * MIB));
    for number in 0..keys.parse::<u64>().unwrap() {
        let key = number.to_le_bytes();
        let charge = Charge::new(&policy, Key::new(&key).unwrap());
        assert!(store.check(&charge, NOW).is_allowed());
    }
    // While the table doubles a key may be crowded out (docs/semantics.md), and near the bound.
    let forgotten = store.pressure().forgotten;
    assert!(forgotten * 1_000_000 <= keys.parse::<u64>().unwrap(), "{forgotten} were forgotten");
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    println!("resident bytes: {} of {asked}", pages * 4_096);
}

#[test]
fn resident_memory_is_at_most_16_mib_and_64_bytes_for_each_key() {
    for keys in [0, 1_000, 10_000, 100_000, 250_000, 700_000, 1_500_000, 3_000_000, 5_800_000] {
        let resident = resident_with("gcra", keys);
        println!("{keys} keys: {:.1} MiB", resident as f64 / MIB as f64);
        assert!(resident <= 16 * MIB + 64 * keys, "{resident} bytes with {keys} keys");
    }
}

/// A slot of two words is twice as large, and a third of the slots in use may be all that are
/// taken.
#[test]
fn resident_memory_of_wide_keys_is_at_most_16_mib_and_110_bytes_for_each() {
    for keys in [1_000, 10_000, 100_000, 250_000, 700_000, 1_400_000] {
        let resident = resident_with("fixed", keys);
        println!("{keys} keys: {:.1} MiB", resident as f64 / MIB as f64);
        assert!(resident <= 16 * MIB + 110 * keys, "{resident} bytes with {keys} keys");
    }
}
