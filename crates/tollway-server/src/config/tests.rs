use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::metrics::Metrics;
use crate::rules::Treatment;
use tollway_core::{Algorithm, Cost, OnStoreError};

fn load(name: &str, text: &str) -> Result<Config, Mistakes> {
    load_with(name, text, &Overrides::default())
}

fn load_with(name: &str, text: &str, overrides: &Overrides) -> Result<Config, Mistakes> {
    Config::from_texts(&[(name.to_owned(), text.to_owned())], overrides, &Metrics::default())
}

#[test]
fn without_files_there_is_an_example_on_loopback() {
    let config = Config::from_texts(&[], &Overrides::default(), &Metrics::default()).unwrap();
    assert!(config.rules.rule("example").is_some());
    assert_eq!(config.listen.http.unwrap().to_string(), "127.0.0.1:8080");
    assert_eq!(config.listen.grpc.unwrap().to_string(), "127.0.0.1:8081");
    assert_eq!(config.listen.resp.unwrap().to_string(), "127.0.0.1:6380");
}

#[test]
fn what_happens_when_memory_is_full_is_settable_and_a_flag_beats_the_file() {
    use tollway_memory::WhenFull;
    let when_full = |text: &str, flag: Option<&str>| {
        let overrides = Overrides { when_full: flag.map(str::to_owned), ..Overrides::default() };
        load_with("a.toml", text, &overrides).map(|config| config.when_full)
    };
    assert_eq!(when_full("", None).unwrap(), WhenFull::Deny);
    assert_eq!(when_full("when_full = \"forget\"", None).unwrap(), WhenFull::Forget);
    assert_eq!(when_full("when_full = \"forget\"", Some("deny")).unwrap(), WhenFull::Deny);
    let wrong = when_full("when_full = \"evict\"", None).unwrap_err().to_string();
    assert_eq!(
        wrong,
        "a.toml:1: when_full: unknown choice \"evict\"; expected one of deny, forget"
    );
    let wrong = when_full("", Some("evict")).unwrap_err().to_string();
    assert!(wrong.contains("expected one of deny, forget"), "{wrong}");
    let lookup = |name: &str| (name == "TOLLWAY_WHEN_FULL").then(|| "forget".to_owned());
    let overrides = Overrides::from_env(lookup).unwrap();
    assert_eq!(load_with("a.toml", "", &overrides).unwrap().when_full, WhenFull::Forget);
}

#[test]
fn toml_and_yaml_say_the_same() {
    let toml = r#"
        [[policies]]
        name = "api"
        quota = "100/1m burst 20"
        on_store_error = "allow"
        allow_at_most = "5s"
        overrides = [{ key = "vip-*", quota = "1000/1m" }]
        banned = ["mallory"]
        [[policies]]
        name = "jobs"
        algorithm = "concurrency"
        limit = 4
        lease = "30s"
    "#;
    let yaml = r#"
policies:
  - name: api
    quota: 100/1m burst 20
    on_store_error: allow
    allow_at_most: 5s
    overrides: [{key: vip-*, quota: 1000/1m}]
    banned: [mallory]
  - name: jobs
    algorithm: concurrency
    limit: 4
    lease: 30s
"#;
    for (name, text) in [("t.toml", toml), ("t.yaml", yaml)] {
        let config = load(name, text).unwrap();
        let rules = &config.rules;
        let ask = |key: &'static [u8]| rules.ask_named(b"api", key, Cost::ONE).unwrap();
        assert_eq!(ask(b"ada").charge.policy.algorithm().limit(), 20);
        assert_eq!(ask(b"vip-1").charge.policy.algorithm().limit(), 1000);
        assert_eq!(ask(b"mallory").treatment, Treatment::Ban);
        let on_store_error = ask(b"vip-1").charge.policy.store_error();
        let at_most = std::time::Duration::from_secs(5);
        assert_eq!(on_store_error, OnStoreError::Allow { at_most });
        let jobs = rules.rule("jobs").unwrap().policy();
        assert!(matches!(jobs.algorithm(), Algorithm::Concurrency(_)));
    }
}

