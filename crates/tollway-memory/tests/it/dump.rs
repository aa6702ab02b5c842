use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tollway_core::calendar_window::CalendarWindow;
use tollway_core::concurrency::Concurrency;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Charge, Cost, Key, Policy, Timestamp};
use tollway_memory::{Capacity, DumpErrorKind, DumpFile, MemoryStore, WhenFull};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// A file that is gone when the test is over.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("tollway-{}-{name}", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn calendar_window(text: &str) -> CalendarWindow {
    CalendarWindow::parse(text, &|name| Err(name.to_owned())).unwrap()
}

fn policies() -> Vec<Policy> {
    vec![
        Policy::parse("gcra", "5/1h").unwrap(),
        Policy::parse("fraction", "7/1h burst 5").unwrap(),
        Policy::new("leaky", LeakyBucket::new(5, 1, Duration::from_secs(3_600)).unwrap()).unwrap(),
        Policy::new("sliding", SlidingWindow::new("5/1h".parse().unwrap(), 10).unwrap()).unwrap(),
        Policy::new("permits", Concurrency::new(5, Duration::from_secs(3_600)).unwrap()).unwrap(),
        Policy::new("plan", calendar_window("5/month anchor 20")).unwrap(),
    ]
}

fn filled(policies: &[Policy]) -> MemoryStore {
    let store = MemoryStore::new(Capacity::keys(1_000));
    for policy in policies {
        let charge = Charge::new(policy, Key::new("alice").unwrap()).cost(Cost::new(3).unwrap());
        assert!(store.check(&charge, NOW).is_allowed());
    }
    store
}

#[test]
fn a_restart_is_no_amnesty() {
    let file = File::new("restart");
    let policies = policies();
    filled(&policies).dump(&file.0, NOW).unwrap();
    let restored = MemoryStore::restore(&file.0, Capacity::keys(1_000)).unwrap();
    for policy in &policies {
        let alice = Charge::new(policy, Key::new("alice").unwrap());
        let bob = Charge::new(policy, Key::new("bob").unwrap());
        assert_eq!(restored.peek(&alice, NOW).remaining(), 2, "{}", policy.name());
        assert_eq!(restored.peek(&bob, NOW).remaining(), 5, "{}", policy.name());
        assert!(!restored.check(&alice.cost(Cost::new(3).unwrap()), NOW).is_allowed());
    }
}

#[test]
fn the_file_is_for_its_owner_only_and_replaced_whole() {
    use std::os::unix::fs::PermissionsExt;
    let file = File::new("owner");
    let store = filled(&policies());
    store.dump(&file.0, NOW).unwrap();
    store.dump(&file.0, NOW).unwrap();
    assert_eq!(fs::metadata(&file.0).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!file.0.with_extension("unfinished").exists());
}

/// Whoever writes last must leave the newest state, or what was counted meanwhile is forgiven.
#[test]
fn of_dumps_at_once_the_newest_stays() {
    let file = File::new("at-once");
    let policy = Policy::parse("api", "1000/1h").unwrap();
    let charge = Charge::new(&policy, Key::new("alice").unwrap());
    let store = MemoryStore::new(Capacity::keys(1_000));
    for round in 1..=50 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert!(store.check(&charge, NOW).is_allowed());
                    store.dump(&file.0, NOW).unwrap();
                });
            }
        });
        let restored = MemoryStore::restore(&file.0, Capacity::keys(1_000)).unwrap();
        assert_eq!(restored.peek(&charge, NOW).remaining(), 1_000 - 4 * round);
    }
}

#[test]
fn a_file_cut_short_or_changed_anywhere_is_refused() {
    let file = File::new("damaged");
    filled(&policies()).dump(&file.0, NOW).unwrap();
    let whole = fs::read(&file.0).unwrap();
    for cut in 0..whole.len() {
        fs::write(&file.0, &whole[..cut]).unwrap();
        let error = MemoryStore::restore(&file.0, Capacity::keys(1_000)).unwrap_err();
        assert_eq!(error.kind(), DumpErrorKind::Corrupt, "cut at {cut}");
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        fs::write(&file.0, changed).unwrap();
        let error = MemoryStore::restore(&file.0, Capacity::keys(1_000)).unwrap_err();
        assert_eq!(error.kind(), DumpErrorKind::Corrupt, "changed at {at}");
    }
}

