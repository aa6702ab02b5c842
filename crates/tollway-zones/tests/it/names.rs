use tollway_core::civil::Zone;
use tollway_zones::{calendar_window, moment, named};

#[test]
fn a_zone_is_the_same_whoever_names_it() {
    let berlin = named("Europe/Berlin").unwrap();
    assert_eq!(berlin, named("europe/berlin").unwrap());
    assert_eq!(berlin.name(), "Europe/Berlin");
    assert_ne!(berlin, named("Europe/Paris").unwrap());
    assert_eq!(named("UTC").unwrap(), Zone::UTC);
}

#[test]
fn what_is_no_zone_is_refused_with_the_one_that_was_meant() {
    for (name, meant) in [
        ("Europe/Berln", "did you mean \"Europe/Berlin\"?"),
        ("Europe_Berlin", "did you mean \"Europe/Berlin\"?"),
        ("Berlin", "did you mean \"Europe/Berlin\"?"),
        ("Amerika/New_York", "did you mean \"America/New_York\"?"),
        ("Mars/Olympus_Mons", "expected an IANA name such as Europe/Berlin"),
        ("../etc/passwd", "expected an IANA name"),
        ("CET-1CEST;", "expected an IANA name"),
        ("", "expected an IANA name"),
        ("Europe/Berlin\n", "did you mean \"Europe/Berlin\"?"),
        (&"x".repeat(1_000), "expected an IANA name"),
    ] {
        let told = named(name).unwrap_err().to_string();
        assert!(told.contains("unknown time zone") && told.contains(meant), "{name:?}: {told}");
        assert!(told.len() < 200, "{told}");
    }
}

#[test]
fn a_text_is_read_with_the_zones_of_the_iana() {
    let plan = calendar_window("10000/month tz asia/kathmandu anchor 15 06:00").unwrap();
    assert_eq!(plan.to_string(), "10000/month tz Asia/Kathmandu anchor 15 06:00");
    let error = calendar_window("10000/month tz Asia/Katmandoo").unwrap_err();
    let told =
        "at character 16: unknown time zone \"Asia/Katmandoo\"; did you mean \"Asia/Katmandu\"?";
    assert_eq!(error.to_string(), told);
}

#[test]
fn a_moment_is_read_as_rfc_3339_or_by_the_clocks_of_a_zone() {
    let seconds = |text: &str| moment(text).unwrap().as_nanos() / 1_000_000_000;
    for text in [
        "2026-11-20T08:00:00Z",
        "2026-11-20T09:00:00+01:00",
        "2026-11-20 09:00 Europe/Berlin",
        "2026-11-20T09:00:00 europe/berlin",
    ] {
        assert_eq!(seconds(text), 1_795_161_600, "{text}");
    }
    // Clocks go forward: 02:30 never comes. They go back: the first 02:30 counts.
    assert_eq!(moment("2026-03-29 02:30 Europe/Berlin"), moment("2026-03-29T01:00:00Z"));
    assert_eq!(moment("2026-10-25 02:30 Europe/Berlin"), moment("2026-10-25T00:30:00Z"));
}

#[test]
fn what_is_no_moment_is_refused_with_what_would_be_one() {
    for (text, told) in [
        ("tomorrow", "expected for example 2026-11-20T09:00:00Z"),
        ("2026-11-20 09:00", "expected for example"),
        ("2026-11-20T09:00:00", "expected for example"),
        ("2026-02-30 09:00 UTC", "expected for example"),
        ("2026-11-20 09:00 Europe/Berln", "did you mean \"Europe/Berlin\"?"),
        ("1969-11-20T09:00:00Z", "before 1970"),
        ("", "expected for example"),
        (&"9".repeat(10_000), "expected for example"),
    ] {
        let error = moment(text).unwrap_err().to_string();
        assert!(error.contains(told) && error.len() < 300, "{text}: {error}");
    }
}