#[test]
fn every_error_names_file_line_and_field_and_what_would_be_right() {
    for (name, text, expected) in [
        (
            "a.toml",
            "[[policies]]\nname = \"api\"\nquota = \"100/1x\"\n",
            "a.toml:3: policies[0].quota: \"100/1x\" is not a quota: at character 6: expected a unit: \
             ns, us, ms, s, m, h, d or w; expected for example 100/1m burst 20",
        ),
        (
            "a.toml",
            "[[policies]]\nname = \"api\"\nquota = \"100/month tz Europe/Berln\"\n",
            "a.toml:3: policies[0].quota: \"100/month tz Europe/Berln\" is not a calendar window: \
             at character 14: unknown time zone \"Europe/Berln\"; did you mean \"Europe/Berlin\"?; \
             expected for example 10000/month tz Europe/Berlin anchor 15",
        ),
        (
            "edge.yaml",
            "domain: edge\ndescriptors:\n  - key: path\n    share_threshold: true\n",
            "edge.yaml:4: descriptors[0].share_threshold: is for values with a wildcard; expected a \
             value with * in it",
        ),
        (
            "edge.yaml",
            "domain: edge\ndescriptors:\n  - key: path\n  - key: path\n    value: ''\n",
            "edge.yaml:4: descriptors[1]: the same key and value stand here twice",
        ),
        (
            "a.yaml",
            "policies:\n  - name: api\n    quota: 1/month\n    overrides:\n      - key: x\n        \
             quota: 1/year anchor 02-30\n",
            "a.yaml:6: policies[0].overrides[0].quota: \"1/year anchor 02-30\" is not a calendar \
             window: at character 15: \"02-30\" never comes: month 2 has 29 days; expected for \
             example 10000/month tz Europe/Berlin anchor 15",
        ),
        (
            "a.toml",
            "[[policies]]\nname = \"api\"\nquota = \"1/hour anchor 15\"\n",
            "a.toml:3: policies[0].quota: \"1/hour anchor 15\" is not a calendar window: at \
             character 15: an hour has no anchor: it begins when it is full; expected for example 10000/month \
             tz Europe/Berlin anchor 15",
        ),
        (
            "a.toml",
            "[[policies]]\nname = \"api\"\nalgorithm = \"gcra\"\nquota = \"1/month\"\n",
            "a.toml:4: policies[0].quota: \"1/month\" is not a quota: at character 3: expected a \
             unit: ns, us, ms, s, m, h, d or w; a civil unit needs algorithm = \"calendar-window\"",
        ),
        (
            "a.yaml",
            "policies:\n  - name: api\n    quota: 1/s\n    burst: 5\n",
            "a.yaml:4: policies[0].burst: unknown field; known are: name, algorithm, quota, \
             allow_at_most, shares, on_store_error, reservation_ttl, on_expiry, on_change, shadow, \
             overrides, unlimited, banned, gate_key, split, durable, keep",
        ),
        (
            "a.toml",
            "[[policies]]\nname = \"api\"\nquotas = \"1/s\"\n",
            "a.toml:3: policies[0].quotas: unknown field; did you mean quota?",
        ),
        (
            "a.toml",
            "shadow = true\n[[polices]]\nname = \"x\"\n",
            "a.toml:2: polices: unknown field; did you mean policies?",
        ),
        ("a.toml", "shadow = \"yes\"\n", "a.toml:1: shadow: expected true or false, found text"),
        (
            "a.toml",
            "log = \"text\"\n[listen]\nhttp = \"127.=.0.1:80\"\n",
            "a.toml:3: listen.http: \"127.=.0.1:80\" is not an address to listen on; expected \
             127.0.0.1:8080, [::1]:8080 or unix:/run/tollway.sock",
        ),
        (
            "a.toml",
            "log = \"xml\"\n",
            "a.toml:1: log: unknown log format \"xml\"; expected one of text, json",
        ),
        (
            "a.toml",
            "[limits]\nslow_client = 10\n",
            "a.toml:2: limits.slow_client: at character 3: expected a unit: ns, us, ms, s, m, h, d \
             or w; expected for example 10s or 1h30m",
        ),
        (
            "a.toml",
            "[[policies]]\nname = \"a\"\nquota = \"1/s\"\n[[policies]]\nname = \"a\"\nquota = \"2/s\"\n",
            "a.toml:4: policies[1]: a policy named \"a\" is defined above",
        ),
        (
            "e.yaml",
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: fortnight\n      requests_per_unit: 5\n",
            "e.yaml:5: descriptors[0].rate_limit.unit: expected second, minute, hour, day, \
             week, month or year",
        ),
        (
            "e.yaml",
            "domain: d\ndescriptors:\n  - key: k\n    rate_limits: {}\n",
            "e.yaml:4: descriptors[0].rate_limits: unknown field; did you mean rate_limit?",
        ),
    ] {
        assert_eq!(load(name, text).unwrap_err().to_string(), expected);
    }
    let first = |name, text| load(name, text).unwrap_err().told()[0].clone();
    let broken = first("b.toml", "a = 1\nb = \n");
    assert_eq!((broken.line, broken.source.as_str()), (2, "b.toml"));
    let broken = first("b.yaml", "a: [1\nb: 2\n");
    assert!(broken.line > 0 && broken.problem.starts_with("not valid YAML"), "{broken}");
}