/// An operator gives it more memory, or less: neither may be an amnesty.
#[test]
fn another_capacity_carries_the_states_over() {
    let file = File::new("capacity");
    let policies = policies();
    let store = MemoryStore::new(Capacity::keys(3_000));
    let names: Vec<String> = (0..1_000).map(|number| format!("user{number}")).collect();
    let charges =
        || policies.iter().flat_map(|policy| names.iter().map(move |name| (policy, name)));
    for (policy, name) in charges() {
        let charge = Charge::new(policy, Key::new(name).unwrap()).cost(Cost::new(3).unwrap());
        assert!(store.check(&charge, NOW).is_allowed());
    }
    store.dump(&file.0, NOW).unwrap();
    for keys in [2_000, 3_000, 3_001, 4_000, 100_000] {
        let restored = MemoryStore::restore(&file.0, Capacity::keys(keys)).unwrap();
        assert_eq!((restored.pressure().forgotten, restored.pressure().refused), (0, 0), "{keys}");
        let mut missing = 0;
        for (policy, name) in charges() {
            let charge = Charge::new(policy, Key::new(name).unwrap());
            let remaining = restored.peek(&charge, NOW).remaining();
            missing += u64::from(remaining == 5);
            assert!(matches!(remaining, 2 | 5), "{} {name} in room for {keys}", policy.name());
        }
        // Of 3,000 states in room for 2,000 chance may put more into a corner than fits there; all
        // that is dropped is told.
        assert_eq!(missing, restored.dropped(), "in room for {keys}");
        assert!(missing <= if keys < 3_000 { 60 } else { 0 }, "{missing} in room for {keys}");
    }
}

/// A smaller store may forget who has units left, but must not forgive who has none.
#[test]
fn in_a_smaller_store_keys_with_nothing_left_are_the_last_to_be_dropped() {
    let file = File::new("smaller");
    let policies = policies();
    let store = MemoryStore::new(Capacity::keys(3_000));
    let names: Vec<String> = (0..2_000).map(|number| format!("user{number}")).collect();
    // Every tenth has nothing left, in whatever order they lie.
    let spent = |number: usize| number.is_multiple_of(10);
    for policy in &policies {
        for (number, name) in names.iter().enumerate() {
            let cost = Cost::new(if spent(number) { 5 } else { 3 }).unwrap();
            let charge = Charge::new(policy, Key::new(name).unwrap()).cost(cost);
            assert!(store.check(&charge, NOW).is_allowed());
        }
    }
    store.dump(&file.0, NOW).unwrap();
    for when_full in [WhenFull::Deny, WhenFull::Forget] {
        let capacity = Capacity { variable_bytes: 500_000, when_full, ..Capacity::keys(600) };
        let restored = MemoryStore::restore(&file.0, capacity).unwrap();
        assert!(restored.dropped() > 1_000, "{}", restored.dropped());
        let pressure = restored.pressure();
        assert_eq!((pressure.forgotten, pressure.refused), (0, 0), "nobody asked");
        for policy in &policies {
            for name in names.iter().step_by(10) {
                let charge = Charge::new(policy, Key::new(name).unwrap());
                let remaining = restored.peek(&charge, NOW).remaining();
                assert_eq!(remaining, 0, "{} {name} {when_full:?}", policy.name());
            }
        }
    }
}

#[test]
fn a_restored_store_knows_when_its_file_was_written() {
    let file = File::new("written-at");
    assert_eq!(filled(&policies()).written_at(), None);
    filled(&policies()).dump(&file.0, NOW).unwrap();
    let restored = MemoryStore::restore(&file.0, Capacity::keys(1_000)).unwrap();
    assert_eq!(restored.written_at(), Some(NOW));
}

/// What it says must lead to what is wrong, since the file itself is not for reading.
#[test]
fn a_refusal_says_what_is_wrong_with_the_file() {
    let file = File::new("refusal");
    let refused = || {
        let error = MemoryStore::restore(&file.0, Capacity::keys(1_000)).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, said) = refused();
    assert_eq!((kind, said.as_str()), (DumpErrorKind::Io, "the snapshot file cannot be opened"));
    for (content, problem) in [
        (&b""[..], "is empty"),
        (b"name = \"api\"", "is cut short, or is not a snapshot"),
        (&[b'x'; 64], "is not a snapshot of Tollway"),
    ] {
        fs::write(&file.0, content).unwrap();
        assert_eq!(refused(), (DumpErrorKind::Corrupt, format!("the snapshot file {problem}")));
    }
    fs::write(&file.0, of_version(3)).unwrap();
    let (kind, said) = refused();
    assert_eq!(kind, DumpErrorKind::Version);
    assert!(said.contains("has version 3 of the format and 4 was expected"), "{said}");
    fs::remove_file(&file.0).unwrap();
    fs::create_dir(&file.0).unwrap();
    assert_eq!(refused().0, DumpErrorKind::NotAFile);
    fs::remove_dir(&file.0).unwrap();
}

