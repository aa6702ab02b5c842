use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tollgate_core::concurrency::Concurrency;
use tollgate_core::leaky_bucket::LeakyBucket;
use tollgate_core::sliding_window::SlidingWindow;
use tollgate_core::{Charge, Cost, Key, Policy, Timestamp};
use tollgate_memory::{Capacity, DumpErrorKind, MemoryStore};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// A file that is gone when the test is over.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("tollgate-{}-{name}", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn policies() -> Vec<Policy> {
    vec![
        Policy::parse("gcra", "5/1h").unwrap(),
        Policy::parse("fraction", "7/1h burst 5").unwrap(),
        Policy::new("leaky", LeakyBucket::new(5, 1, Duration::from_secs(3_600)).unwrap()).unwrap(),
        Policy::new("sliding", SlidingWindow::new("5/1h".parse().unwrap(), 10).unwrap()).unwrap(),
        Policy::new("permits", Concurrency::new(5, Duration::from_secs(3_600)).unwrap()).unwrap(),
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

#[test]
fn another_capacity_is_refused_with_what_to_do_about_it() {
    let file = File::new("capacity");
    filled(&policies()).dump(&file.0, NOW).unwrap();
    let error = MemoryStore::restore(&file.0, Capacity::keys(2_000)).unwrap_err();
    assert_eq!(error.kind(), DumpErrorKind::Capacity);
    assert!(error.to_string().contains("set the same number of keys"));
    let missing = MemoryStore::restore("/nonexistent/file", Capacity::keys(1)).unwrap_err();
    assert_eq!(missing.kind(), DumpErrorKind::Io);
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
