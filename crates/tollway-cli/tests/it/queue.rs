//! A queue as its users meet it: a service on a file, workers over HTTP, operators on the terminal.

mod push;
mod watch;
mod work;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollway_testkit::servers::eventually;

use crate::serve::{Folder, PATIENCE, Served};
use crate::tool::{fail, succeed};
use crate::troubles::trouble;

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

/// A job that was leased, compared by its id.
#[derive(Clone, Debug)]
struct Held {
    id: u64,
    token: Value,
}

impl Held {
    fn of(lease: &Value) -> Self {
        Self { id: lease["id"].as_u64().unwrap(), token: lease["token"].clone() }
    }
}

impl PartialEq<u64> for Held {
    fn eq(&self, id: &u64) -> bool {
        self.id == *id
    }
}

/// Leases everything that may start.
fn lease(served: &Served) -> Vec<Held> {
    let (status, answer) = post(served, "lease", &json!({"max": 10, "worker": "w"}));
    assert_eq!(status, 200, "{answer}");
    answer["leases"].as_array().unwrap().iter().map(Held::of).collect()
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
    let done = json!({"token": running[0].token, "result": {"ok": true}});
    assert_eq!(post(&served, "ack", &done).0, 200);
    assert!(!served.stop("KILL"));

    let again = serve(&folder);
    assert_eq!(state(&again, running[0].id), "done");
    let (_, job) = get(&again, &format!("/jobs/{}", running[0].id));
    assert_eq!(job["result"], "{\"ok\":true}", "{job}");
    assert_eq!(state(&again, running[1].id), "running");
    let (_, figures) = get(&again, "");
    assert_eq!(figures["waiting"], 1, "{figures}");
    assert_eq!(lease(&again), [0; 0], "a slot that was used is not free after a restart");
    let held = json!({"token": running[1].token});
    assert_eq!(post(&again, "ack", &held).0, 200, "a token outlives the process that gave it");
}

#[test]
fn a_job_that_could_not_start_in_time_is_dead_and_says_why() {
    let folder = Folder::new("queue-deadline");
    let served = serve(&folder);
    let at = served.http.to_string();
    for payload in ["one", "two"] {
        succeed(&["queue", "enqueue", "roles", payload, "--at", &at]);
    }
    assert_eq!(lease(&served).len(), 2, "both slots are taken for an hour");
    succeed(&["queue", "enqueue", "roles", "late", "--start-within", "1ms", "--at", &at]);
    let dead = || lease(&served).is_empty() && get(&served, "").1["dead"] == 1;
    eventually(PATIENCE, dead);
    assert_eq!(get(&served, "").1["totals"]["missed"], 1);
    let (_, letters) = get(&served, "/dead");
    assert!(letters.to_string().contains("deadline"), "{letters}");
    let both = json!({"payload": 1, "start_within_ms": 1, "start_before_ms": 1});
    let (status, problem) = post(&served, "jobs", &both);
    let told = problem["detail"].as_str().unwrap_or_default();
    assert!(status == 400 && told.contains("start_within_ms or start_before_ms"), "{problem}");
}

#[test]
fn a_service_does_not_start_on_a_file_that_is_no_queue_and_leaves_it_alone() {
    let folder = Folder::new("queue-garbage");
    let store = folder.file("queue.redb", "this is somebody's letter\n");
    let config = "[[queues]]\nname = \"roles\"\n";
    let config = folder.file("queue.toml", config);
    let at = ["--http", "127.0.0.1:0", "--resp", "off", "--grpc", "off"];
    let place = format!("redb:{store}");
    let complaint =
        fail(&[&["serve", "--config", &config, "--queue-store", &place], &at[..]].concat());
    assert!(complaint.contains("this is not a queue file, or it is damaged"), "{complaint}");
    assert_eq!(std::fs::read_to_string(store).unwrap(), "this is somebody's letter\n");
}