/// A whole file of another version: magic, version and checksum are where they always were.
fn of_version(version: u64) -> Vec<u8> {
    use std::hash::Hasher as _;
    let mut bytes = b"TOLLWAY\0".to_vec();
    bytes.extend([version, 7, 8, 0, 0, 0].into_iter().flat_map(u64::to_le_bytes));
    let mut hasher = siphasher::sip128::SipHasher13::new_with_keys(0, 0);
    hasher.write(&[0; 8]);
    hasher.write(&bytes);
    let checksum = siphasher::sip128::Hasher128::finish128(&hasher);
    bytes.extend([checksum.h1, checksum.h2].into_iter().flat_map(u64::to_le_bytes));
    bytes
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_anything_is_lost() {
    let missing = DumpFile::new("/nonexistent/states").prepare().unwrap_err();
    assert_eq!(missing.to_string(), "no file can be made in the folder /nonexistent");
    let reason = std::error::Error::source(&missing).unwrap().to_string();
    assert!(reason.contains("No such file or directory"), "{reason}");
    let folder = DumpFile::new(std::env::temp_dir()).prepare().unwrap_err();
    assert_eq!(folder.kind(), DumpErrorKind::NotAFile);
}

/// A folder that is gone when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = File::new(name).0.clone();
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_a_killed_process_left_is_removed_and_nothing_else() {
    let folder = Folder::new("leftovers");
    let own = ["states.0123456789abcdef.unfinished", "states.ffffffffffffffff.unfinished"];
    let others = [
        "other.0123456789abcdef.unfinished",
        "states",
        "states.0123456789ABCDEF.unfinished",
        "states.012345.unfinished",
        "states.unfinished",
        "states2.0123456789abcdef.unfinished",
    ];
    own.iter().chain(&others).for_each(|name| fs::write(folder.0.join(name), "x").unwrap());
    // One is not left: somebody is writing it.
    let alive = fs::File::create(folder.0.join("states.aaaaaaaaaaaaaaaa.unfinished")).unwrap();
    alive.lock().unwrap();
    DumpFile::new(folder.0.join("states")).prepare().unwrap();
    let mut expected = others.to_vec();
    expected.push("states.aaaaaaaaaaaaaaaa.unfinished");
    expected.sort_unstable();
    assert_eq!(folder.names(), expected);
}

#[test]
fn files_set_aside_are_kept_newest_first_and_not_for_ever() {
    let folder = Folder::new("aside");
    let path = folder.0.join("states");
    for number in 1..=5 {
        fs::write(&path, number.to_string()).unwrap();
        let aside = DumpFile::new(&path).set_aside().unwrap();
        assert_eq!(fs::read_to_string(aside).unwrap(), number.to_string());
        assert!(!path.exists());
    }
    assert_eq!(folder.names(), ["states.refused-1", "states.refused-2", "states.refused-3"]);
    assert_eq!(fs::read_to_string(folder.0.join("states.refused-3")).unwrap(), "3");
}

/// The environment variable by which this binary finds itself in the child of the next test.
const CHILD: &str = "TOLLWAY_TEST_DUMP_CHILD";

/// A cap on memory that a snapshot breaks every minute is no cap. Measured in a process of its own:
/// other tests have their own peaks.
#[test]
fn writing_and_reading_a_file_takes_a_bounded_buffer_whatever_the_store_holds() {
    if std::env::var_os(CHILD).is_some() {
        return measure_in_child();
    }
    let name = "dump::writing_and_reading_a_file_takes_a_bounded_buffer_whatever_the_store_holds";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

fn measure_in_child() {
    let file = File::new("bounded");
    let capacity = Capacity { variable_bytes: 32 << 20, ..Capacity::keys(200_000) };
    let narrow = Policy::parse("api", "5/1h").unwrap();
    let window = SlidingWindow::new("5/1h".parse().unwrap(), 10).unwrap();
    let sliding = Policy::new("sliding", window).unwrap();
    let store = MemoryStore::new(capacity);
    for number in 0..150_000 {
        let key = format!("user{number}");
        let _ = store.check(&Charge::new(&narrow, Key::new(&key).unwrap()), NOW);
        if number % 5 == 0 {
            let _ = store.check(&Charge::new(&sliding, Key::new(&key).unwrap()), NOW);
        }
    }
    let before = peak_now();
    store.dump(&file.0, NOW).unwrap();
    let written = fs::metadata(&file.0).unwrap().len();
    assert!(written > 8 << 20, "{written} bytes say nothing about a bound");
    let taken = resident("VmHWM") - before;
    assert!(taken < 512, "writing {written} bytes took {taken} KiB");
    drop(store);
    let restored = MemoryStore::restore(&file.0, capacity).unwrap();
    let (peak, after) = (resident("VmHWM"), resident("VmRSS"));
    assert!(peak < after.max(before) + 2_048, "reading took {peak} KiB for {after} KiB");
    assert_eq!(restored.pressure().used, 180_000);
}

/// Forgets earlier peaks; what is resident now, in KiB.
fn peak_now() -> u64 {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    resident("VmHWM")
}

fn resident(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches(|char: char| !char.is_ascii_digit()).parse().unwrap()
}

/// Who settles a reservation made before a restart must not meet one made after it.
#[test]
fn names_are_not_given_again_after_a_restart() {
    let file = File::new("names");
    let policies = policies();
    let charge = Charge::new(&policies[0], Key::new("bob").unwrap());
    let name = |store: &MemoryStore| store.reserve(&[charge], NOW).reservation.unwrap().id;
    let store = filled(&policies);
    let before: Vec<_> = (0..2).map(|_| name(&store)).collect();
    store.dump(&file.0, NOW).unwrap();
    let restored = MemoryStore::restore(&file.0, Capacity::keys(1_000)).unwrap();
    assert!((0..2).all(|_| !before.contains(&name(&restored))));
}
