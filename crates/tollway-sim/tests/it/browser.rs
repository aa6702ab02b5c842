use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tollway_sim::Kind;
use tollway_sim::measure::run;
use tollway_sim::report::{Row, html};

use crate::log::{minutes, named};

/// From `scripts/install-face`.
const BROWSER: &str = "chromium-headless-shell";

/// Whether there is a browser. With `TOLLWAY_TOOLS` there must be; without, a test that lacks it
/// says so and passes.
#[allow(clippy::print_stdout, reason = "a test says why it skips")]
fn has_browser() -> bool {
    let found = Command::new(BROWSER).arg("--version").stdout(Stdio::null()).status().is_ok();
    assert!(
        found || std::env::var_os("TOLLWAY_TOOLS").is_none(),
        "{BROWSER} is missing: run scripts/install-face"
    );
    if !found {
        println!("skipped: {BROWSER} is missing: run scripts/install-face");
    }
    found
}

/// What a browser with a window of that width finds in `page`.
fn look_at(page: &str, width: u32, name: &str) -> Value {
    let listen = format!("<head><script>{}</script>", include_str!("browser/listen.js"));
    let probe = format!("<script>{}</script></body>", include_str!("browser/probe.js"));
    let page = page.replacen("<head>", &listen, 1).replacen("</body>", &probe, 1);
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{}-{name}-{width}.html", std::process::id()));
    fs::write(&path, page).expect("the folder is writable");
    let shown = Command::new(BROWSER)
        .args(["--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=5000"])
        .arg(format!("--window-size={width},1200"))
        .arg(format!("file://{}", path.display()))
        .stdin(Stdio::null())
        .output()
        .expect("the browser starts");
    let _ = fs::remove_file(&path);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let note =
        text.split_once("<pre id=\"probe\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (note, _) = note.unwrap_or_else(|| panic!("the page did not load: {text}"));
    serde_json::from_str(note).expect("the probe writes JSON")
}

fn report() -> String {
    let scenario = named("five-by-five").lasting(minutes(90));
    let row = |strategy| Row { runs: vec![run(&scenario, strategy, 1)] };
    html(&scenario, &Kind::ALL.map(row))
}

#[test]
fn the_report_is_legible_on_a_phone_and_on_a_desk() {
    if !has_browser() {
        return;
    }
    let page = report();
    for width in [400, 1_280] {
        let found = look_at(&page, width, "report");
        assert_eq!(found["complaints"], Value::Array(vec![]), "at {width}: the console is silent");
        assert_eq!(found["overlaps"], Value::Array(vec![]), "at {width}: no label covers another");
        assert_eq!(found["outside"], Value::Array(vec![]), "at {width}: nothing is cut off");
        let number = |name: &str| found[name].as_f64().unwrap();
        assert!(number("page") <= number("width"), "at {width}: nothing to scroll sideways");
        assert!(number("smallest") >= 10.0, "at {width}: {} px is too small", number("smallest"));
        assert!(number("labels") > 50.0, "at {width}: the charts are there");
    }
}

/// Or else the test above could not fail.
#[test]
fn a_page_with_every_fault_is_found_out() {
    if !has_browser() {
        return;
    }
    let page = "<!doctype html><html><head><title>x</title></head><body>\
        <p style=\"width: 900px; font-size: 6px\">wide and small</p>\
        <svg width=\"200\" height=\"50\"><text x=\"10\" y=\"20\">one label</text>\
        <text x=\"12\" y=\"22\">another label</text><text x=\"190\" y=\"40\">cut off</text></svg>\
        <script>console.error('a complaint'); missing();</script></body></html>";
    let found = look_at(page, 400, "faults");
    assert_eq!(found["overlaps"].as_array().unwrap().len(), 1);
    assert!(found["outside"].as_array().unwrap().len() >= 2);
    assert!(found["complaints"].as_array().unwrap().len() >= 2);
    assert!(found["page"].as_f64() > found["width"].as_f64());
    assert!(found["smallest"].as_f64().unwrap() < 7.0);
}
