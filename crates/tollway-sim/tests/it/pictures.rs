use std::fs;
use std::path::Path;

use tollway_sim::chart::sheet;
use tollway_sim::measure::run;
use tollway_sim::report::{Row, html, text};
use tollway_sim::{Kind, Scenario};

use crate::log::{minutes, named, scenario};

/// Compares with a golden file, or rewrites it if `TOLLWAY_BLESS` is set.
fn assert_golden(name: &str, found: &str) {
    assert_drawn(&Path::new("tests/it/golden").join(name), found);
}

/// The same with a file by its path from the crate.
pub(crate) fn assert_drawn(name: &Path, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("TOLLWAY_BLESS").is_some() {
        fs::write(&path, found).expect("the golden folder is writable");
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    let name = name.display();
    assert!(golden == found, "{name} has changed; if meant, run again with TOLLWAY_BLESS=1");
}

fn two_of_a_kind() -> Scenario {
    scenario("name = 'two'\nlength = '1h'\n[[clients]]\nprocesses = 2\nthreads = 2\n")
}

fn rows(scenario: &Scenario, kinds: &[Kind]) -> Vec<Row> {
    let row = |&strategy| Row { runs: vec![run(scenario, strategy, 1)] };
    kinds.iter().map(row).collect()
}

#[test]
fn the_sheet_of_two_strategies_is_drawn_byte_for_byte() {
    let rows = rows(&two_of_a_kind(), &[Kind::Ticket, Kind::HeaderProportional]);
    let runs: Vec<_> = rows.iter().map(|row| &row.runs[0]).collect();
    assert_golden("two.svg", &sheet(&runs));
}

#[test]
fn many_processes_are_drawn_as_a_band_byte_for_byte() {
    let run = run(&named("many").lasting(minutes(30)), Kind::Ticket, 1);
    assert_golden("band.svg", &sheet(&[&run]));
}

#[test]
fn the_table_is_aligned_text() {
    let found = text(&rows(&two_of_a_kind(), &Kind::ALL), None);
    assert_golden("table.txt", &found);
}

#[test]
fn the_report_loads_nothing_and_runs_nothing() {
    let scenario = two_of_a_kind();
    let page = html(&scenario, &rows(&scenario, &[Kind::Ticket, Kind::Backoff]));
    for forbidden in ["http:", "https:", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert_eq!(page.matches("<section>").count(), 2);
}

#[test]
fn names_in_a_scenario_cannot_break_the_report() {
    let mut scenario = two_of_a_kind();
    scenario.name = "<b>&\"".to_owned();
    scenario.about = "<i>".to_owned();
    let page = html(&scenario, &rows(&scenario, &[Kind::Ticket]));
    assert!(!page.contains("<b>") && !page.contains("<i>"));
}
