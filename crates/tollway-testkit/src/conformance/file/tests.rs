use super::*;

fn step(step: &str) -> Result<Vec<Scenario>, FormatError> {
    load(&format!(
        r#"{{"scenarios": [{{"name": "one", "policies": {{"api": {{"gcra": "1/s"}}}},
            "steps": [{step}]}}]}}"#
    ))
}

fn error(text: &str) -> String {
    step(text).unwrap_err().to_string()
}

#[test]
fn the_file_reads_and_its_names_are_unique() {
    let mut names: Vec<_> =
        super::super::scenarios().unwrap().into_iter().map(|scenario| scenario.name).collect();
    let before = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), before);
}

#[test]
fn a_misspelt_field_is_an_error() {
    for text in [
        r#"{"chek": {}}"#,
        r#"{"check": {"keys": "a"}}"#,
        r#"{"check": {}, "expect": {"remaning": 1}}"#,
    ] {
        assert!(step(text).is_err(), "{text}");
    }
}

#[test]
fn an_error_names_the_scenario_and_the_step() {
    assert_eq!(error("{}"), "one: step 0: no operation");
    assert_eq!(error(r#"{"check": {}, "peek": {}}"#), "one: step 0: more than one operation");
    assert_eq!(error(r#"{"check": {"policy": "web"}}"#), "one: step 0: no policy is named web");
    assert_eq!(error(r#"{"check": {"cost": 0}}"#), "one: step 0: a cost of zero is a peek");
    assert!(error(r#"{"check": {}, "expect": {"retry": "soon"}}"#).contains("expected a unit"));
}

#[test]
fn figures_must_be_as_many_as_charges() {
    assert!(error(r#"{"check": [{}, {}], "expect": {"remaining": 1}}"#).contains("2 are asked"));
    assert!(step(r#"{"check": [{}, {}], "expect": {"charges": [{}, {"remaining": 1}]}}"#).is_ok());
}

#[test]
fn times_are_the_sum_of_milliseconds_and_nanoseconds() {
    let scenarios = step(r#"{"at_ms": 1000, "at_ns": -1, "check": {}}"#).unwrap();
    assert_eq!(scenarios[0].steps[0].offset_ns, 999_999_999);
}
