use std::fs;
use std::path::PathBuf;

use crate::tool::{fail, succeed};

fn scratch(name: &str, text: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{}-{name}", std::process::id()));
    fs::write(&path, text).unwrap();
    path.to_string_lossy().into_owned()
}

const RESPONSES: &str = "GET /v1/users/42\nHTTP/1.1 200 OK\nX-Quota-Left: 7\nX-Quota-Size: 10\n\
    X-Quota-Reset: 30\n\n{}\nGET /v1/users/43\nHTTP/1.1 403 Forbidden\nX-Quota-Left: 0\n\
    X-Quota-Size: 10\nRetry-After: 12\n\n";

const MINE: &str = "name = 'mine'\n[route]\nby = 'path'\nids = ['digits']\n[[dimensions]]\n\
    name = 'requests'\nlimit = 'x-quota-size'\nremaining = 'x-quota-left'\n\
    reset = [{ header = 'x-quota-reset', form = 'delta_s' }]\n[[signals]]\nstatus = [403]\n\
    header = 'x-quota-left'\nequals = '0'\nmeans = 'user'\n";

#[test]
fn a_new_profile_shows_what_it_would_learn() {
    let profile = scratch("mine.toml", MINE);
    let headers = scratch("responses.http", RESPONSES);
    let shown = succeed(&["profile", "test", &profile, "--headers", &headers]);
    for expected in [
        "GET /v1/users/42\nstatus      200\nroute       /v1/users/:id\noutcome     accepted\n",
        "dimension   requests: 7 of 10 left, reset in 30s\n",
        "status      403\nroute       /v1/users/:id\noutcome     limited\nscope       user\n",
        "retry after 12s\n",
    ] {
        assert!(shown.contains(expected), "{expected:?} in {shown}");
    }
}

#[test]
fn a_wrong_profile_is_refused_by_line_and_field() {
    let profile = scratch("wrong.toml", &MINE.replace("delta_s", "fortnights"));
    let headers = scratch("wrong.http", RESPONSES);
    let error = fail(&["profile", "test", &profile, "--headers", &headers]);
    assert!(
        error.contains("line 9: dimensions[0].reset: `fortnights` is not one of epoch_s"),
        "{error}"
    );
}

#[test]
fn responses_that_teach_nothing_fail_the_test() {
    let headers = scratch("silent.http", "HTTP/1.1 200 OK\nserver: x\n\n");
    let error = fail(&["profile", "test", "discord", "--headers", &headers]);
    assert!(error.contains("learned nothing"), "{error}");
}

#[test]
fn shipped_profiles_are_listed_and_shown() {
    let list = succeed(&["profile", "list"]);
    for name in ["discord", "github", "generic"] {
        assert!(list.lines().any(|line| line.starts_with(name)), "{name} in {list}");
        let text = succeed(&["profile", "show", name]);
        assert!(text.contains(&format!("name = \"{name}\"")), "{text}");
    }
    assert!(fail(&["profile", "show", "myspace"]).contains("expected one of "));
    assert!(fail(&["profile", "show", "discrod"]).contains("did you mean \"discord\"?"));
}