#[test]
fn a_service_whose_disk_is_full_says_so_and_keeps_what_it_acknowledged() {
    let folder = Folder::new("queue-full");
    let place = format!("redb:{}", folder.0.join("queue.redb").display());
    let config = "[[queues]]\nname = \"roles\"\npayload_bytes = 262144\n";
    let config = folder.file("queue.toml", config);
    let arguments = ["--config", &config, "--queue-store", &place];
    let served = Served::start_on_a_full_disk(16_384, &arguments);
    let large = json!({"payload": "x".repeat(200_000)});
    let mut kept = Vec::new();
    let (status, problem) = loop {
        assert!(kept.len() < 100, "8 MiB hold no more");
        match post(&served, "jobs", &large) {
            (201, answer) => kept.push(answer["id"].as_u64().unwrap()),
            refused => break refused,
        }
    };
    assert_eq!(status, 507, "{problem}");
    assert!(!kept.is_empty() && problem["detail"].as_str().unwrap().contains("no space"));
    assert!(served.ask("GET", "/readyz", "").1.contains("\"queues\":\"full\""));
    let metrics = served.ask("GET", "/metrics", "").1;
    assert!(metrics.contains("tollway_queue_store_full 1"), "{metrics}");
    assert!(metrics.contains("tollway_queue_commit_failures_total 1"), "{metrics}");
    drop(served);
    let again = Served::start(&arguments);
    assert_eq!(get(&again, "").1["waiting"], kept.len(), "what was acknowledged, and nothing else");
    assert_eq!(lease(&again), kept[..kept.len().min(10)]);
    enqueue(&again, &large);
}