#[test]
fn a_flag_beats_the_environment_beats_the_file() {
    let file = "[listen]\nhttp = \"127.0.0.1:1\"\ngrpc = \"127.0.0.1:2\"\nresp = \"127.0.0.1:3\"\n";
    let environment = Overrides::from_env(|name| match name {
        "TOLLWAY_GRPC" => Some("127.0.0.1:22".to_owned()),
        "TOLLWAY_RESP" => Some("127.0.0.1:33".to_owned()),
        "TOLLWAY_WORKERS" => Some("3".to_owned()),
        _ => None,
    });
    let flags = Overrides { resp: Some("off".to_owned()), ..Overrides::default() };
    let config = load_with("a.toml", file, &flags.over(environment.unwrap())).unwrap();
    assert_eq!(config.listen.http.unwrap().to_string(), "127.0.0.1:1");
    assert_eq!(config.listen.grpc.unwrap().to_string(), "127.0.0.1:22");
    assert_eq!(config.listen.resp, None);
    assert_eq!(config.workers, 3);
    let wrong =
        Overrides::from_env(|name| (name == "TOLLWAY_WORKERS").then(|| "s3cret".to_owned()));
    let wrong = wrong.unwrap_err().to_string();
    assert!(!wrong.contains("s3cret") && wrong.contains("TOLLWAY_WORKERS"), "{wrong}");
}

#[test]
fn lists_of_several_files_add_up() {
    let file = |key: &str| (format!("{key}.toml"), format!("[lists]\nbanned = [\"{key}\"]\n"));
    let api = "[[policies]]\nname = \"api\"\nquota = \"1/s\"\n".to_owned();
    let texts = [file("one"), file("two"), ("api.toml".to_owned(), api)];
    let config = Config::from_texts(&texts, &Overrides::default(), &Metrics::default()).unwrap();
    let treatment = |key| config.rules.ask_named(b"api", key, Cost::ONE).unwrap().treatment;
    let is_banned = |key: &'static [u8]| treatment(key) == Treatment::Ban;
    assert!(is_banned(b"one") && is_banned(b"two") && !is_banned(b"three"));
}

#[test]
fn nothing_is_open_to_others_without_a_token_or_saying_so() {
    let open = Overrides { http: Some("0.0.0.0:8080".to_owned()), ..Overrides::default() };
    let refused = load_with("a.toml", "", &open).unwrap_err().to_string();
    assert!(refused.contains("0.0.0.0:8080 can be reached from other machines"), "{refused}");
    let said = Overrides { listen_public: Some(true), ..open.clone() };
    assert!(load_with("a.toml", "", &said).is_ok());
    let token = Overrides { token: Some("t".to_owned()), ..open.clone() };
    assert!(load_with("a.toml", "", &token).is_ok());
    assert!(load_with("a.toml", "tokens = [{ token = \"t\", role = \"read\" }]", &open).is_ok());
}

#[test]
fn envoys_own_file_is_read_as_it_is() {
    let yaml = r#"
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 500}
  - key: database
    value: default
    shadow_mode: true
    detailed_metric: true
    rate_limit:
      name: default_db
      unit: week
      requests_per_unit: 5
      replaces: [{name: other}]
    descriptors:
      - key: user
        rate_limit: {unlimited: true}
  - key: zero
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: burst
    quota: 10/30s burst 3
    metadata: {a: b}
