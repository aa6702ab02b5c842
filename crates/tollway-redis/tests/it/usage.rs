//! What keys used in their windows: kept once, in order, within bounds.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;
use tollway_redis::{UsageBook, UsageBounds, UsageChange, UsageRow, UsageRows, UsageWindow};
use tollway_testkit::servers::{Engine, Server, full};

use crate::caller::settings;

const DAY: Duration = Duration::from_secs(86_400);
/// A day in 2200, so that nothing ends while a test runs.
const LATER: Timestamp = Timestamp::from_millis(7_258_118_400_000);

fn book(url: &str, bounds: UsageBounds) -> UsageBook {
    UsageBook::new(url, bounds, &settings()).unwrap()
}

fn window(day: u32) -> UsageWindow {
    let start = LATER.after(day * DAY);
    let end = start.after(DAY);
    UsageWindow { policy: "plan".to_owned(), start, end, kept_until: end.after(DAY) }
}

fn taken(day: u32, key: &[u8], units: u64) -> UsageChange {
    UsageChange { window: window(day), key: key.to_vec(), taken: units, given_back: 0 }
}

async fn add(book: &UsageBook, changes: Vec<UsageChange>) {
    book.add(changes).expect("there is room").await.expect("it is added");
}

fn all(most: usize) -> UsageRows {
    let (from, until) = (Timestamp::MIN, Timestamp::MAX);
    UsageRows { policy: "plan".to_owned(), key: None, from, until, after: None, most }
}

fn told(rows: &[UsageRow]) -> Vec<(Timestamp, &[u8], u64)> {
    rows.iter().map(|row| (row.start, &row.key[..], row.units)).collect()
}

#[tokio::test]
async fn rows_come_by_window_and_key_page_by_page_whatever_bytes_the_keys_have() {
    for engine in Engine::available() {
        let book = book(&engine.shared().url(), UsageBounds::default());
        let keys: [&[u8]; 5] = [b"\0", b"a", b"a b", b"b", b"\xff*"];
        for day in [1, 0] {
            let changes = keys.iter().rev().map(|key| taken(day, key, u64::from(day) + 1));
            add(&book, changes.collect()).await;
        }
        add(&book, vec![taken(1, b"a", 5)]).await;
        let back = UsageChange { given_back: 4, ..taken(1, b"a", 0) };
        add(&book, vec![back.clone()]).await;
        let [first, second] = [0, 1].map(|day| window(day).start);
        let expected: Vec<(Timestamp, &[u8], u64)> = keys
            .iter()
            .map(|key| (first, *key, 1))
            .chain(keys.iter().map(|key| (second, *key, if *key == b"a" { 3 } else { 2 })))
            .collect();
        assert_eq!(told(&book.rows(&all(100)).await.unwrap()), expected);
        for most in 1..=4 {
            let (mut rows, mut asked) = (Vec::new(), all(most));
            loop {
                let page = book.rows(&asked).await.unwrap();
                let Some(last) = page.last() else { break };
                asked.after = Some((last.window.clone(), last.key.clone()));
                rows.extend(page);
            }
            assert_eq!(told(&rows), expected, "pages of {most}");
        }
        let one = UsageRows { key: Some(b"a".to_vec()), ..all(10) };
        assert_eq!(
            told(&book.rows(&one).await.unwrap()),
            [(first, &b"a"[..], 1), (second, b"a", 3)]
        );
        let later = UsageRows { from: second, ..all(1) };
        assert_eq!(told(&book.rows(&later).await.unwrap()), [(second, &b"\0"[..], 2)]);
        let earlier = UsageRows { until: second, ..all(100) };
        assert_eq!(book.rows(&earlier).await.unwrap().len(), 5);
        add(&book, vec![UsageChange { given_back: 99, ..back }]).await;
        assert_eq!(book.rows(&one).await.unwrap()[1].units, 0, "never below nothing");
    }
}

#[tokio::test]
async fn what_is_no_longer_kept_is_gone_and_units_that_overflow_stop_at_the_most() {
    for engine in Engine::available() {
        let book = book(&engine.shared().url(), UsageBounds::default());
        let mut over = taken(0, b"k", 1);
        over.window.kept_until = Timestamp::from_millis(1_000);
        add(&book, vec![over, taken(1, b"k", u64::MAX), taken(1, b"other", 7)]).await;
        add(&book, vec![taken(1, b"k", 5), taken(1, b"other", 7)]).await;
        let rows = book.rows(&all(10)).await.unwrap();
        let start = window(1).start;
        assert_eq!(told(&rows), [(start, &b"k"[..], i64::MAX as u64), (start, b"other", 14)]);
    }
}

#[tokio::test]
async fn keys_without_room_are_counted_together_and_the_oldest_window_makes_room() {
    for engine in Engine::available() {
        let bounds = UsageBounds { keys_max: 2, windows_max: 3 };
        let book = book(&engine.shared().url(), bounds);
        for key in [b"a", b"b", b"c", b"d", b"a"] {
            add(&book, vec![taken(0, key, 1)]).await;
        }
        let start = window(0).start;
        let rows = book.rows(&all(10)).await.unwrap();
        assert_eq!(told(&rows), [(start, &b""[..], 2), (start, b"a", 2), (start, b"b", 1)]);
        for day in 1..=3 {
            add(&book, vec![taken(day, b"a", 1)]).await;
        }
        let rows = book.rows(&all(10)).await.unwrap();
        let starts: Vec<_> = rows.iter().map(|row| row.start).collect();
        assert_eq!(starts, [1, 2, 3].map(|day| window(day).start));
    }
}

/// An addition whose answer is lost is sent again: it must not count twice.
#[tokio::test]
async fn each_charge_counts_once_though_connections_break_all_the_time() {
    let rounds = if full() { 400 } else { 16 };
    for engine in Engine::available() {
        // One of its own: others would not like their connections to be cut.
        let server = Server::start(engine, &[]);
        let name = settings();
        let book = Arc::new(UsageBook::new(&server.url(), UsageBounds::default(), &name).unwrap());
        for round in 0..rounds {
            let waiting: Vec<_> = (0..50)
                .map(|_| book.add(vec![taken(0, b"k", 3)]).expect("there is room"))
                .collect();
            if round % 4 == 0 {
                tokio::task::yield_now().await;
                server.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
            for done in waiting {
                done.await.expect("it is added in the end");
            }
        }
        assert_eq!((book.waiting(), book.lost()), (0, 0));
        assert_eq!(book.rows(&all(10)).await.unwrap()[0].units, rounds * 150);
    }
}
