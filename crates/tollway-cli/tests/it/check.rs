use std::fs;
use std::path::PathBuf;

use crate::tool::{fail, misuse, succeed, tollway};

/// A file of this test's own with these lines.
fn scratch(name: &str, lines: &[&str]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{}-{name}", std::process::id()));
    fs::write(&path, lines.join("\n")).unwrap();
    path
}

/// What was decided on each request, and how the command ended.
fn decided(arguments: &[&str]) -> (String, Option<i32>) {
    let output = tollway(&[&["check"], arguments].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let letter = |line: &str| {
        let word = |word: &str| line.contains(&format!("  {word}  "));
        word("allow").then_some('T').or(word("deny").then_some('F'))
    };
    (text.lines().filter_map(letter).collect(), output.status.code())
}

/// The example that the bucketed window's authors work through, to the millisecond.
#[test]
fn the_worked_example_of_the_bucketed_window_is_one_command() {
    let times = [
        "1592171101900",
        "1592171101950",
        "1592171102013",
        "# five so far",
        "1592171102810",
        "1592171102850",
        "",
        "1592171102890",
        "1592171102980",
    ];
    let file = scratch("worked.txt", &times);
    let window = ["--algorithm", "sliding-window", "--quota", "5/1s", "--buckets", "10", "--at"];
    let arguments = [&window[..], &[file.to_str().unwrap()]].concat();
    assert_eq!(decided(&arguments), ("TTTTTFT".to_owned(), Some(0)));
    assert_eq!(decided(&[&arguments[..], &["--denied-exit", "3"]].concat()).1, Some(3));
    let told = succeed(&[&["check"], &arguments[..]].concat());
    assert!(told.contains(" 1592171102890  alice  deny   0/5 left"), "{told}");
    assert!(told.ends_with("6 allowed, 1 denied\n"), "{told}");
}

#[test]
fn the_bucketed_window_errs_by_less_than_a_bucket_and_the_exact_one_not_at_all() {
    let file = scratch("timeline.txt", &["1592171101990", "1592171102930"]);
    let at = ["--algorithm", "sliding-window", "--quota", "1/1s", "--at", file.to_str().unwrap()];
    assert_eq!(decided(&[&at[..], &["--buckets", "10"]].concat()).0, "TT");
    assert_eq!(decided(&at).0, "TF");
}

#[test]
fn every_algorithm_can_be_tried() {
    let file = scratch("two.txt", &["0", "0", "1000 alice 1", "1000 bob", "2500"]);
    let at = ["--at", file.to_str().unwrap()];
    for (limit, expected) in [
        (&["--quota", "1/1s"][..], "TFTTT"),
        (&["--algorithm", "leaky-bucket", "--size", "1", "--drip-interval", "2s"], "TFFTT"),
        (
            &[
                "--algorithm",
                "leaky-bucket",
                "--size",
                "1",
                "--drip-interval",
                "2s",
                "--factor",
                "0.5",
            ],
            "TTTTT",
        ),
        (&["--algorithm", "fixed-window", "--quota", "1/2s", "--anchor", "first-request"], "TFFTT"),
        (&["--quota", "1/day"], "TFFTF"),
        (&["--algorithm", "concurrency", "--limit", "1", "--lease", "2s"], "TFFTT"),
        (&["--algorithm", "legacy", "--max", "2", "--duration", "4s"], "TTFTT"),
        (
            &["--algorithm", "legacy", "--max", "2", "--duration", "2s", "--min-interval", "2s"],
            "TFFTT",
        ),
    ] {
        assert_eq!(decided(&[limit, &at].concat()).0, expected, "{limit:?}");
    }
}

#[test]
fn mistakes_are_told_by_flag_and_by_line() {
    let check = |arguments: &[&str]| fail(&[&["check"], arguments].concat());
    assert!(check(&["--algorithm", "leaky-buket"]).contains("did you mean \"leaky-bucket\"?"));
    let told = check(&["--algorithm", "leaky-bucket", "--size", "3"]);
    assert!(told.contains("--drip-interval: missing; leaky-bucket needs it"), "{told}");
    let told = check(&["--size", "3", "--factor", "2"]);
    assert!(told.contains("--size: gcra takes none") && told.contains("--factor: gcra"), "{told}");
    assert!(check(&["--quota", "1/x"]).contains("--quota: expected UNITS/PERIOD"));
    let told = check(&["--quota", "1/month tz Europe/Berln"]);
    assert!(
        told.contains("           ^ unknown time zone") && told.contains("Europe/Berlin"),
        "{told}"
    );
    let told = check(&["--quota", "1/month", "--burst", "3"]);
    assert!(told.contains("--burst: a calendar window has none"), "{told}");
    for (lines, expected) in [
        (&["5", "x"][..], "line 2: expected milliseconds"),
        (&["5", "4"], "line 2: 4 is before the time of the request above"),
        (&["5 a 0"], "line 1: the cost must be 1 or more"),
        (&["5 a 1 b"], "line 1: \"b\" stands behind"),
    ] {
        let file = scratch("wrong.txt", lines);
        let told = check(&["--at", file.to_str().unwrap()]);
        assert!(told.contains(expected), "{told}");
    }
    assert!(check(&["--at", "absent.txt"]).contains("cannot open absent.txt"));
}

#[test]
fn whoever_leaves_out_a_flag_is_told_what_to_write() {
    for (arguments, told) in [
        (&["100/1m burst 20"][..], "write --quota '100/1m burst 20'\n"),
        (&["5/1s", "alice"], "write --quota 5/1s --key alice\n"),
        (&["10000/month tz Europe/Berlin"], "write --quota '10000/month tz Europe/Berlin'\n"),
        (&["alice"], "give the limit by --quota or other flags, and the key by --key\n"),
    ] {
        let complaint = misuse(&[&["check"], arguments].concat());
        assert!(complaint.contains("unexpected argument"), "{complaint}");
        assert!(complaint.ends_with(told), "{complaint}");
    }
    let help = succeed(&["check", "--help"]);
    assert!(!help.contains("[QUOTA]"), "it is not offered: {help}");
}