"#;
    let config = load("envoy.yaml", yaml).unwrap();
    let domain = config.rules.domain("mongo_cps").unwrap();
    let limit = |entries: &[(&str, &str)]| domain.find(entries).unwrap().limit;
    assert_eq!(limit(&[("database", "users")]).policy.as_ref().unwrap().algorithm().limit(), 500);
    let default = limit(&[("database", "default")]);
    assert!(default.shadow && !default.quota_mode);
    assert_eq!(default.name.as_deref(), Some("default_db"));
    assert_eq!(default.replaces, ["other"]);
    assert!(limit(&[("database", "default"), ("user", "x")]).policy.is_none());
    assert!(limit(&[("zero", "x")]).deny_all && limit(&[("zero", "x")]).quota_mode);
    assert_eq!(limit(&[("burst", "x")]).policy.as_ref().unwrap().algorithm().limit(), 3);
    assert_eq!(limit(&[("burst", "x")]).metadata["a"], "b");
    let counted_as = |value: &str| domain.find(&[("database", value)]).unwrap().counted_as;
    assert_eq!(counted_as("default").as_deref(), Some("database_default"));
    assert_eq!((counted_as("users"), config.notes.len()), (None, 0));
}

/// As `MERGE_DOMAIN_CONFIG` of envoyproxy/ratelimit has it.
#[test]
fn files_may_give_one_domain_together_if_that_is_said() {
    let file = |key: &str| {
        format!(
            "domain: d\ndescriptors:\n  - key: {key}\n    \
             rate_limit: {{unit: day, requests_per_unit: 1}}\n"
        )
    };
    let load = |first: &str, keys: [&str; 2]| {
        let [one, other] = keys.map(file);
        let texts = [("t.toml", first), ("a.yaml", &*one), ("b.yaml", &*other)];
        let texts = texts.map(|(name, text)| (name.to_owned(), text.to_owned()));
        Config::from_texts(&texts, &Overrides::default(), &Metrics::default())
    };
    let told = load("", ["a", "b"]).unwrap_err().to_string();
    let expected = "b.yaml:1: a domain named \"d\" is defined above; \
                    merge_domains = true puts both together";
    assert_eq!(told, expected);
    let merged = load("merge_domains = true", ["a", "b"]).unwrap();
    let domain = merged.rules.domain("d").unwrap();
    let has = |key: &str| domain.find(&[(key, "x")]).is_some();
    assert_eq!((merged.rules.domains().count(), has("a"), has("b")), (1, true, true));
    let twice = load("merge_domains = true", ["a", "a"]).unwrap_err().to_string();
    assert_eq!(twice, "b.yaml:3: descriptors[0]: the same key and value stand here twice");
}

#[test]
fn the_examples_in_the_repository_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "toml" || end == "yaml"));
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let loaded = Config::load(&[file], &Overrides::default(), &Metrics::default());
        assert!(loaded.is_ok(), "{}", loaded.unwrap_err());
    }
}

#[test]
fn every_mistake_is_told_in_one_reading() {
    let text = r#"store = "memcached://cache"
workers = "two"
[limits]
pipeline = 0
slow = "1s"
[[policies]]
name = "a"
quota = "1/x"
on_store_error = "panic"
brust = 4
[[policies]]
algorithm = "gcrra"
quota = "1/s"
overrides = [{ key = "k", qouta = "1/s" }]
[[policies]]
name = "b"
quota = "1/s"
[[policies]]
name = "b"
quota = "1/s"
[[queues]]
name = "q"
lease = "never"
shared = ["nowhere"]
[[tokens]]
role = "king"
token = "t"
[[domains]]
domain = ""
descriptors = [{ key = "k", rate_limit = { unit = "eon", requests_per_unit = -1 } }]
"#;
    let told = load("a.toml", text).unwrap_err();
    let fields: Vec<_> = told.told().iter().map(|it| (it.line, it.field.as_str())).collect();
    let expected = [
        (8, "policies[0].quota"),
        (9, "policies[0].on_store_error"),
        (10, "policies[0].brust"),
        (11, "policies[1]"),
        (12, "policies[1].algorithm"),
        (14, "policies[1].overrides[0].qouta"),
        (18, "policies[3]"),
        (29, "domains[0].domain"),
        (30, "domains[0].descriptors[0].rate_limit.unit"),
        (30, "domains[0].descriptors[0].rate_limit.requests_per_unit"),
        (1, "store"),
        (2, "workers"),
        (23, "queues[0].lease"),
        (21, "queues[0]"),
        (3, "limits"),
        (5, "limits.slow"),
        (26, "tokens[0].role"),
    ];
    assert_eq!(fields, expected, "{told}");
    assert!(
        told.brief().ends_with("(and 16 more; tollway validate tells all)"),
        "{}",
        told.brief()
    );
}

