//! Calendar windows: the server decides when it is, and who opens a window when it ends.

use std::time::Duration;

use tollway_core::calendar_window::CalendarWindow;
use tollway_core::civil::{Zone, ZoneRules};
use tollway_core::{Policy, Retry, Store, Timestamp};
use tollway_redis::RedisStore;
use tollway_testkit::servers::Engine;

use crate::caller::{charge, connect, cost, settings};

fn policy(text: &str, zone: Zone) -> Policy {
    let window = CalendarWindow::parse(text, &|_| Ok(zone)).unwrap();
    Policy::new("plan", window).unwrap()
}

/// The caller sends the windows around the time that it takes for the server's. Wrong by decades,
/// it is told the time and asks again; nothing is taken twice.
#[tokio::test]
async fn a_caller_whose_clock_is_wrong_is_decided_at_the_servers_time() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let policy = policy("100/year tz UTC", Zone::UTC);
        let mut left = 100;
        for now in [Timestamp::MIN, Timestamp::from_millis(7_258_118_400_000), Timestamp::MAX] {
            let verdict = store.check(&[charge(&policy, "k")], now).await.unwrap();
            left -= 1;
            let snapshot = verdict.decisions()[0].snapshot();
            assert!(verdict.is_allowed() && !verdict.is_degraded(), "{engine:?}");
            assert_eq!(snapshot.remaining(), left, "{engine:?}");
            assert!(snapshot.reset_after() <= Duration::from_secs(366 * 86_400), "{engine:?}");
        }
        // In one batch with a charge that needs no calendar, too.
        let other = Policy::parse("other", "5/1h").unwrap();
        let both = [charge(&policy, "k"), charge(&other, "k")];
        let verdict = store.check(&both, Timestamp::MIN).await.unwrap();
        let remaining = verdict.decisions().iter().map(|one| one.snapshot().remaining());
        assert_eq!(remaining.collect::<Vec<_>>(), [left - 1, 4]);
    }
}

/// Clocks that are so many hours ahead of UTC: what one version of a zone's data says.
#[derive(Debug)]
struct Ahead(i64);

impl ZoneRules for Ahead {
    fn name(&self) -> &str {
        "Test/Zone"
    }

    fn shown_at(&self, second: i64) -> i64 {
        second + self.0 * 3_600
    }

    fn moment_of(&self, shown: i64) -> i64 {
        shown - self.0 * 3_600
    }
}

const OLDER: Zone = Zone::new(&Ahead(1));
const NEWER: Zone = Zone::new(&Ahead(2));

#[tokio::test]
async fn callers_with_other_zone_data_agree_on_the_window_and_the_later_one_is_told() {
    let hour = Duration::from_secs(3_600);
    // Midnight UTC: by the older rules a day ends in 23 hours, by the newer in 22.
    let midnight = Timestamp::from_millis(1_794_700_800_000);
    for engine in Engine::available() {
        let url = engine.shared().url();
        let settings = settings();
        let connect = || RedisStore::connect_with_callers_time(&url, settings.clone());
        let [first, later] = [connect().await.unwrap(), connect().await.unwrap()];
        let (older, newer) = (policy("5/day tz it", OLDER), policy("5/day tz it", NEWER));
        let all = |policy| charge(policy, "k").cost(cost(5));
        assert!(first.check(&[all(&older)], midnight).await.unwrap().is_allowed());
        assert_eq!(first.status().windows_by_other_rules, 0);

        let at_22 = midnight.after(hour * 22);
        let denied = later.check(&[charge(&newer, "k")], at_22).await.unwrap();
        assert_eq!(denied.decisions()[0].retry(), Some(Retry::After(hour)), "{engine:?}");
        assert_eq!(later.status().windows_by_other_rules, 1, "{engine:?}");

        // Whoever opens the next one decides about that.
        let at_23 = midnight.after(hour * 23);
        let next = later.check(&[all(&newer)], at_23).await.unwrap();
        assert_eq!(next.decisions()[0].snapshot().reset_after(), hour * 23, "{engine:?}");
        let denied = first.check(&[charge(&older, "k")], at_23.after(hour)).await.unwrap();
        assert_eq!(denied.decisions()[0].retry(), Some(Retry::After(hour * 22)), "{engine:?}");
        assert_eq!(first.status().windows_by_other_rules, 1, "{engine:?}");
    }
}
