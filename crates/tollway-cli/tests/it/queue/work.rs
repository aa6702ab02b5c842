//! `tollway queue work`: a shell script as a worker of the real service.

use std::fs::OpenOptions;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tollway_testkit::servers::eventually;

use super::{enqueue, get, post};
use crate::serve::{Folder, PATIENCE, Served};
use crate::tool::{fail, succeed};

/// What a user writes: a result, a refusal of the upstream, an error, a job that never ends.
const HANDLER: &str = r#"#!/bin/sh
payload=$(cat)
echo "$TOLLWAY_JOB $TOLLWAY_GROUP $TOLLWAY_ATTEMPT $payload" >> "$LOG"
case $payload in
  later) if [ "$TOLLWAY_ATTEMPT" = 1 ]; then
           printf 'HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\n\r\n'; exit 75
         fi ;;
  wrong) echo "no such member" >&2; exit 3 ;;
  never) exit 65 ;;
  spent) printf 'HTTP/1.1 200 OK\r\nRateLimit-Remaining: 0\r\nRateLimit-Reset: 3600\r\n\r\n' ;;
  slow)  read -r go < "$LOG.go" ;;
esac
echo "done: $payload"
"#;

struct Work {
    served: Served,
    folder: Folder,
    handler: String,
    log: String,
}

