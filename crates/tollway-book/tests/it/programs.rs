//! Runs each program of a document and compares what it prints with the text that follows it.
//!
//! A program runs in a process of its own, which is this binary again with one test chosen. So no
//! program sees another's working folder, and one that listens for ever can be ended. Documents
//! name default ports, and every run gets free ones in their place.

#![allow(clippy::print_stdout, reason = "programs of documents talk to a person")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tollway_sim::fake_api::{Spec, loopback::Loopback};
use tollway_testkit::servers::{Engine, eventually, free_port};

/// What a program may have, so that a reader sees all of it at once.
const LINES_MAX: usize = 20;

const PROGRAM: &str = "TOLLWAY_BOOK_PROGRAM";
const PORTS: &str = "TOLLWAY_BOOK_PORTS";

macro_rules! programs {
    ($($name:ident),*) => {
        $(mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
            pub(super) fn run() {
                main().expect("the program succeeds");
            }
        })*

        /// The child's half.
        fn run(program: &str) {
            match program {
                $(stringify!($name) => $name::run(),)*
                other => panic!("no program {other}"),
            }
        }
    };
}

programs!(library, axum_app, in_process, axum_service, redis_fleet, obey, worker, plans);

#[test]
#[ignore = "the other tests start it, each with the name of a program"]
fn the_program_that_is_named() {
    run(&std::env::var(PROGRAM).expect("the name of a program"));
}

#[test]
fn programs_have_at_most_twenty_lines() {
    for document in ["README.md", "docs/how-to/rust.md", "docs/how-to/testing.md"] {
        for (info, block) in blocks(document) {
            let lines = block.lines().count();
            let is_program = info.starts_with("rust file=");
            assert!(!is_program || lines <= LINES_MAX, "{document}: {info}: {lines} lines");
        }
    }
}

#[test]
fn the_library_in_ten_lines_prints_what_the_readme_says() {
    prints_what_follows("README.md", "library", &BTreeMap::new());
}

#[test]
fn the_axum_program_answers_what_the_readme_says() {
    serves_what_follows("README.md", "axum_app");
}

#[test]
fn the_limiter_in_a_process_prints_what_the_book_says() {
    prints_what_follows("docs/how-to/rust.md", "in_process", &BTreeMap::new());
}

#[test]
fn the_axum_service_answers_what_the_book_says() {
    serves_what_follows("docs/how-to/rust.md", "axum_service");
}

#[test]
fn plans_and_tenants_are_limited_as_the_book_says() {
    serves_what_follows("docs/how-to/plans.md", "plans");
}

#[test]
fn the_shared_limit_prints_what_the_book_says() {
    let url = Engine::Redis.shared().url();
    let port = url.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap();
    prints_what_follows("docs/how-to/rust.md", "redis_fleet", &BTreeMap::from([(6379, port)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_client_that_obeys_is_never_refused() {
    let spec = Spec::named("discord").unwrap();
    let upstream = Loopback::start(spec, ([127, 0, 0, 1], 0).into()).await.unwrap();
    let ports = BTreeMap::from([(9000, upstream.address().port())]);
    tokio::task::spawn_blocking(move || prints_what_follows("docs/how-to/rust.md", "obey", &ports))
        .await
        .unwrap();
}

#[test]
fn the_worker_prints_what_the_book_says() {
    prints_what_follows("docs/how-to/rust.md", "worker", &BTreeMap::new());
}

/// A text of a document with the ports of this run; build.rs puts calls of it into programs, in the
/// place of a literal, so the text lives as long as the process.
fn with_free_ports(text: &str) -> &'static str {
    let ports = std::env::var(PORTS).expect("set by the parent");
    let pairs = ports.split(',').filter_map(|pair| pair.split_once('='));
    pairs.fold(text.to_owned(), |text, (port, free)| text.replace(port, free)).leak()
}

/// Runs the program to its end and finds each line of the text that follows it in its output.
fn prints_what_follows(document: &str, program: &str, ports: &BTreeMap<u16, u16>) {
    let folder = Folder::new(program);
    let mut command = child(program, ports, &folder);
    let output = command.output().expect("this binary starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{document}: {program}: {said}{errors}");
    assert_lines(&following(document, program, "text"), &said);
}

/// Runs the commands that follow the program while it listens, and finds each line of the text
/// after them in what they print.
fn serves_what_follows(document: &str, program: &str) {
    let folder = Folder::new(program);
    let port = free_port();
    let mut command = child(program, &BTreeMap::from([(3000, port)]), &folder);
    let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Ended(server.expect("this binary starts"));
    let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    eventually(Duration::from_secs(60), listens);
    let script = following(document, program, "sh").replace("3000", &port.to_string());
    let mut shell = Command::new("bash");
    let output = shell.args(["-euc", &script]).current_dir(&folder.0).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{document}: {script}: {output:?}");
    assert_lines(&following(document, program, "text"), &said);
}

fn child(program: &str, ports: &BTreeMap<u16, u16>, folder: &Folder) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", "programs::the_program_that_is_named", "--ignored", "--nocapture"]);
    let pairs: Vec<String> = ports.iter().map(|(from, to)| format!("{from}={to}")).collect();
    command.env(PROGRAM, program).env(PORTS, pairs.join(",")).current_dir(&folder.0);
    command
}

/// The content of the first block in `language` after the program.
fn following(document: &str, program: &str, language: &str) -> String {
    let is_program = |info: &str| info == format!("rust file={program}.rs");
    let mut rest = blocks(document).into_iter().skip_while(|(info, _)| !is_program(info)).skip(1);
    let found = rest.find(|(info, _)| info.split(' ').next() == Some(language));
    found.unwrap_or_else(|| panic!("{document}: {language} after {program}")).1
}

/// The info string and the content of every fenced block.
fn blocks(document: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let text = fs::read_to_string(path).expect("a document");
    let parts: Vec<&str> = text.split("\n```").collect();
    let fenced = parts.chunks(2).filter_map(|pair| pair.get(1)?.split_once('\n'));
    fenced.map(|(info, block)| (info.to_owned(), block.to_owned())).collect()
}

/// Every line of the document is printed, in this order.
fn assert_lines(expected: &str, said: &str) {
    let mut lines = said.lines();
    for line in expected.lines().filter(|line| !line.is_empty()) {
        let found = lines.any(|one| is_shown(line, one));
        assert!(found, "not printed, or out of order: {line}\n{said}");
    }
}

/// Whether a printed line is the one shown. Waits shrink while a program runs, so the seconds of
/// `Retry-After` and `t=` may be up to half of what the document shows.
fn is_shown(shown: &str, printed: &str) -> bool {
    let wait = |line: &str| {
        let at =
            ["retry-after: ", ";t="].iter().find_map(|word| Some(line.find(word)? + word.len()));
        let digits = |at: usize| line[at..].chars().take_while(char::is_ascii_digit).count();
        at.map_or((line.to_owned(), 0), |at| {
            let end = at + digits(at);
            (format!("{}{}", &line[..at], &line[end..]), line[at..end].parse().unwrap_or(0_u64))
        })
    };
    let ((shown, most), (printed, actual)) = (wait(shown), wait(printed));
    printed.ends_with(&shown) && (most / 2..=most).contains(&actual)
}

/// A server that ends with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A working folder of one program.
struct Folder(PathBuf);

impl Folder {
    fn new(program: &str) -> Self {
        let name = format!("tollway-book-{}-{program}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