#[test]
fn a_full_disk_stops_new_jobs_and_nothing_else_until_there_is_room() {
    let folder = Folder::new("queue-small-disk");
    let disk = folder.0.join("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let place = format!("redb:{}", disk.join("queue.redb").display());
    let config = "[[queues]]\nname = \"roles\"\npayload_bytes = 262144\n";
    let config = folder.file("queue.toml", config);
    let arguments = ["--config", &config, "--queue-store", &place];
    let Some(served) = Served::start_on_a_small_disk(&disk, 32, &arguments) else { return };
    let large = json!({"payload": "x".repeat(200_000)});
    let mut kept = 0;
    let status = loop {
        assert!(kept < 200, "32 MiB hold no more");
        match post(&served, "jobs", &large).0 {
            201 => kept += 1,
            refused => break refused,
        }
    };
    assert_eq!((status, kept > 10), (507, true), "{kept}");
    // More than once, so that the reserve is not used up by the first.
    for round in 0..3 {
        let running = lease(&served);
        assert_eq!(running.len(), 10, "round {round}");
        for Held { id, token } in running {
            assert_eq!(post(&served, "ack", &json!({"token": token})).0, 200);
            assert_eq!(state(&served, id), "done");
        }
        kept -= 10;
        assert_eq!(get(&served, "").1["waiting"], kept);
    }
    assert!(served.ask("GET", "/readyz", "").1.contains("\"queues\":\"full\""));
    trouble(&served, "queue_store_full");
    std::fs::remove_file(served.inside(&disk.join("filler"))).expect("removed");
    eventually(PATIENCE, || post(&served, "jobs", &large).0 == 201);
    assert!(served.ask("GET", "/readyz", "").1.contains("\"queues\":\"ok\""));
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
    let lost = json!({"token": "7.1.00000000000000000000000000000000"});
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
    let token = &leased[0].token;
    let dead = json!({"token": token, "reason": "no such user", "retry": false});
    assert_eq!(post(&served, "fail", &dead).0, 200);
    assert_eq!(state(&served, leased[0].id), "dead");
    queue(&["retry", "roles"]);
    let again = lease(&served);
    assert_eq!(again, [leased[0].id]);
    let ended = json!({"token": again[0].token});
    assert_eq!(post(&served, "ack", &ended).0, 200);
    queue(&["drain", "roles", "--timeout", "30s"]);
    assert!(queue(&["stats", "roles"]).contains("roles"));
    assert!(fail(&["queue", "--at", &at, "stats", "nobody"]).contains("nobody"));
}

fn enqueue(served: &Served, body: &Value) -> u64 {
    let (status, answer) = post(served, "jobs", body);
    assert_eq!(status, 201, "{answer}");
    answer["id"].as_u64().unwrap()
}

#[test]
fn every_field_of_a_job_is_heard_over_http() {
    let folder = Folder::new("queue-fields");
    let served = serve(&folder);
    let soon_ms = get(&served, "").1["now_ms"].as_u64().unwrap() + 3_600_000;
    let told = json!({
        "group": "g", "payload_base64": "/wA=", "priority": 7, "weight": 2, "key": "once",
        "start_at_ms": soon_ms, "attempts_max": 1, "backoff_ms": 5,
        "backoff_max_ms": 6,
    });
    let id = enqueue(&served, &told);
    let (_, job) = get(&served, &format!("/jobs/{id}"));
    for (field, value) in [
        ("payload_base64", json!("/wA=")),
        ("priority", json!(7)),
        ("weight", json!(2)),
        ("due_at_ms", json!(soon_ms)),
    ] {
        assert_eq!(job[field], value, "{field}: {job}");
    }
    let (status, again) = post(&served, "jobs", &told);
    assert_eq!((status, &again["duplicate"], &again["id"]), (200, &json!(true), &json!(id)));
    let later = enqueue(&served, &json!({"group": "g", "payload": [1, 2], "delay_ms": 3_600_000}));
    let (_, job) = get(&served, &format!("/jobs/{later}"));
    let waits = job["due_at_ms"].as_u64().unwrap() - job["enqueued_at_ms"].as_u64().unwrap();
    assert_eq!((waits, &job["payload"]), (3_600_000, &json!("[1,2]")), "{job}");
    // One attempt is all that it has.
    let once = enqueue(&served, &json!({"group": "h", "payload": "x", "attempts_max": 1}));
    let held = lease(&served);
    assert_eq!(held, [once]);
    let failed = post(&served, "fail", &json!({"token": held[0].token, "reason": "no"})).1;
    assert_eq!(failed["state"], "dead", "{failed}");
    // Its own backoff, not the queue's.
    let slow =
        json!({"group": "i", "payload": "x", "backoff_ms": 90_000, "backoff_max_ms": 90_000});
    let slow = enqueue(&served, &slow);
    let held = lease(&served);
    assert_eq!(held, [slow]);
    let (_, queue) = get(&served, "");
    let failed = post(&served, "fail", &json!({"token": held[0].token})).1;
    let wait = failed["from_ms"].as_u64().unwrap() - queue["now_ms"].as_u64().unwrap();
    assert!((90_000..150_000).contains(&wait), "{failed}");
    for wrong in [
        json!({"payload": 1, "payload_base64": "eA=="}),
        json!({"payload_base64": "*"}),
        json!({"delay_ms": 1, "start_at_ms": 1}),
        json!({"weight": 0}),
        json!({"prio": 1}),
    ] {
        assert_eq!(post(&served, "jobs", &wrong).0, 400, "{wrong}");
    }
}

#[test]
fn every_field_of_a_workers_answer_is_heard_over_http() {
    let folder = Folder::new("queue-answers");
    let served = serve(&folder);
    let id = enqueue(&served, &json!({"group": "g", "payload": "x"}));
    let leased = lease(&served);
    assert_eq!(leased, [id]);
    let held = json!({"token": leased[0].token});
    let progress = json!({"token": leased[0].token, "done": 3, "total": 7});
    assert_eq!(post(&served, "progress", &progress).0, 200);
    let (_, job) = get(&served, &format!("/jobs/{id}"));
    assert_eq!((&job["progress"], &job["worker"]), (&json!({"done": 3, "total": 7}), &json!("w")));
    let forged = format!("{id}.1.00000000000000000000000000000000");
    let beats = json!({"leases": [held, {"token": forged}]});
    let (_, beats) = post(&served, "heartbeat", &beats);
    assert_eq!(
        (&beats["leases"][0]["lease"], &beats["leases"][1]["lease"]),
        (&json!("held"), &json!("lost"))
    );
    assert_eq!(post(&served, "release", &held).1["state"], "waiting");

    // How long the group waits: as told, by the fields that everybody uses, or by a profile.
    let fields = json!({"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "70.5"});
    let limited = [
        (json!({"wait_ms": 60_000}), 60_000),
        (json!({"headers": {"retry-after": "65"}}), 65_000),
        (json!({"headers": fields, "profile": "discord", "status": 429}), 70_500),
    ];
    for (index, (told, waits_ms)) in limited.into_iter().enumerate() {
        let group = format!("limited {index}");
        let id = enqueue(&served, &json!({"group": group, "payload": "x"}));
        let token = all_leases(&served).into_iter().find(|token| token["id"] == id).unwrap();
        let mut body = told.clone();
        body["token"] = token["token"].clone();
        let (_, queue) = get(&served, "");
        let (status, limited) = post(&served, "retry-later", &body);
        assert_eq!((status, &limited["state"]), (200, &json!("waiting")), "{limited}");
        let wait = limited["from_ms"].as_u64().unwrap() - queue["now_ms"].as_u64().unwrap();
        assert!((waits_ms..waits_ms + 60_000).contains(&wait), "{told}: {wait}");
    }
    for wrong in [
        json!({"token": leased[0].token}),
        json!({"token": leased[0].token, "headers": {}, "profile": "nobody"}),
        json!({"token": leased[0].token, "wait_ms": 1, "headers": {}}),
    ] {
        assert_eq!(post(&served, "retry-later", &wrong).0, 400, "{wrong}");
    }
}

#[test]
fn a_service_without_the_queue_says_so_and_what_to_write() {
    let served = Served::start(&[]);
    let at = served.http.to_string();
    let refused = |arguments: &[&str]| fail(&[&["queue", "--at", &at], arguments].concat());
    let none = "there is no queue mail; this service has no queues. To make it, add [[queues]] and \
                name = \"mail\" to the configuration, or send PUT /v1/queues/mail (404 Not Found)\n";
    for arguments in [
        &["enqueue", "mail", "x"][..],
        &["watch", "mail"],
        &["drain", "mail"],
        &["retry", "mail"],
        &["stats", "mail"],
        &["work", "mail", "--", "true"],
        &["show", "mail", "1"],
        &["wait", "mail", "1"],
        &["reschedule", "mail", "1"],
        &["peek", "mail", "--group", "g"],
        &["running", "mail"],
        &["dead", "mail"],
        &["limits", "mail"],
        &["recurring", "mail"],
        &["purge", "mail", "--all"],
        &["pause", "mail"],
        &["resume", "mail"],
        &["cancel", "mail", "1"],
    ] {
        let told = refused(arguments);
        assert!(told.ends_with(none), "{arguments:?}: {told}");
    }
    let listed = succeed(&["queue", "--at", &at, "stats"]);
    assert!(listed.contains("has no queues") && listed.contains("[[queues]]"), "{listed}");
    assert_eq!(read(served.ask("GET", "/v1/queues/mail/events", "")).0, 404);

    let folder = Folder::new("queue-other");
    let config = "[[queues]]\nname = \"roles\"\n[[queues]]\nname = \"mail-out\"\n";
    let served = Served::start(&["--config", &folder.file("queue.toml", config)]);
    let at = served.http.to_string();
    let refused = |queue: &str| fail(&["queue", "--at", &at, "enqueue", queue, "x"]);
    assert!(refused("rolse").contains("there is no queue rolse; did you mean roles?"));
    assert!(refused("x").contains("there is no queue x; expected one of mail-out, roles"));
}

#[test]
fn what_operators_change_is_logged_with_the_names_of_their_tokens() {
    let folder = Folder::new("queue-logged");
    let config = "tokens = [{ token = \"t\", role = \"admin\", name = \"ada\" }]\n\
                  [[queues]]\nname = \"roles\"\n";
    let (log, config) = (folder.0.join("log"), folder.file("queue.toml", config));
    let served = Served::start_logged(&log, &["--config", &config]);
    let ask = |method: &str, path: &str, body: &Value| {
        let fields = "authorization: Bearer t\r\n";
        let (status, told) = served.ask_with(method, path, fields, &body.to_string());
        assert!(status < 300, "{method} {path}: {told}");
    };
    let (roles, bot) = ("/v1/queues/roles", "/v1/shared-limits/bot");
    ask("PUT", bot, &json!({"limit": "slots 50/1s"}));
    ask("PATCH", roles, &json!({"attempts": 3}));
    ask("POST", &format!("{roles}/pause"), &json!({"group": "guild 1"}));
    ask("DELETE", bot, &Value::Null);
    let is_told = |words: &[&str]| {
        let log = std::fs::read_to_string(&log).unwrap();
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        log.lines().any(|line| line.contains("who=\"ada\"") && has_all(line))
    };
    for words in [
        &["shared_limit=\"bot\"", "action=\"set\"", "slots 50/1s"][..],
        &["queue=\"roles\"", "action=\"settings\"", "attempts"],
        &["queue=\"roles\"", "action=\"pause\"", "guild 1"],
        &["shared_limit=\"bot\"", "action=\"remove\""],
    ] {
        eventually(PATIENCE, || is_told(words));
    }
}

#[test]
fn a_job_tells_how_its_attempts_ended_before_it_is_over() {
    let folder = Folder::new("queue-history");
    let served = serve(&folder);
    let id = enqueue(&served, &json!({"group": "g", "payload": "x", "backoff_ms": 0}));
    let lease = |worker: &str| {
        let (_, answer) = post(&served, "lease", &json!({"wait_ms": 20_000, "worker": worker}));
        answer["leases"][0].clone()
    };
    let first = lease("ada");
    let lasts = first["expires_at_ms"].as_u64().unwrap() - first["leased_at_ms"].as_u64().unwrap();
    assert_eq!(lasts, 3_600_000, "{first}");
    let failed = json!({"token": first["token"], "reason": "no such member"});
    assert_eq!(post(&served, "fail", &failed).0, 200);
    let limited = json!({"token": lease("bob")["token"], "wait_ms": 1});
    assert_eq!(post(&served, "retry-later", &limited).0, 200);
    lease("eve");
    let (_, job) = get(&served, &format!("/jobs/{id}"));
    assert_eq!((&job["state"], &job["worker"]), (&json!("running"), &json!("eve")), "{job}");
    let (_, running) = get(&served, "/running");
    assert_eq!(running, json!({"jobs": [job], "after": id}));
    assert_eq!(get(&served, &format!("/running?after={id}")).1["jobs"], json!([]));
    let at = served.http.to_string();
    let listed = succeed(&["queue", "running", "roles", "--at", &at]);
    assert!(listed.starts_with(&format!("job {id}: running, group \"g\", attempt 3 at eve for ")));
    assert!(listed.contains(", lease ends in 3"), "{listed}");
    let told = |field: &str| [0, 1].map(|one| job["history"][one][field].clone());
    assert_eq!(told("outcome"), [json!("failed"), json!("limited")], "{job}");
    assert_eq!(told("worker"), [json!("ada"), json!("bob")]);
    assert_eq!(told("attempt"), [json!(1), json!(2)]);
    assert_eq!(told("reason"), [json!("no such member"), Value::Null]);
    assert_eq!(told("wait_ms"), [Value::Null, json!(1)]);
    assert_eq!(told("leased_at_ms")[0], first["leased_at_ms"]);
    assert!(told("ended_at_ms")[0].as_u64() >= first["leased_at_ms"].as_u64());
    assert!(job["leased_at_ms"].as_u64() >= told("ended_at_ms")[1].as_u64(), "{job}");
}

#[test]
fn outcomes_are_told_alone_or_together_and_each_by_itself() {
    let folder = Folder::new("queue-outcomes");
    let served = serve(&folder);
    let ids = [(); 2].map(|()| enqueue(&served, &json!({"group": "g", "payload": "x"})));
    let leased = lease(&served);
    assert_eq!(leased, ids);
    let one = json!({"token": leased[0].token});
    for wrong in [
        json!({}),
        json!({"id": ids[0], "attempt": 1}),
        json!({"token": "1.1"}),
        json!({"leases": [one], "token": leased[0].token}),
        json!({"leases": [{"leases": [one]}]}),
        json!({"leases": [one, {}]}),
    ] {
        assert_eq!(post(&served, "ack", &wrong).0, 400, "{wrong}");
    }
    let both = json!({"leases": [one, {"token": leased[1].token, "result": [1]}]});
    let (status, answer) = post(&served, "ack", &both);
    let states = answer["leases"].as_array().unwrap().iter().map(|lease| lease["state"].clone());
    assert_eq!((status, states.collect::<Vec<_>>()), (200, vec![json!("done"); 2]), "{answer}");
    assert_eq!(get(&served, &format!("/jobs/{}", ids[1])).1["result"], "[1]");
}

#[test]
fn a_strangers_guess_ends_nobodys_lease() {
    let folder = Folder::new("queue-guess");
    let served = serve(&folder);
    let id = enqueue(&served, &json!({"group": "g", "payload": "x"}));
    let held = lease(&served);
    for guess in ["1.1.", "1.1.00000000000000000000000000000000", "1.0.", "2.1."] {
        let (status, answer) = post(&served, "ack", &json!({"token": guess}));
        assert_eq!(status, 409, "{guess}: {answer}");
    }
    assert_eq!(state(&served, id), "running");
    assert_eq!(post(&served, "ack", &json!({"token": held[0].token})).0, 200);
}

#[test]
fn who_may_only_read_sees_figures_and_nothing_that_clients_or_workers_wrote() {
    let folder = Folder::new("queue-roles");
    let config = "tokens = [{ token = \"look\", role = \"read\" }, \
         { token = \"work\", role = \"check\" }]\n\
                  [[queues]]\nname = \"roles\"\n";
    let served = Served::start(&["--config", &folder.file("queue.toml", config)]);
    let ask = |token: &str, method: &str, path: &str, body: &Value| {
        let fields = format!("authorization: Bearer {token}\r\n");
        let path = format!("/v1/queues/roles{path}");
        read(served.ask_with(method, &path, &fields, &body.to_string()))
    };
    let secret = json!({"group": "4111-customer", "payload": {"card": "4111-1111"}});
    assert_eq!(ask("work", "POST", "/jobs", &secret).0, 201);
    assert_eq!(ask("work", "POST", "/jobs", &secret).0, 201);
    let (_, answer) = ask("work", "POST", "/lease", &json!({"max": 1}));
    let token = &answer["leases"][0]["token"];
    let dead = json!({"token": token, "retry": false, "reason": "no card 4111-1111"});
    assert_eq!(ask("work", "POST", "/fail", &dead).0, 200);
    for path in ["/jobs/1", "/jobs/2", "/peek?group=4111-customer", "/dead"] {
        let (status, seen) = ask("look", "GET", path, &json!({}));
        assert_eq!(status, 200, "{path}");
        assert!(seen.to_string().contains("enqueued_at_ms"), "figures are shown: {seen}");
        assert!(!seen.to_string().contains("4111"), "{path}: {seen}");
        let (_, whole) = ask("work", "GET", path, &json!({}));
        assert!(whole.to_string().contains("4111-1111"), "{path}: {whole}");
        assert!(whole.to_string().contains("4111-customer"), "{path}: {whole}");
    }
    assert_eq!(ask("look", "GET", "/groups", &json!({})).0, 403);
    let (_, groups) = ask("work", "GET", "/groups", &json!({}));
    assert!(groups.to_string().contains("4111-customer"), "{groups}");
    let (_, dead) = ask("work", "GET", "/dead", &json!({}));
    assert_eq!(dead["jobs"][0]["reason"], "no card 4111-1111");
    let (_, answer) = ask("work", "POST", "/lease", &json!({"max": 1, "worker": "4111-host"}));
    let (_, seen) = ask("look", "GET", "/jobs/2", &json!({}));
    assert_eq!((&seen["state"], seen.get("worker")), (&json!("running"), None), "{seen}");
    let (_, seen) = ask("look", "GET", "/running", &json!({}));
    assert!(seen["jobs"][0]["id"] == 2 && !seen.to_string().contains("4111"), "{seen}");
    let done = json!({"token": answer["leases"][0]["token"], "result": "4111"});
    assert_eq!(ask("work", "POST", "/ack", &done).0, 200);
    let (_, seen) = ask("look", "GET", "/jobs/2", &json!({}));
    assert_eq!((&seen["state"], seen.get("result")), (&json!("done"), None), "{seen}");
}

#[test]
fn names_that_strangers_chose_do_not_reach_the_terminal_raw() {
    let folder = Folder::new("queue-names");
    let served = serve(&folder);
    enqueue(&served, &json!({"group": "\u{1b}[31mred\u{7}\n{\"fake\":\"line\"}", "payload": "x"}));
    let at = served.http.to_string();
    let said = succeed(&["queue", "--at", &at, "stats", "roles", "--groups", "10"]);
    assert!(said.contains("\\u{1b}[31mred\\u{7}\\n"), "{said:?}");
    assert!(!said.contains('\u{1b}') && !said.contains('\u{7}'), "{said:?}");
    assert_eq!(said.lines().count(), 2, "{said:?}");
}

#[test]
fn a_page_of_large_jobs_is_short_and_says_where_to_go_on() {
    let folder = Folder::new("queue-pages");
    let config = "[limits]\nbody_bytes = 8388608\n[[queues]]\nname = \"roles\"\n\
                  attempts = 1\npayload_bytes = 4194304\n";
    let served = Served::start(&["--config", &folder.file("queue.toml", config)]);
    let payload = "x".repeat(3 << 20);
    let ids = [(); 4].map(|()| enqueue(&served, &json!({"payload": payload})));
    let id_of = |job: &Value| job["id"].as_u64().unwrap();
    let of = |page: &Value| page.as_array().unwrap().iter().map(id_of).collect::<Vec<_>>();
    assert_eq!(of(&get(&served, "/peek?max=1000").1["jobs"]), ids[..3]);
    // Three of them fill an answer; the last comes at once with the next call.
    for expected in [&ids[..3], &ids[3..]] {
        let (_, answer) = post(&served, "lease", &json!({"max": 1_000, "wait_ms": 20_000}));
        assert_eq!(of(&answer["leases"]), expected);
        for lease in answer["leases"].as_array().unwrap() {
            assert_eq!(post(&served, "fail", &json!({"token": lease["token"]})).0, 200);
        }
    }
    let (mut after, mut seen) = (String::new(), Vec::new());
    loop {
        let (_, page) = get(&served, &format!("/dead?max=1000{after}"));
        seen.extend(of(&page["jobs"]));
        let Some(last) = page["after"].as_u64() else { break };
        after = format!("&after={last}");
    }
    assert_eq!(seen, ids);
}

/// Leases everything that may start, and waits for the first.
fn all_leases(served: &Served) -> Vec<Value> {
    let (_, answer) = post(served, "lease", &json!({"max": 10, "wait_ms": 20_000}));
    answer["leases"].as_array().unwrap().clone()
}

/// A target that gives these answers, one per connection; where it is, and what it is sent.
pub(crate) fn target(answers: Vec<&'static str>) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (told, heard) = mpsc::channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut chunk) = (Vec::new(), [0; 4_096]);
            while !request.ends_with(b"the payload") {
                let length = stream.read(&mut chunk).unwrap();
                assert!(length > 0, "the request ends early");
                request.extend_from_slice(&chunk[..length]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            told.send(String::from_utf8_lossy(&request).to_lowercase()).unwrap();
        }
    });
    (url, heard)
}

#[test]
fn a_configured_target_is_pushed_to_as_it_says() {
    let refusal = "HTTP/1.1 429 Too Many Requests\r\nx-ratelimit-remaining: 0\r\n\
                   x-ratelimit-reset-after: 0.05\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let fine = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nkept";
    let (url, heard) = target(vec![refusal, fine]);
    let folder = Folder::new("queue-push");
    let config = format!(
        "[[queues]]\nname = \"roles\"\n[queues.push]\nurl = \"{url}\"\nprofile = \"discord\"\n\
         content_type = \"text/plain\"\nkeep_result = true\nconcurrency = 1\ntimeout = \"20s\"\n"
    );
    let served = Served::start(&["--config", &folder.file("push.toml", &config)]);
    let id = enqueue(&served, &json!({"group": "g", "payload": "the payload"}));
    for attempt in 1..=2 {
        let request = heard.recv_timeout(Duration::from_secs(20)).unwrap();
        for field in [
            "post /hook http/1.1".to_owned(),
            "content-type: text/plain".to_owned(),
            "tollway-queue: roles".to_owned(),
            format!("tollway-job: {id}"),
            format!("tollway-attempt: {attempt}"),
        ] {
            assert!(request.contains(&field), "{field}: {request}");
        }
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while state(&served, id) != "done" {
        assert!(Instant::now() < deadline, "the answer is not kept");
        std::thread::yield_now();
    }
    assert_eq!(get(&served, &format!("/jobs/{id}")).1["result"], "kept");
    let (_, figures) = get(&served, "");
    assert_eq!(
        (&figures["totals"]["limited"], &figures["totals"]["failed"]),
        (&json!(1), &json!(0))
    );
}
