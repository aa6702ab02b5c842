use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollway_core::fields::Lines;
use tollway_upstream::profile::{Profile, Recording, Response};

/// The fixtures were recorded, or written down from the documentation, at this second.
const NOW: Duration = Duration::from_secs(1_794_758_400);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).expect("the folder is there");
    let mut found: Vec<_> = read.map(|entry| entry.expect("readable").path()).collect();
    found.sort();
    found
}

fn file_name(path: &Path) -> String {
    path.file_name().expect("it has a name").to_string_lossy().into_owned()
}

/// Compares what is learned from each recording with the text beside it; `TOLLWAY_BLESS` writes it.
#[test]
fn every_recording_is_read_as_written_beside_it() {
    let mut wrong = Vec::new();
    for folder in entries(&fixtures()) {
        let profile = Profile::builtin(&file_name(&folder)).expect("folders are named by profiles");
        for path in
            entries(&folder).into_iter().filter(|path| path.extension() == Some("http".as_ref()))
        {
            let text = fs::read_to_string(&path).expect("readable");
            let recording = &Recording::parse(&text).expect("well-formed")[0];
            let found = recording.explain(&profile, NOW);
            let expected = path.with_extension("expect");
            if std::env::var_os("TOLLWAY_BLESS").is_some() {
                fs::write(&expected, &found).expect("writable");
            }
            if fs::read_to_string(&expected).ok().as_deref() != Some(&found) {
                wrong.push(format!("{}\n{found}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_shipped_profile_has_recordings_and_its_own_name() {
    let recorded: BTreeSet<String> =
        entries(&fixtures()).iter().map(|path| file_name(path)).collect();
    let shipped: BTreeSet<String> = Profile::builtins().into_iter().map(str::to_owned).collect();
    assert_eq!(recorded, shipped);
    for name in &shipped {
        let text = Profile::builtin_text(name).expect("it is shipped");
        let profile = Profile::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(profile.name(), name);
        assert!(!profile.about().is_empty(), "{name} says what it describes");
    }
}

#[test]
fn the_listed_apis_are_all_shipped() {
    for name in [
        "discord",
        "github",
        "gitlab",
        "heroku",
        "shopify",
        "slack",
        "stripe",
        "openai",
        "azure-openai",
        "anthropic",
        "x",
        "reddit",
        "twitch",
        "linear",
        "hubspot",
        "riot",
        "jira",
        "ietf-old",
        "ietf",
        "generic",
        "eve-esi",
    ] {
        assert!(Profile::builtin(name).is_some(), "{name}");
    }
}

#[test]
fn an_error_names_the_line_and_the_field_and_what_would_be_right() {
    let cases = [
        (
            "name = 'Mine'",
            "line 1: name: `Mine` is not a name of lower-case letters, digits and dashes",
        ),
        (
            "name = 'm'\n\n[[dimensions]]\nname = 'a'\nremaining = 'x'\n[[dimensions]]\nname = 'b'\n\
             remaining = 'y'\nreset = [{ header = 'z', form = 'minutes' }]\n",
            "line 9: dimensions[1].reset: `minutes` is not one of epoch_s, epoch_ms, delta_s, \
             delta_ms, http_date, rfc3339, go_duration, guess",
        ),
        (
            "name = 'm'\n[[dimensions]]\nname = 'a'\nlimit = 'x-limit'\n",
            "line 4: dimensions[0].limit: a limit alone tells nothing: add remaining",
        ),
        (
            "name = 'm'\n[[rules]]\nmatch = '/**/x'\n",
            "line 3: rules[0].match: `**` can only stand at the end",
        ),
        (
            "name = 'm'\n[route]\nby = 'host'\n",
            "line 3: route.by: unknown variant `host`, expected one of `method+path`, `path`, `none`",
        ),
        (
            "name = 'm'\n[[signals]]\nstatus = [429]\nmeans = 'stop'\n",
            "line 4: signals[0].means: unknown variant `stop`, expected one of `limit`, `user`, \
             `shared`, `global`, `no-limit`",
        ),
        (
            "name = 'm'\n[global]\nlimit = '50'\n",
            "line 3: global.limit: `50` is not a quota such as 50/1s",
        ),
        (
            "name = 'm'\n[retry]\nunsaid = 'soon'\n",
            "line 3: retry.unsaid: `soon` is not a duration such as 100ms, 90s or 1h",
        ),
        (
            "name = 'm'\nbucket = 'x bucket'\n",
            "line 2: bucket: `x bucket` is not the name of a header field",
        ),
    ];
    for (text, expected) in cases {
        let error = Profile::parse(text).expect_err(text);
        assert_eq!(error.to_string(), expected);
    }
    let unknown = Profile::parse("name = 'm'\nspeed = 3\n").expect_err("no such field");
    assert_eq!(unknown.line, 2);
    assert!(unknown.message.contains("speed"), "{unknown}");
    assert!(Profile::parse("name = ").is_err());
    assert!(Profile::parse("").expect_err("no name").message.contains("name"));
}

#[test]
fn a_dimension_that_nothing_tells_must_be_stated() {
    let error = Profile::parse("name = 'm'\n[[dimensions]]\nname = 'a'\n").expect_err("nothing");
    assert!(error.message.contains("state its limit"), "{error}");
    assert!(Profile::parse("name = 'm'\n[[dimensions]]\nname = 'a'\nstated = '100/1s'\n").is_ok());
}

#[test]
fn a_body_decides_the_lane_where_it_is_known() {
    let discord = Profile::builtin("discord").expect("it is shipped");
    let target = "/api/v10/channels/42";
    assert!(discord.body_lanes("PATCH", target));
    assert!(!discord.body_lanes("GET", target));
    let lane = |body: &str| {
        let route = discord.route_with_body("PATCH", target, body.as_bytes());
        route.lane().map(str::to_owned)
    };
    assert_eq!(lane(r#"{"name": "new"}"#).as_deref(), Some("rename"));
    assert_eq!(lane(r#"{"nsfw": true}"#), None);
    let unseen = discord.route("PATCH", target);
    assert_eq!(unseen.lane(), Some("rename"), "without its body it may be one");
}

#[test]
fn the_token_of_a_webhook_is_told_apart_and_never_shown() {
    let discord = Profile::builtin("discord").expect("it is shipped");
    let route = |token: &str| discord.route("POST", &format!("/api/v10/webhooks/7/{token}"));
    let (one, other) = (route("sEcReT-one"), route("sEcReT-two"));
    assert_ne!(one.major(), other.major());
    assert_eq!(one.path(), "/webhooks/7/:token");
    assert!(!format!("{one:?}").contains("sEcReT"), "{one:?}");
}

#[test]
fn hostile_paths_stay_bounded() {
    let discord = Profile::builtin("discord").expect("it is shipped");
    let long = format!("/api/v10/channels/{}/{}", "9".repeat(9_000), "x/".repeat(9_000));
    let route = discord.route("GET", &long);
    assert!(route.template().len() < 4_096 && route.major().len() <= 128);
    for odd in ["", "?", "//", "/é/☃/42", "*", "/%00/..", "#"] {
        let _ = discord.route("GET", odd);
    }
}

#[test]
fn a_recording_that_is_none_says_what_is_missing() {
    assert!(Recording::parse("").is_err());
    let error = Recording::parse("hello\n").expect_err("no status line");
    assert!(error.contains("line 1") && error.contains("HTTP/1.1 200"), "{error}");
    let error = Recording::parse("HTTP/1.1 200 OK\nno colon\n").expect_err("no header");
    assert!(error.starts_with("line 2"), "{error}");
}

proptest::proptest! {
    /// Whatever an upstream sends is read, never a panic, and no wait is longer than a day.
    #[test]
    fn any_response_is_read_by_every_profile(
        status in 100u16..600,
        values in proptest::collection::vec("[ -~]{0,24}|-?[0-9]{0,20}(\\.[0-9]{0,12})?", 12),
        body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
    ) {
        let names = [
            "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit",
            "x-ratelimit-reset-after", "retry-after", "x-shopify-shop-api-call-limit", "date",
            "x-app-rate-limit", "x-app-rate-limit-count", "x-ratelimit-reset-tokens", "age",
        ];
        let lines: Lines<'_> =
            names.iter().zip(&values).map(|(name, value)| (*name, value.as_bytes())).collect();
        for name in Profile::builtins() {
            let profile = Profile::builtin(name).expect("it is shipped");
            let response = Response { status, lines: &lines, body: &body, now: NOW };
            let seen = profile.read(&response);
            let day = Duration::from_secs(86_400);
            proptest::prop_assert!(seen.retry_after.is_none_or(|wait| wait <= day));
            for reading in &seen.readings {
                proptest::prop_assert!(reading.reset_after.is_none_or(|wait| wait <= day));
            }
        }
    }
}
