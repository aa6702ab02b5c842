use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_server::config::{Config, Overrides};
use tollway_server::{Backing, Metrics, Origin, Queues, Server, Service};
use tollway_testkit::servers::{Engine, Server as RedisServer};

use crate::harness::{Folder, Http, Running, running};

pub(crate) const TOKEN: &str = "[[tokens]]\ntoken = \"t\"\nrole = \"admin\"\n";
pub(crate) const ADMIN: &str = "authorization: Bearer t\r\n";

/// A server on this file, and the runtime on which its queues live.
pub(crate) struct Started {
    pub(crate) running: Running,
    _runtime: tokio::runtime::Runtime,
}

pub(crate) fn start(files: Vec<PathBuf>, store: Option<String>) -> Started {
    let any = || Some("127.0.0.1:0".to_owned());
    let overrides = Overrides {
        http: any(),
        grpc: any(),
        resp: any(),
        queue_store: store,
        ..Overrides::default()
    };
    let metrics = Metrics::default();
    let config = Config::load(&files, &overrides, &metrics).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let clock = Arc::new(SystemClock::new());
    let queues = runtime.block_on(async {
        let place = config.queues.store.as_deref();
        let backend = tollway_server::open_queue_store(place, false).await.unwrap();
        Queues::start(backend, clock.clone(), &config.queues).await.unwrap()
    });
    let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(100))));
    let service = Service::new(config.rules, metrics, memory, clock, config.settings);
    let origin = Origin { files, overrides, ..Origin::default() };
    let service = Arc::new(service.with_queues(queues).with_origin(origin));
    let server = Server::start(service, &config.listen, None, 1).unwrap();
    Started { running: running(server), _runtime: runtime }
}

impl Started {
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = Http::connect(self.running.http).send(method, path, ADMIN, &body);
        (answer.status, answer.json())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, &Value::Null)
    }

    fn reload(&self) -> (u16, Value) {
        self.ask("POST", "/admin/reload", &Value::Null)
    }

    fn enqueue(&self, queue: &str, jobs: usize) {
        let jobs = vec![json!({"group": "g"}); jobs];
        let path = format!("/v1/queues/{queue}/jobs/batch");
        assert_eq!(self.ask("POST", &path, &json!({"jobs": jobs})).0, 201);
    }

    pub(crate) fn leased(&self, queue: &str) -> usize {
        let path = format!("/v1/queues/{queue}/lease");
        let (status, answer) = self.ask("POST", &path, &json!({"max": 100}));
        assert_eq!(status, 200, "{answer}");
        answer["leases"].as_array().unwrap().len()
    }

    fn limits(&self, queue: &str) -> Value {
        self.get(&format!("/v1/queues/{queue}")).1["settings"]["group_limits"].take()
    }
}

fn queue(name: &str, limit: &str) -> String {
    format!("[[queues]]\nname = \"{name}\"\ngroup_limits = [\"{limit}\"]\n")
}

#[test]
fn a_reload_makes_and_changes_queues_and_keeps_those_that_are_gone() {
    let folder = Folder::new("queue-reload");
    let file = |text: &str| folder.file("t.toml", &format!("{TOKEN}{text}"));
    let started = start(vec![file(&queue("a", "slots 2/1h"))], None);
    started.enqueue("a", 5);
    assert_eq!(started.leased("a"), 2);

    let shared = "[[shared_limits]]\nname = \"all\"\nlimit = \"concurrent 1\"\n";
    let b = format!("{}shared = [\"all\"]\n", queue("b", "concurrent 9"));
    file(&format!("{shared}{}{b}", queue("a", "slots 4/1h")));
    assert_eq!(started.reload(), (200, json!({"reloaded": true})));
    assert_eq!(started.leased("a"), 2, "two more");
    started.enqueue("b", 5);
    assert_eq!(started.leased("b"), 1);
    let (_, told) = started.get("/v1/queues/a");
    assert_eq!((&told["version"], &told["changed_by"]), (&json!(2), &json!("file")), "{told}");
    assert_eq!(started.get("/readyz").1["config"], "current");

    file(&format!("{}{b}", shared.replace("concurrent 1", "concurrent 3")));
    assert_eq!(started.reload().0, 200);
    assert_eq!(started.leased("b"), 2, "two more");
    let (status, told) = started.get("/v1/queues/a");
    assert_eq!((status, &told["running"]), (200, &json!(4)), "it stays with its jobs: {told}");
    assert_eq!(told["file_differs"], Value::Null);
    let (status, told) = started.ask("DELETE", "/v1/queues/a", &Value::Null);
    assert_eq!(status, 409, "{told}");
    assert!(told["detail"].as_str().unwrap().contains("holds 5 jobs"), "{told}");
    let (status, told) = started.ask("DELETE", "/v1/queues/b", &Value::Null);
    assert!(status == 409 && told["detail"].as_str().unwrap().contains("file"), "{told}");
}