#[test]
fn mistakes_without_end_are_counted_and_not_all_told() {
    let text = "[[policies]]\nname = \"\"\n".repeat(1_000);
    let told = load("a.toml", &text).unwrap_err();
    assert_eq!((told.told().len(), told.count()), (Mistakes::TOLD_MAX, 1_000), "{told}");
    assert!(told.to_string().ends_with("\nand 950 more"));
}

#[test]
fn mistakes_in_envoys_own_file_are_told_as_its_users_know_them() {
    let limit = "descriptors:\n  - key: k\n    rate_limit: {unit: day, requestsperunit: 5}\n";
    for (text, expected) in [
        (
            format!("domain: d\n{limit}"),
            "e.yaml:4: descriptors[0].rate_limit.requestsperunit: \
          unknown field; did you mean requests_per_unit?",
        ),
        ("domain:\ndescriptors: []\n".to_owned(), "e.yaml:1: domain: must not be empty"),
        ("domain: \"\"\n".to_owned(), "e.yaml:1: domain: must not be empty"),
        ("descriptors: []\n".to_owned(), "e.yaml:1: domain is missing"),
    ] {
        assert_eq!(load("e.yaml", &text).unwrap_err().to_string(), expected);
    }
}

/// A file of so many policies, queues or descriptors, as it would be written by a program.
fn long_file(kind: &str, count: usize) -> (String, String) {
    let entries = (0..count).map(|n| match kind {
        "policies.toml" => format!("[[policies]]\nname = \"p{n}\"\nquota = \"1/s\"\n"),
        "queues.toml" => format!("[[queues]]\nname = \"q{n}\"\nlease = \"9s\"\n"),
        "policies.yaml" => format!("  - name: p{n}\n    quota: 1/s\n"),
        "wildcards.yaml" => format!("  - key: k\n    value: v{n}-*\n    quota: 1/s\n"),
        _ => format!(
            "  - key: k\n    value: v{n}\n    rate_limit: {{unit: day, requests_per_unit: 5}}\n"
        ),
    });
    let head = match kind {
        "policies.yaml" => "policies:\n",
        "envoy.yaml" | "wildcards.yaml" => "domain: d\ndescriptors:\n",
        _ => "",
    };
    (kind.to_owned(), head.to_owned() + &entries.collect::<String>())
}

#[test]
fn reading_costs_in_proportion_to_the_file() {
    for kind in ["policies.toml", "queues.toml", "policies.yaml", "envoy.yaml", "wildcards.yaml"] {
        let cost = |count: usize| {
            let file = long_file(kind, count);
            work::of(|| {
                let (overrides, metrics) = (Overrides::default(), Metrics::default());
                let loaded = Config::from_texts(&[file], &overrides, &metrics);
                assert!(loaded.is_ok(), "{}", loaded.unwrap_err());
            })
        };
        let (short, long) = (cost(1_000), cost(10_000));
        // Ten times the file; the rest is for the logarithm of a search among lines.
        assert!(long <= 15 * short, "{kind}: {short} steps for 1,000 and {long} for 10,000");
    }
}

proptest! {
    #![proptest_config(crate::testing::proptests::cases(500))]

    #[test]
    fn random_and_mangled_files_are_refused_or_read_but_never_panic(
        noise in "\\PC{0,60}",
        at in any::<prop::sample::Index>(),
        cut in 0usize..20,
        is_yaml in any::<bool>(),
    ) {
        let toml = "shadow = true\n[[policies]]\nname = \"api\"\nquota = \"1/s\"\n[lists]\nbanned = [\"x\"]\n";
        let yaml = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 5}\n";
        let (name, text) = if is_yaml { ("x.yaml", yaml) } else { ("x.toml", toml) };
        let at = at.index(text.len());
        let end = text.len().min(at + cut);
        let mangled = format!("{}{noise}{}", &text[..at], &text[end..]);
        let _ = load(name, &mangled);
        let _ = load(name, &noise);
    }
}

