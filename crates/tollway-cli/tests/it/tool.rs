//! Runs the binary within a bound.

use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Longer than any of these runs takes on a busy machine; a hang fails instead of blocking.
const BOUND: Duration = Duration::from_secs(60);

/// What `tollway` with `arguments` put out.
pub(crate) fn tollway(arguments: &[&str]) -> Output {
    tollway_with(&[], arguments)
}

/// The same with more in its environment.
pub(crate) fn tollway_with(environment: &[(&str, &str)], arguments: &[&str]) -> Output {
    let child = Command::new(env!("CARGO_BIN_EXE_tollway"))
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    let output = receiver.recv_timeout(BOUND).expect("it ends within the bound");
    output.expect("its output can be read")
}

/// The standard output of a run that must succeed.
pub(crate) fn succeed(arguments: &[&str]) -> String {
    let output = tollway(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?} failed: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// The complaint of a run that must fail.
pub(crate) fn fail(arguments: &[&str]) -> String {
    let output = tollway(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    String::from_utf8(output.stderr).expect("text")
}

/// The complaint of a run whose command line is wrong.
pub(crate) fn misuse(arguments: &[&str]) -> String {
    let output = tollway(arguments);
    let told = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
    told
}