impl Work {
    fn new(name: &str, queue: &str) -> Self {
        let folder = Folder::new(name);
        let config = format!("[[queues]]\nname = \"roles\"\n{queue}");
        let served = Served::start(&["--config", &folder.file("queue.toml", &config)]);
        let handler = folder.file("handler", HANDLER);
        let log = folder.0.join("log").display().to_string();
        // Who reads it waits until somebody writes.
        assert!(Command::new("mkfifo").arg(format!("{log}.go")).status().unwrap().success());
        Self { served, folder, handler, log }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.args(["queue", "work", "roles", "--at", &self.served.http.to_string()]);
        command.args(arguments).args(["--", "sh", &self.handler]).env("LOG", &self.log);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// A worker, whose complaints are in the folder.
    fn start(&self, arguments: &[&str]) -> Child {
        let place = self.folder.0.join("errors");
        let errors = OpenOptions::new().create(true).append(true).open(place).unwrap();
        self.command(arguments).stderr(errors).spawn().unwrap()
    }

    fn enqueue(&self, group: &str, payload: &str) -> u64 {
        enqueue(&self.served, &json!({"group": group, "payload": payload, "backoff_ms": 1}))
    }

    fn job(&self, id: u64) -> Value {
        get(&self.served, &format!("/jobs/{id}")).1
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn until(condition: impl FnMut() -> bool) {
    eventually(PATIENCE, condition);
}

fn signal(worker: &Child, name: &str) {
    let told = Command::new("kill").args([&format!("-{name}"), &worker.id().to_string()]).status();
    assert!(told.unwrap().success());
}

fn exit(mut worker: Child) -> bool {
    let mut status = None;
    until(|| {
        status = worker.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().success()
}

#[test]
fn a_shell_script_works_off_a_queue_and_its_exit_code_says_what_came_of_each_job() {
    let work = Work::new("queue-work", "attempts = 2\n");
    let done = work.enqueue("g", "one");
    let wrong = work.enqueue("g", "wrong");
    let never = work.enqueue("g", "never");
    let worker = work.start(&["--until-empty", "--keep-result", "--concurrency", "3"]);
    assert!(exit(worker), "{}", work.log());
    let job = work.job(done);
    assert_eq!((&job["state"], &job["result"]), (&json!("done"), &json!("done: one\n")), "{job}");
    let job = work.job(wrong);
    assert_eq!((&job["state"], &job["failures"]), (&json!("dead"), &json!(2)), "{job}");
    assert_eq!(job["reason"], "exit code 3: no such member", "{job}");
    let job = work.job(never);
    assert_eq!((&job["state"], &job["failures"]), (&json!("dead"), &json!(1)), "{job}");
    assert!(work.log().contains(&format!("{done} g 1 one\n")), "{}", work.log());
}

#[test]
fn a_refusal_of_the_upstream_makes_its_group_wait_and_no_other() {
    let work = Work::new("queue-later", "group_limits = [\"concurrent 1\"]\n");
    let later = work.enqueue("limited", "later");
    let worker = work.start(&[]);
    until(|| {
        let (_, page) = get(&work.served, "/groups");
        page["groups"][0]["blocked_until_ms"].is_u64()
    });
    let behind = work.enqueue("limited", "behind");
    let other = work.enqueue("other", "free");
    until(|| work.job(other)["state"] == "done");
    // No refusal, but nothing is left.
    let spent = work.enqueue("spent", "spent");
    until(|| work.job(spent)["state"] == "done");
    let after = work.enqueue("spent", "free");
    let last = work.enqueue("other", "free");
    until(|| work.job(last)["state"] == "done");
    assert_eq!(work.job(after)["state"], "waiting", "{}", work.job(after));
    let job = work.job(later);
    assert_eq!((&job["state"], &job["failures"]), (&json!("waiting"), &json!(0)), "{job}");
    assert_eq!(work.job(behind)["state"], "waiting");
    signal(&worker, "TERM");
    assert!(exit(worker));
}

#[test]
fn a_worker_that_is_told_to_stop_finishes_what_runs_and_one_told_twice_gives_it_back() {
    let work = Work::new("queue-stop", "lease = \"6s\"\nattempts = 1\n");
    let slow = work.enqueue("g", "slow");
    let worker = work.start(&[]);
    until(|| work.log().contains("slow"));
    let first = work.job(slow)["expires_at_ms"].as_u64().unwrap();
    // By a heartbeat, long before it is over.
    until(|| work.job(slow)["expires_at_ms"].as_u64().is_some_and(|at| at > first));
    signal(&worker, "TERM");
    let waits = work.enqueue("g", "after the stop");
    std::fs::write(format!("{}.go", work.log), "go\n").unwrap();
    assert!(exit(worker), "it finishes");
    assert_eq!(work.job(slow)["state"], "done", "{}", work.job(slow));
    assert_eq!(work.job(waits)["state"], "waiting");
    assert!(work.served.ask("DELETE", &format!("/v1/queues/roles/jobs/{waits}"), "").0 == 200);

    let given_back = work.enqueue("g", "slow");
    let worker = work.start(&["--grace", "1h"]);
    until(|| work.log().contains(&format!("{given_back} g 1 slow")));
    signal(&worker, "TERM");
    signal(&worker, "INT");
    assert!(exit(worker));
    let job = work.job(given_back);
    assert_eq!((&job["state"], &job["failures"]), (&json!("waiting"), &json!(0)), "{job}");
}

#[test]
fn a_job_that_is_cancelled_is_ended_and_a_missing_program_costs_no_attempt() {
    let work = Work::new("queue-cancel", "lease = \"6s\"\nattempts = 1\n");
    let slow = work.enqueue("g", "slow");
    let worker = work.start(&["--until-empty"]);
    until(|| work.log().contains("slow"));
    assert_eq!(work.served.ask("DELETE", &format!("/v1/queues/roles/jobs/{slow}"), "").0, 202);
    assert!(exit(worker), "nothing is left");
    assert_eq!(get(&work.served, "").1["totals"]["cancelled"], 1);

    let id = work.enqueue("g", "one");
    let at = work.served.http.to_string();
    let nothing = work.folder.0.join("nothing").display().to_string();
    let complaint = fail(&["queue", "work", "roles", "--at", &at, "--", &nothing]);
    assert!(complaint.contains("cannot run"), "{complaint}");
    assert_eq!(work.job(id)["state"], "waiting", "{}", work.job(id));
    let complaint = fail(&["queue", "work", "nobody", "--at", &at, "--", "true"]);
    assert!(complaint.contains("there is no queue nobody"), "{complaint}");
}

#[test]
fn everything_about_a_queue_is_said_in_words_and_in_json() {
    let work = Work::new("queue-words", "attempts = 1\n");
    let at = work.served.http.to_string();
    let run = |arguments: &[&str]| succeed(&[&["queue", "--at", &at], arguments].concat());
    let parse = |text: String| -> Value { serde_json::from_str(&text).expect(&text) };
    let id = work.enqueue("guild 1", "never");
    assert!(exit(work.start(&["--until-empty"])));
    let dead = format!("job {id}: dead, group \"guild 1\", attempt 1: exit code 65\n");
    assert_eq!(run(&["dead", "roles"]), dead);
    assert_eq!(parse(run(&["dead", "roles", "--json"]))["jobs"][0]["id"], id);
    let shown = run(&["show", "roles", &id.to_string()]);
    assert!(shown.contains("payload          never"), "{shown}");
    assert!(shown.contains("  enqueued         ") && !shown.contains("_ms"), "{shown}");
    let past = shown.lines().last().unwrap();
    assert!(past.starts_with("  attempt 1 failed after "), "{shown}");
    assert!(past.ends_with(": exit code 65") && past.contains(" s by process "), "{shown}");
    assert_eq!(parse(run(&["retry", "roles", "--json"]))["revived"], 1);
    let next = run(&["peek", "roles", "--group", "guild 1"]);
    assert!(next.starts_with(&format!("job {id}: waiting")), "{next}");
    let delayed = json!({"group": "b", "payload": "x", "delay_ms": 3_600_000});
    enqueue(&work.served, &delayed);
    assert_eq!(parse(run(&["stats", "roles", "--json"]))["delayed"], 1);
    assert_eq!(run(&["purge", "roles", "--all"]), "2 jobs cancelled\n");
    assert_eq!(parse(run(&["drain", "roles", "--json"]))["left"], 0);

    let berlin = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--group", "g"];
    let set = run(&[&["recurring", "roles", "nightly"], &berlin[..]].concat());
    assert_eq!(set, "roles: \"nightly\" is set\n");
    let listed = run(&["recurring", "roles"]);
    assert!(listed.contains("30 2 * * * (Europe/Berlin)"), "{listed}");
    let (_, told) = get(&work.served, "/recurring");
    assert_eq!(told["recurring"][0]["zone"], "Europe/Berlin", "{told}");
    let wrong = ["recurring", "roles", "r", "--cron", "@daily", "--zone", "Mars/Base"];
    let complaint = fail(&[&["queue", "--at", &at], &wrong[..]].concat());
    assert!(complaint.contains("time zone") && complaint.contains("Mars/Base"), "{complaint}");
    run(&["recurring", "roles", "nightly", "--remove"]);
    assert_eq!(run(&["recurring", "roles"]), "no recurring jobs\n");

    let of_group = run(&["limits", "roles", "concurrent 3", "--group", "g"]);
    assert_eq!(of_group, "group \"g\": concurrent 3\n");
    assert!(run(&["limits", "roles"]).contains("version 1, changed by a file"));
    let refused = fail(&["queue", "--at", &at, "limits", "roles", "slots 1/1s"]);
    assert!(refused.contains("changes need a token"), "{refused}");
    assert_eq!(post(&work.served, "pause", &json!({"group": "g"})).0, 200);
    assert!(run(&["stats", "roles"]).contains("running  paused\n"));
}