#[test]
fn numbers_that_make_no_bucket_are_told_of_the_table_and_add_no_field_without_a_name() {
    let text = "[[policies]]\nname = \"a\"\nalgorithm = \"leaky-bucket\"\nsize = 0\n\
                drip_interval = \"1s\"\nwrong_field = 1\n";
    let error = load("a.toml", text).unwrap_err().to_string();
    assert!(error.contains("policies[0]: size must be between 1 and"), "{error}");
    assert!(!error.contains(", ,") && !error.contains("are: ,"), "{error}");
}

#[test]
fn an_override_is_of_its_policys_algorithm_and_takes_what_it_does_not_give() {
    let toml = r#"
        [[policies]]
        name = "uploads"
        algorithm = "leaky-bucket"
        size = 10
        drip_interval = "1s"
        overrides = [
            { key = "big-*", size = 50 },
            { key = "fast-*", drip_size = 5, drip_interval = "2s" },
            { key = "half-*", factor = 2 },
            { key = "other-*", algorithm = "gcra", quota = "7/1m" },
        ]
        [[policies]]
        name = "rps"
        algorithm = "sliding-window"
        quota = "5/1s"
        buckets = 10
        overrides = [{ key = "*", quota = "9/1s" }]
    "#;
    let config = load("a.toml", toml).unwrap();
    let limit = |policy: &[u8], key: &'static [u8]| {
        let ask = config.rules.ask_named(policy, key, Cost::ONE).unwrap();
        let algorithm = ask.charge.policy.algorithm();
        format!("{} {algorithm}", algorithm.label())
    };
    assert_eq!(limit(b"uploads", b"ada"), "leaky-bucket 10 in all, 1/1s");
    assert_eq!(limit(b"uploads", b"big-1"), "leaky-bucket 50 in all, 1/1s");
    assert_eq!(limit(b"uploads", b"fast-1"), "leaky-bucket 10 in all, 5/2s");
    assert_eq!(limit(b"uploads", b"half-1"), "leaky-bucket 5 in all, 1/2s");
    assert_eq!(limit(b"uploads", b"other-1"), "gcra 7/1m");
    let rps = config.rules.ask_named(b"rps", b"k", Cost::ONE).unwrap();
    let Algorithm::SlidingWindow(window) = rps.charge.policy.algorithm() else { panic!() };
    assert_eq!((window.limit(), window.buckets()), (9, 10));
}