#[test]
fn a_service_that_started_without_queues_gets_them_by_a_reload_and_by_a_call() {
    let folder = Folder::new("queue-none");
    let started = start(vec![folder.file("t.toml", TOKEN)], None);
    assert_eq!(started.get("/readyz").1["queues"], Value::Null);
    assert_eq!(started.get("/v1/queues").1, json!({"queues": []}));
    let (status, told) = started.ask("PUT", "/v1/queues/called", &Value::Null);
    assert_eq!((status, &told["version"]), (201, &json!(1)), "{told}");
    assert_eq!(started.get("/readyz").1["queues"], "ok");
    folder.file("t.toml", &format!("{TOKEN}{}", queue("a", "slots 2/1h")));
    assert_eq!(started.reload().0, 200);
    started.enqueue("a", 1);
    started.enqueue("called", 1);
    folder.file("t.toml", &format!("queue_store = \"redb:elsewhere.redb\"\n{TOKEN}"));
    assert_eq!(started.reload().0, 200);
    let told = started.get("/readyz").1["config_error"].to_string();
    assert!(told.contains("another queue_store needs a restart"), "{told}");
}

#[test]
fn settings_are_changed_by_calls_and_no_unchanged_file_undoes_that() {
    let folder = Folder::new("queue-calls");
    let file = |text: &str| folder.file("t.toml", &format!("{TOKEN}{text}"));
    let path = file(&queue("a", "slots 2/1h"));
    let started = start(vec![path.clone()], None);
    let change = json!({"group_limits": ["slots 3/1h"], "lease": "90s"});
    let (status, told) = started.ask("PUT", "/v1/queues/a", &change);
    assert_eq!((status, &told["version"]), (200, &json!(2)), "{told}");
    assert_eq!(
        (&told["changed_by"], &told["settings"]["lease"]),
        (&json!("call"), &json!("1m30s"))
    );
    let (status, told) = started.ask("PATCH", "/v1/queues/a", &json!({"attempts": 7}));
    assert_eq!((status, &told["settings"]["attempts"]), (200, &json!(7)), "{told}");
    assert_eq!(told["settings"]["lease"], "1m30s", "the others stay");
    for (method, body) in [("PUT", json!({"version": 2})), ("PATCH", json!({"version": 2}))] {
        let (status, told) = started.ask(method, "/v1/queues/a", &body);
        assert_eq!(status, 409, "{told}");
    }

    // Something else in the file changes.
    file(&format!("{}{}", queue("a", "slots 2/1h"), queue("b", "slots 1/1h")));
    assert_eq!(started.reload().0, 200);
    assert_eq!(started.limits("a"), json!(["slots 3/1h"]));
    assert_eq!(started.get("/v1/queues/a").1["file_differs"], true);
    file(&queue("a", "slots 4/1h"));
    assert_eq!(started.reload().0, 200);
    assert_eq!(started.limits("a"), json!(["slots 4/1h"]), "what it says of this queue was edited");
    assert_eq!(started.get("/v1/queues/a").1["file_differs"], false);

    for (body, told) in [
        (json!({"leese": "1s"}), "did you mean lease?"),
        (json!({"group_limits": ["often"]}), "group_limits[0]"),
        (json!({"shared": ["nowhere"]}), "no shared limit nowhere"),
        (json!({"version": "x"}), "version"),
        (json!([1]), "expected an object"),
    ] {
        let (status, problem) = started.ask("PATCH", "/v1/queues/a", &body);
        assert!(status == 400 || status == 404, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(told), "{problem}");
    }
    assert_eq!(started.ask("PATCH", "/v1/queues/nobody", &json!({})).0, 404);
}

