//! A queue as its users meet it: a service on a file, workers over HTTP, operators on the terminal.

use serde_json::{Value, json};

use crate::serve::{Folder, Served};
use crate::tool::{fail, succeed};

/// A service with one queue, two jobs of a group at a time, on a file that outlives it.
fn serve(folder: &Folder) -> Served {
    let store = folder.0.join("queue.redb");
    let config = format!(
        "queue_store = \"redb:{}\"\n[[queues]]\nname = \"roles\"\n\
         group_limits = [\"slots 2/1h\"]\nlease = \"1h\"\npayload_bytes = 1024\n",
        store.display()
    );
    Served::start(&["--config", &folder.file("queue.toml", &config)])
}

fn post(served: &Served, verb: &str, body: &Value) -> (u16, Value) {
    read(served.ask("POST", &format!("/v1/queues/roles/{verb}"), &body.to_string()))
}

fn get(served: &Served, path: &str) -> (u16, Value) {
    read(served.ask("GET", &format!("/v1/queues/roles{path}"), ""))
}

fn read((status, body): (u16, String)) -> (u16, Value) {
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

/// Leases everything that may start; the ids.
fn lease(served: &Served) -> Vec<u64> {
    let (status, answer) = post(served, "lease", &json!({"max": 10, "worker": "w"}));
    assert_eq!(status, 200, "{answer}");
    let leases = answer["leases"].as_array().unwrap();
    leases.iter().map(|lease| lease["id"].as_u64().unwrap()).collect()
}

fn state(served: &Served, id: u64) -> String {
    let (status, job) = get(served, &format!("/jobs/{id}"));
    assert_eq!(status, 200, "{job}");
    job["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_killed_service_has_lost_nothing_that_it_acknowledged() {
    let folder = Folder::new("queue-kill");
    let served = serve(&folder);
    let at = served.http.to_string();
    for user in 0..3 {
        let payload = format!("{{\"user\":{user}}}");
        let said = succeed(&["queue", "enqueue", "roles", &payload, "--group", "g", "--at", &at]);
        assert!(said.starts_with("job "), "{said}");
    }
    let running = lease(&served);
    assert_eq!(running.len(), 2, "two slots, whatever waits");
    let done = json!({"id": running[0], "attempt": 1, "result": {"ok": true}});
    assert_eq!(post(&served, "ack", &done).0, 200);
    assert!(!served.stop("KILL"));

    let again = serve(&folder);
    assert_eq!(state(&again, running[0]), "done");
    assert_eq!(state(&again, running[1]), "running");
    let (_, figures) = get(&again, "");
    assert_eq!(figures["waiting"], 1, "{figures}");
    assert_eq!(lease(&again), [0; 0], "a slot that was used is not free after a restart");
    assert_eq!(post(&again, "ack", &json!({"id": running[1], "attempt": 1})).0, 200);
}

#[test]
fn what_is_wrong_is_refused_and_changes_nothing() {
    let folder = Folder::new("queue-wrong");
    let served = serve(&folder);
    let (status, _) = read(served.ask("POST", "/v1/queues/other/jobs", r#"{"payload":1}"#));
    assert_eq!(status, 404, "an unknown queue");
    let long = json!({"group": "g", "payload": "x".repeat(2_000)});
    assert_eq!(post(&served, "jobs", &long).0, 400, "a payload over the cap");
    let batch = json!({"jobs": [{"payload": "fits"}, long]});
    assert_eq!(post(&served, "jobs/batch", &batch).0, 400, "all of a batch or none");
    let lost = json!({"id": 7, "attempt": 1});
    assert_eq!(post(&served, "ack", &lost).0, 409, "a lease that never was");
    assert_eq!(get(&served, "/jobs/7").0, 404);
    let (_, figures) = get(&served, "");
    assert_eq!((&figures["waiting"], &figures["running"]), (&json!(0), &json!(0)), "{figures}");
}

#[test]
fn operators_pause_resume_retry_and_drain_from_the_terminal() {
    let folder = Folder::new("queue-operate");
    let served = serve(&folder);
    let at = served.http.to_string();
    let queue = |arguments: &[&str]| succeed(&[&["queue", "--at", &at], arguments].concat());
    let first = queue(&["enqueue", "roles", "job", "--key", "once"]);
    let second = queue(&["enqueue", "roles", "job", "--key", "once"]);
    assert!(second.contains("as before"), "{first}{second}");
    queue(&["pause", "roles"]);
    assert_eq!(lease(&served), [0; 0]);
    queue(&["resume", "roles"]);
    let leased = lease(&served);
    let dead = json!({"id": leased[0], "attempt": 1, "reason": "no such user", "retry": false});
    assert_eq!(post(&served, "fail", &dead).0, 200);
    assert_eq!(state(&served, leased[0]), "dead");
    queue(&["retry", "roles"]);
    assert_eq!(lease(&served), leased);
    let (_, job) = get(&served, &format!("/jobs/{}", leased[0]));
    let ended = json!({"id": leased[0], "attempt": job["attempt"]});
    assert_eq!(post(&served, "ack", &ended).0, 200);
    queue(&["drain", "roles", "--timeout", "30"]);
    assert!(queue(&["stats", "roles"]).contains("roles"));
    assert!(fail(&["queue", "--at", &at, "stats", "nobody"]).contains("nobody"));
}
