//! What all commands have in common: exit codes, units, names, broken pipes, manual pages.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::serve::{Folder, Served};
use crate::tool::{fail, misuse, succeed};

#[test]
fn a_wrong_command_line_is_exit_code_2_whoever_notices() {
    for wrong in [
        &["nothing"][..],
        &["check", "--cost", "0"],
        &["check", "--key", ""],
        &["check", "--quota", "x"],
        &["check", "--algorithm", "leaky-bucket"],
        &["serve", "--memory-bytes", "many"],
        &["serve", "--memory-bytes", "1KiB"],
        &["serve", "--when-full", "hope"],
        &["serve", "--store", "memcached://h"],
        &["serve", "--http", "off", "--grpc", "off", "--resp", "off"],
        &["proxy", "--profile", "myspace"],
        &["proxy", "--upstream", "ftp://h"],
        &["proxy", "--upstream", "http://h", "--naming", "spectacles"],
        &["proxy", "--upstream", "http://h", "--listen", "0.0.0.0:0"],
        &["proxy", "--upstream", "http://h", "--listen", "127.0.0.1:0", "--invalid", "x"],
        &["proxy", "--upstream", "http://h", "--resend-max", "1048576"],
        &["fake-upstream", "--profile", "myspace"],
        &["fake-upstream", "--listen", "0.0.0.0:0"],
        &["fake-upstream", "--fault", "{"],
        &["profile", "show", "myspace"],
        &["top", "ftp://localhost"],
        &["queue", "limits", "roles", "--group", "g", "--at", "127.0.0.1:1"],
        &["queue", "enqueue", "roles", "-", "--key", "k", "--at", "127.0.0.1:1"],
        &["queue", "stats", "--at", "unix:"],
    ] {
        let told = misuse(wrong);
        assert!(told.starts_with("error: "), "{wrong:?}: {told}");
    }
    // What is wrong elsewhere is none.
    for failing in [&["top", "--once", "127.0.0.1:1"][..], &["serve", "--config", "absent.toml"]] {
        assert!(fail(failing).starts_with("error: "));
    }
}

#[test]
fn a_service_that_would_listen_nowhere_says_so() {
    let told = misuse(&["serve", "--http", "off", "--grpc", "off", "--resp", "off"]);
    assert!(told.contains("there is nothing to serve: HTTP, gRPC and RESP are all off"), "{told}");
}

#[test]
fn a_misspelt_name_is_answered_with_the_right_one() {
    for (arguments, right) in [
        (&["check", "--algorithm", "sliding-windw"][..], "sliding-window"),
        (&["check", "--algorithm", "fixed-window", "--quota", "1/s", "--anchor", "epch"], "epoch"),
        (&["simulate", "--strategy", "cubik"], "cubic"),
        (&["simulate", "--scenario", "join-leav"], "join-leave"),
        (&["fake-upstream", "--profile", "discrod"], "discord"),
        (&["proxy", "--profile", "githib"], "github"),
        (&["profile", "show", "githib"], "github"),
        (&["serve", "--log-format", "jsn"], "json"),
        (&["serve", "--when-full", "forgt"], "forget"),
        (&["proxy", "--upstream", "http://h", "--log-format", "jsno"], "json"),
        (&["completions", "bahs"], "bash"),
        (&["queu"], "queue"),
    ] {
        let told = misuse(arguments);
        // The library that reads arguments has its own words for it.
        let proposes = told.contains(&format!("did you mean \"{right}\"?"))
            || (told.contains("tip: ") && told.contains(&format!("'{right}'")));
        assert!(proposes, "{arguments:?}: {told}");
    }
}

#[test]
fn durations_and_sizes_are_written_in_one_way_everywhere() {
    for (arguments, right) in [
        (&["top", "--every", "1"][..], "1s"),
        (&["top", "--every", "0.5"], "500ms"),
        (&["queue", "watch", "q", "--timeout", "60"], "60s"),
        (&["queue", "drain", "q", "--every", "2"], "2s"),
        (&["queue", "wait", "q", "1", "--timeout", "60"], "60s"),
        (&["queue", "enqueue", "q", "p", "--delay", "90"], "90s"),
        (&["queue", "work", "q", "--grace", "3", "--", "true"], "3s"),
        (&["check", "--every", "1"], "1s"),
        (&["demo", "--length", "30"], "30s"),
        (&["demo", "gcra", "--delay", "5"], "5s"),
        (&["simulate", "--program-timeout", "10"], "10s"),
        (&["proxy", "--patience", "60"], "60s"),
        (&["proxy", "--resend-max", "65536"], "65536B"),
    ] {
        let told = misuse(arguments);
        let advice = format!("write {right}");
        assert!(told.lines().any(|line| line.ends_with(&advice)), "{arguments:?}: {told}");
    }
}

/// Every command that writes much, to a pipe that nobody reads.
#[test]
fn a_reader_who_leaves_ends_a_command_quietly() {
    let folder = Folder::new("pipes");
    let config = folder.file("a.toml", "[[queues]]\nname = \"mail\"\n");
    let served = Served::start(&["--config", &config]);
    let at = served.http.to_string();
    for arguments in [
        &["check", "--repeat", "100000"][..],
        &["profile", "list"],
        &["profile", "show", "discord"],
        &["completions", "bash"],
        &["validate", &config],
        &["simulate", "--length", "1m"],
        &["top", &at],
        &["queue", "stats", "--at", &at],
        &["queue", "drain", "mail", "--at", &at],
        &["fake-upstream"],
        &["demo", "gcra", "--processes", "1", "--threads", "1", "--length", "1m", "--start", "9"],
        &["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off"],
        &["--help"],
        &["queue", "work", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_tollway"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .expect("the binary starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.is_empty() && output.status.success(), "{arguments:?}: {told}");
    }
}

#[test]
fn every_command_has_a_manual_page_however_deep_it_is() {
    let folder = Folder::new("man");
    let pages = folder.0.join("man1");
    succeed(&["man", pages.to_str().unwrap()]);
    let page = |name: &str| fs::read_to_string(pages.join(format!("{name}.1")));
    for name in ["tollway", "tollway-serve", "tollway-queue-enqueue", "tollway-profile-test"] {
        let page = page(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains(&format!(".TH {name} 1")), "{name}: {page}");
    }
    assert!(page("tollway-demo-gcra").is_ok() && page("tollway-demo-gcra-client").is_err());
    // Whatever a page names as a verb has a page.
    for path in fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().path()) {
        let text = fs::read_to_string(&path).unwrap();
        let named = text.lines().filter_map(|line| line.strip_suffix("(1)"));
        for name in named.map(|name| name.replace('\\', "")).filter(|name| !name.ends_with("help"))
        {
            assert!(pages.join(format!("{name}.1")).exists(), "{}: {name}", path.display());
        }
    }
    let count = fs::read_dir(PathBuf::from(&pages)).unwrap().count();
    assert!(count >= 30, "{count}");
}