#[test]
fn what_is_wrong_with_an_override_or_a_legacy_limit_is_told_where_it_stands() {
    let leaky = "[[policies]]\nname = \"up\"\nalgorithm = \"leaky-bucket\"\nsize = 10\n\
                 drip_interval = \"1s\"\n";
    for (text, expected) in [
        (
            format!("{leaky}overrides = [{{ key = \"a\" }}]\n"),
            "a.toml:6: policies[0].overrides[0]: size is missing",
        ),
        (
            format!("{leaky}overrides = [{{ key = \"a\", size = 0 }}]\n"),
            "a.toml:6: policies[0].overrides[0]: size must be between 1 and 999999999999999",
        ),
        (
            format!("{leaky}overrides = [{{ key = \"a\", size = 3, quota = \"1/s\" }}]\n"),
            "a.toml:6: policies[0].overrides[0].quota: unknown field; known are: key, size, \
             drip_size, drip_interval, factor",
        ),
        (
            format!("{leaky}overrides = [{{ key = \"a\", factor = 0 }}]\n"),
            "a.toml:6: policies[0].overrides[0].factor: expected a number above 0 with at most 9 \
             decimals, such as 0.5, or 1/3",
        ),
        (
            "[[policies]]\nname = \"up\"\nalgorithm = \"legacy\"\nmax = 10\n".to_owned(),
            "a.toml:1: policies[0]: duration is missing",
        ),
        (
            "[[policies]]\nname = \"up\"\nalgorithm = \"legacy\"\nmin_interval = \"1500us\"\n"
                .to_owned(),
            "a.toml:4: policies[0].min_interval: expected whole milliseconds",
        ),
        (
            "[[policies]]\nname = \"api\"\nquota = \"3/1s\"\nsplit = 4\n".to_owned(),
            "a.toml:4: policies[0].split: 4 parts of a limit of 3: one has no units",
        ),
    ] {
        assert_eq!(load("a.toml", &text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn split_keys_are_for_redis_and_elsewhere_the_reader_is_told() {
    let text = "[[policies]]\nname = \"api\"\nquota = \"100/1s\"\nsplit = 4\n";
    let config = load("a.toml", text).unwrap();
    let told: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
    let note = "a.toml:4: policies[0].split: has no effect: only a store on Redis or Valkey splits \
                keys";
    assert_eq!(told, [note]);
    let splits: Vec<_> = config.rules.splits().map(|(name, parts)| (name, parts.get())).collect();
    assert_eq!(splits, [("api", 4)]);
    let config = load("a.toml", &format!("store = \"redis://127.0.0.1\"\n{text}")).unwrap();
    assert!(config.notes.is_empty());
}

#[test]
fn a_control_plane_is_read_with_all_that_may_be_said_of_it() {
    let text = r#"
        [xds]
        server = "https://envoy-gateway:18001"
        node = "envoy-ratelimit"
        authority = "ca.crt"
        certificate = "tls.crt"
        key = "tls.key"
        server_name = "control"
        metadata = { zone = "a" }
        headers = { authorization = "Bearer s3cret" }
        message_bytes = "8MiB"
        reconnect_after = "1s"
        reconnect_max = "1m"
        keepalive = "10m"
        start_without = true
    "#;
    let xds = load("a.toml", text).unwrap().xds.unwrap();
    assert_eq!((xds.server.port_u16(), xds.node.as_str()), (Some(18_001), "envoy-ratelimit"));
    assert_eq!((xds.message_bytes_max, xds.start_without), (8 << 20, true));
    let shown = format!("{xds:?} {:?}", xds.headers);
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(load("a.toml", "").unwrap().xds.is_none());
}

#[test]
fn what_is_wrong_with_a_control_plane_is_told_where_it_stands() {
    let good = "server = \"http://h:1\"\nnode = \"n\"\n";
    let tls = "server = \"https://h:1\"\nnode = \"n\"\n";
    for (text, expected) in [
        ("node = \"n\"".to_owned(), "a.toml:1: xds: server is missing"),
        ("server = \"http://h:1\"".to_owned(), "a.toml:1: xds: node is missing"),
        (good.replace("\"n\"", "\"\""), "a.toml:3: xds.node: must not be empty"),
        (good.replace("http://h:1", "h:1"), "a.toml:2: xds.server: expected http://host:port"),
        (good.replace("http://h:1", "http://h"), "xds.server: expected http://host:port"),
        (good.replace("h:1", "u:s3cret@h:1"), "xds.server: expected http://host:port"),
        (good.replace("h:1", "h:1/x"), "xds.server: expected http://host:port"),
        (good.replace("http:", "redis:"), "xds.server: expected http://host:port"),
        (format!("{good}authority = \"ca\""), "xds.authority: is for TLS"),
        (format!("{tls}key = \"k\""), "a.toml:1: xds: certificate and key go together"),
        (format!("{good}headers = {{ te = \"x\" }}"), "a.toml:4: xds.headers.te: is gRPC's own"),
        (format!("{good}headers = {{ \"a b\" = \"x\" }}"), "is no name of a header field"),
        (format!("{good}message_bytes = \"1KiB\""), "xds.message_bytes: 1024 bytes is out of"),
        (format!("{good}reconnect_after = \"1m\"\nreconnect_max = \"1s\""), "is shorter than"),
        (format!("{good}keepalive = \"0s\""), "a.toml:4: xds.keepalive: "),
        (format!("{good}nodes = \"x\""), "a.toml:4: xds.nodes: unknown field; did you mean node?"),
    ] {
        let told = load("a.toml", &format!("[xds]\n{text}")).unwrap_err().to_string();
        assert!(told.contains(expected) && !told.contains("s3cret"), "{text}: {told}");
    }
}
