//! Pictures in the documents: drawn by the simulator's charts from the algorithms themselves.
//!
//! `TOLLWAY_DRAW=1 cargo test -p tollway-cli --test it pictures` writes them anew.

use std::fmt::Write as _;
use std::fs;

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Charge, Cost, Key, Policy, Quota, Timestamp};
use tollway_memory::{Capacity, MemoryStore};
use tollway_sim::chart::{Chart, Curve};

use crate::face::root;

const SECONDS: u64 = 180;
const STEP: u64 = 5;
const PER_SECOND: u64 = 5;

#[test]
fn the_picture_of_the_algorithms_is_what_they_do() {
    let drawn = algorithms();
    let path = root().join("docs/img/algorithms.svg");
    if std::env::var_os("TOLLWAY_DRAW").is_some() {
        fs::write(&path, &drawn).expect("a picture");
    }
    let committed = fs::read_to_string(&path).expect("the picture is there");
    assert!(drawn == committed, "run with TOLLWAY_DRAW=1 and look at {}", path.display());
}

/// The README's chart, by the command that stands under it.
#[test]
fn the_chart_of_25_clients_is_what_the_readme_says_it_is() {
    let readme = fs::read_to_string(root().join("README.md")).expect("a README");
    let (_, command) = readme.split_once("`tollway simulate ").expect("the command");
    let (command, _) = command.split_once('`').expect("its end");
    let (arguments, picture) = command.split_once(" --svg ").expect("a file");
    let drawn = std::env::temp_dir().join(format!("tollway-chart-{}.svg", std::process::id()));
    let mut all = vec!["simulate"];
    all.extend(arguments.split(' '));
    all.extend(["--svg", drawn.to_str().expect("text")]);
    crate::tool::succeed(&all);
    let fresh = fs::read(&drawn).expect("a picture");
    fs::remove_file(&drawn).expect("removed");
    let committed = fs::read(root().join(picture)).expect("the picture is there");
    assert!(fresh == committed, "run `tollway simulate {command}` and look at {picture}");
}

/// Sixty a minute by four algorithms, each asked five times a second.
fn algorithms() -> String {
    let quota = |text: &str| text.parse::<Quota>().expect("a quota");
    let minute = std::time::Duration::from_secs(60);
    let second = minute / 60;
    let policies = [
        ("GCRA, 60/1m burst 20", Policy::parse("p", "60/1m burst 20").expect("a policy")),
        (
            "leaky bucket of 20, 5 per 5 s",
            Policy::new("p", LeakyBucket::new(20, 5, second * 5).expect("a bucket")).expect("ok"),
        ),
        (
            "sliding window, 60/1m",
            Policy::new("p", SlidingWindow::exact(quota("60/1m")).expect("a window")).expect("ok"),
        ),
        (
            "fixed window, 60/1m",
            Policy::new("p", FixedWindow::new(quota("60/1m"), Anchor::Epoch)).expect("ok"),
        ),
    ];
    let style = include_str!("../../../tollway-sim/src/chart/chart.css");
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 752 384\" width=\"752\" \
         height=\"384\">\n<style>\n{style}</style>\n\
         <rect class=\"paper\" width=\"752\" height=\"384\"/>\n"
    );
    for (index, (title, policy)) in policies.iter().enumerate() {
        let (x, y) = (8 + index % 2 * 376, 8 + index / 2 * 188);
        let chart = chart(title, policy).render().replacen(
            "<svg class",
            &format!("<svg x=\"{x}\" y=\"{y}\" width=\"360\" height=\"176\" class"),
            1,
        );
        let _ = write!(svg, "{chart}");
    }
    svg.push_str("</svg>\n");
    svg
}

fn chart(title: &str, policy: &Policy) -> Chart {
    let store = MemoryStore::new(Capacity::keys(100));
    let key = Key::new(b"ada").expect("a key");
    let charge = Charge::new(policy, key).cost(Cost::ONE);
    // Half a minute into a window of the clock: a client does not begin when a window does.
    let begin_ms = 1_700_000_010_000;
    let mut admitted = vec![0.0; (SECONDS / STEP) as usize];
    for request in 0..SECONDS * PER_SECOND {
        let after_ms = request * 1_000 / PER_SECOND;
        let now = Timestamp::from_millis(begin_ms + after_ms);
        if store.check(&charge, now).is_allowed() {
            admitted[(after_ms / 1_000 / STEP) as usize] += 1.0;
        }
    }
    Chart {
        title: title.to_owned(),
        unit: "admitted in 5 s".to_owned(),
        lines: vec![Curve {
            values: admitted.into_iter().map(Some).collect(),
            step_s: STEP as f64,
        }],
        length_s: SECONDS as f64,
        top: 25.0,
    }
}
