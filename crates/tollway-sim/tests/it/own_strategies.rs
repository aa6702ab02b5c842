use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tollway_sim::measure::{Run, run_with_progress};
use tollway_sim::strategy::{Program, StrategyFailed, Table};
use tollway_sim::{Scenario, StrategyChoice};

/// Longer than a program takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn scenario() -> Scenario {
    Scenario::from_toml(
        "length = '10m'\n[server]\nlimit = 600\nperiod = '10m'\nstart = 0\n\
         [[clients]]\nprocesses = 2\nthreads = 2\n",
    )
    .expect("it can be made")
}

/// Runs a shell script as the strategy.
fn shell(name: &str, script: &str, patience: Duration) -> Result<Run, StrategyFailed> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{}-{name}.sh", std::process::id()));
    fs::write(&path, script).expect("it can be made");
    let program =
        Program::new(&format!("sh {}", path.display()), patience).expect("it can be made");
    run_with_progress(&scenario(), &StrategyChoice::Program(Arc::new(program)), 1, |_| {})
}

/// Two tasks of two processes and a second per unit: four seconds between two requests of each.
const STEADY: &str = r#"while read -r line; do
    case "$line" in *'"want"'*) echo '{"send_in_s":4}' ;; esac
done"#;

#[test]
fn a_program_decides_when_its_tasks_send() {
    let run = shell("steady", STEADY, PATIENCE).unwrap();
    assert!((560..=600).contains(&run.figures.accepted), "{:?}", run.figures);
    assert!(run.figures.limited_share < 0.02, "{:?}", run.figures);
    assert!(run.strategy.starts_with("program:sh ") && run.strategy.ends_with("steady.sh"));
    assert_eq!(run, shell("steady", STEADY, PATIENCE).unwrap(), "the same seed, the same run");
}

#[test]
fn a_program_that_ends_is_silent_or_says_nonsense_is_an_error_that_names_it() {
    let brief = Duration::from_millis(200);
    for (name, script, patience, expected) in [
        ("dead", "read -r line; exit 7", PATIENCE, "ended before the run did (exit status: 7)"),
        ("silent", "while read -r line; do :; done", brief, "did not answer within 200ms"),
        ("deaf", "exec 1>&-; while read -r line; do :; done", PATIENCE, "standard output"),
        ("wrong", "while read -r line; do echo hello; done", PATIENCE, "answered \"hello\""),
        ("negative", "while read -r l; do echo '{\"send_in_s\":-1}'; done", PATIENCE, "from 0 to"),
        ("long", "head -c 5000 /dev/zero; cat > /dev/null", PATIENCE, "more than 4096 bytes"),
    ] {
        let told = shell(name, script, patience).unwrap_err().to_string();
        assert!(
            told.starts_with("program:sh ") && told.contains(&format!("{name}.sh: ")),
            "{told}"
        );
        assert!(told.contains(expected), "{name}: {told}");
    }
    let absent = Program::new("./no-such-program", PATIENCE).unwrap();
    let absent = StrategyChoice::Program(Arc::new(absent));
    let told = run_with_progress(&scenario(), &absent, 1, |_| {}).unwrap_err().to_string();
    assert!(told.starts_with("program:./no-such-program: cannot be started"), "{told}");
}

#[test]
fn a_scenario_of_too_many_processes_starts_no_program() {
    let program = StrategyChoice::Program(Arc::new(Program::new("false", PATIENCE).unwrap()));
    let many = Scenario::from_toml("length = '1m'\n[[clients]]\nprocesses = 257\n").unwrap();
    let told = run_with_progress(&many, &program, 1, |_| {}).unwrap_err().to_string();
    assert!(told.contains("257 processes; programs are at most 256"), "{told}");
}

#[test]
fn a_table_of_pauses_is_followed() {
    let table = Table::from_toml("mine", "first = 4.0\npauses = [[0, 4.0]]").unwrap();
    let table = StrategyChoice::Table(Arc::new(table));
    let run = run_with_progress(&scenario(), &table, 1, |_| {}).unwrap();
    assert!((560..=600).contains(&run.figures.accepted), "{:?}", run.figures);
    assert_eq!(run.strategy, "mine");
}