#[test]
fn shared_limits_are_made_changed_and_removed_by_calls() {
    let folder = Folder::new("shared-calls");
    let started = start(vec![folder.file("t.toml", TOKEN)], None);
    let put = |limit: &str| started.ask("PUT", "/v1/shared-limits/all", &json!({"limit": limit}));
    assert_eq!(put("concurrent 1").0, 201);
    let body = json!({"shared": ["all"]});
    assert_eq!(started.ask("PUT", "/v1/queues/a", &body).0, 201);
    started.enqueue("a", 5);
    assert_eq!(started.leased("a"), 1);
    let (status, told) = put("concurrent 3");
    assert_eq!(
        (status, &told["limit"], &told["version"]),
        (200, &json!("concurrent 3"), &json!(2))
    );
    assert_eq!(started.leased("a"), 2);
    assert_eq!(started.get("/v1/shared-limits").1["shared_limits"][0]["name"], "all");
    let (status, told) = put("often");
    assert_eq!(status, 400, "{told}");
    let remove = || started.ask("DELETE", "/v1/shared-limits/all", &Value::Null);
    let (status, told) = remove();
    assert!(status == 409 && told["detail"].as_str().unwrap().contains("queue a"), "{told}");
    assert_eq!(started.ask("PATCH", "/v1/queues/a", &json!({"shared": []})).0, 200);
    assert_eq!((remove().0, remove().0), (200, 404));
}

#[test]
fn settings_need_a_token_and_its_role() {
    let folder = Folder::new("queue-roles");
    let open = start(vec![folder.file("open.toml", &queue("a", "slots 2/1h"))], None);
    let check = TOKEN.replace("admin", "check");
    let text = format!("{check}{}", queue("a", "slots 2/1h"));
    let limited = start(vec![folder.file("t.toml", &text)], None);
    for started in [&open, &limited] {
        for (method, path) in [
            ("PUT", "/v1/queues/a"),
            ("PATCH", "/v1/queues/a"),
            ("DELETE", "/v1/queues/a"),
            ("PUT", "/v1/shared-limits/all"),
            ("DELETE", "/v1/shared-limits/all"),
        ] {
            let (status, told) = started.ask(method, path, &json!({}));
            assert_eq!(status, 403, "{method} {path}: {told}");
        }
    }
    assert_eq!(open.limits("a"), json!(["slots 2/1h"]));
}

#[test]
fn a_query_with_an_unknown_parameter_is_refused_by_name() {
    let folder = Folder::new("queue-query");
    let text = format!("{TOKEN}{}", queue("a", "slots 2/1h"));
    let started = start(vec![folder.file("t.toml", &text)], None);
    for (path, told) in [
        ("/dead?group=x", "unknown query parameter group"),
        ("/dead?afer=1", "did you mean after?"),
        ("/peek?max=1&max=2", "max more than once"),
        ("?groups=1", "this path has none"),
        ("/jobs/1?x", "unknown query parameter x"),
    ] {
        let (status, problem) = started.get(&format!("/v1/queues/a{path}"));
        assert_eq!(status, 400, "{path}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(told), "{problem}");
    }
    assert_eq!(started.get("/v1/queues/a/peek?group=x&max=5").0, 200);
}

#[test]
fn of_several_services_on_one_redis_the_newest_change_wins_and_none_by_starting() {
    let Some(redis) = Engine::available().first().map(|engine| RedisServer::start(*engine, &[]))
    else {
        return;
    };
    let store = || Some(redis.url());
    let folder = Folder::new("queue-fleet");
    let old = folder.file("old.toml", &format!("{TOKEN}{}", queue("a", "slots 2/1h")));
    let new = folder.file("new.toml", &format!("{TOKEN}{}", queue("a", "slots 8/1h")));
    let first = start(vec![old.clone()], store());
    assert_eq!(first.limits("a"), json!(["slots 2/1h"]));
    let second = start(vec![new], store());
    assert_eq!(first.limits("a"), json!(["slots 8/1h"]), "what it says is new");
    drop(first);
    let first = start(vec![old.clone()], store());
    assert_eq!(second.limits("a"), json!(["slots 8/1h"]), "an old node has only restarted");
    assert_eq!(first.get("/v1/queues/a").1["file_differs"], true);
    let called = second.ask("PATCH", "/v1/queues/a", &json!({"group_limits": ["slots 5/1h"]}));
    assert_eq!(called.0, 200, "{called:?}");
    assert_eq!((first.reload().0, second.reload().0), (200, 200));
    assert_eq!(first.limits("a"), json!(["slots 5/1h"]), "neither file was edited");
    folder.file("old.toml", &format!("{TOKEN}{}", queue("a", "slots 6/1h")));
    assert_eq!(first.reload().0, 200);
    assert_eq!(second.limits("a"), json!(["slots 6/1h"]));
    let text = format!("{TOKEN}{}revision = \"back\"\n", queue("a", "slots 2/1h"));
    folder.file("old.toml", &text);
    let third = start(vec![old], store());
    assert_eq!(third.limits("a"), json!(["slots 2/1h"]), "a revision makes it new");
}
