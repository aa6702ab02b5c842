use super::*;

fn plan(variables: &[(&str, &str)]) -> Result<StartSettings, ConfigError> {
    let lookup = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    read(&lookup)
}

fn value(variables: &[(&str, &str)]) -> Value {
    plan(variables).unwrap().given[0].value.clone()
}

#[test]
fn without_variables_it_listens_where_ratelimit_does() {
    let value = value(&[]);
    let listen = json!({
        "http": "0.0.0.0:8080",
        "grpc": "0.0.0.0:8081",
        "resp": "off",
        "public": true,
        "more_http": ["0.0.0.0:6070"],
    });
    assert_eq!(value["listen"], listen);
    assert_eq!(value["limits"], json!({"grpc_age": "86400000ms", "grpc_age_grace": "3600000ms"}));
    assert_eq!((&value["tls"], &value["store"]), (&Value::Null, &Value::Null));
    let plan = plan(&[]).unwrap();
    assert_eq!(plan.files, [Path::new("/srv/runtime_data/current/config")]);
    assert_eq!(plan.notes, ["REDIS_URL is not set: counts are kept in this process"]);
    assert_eq!(plan.log_level.as_deref(), Some("warn"));
}

/// What Envoy Gateway hard-wires in the deployment that it creates.
#[test]
fn the_environment_of_envoy_gateway_is_understood() {
    let variables = [
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
        ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis.redis-system.svc.cluster.local:6379"),
        ("REDIS_TLS", "true"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":19001"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
        ("TRACING_ENABLED", "true"),
        ("TRACING_SAMPLING_RATE", "0.1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
    ];
    let plan = plan(&variables).unwrap();
    let value = &plan.given[0].value;
    assert_eq!(value["listen"]["more_http"], json!(["0.0.0.0:6070", "0.0.0.0:19001"]));
    assert_eq!(value["store"], "rediss://redis.redis-system.svc.cluster.local:6379");
    let tls = json!({
        "certificate": "/certs/tls.crt",
        "key": "/certs/tls.key",
        "client_authority": "/certs/ca.crt",
        "client_optional": true,
        "fronts": ["grpc"],
    });
    assert_eq!(value["tls"], tls);
    let xds = json!({
        "server": "https://envoy-gateway:18001",
        "node": "envoy-ratelimit",
        "certificate": "/certs/tls.crt",
        "key": "/certs/tls.key",
        "authority": "/certs/ca.crt",
        "start_without": true,
        "reconnect_after": "10000ms",
        "reconnect_max": "60000ms",
    });
    assert_eq!(value["xds"], xds);
    assert!(plan.files.is_empty());
    let tracing = plan.tracing.unwrap();
    assert_eq!((&*tracing.collector, tracing.every), ("http://collector:4318", 10));
    let said = |name: &str| plan.notes.iter().any(|note| note.starts_with(name));
    assert!(said("RUNTIME_WATCH_ROOT") && said("PROMETHEUS_MAPPER_YAML"), "{:?}", plan.notes);
}

#[test]
fn a_client_certificate_is_required_by_ratelimits_own_variable() {
    let value = value(&[
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "c"),
        ("GRPC_SERVER_TLS_KEY", "k"),
        ("GRPC_SERVER_TLS_CA_CERT", "other"),
        ("GRPC_CLIENT_TLS_CACERT", "ca"),
        ("GRPC_CLIENT_TLS_SAN", "envoy.example"),
    ]);
    let tls = &value["tls"];
    assert_eq!(
        (&tls["client_authority"], &tls["client_name"]),
        (&json!("ca"), &json!("envoy.example"))
    );
    assert_eq!(tls["client_optional"], Value::Null);
}

#[test]
fn what_would_limit_otherwise_than_meant_is_an_error_that_names_the_variable() {
    for (variable, found) in [
        ("BACKEND_TYPE", "memcache"),
        ("CONFIG_TYPE", "CONSUL"),
        ("GRPC_PORT", "99999"),
        ("SHADOW_MODE", "on"),
        ("LOG_LEVEL", "loud"),
        ("GRPC_MAX_CONNECTION_AGE", "1 day"),
    ] {
        let told = plan(&[(variable, found)]).map(drop).unwrap_err().to_string();
        let start = format!("environment: {variable}: found {found:?}, expected ");
        assert!(told.starts_with(&start), "{told}");
    }
}
