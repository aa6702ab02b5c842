//! What a starting service prints: where each front listens, and a command that works there.
//!
//! Every command can be pasted as it is. Secrets come from the environment, certificates that the
//! system may not trust are named, and a certificate for another name is asked for by that name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::json;
use tollway_server::config::Tls;
use tollway_server::{Endpoint, Front, QueuePlan, Rules};

use crate::shell_word::shell_word;

/// What the commands depend on.
#[derive(Clone, Debug)]
pub(super) struct Hints {
    /// What to try.
    pub example: Example,
    /// The certificates, if connections are encrypted.
    pub tls: Option<Tls>,
    /// Whether a token is needed. The environment of whoever types the command has it, under the
    /// name that the service's own has.
    pub has_token: bool,
}

/// What to try on a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Example {
    /// A policy to ask.
    Policy(String),
    /// A queue, if there are no policies.
    Queue(String),
    /// Whether the service answers, if it has neither: descriptors of Envoy are its own matter.
    Readiness,
}

impl Example {
    /// The first policy, or else the first queue.
    pub(super) fn of(rules: &Rules, queues: &QueuePlan) -> Self {
        let policy = rules.rules().first().map(|rule| rule.policy().name().to_owned());
        let queue = queues.queues.first().map(|queue| queue.name.to_string());
        policy.map(Self::Policy).or(queue.map(Self::Queue)).unwrap_or(Self::Readiness)
    }
}

impl Hints {
    /// What has to be in the environment before the commands work.
    pub(super) fn about_tokens(&self) -> String {
        let token = if self.has_token {
            "token   TOLLWAY_TOKEN has to hold a token for these:\n"
        } else {
            ""
        };
        let client = match &self.tls {
            Some(Tls { client_authority: Some(_), .. }) => {
                "client  TOLLWAY_CLIENT_CERT and TOLLWAY_CLIENT_KEY have to name a certificate and \
                 its key for these:\n"
            }
            _ => "",
        };
        format!("{token}{client}")
    }

    /// The lines for a front.
    pub(super) fn of(&self, front: Front, endpoint: &Endpoint) -> String {
        if self.tls.as_ref().is_some_and(|tls| !tls.fronts.contains(&front)) {
            return Self { tls: None, ..self.clone() }.of(front, endpoint);
        }
        match front {
            Front::Http => self.http(endpoint),
            Front::Grpc => self.grpc(endpoint),
            Front::Resp => self.resp(endpoint),
        }
    }

    fn http(&self, endpoint: &Endpoint) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let (body, path) = match &self.example {
            Example::Policy(policy) => {
                (format!(r#"{{"policy":{},"key":"ada"}}"#, json!(policy)), "/v1/check".to_owned())
            }
            Example::Queue(queue) => {
                (r#"{"payload":"hello"}"#.to_owned(), format!("/v1/queues/{queue}/jobs"))
            }
            Example::Readiness => (String::new(), "/readyz".to_owned()),
        };
        let body = match body.as_str() {
            "" => String::new(),
            body => format!("--json {} ", shell_word(body)),
        };
        let token =
            if self.has_token { r#"-H "Authorization: Bearer $TOLLWAY_TOKEN" "# } else { "" };
        let certificates = self.certificates("--");
        let other_name = self.other_name(endpoint);
        // Without tokens a service answers to its own names alone: pages of others must not ask it.
        let named = match (&other_name, self.has_token) {
            (Some(_), false) => "-H 'Host: localhost' ",
            _ => "",
        };
        match endpoint {
            Endpoint::Tcp(address) => {
                let reached = reached(*address);
                let (connect, place) = match other_name {
                    Some(name) => (
                        format!("--connect-to {} ", shell_word(&format!("::{reached}"))),
                        format!("{name}:{}", reached.port()),
                    ),
                    None => (String::new(), reached.to_string()),
                };
                let url = shell_word(&format!("{scheme}://{place}{path}"));
                format!(
                    "page  {endpoint}   {scheme}://{place}/\n\
                     HTTP  {endpoint}   curl {certificates}{connect}{named}{token}{body}{url}\n"
                )
            }
            Endpoint::Unix(socket) => {
                let socket = shell_word(&socket.path.display().to_string());
                let name = other_name.as_deref().unwrap_or("localhost");
                let url = shell_word(&format!("{scheme}://{name}{path}"));
                format!(
                    "HTTP  {endpoint}   curl --unix-socket {socket} {certificates}{named}{token}\
                     {body}{url}\n"
                )
            }
        }
    }

    fn grpc(&self, endpoint: &Endpoint) -> String {
        let service = "envoy.service.ratelimit.v3.RateLimitService";
        let secure = match &self.tls {
            Some(_) => self.certificates("-"),
            None => "-plaintext ".to_owned(),
        };
        let token =
            if self.has_token { r#"-H "authorization: Bearer $TOLLWAY_TOKEN" "# } else { "" };
        let other_name = self.other_name(endpoint);
        let (unix, at) = match endpoint {
            Endpoint::Tcp(address) => ("", reached(*address).to_string()),
            Endpoint::Unix(socket) => ("-unix ", socket.path.display().to_string()),
        };
        let named = match (other_name, unix.is_empty()) {
            (Some(name), _) => format!("-authority {} ", shell_word(&name)),
            (None, false) => "-authority localhost ".to_owned(),
            (None, true) => String::new(),
        };
        let at = shell_word(&at);
        format!("gRPC  {endpoint}   grpcurl {secure}{unix}{named}{token}{at} describe {service}\n")
    }

    fn resp(&self, endpoint: &Endpoint) -> String {
        // From the environment, as redis-cli would warn of one on the command line.
        let token = if self.has_token { r#"REDISCLI_AUTH="$TOLLWAY_TOKEN" "# } else { "" };
        let tls = match &self.tls {
            Some(_) => format!("--tls {}", self.certificates("--")),
            None => String::new(),
        };
        let at = match endpoint {
            Endpoint::Tcp(address) => {
                let reached = reached(*address);
                match reached.ip() {
                    IpAddr::V4(Ipv4Addr::LOCALHOST) => format!("-p {}", reached.port()),
                    ip => format!("-h {ip} -p {}", reached.port()),
                }
            }
            Endpoint::Unix(socket) => {
                format!("-s {}", shell_word(&socket.path.display().to_string()))
            }
        };
        let command = match &self.example {
            Example::Policy(policy) => format!("TOLL.CHECK {} ada", shell_word(policy)),
            Example::Queue(_) | Example::Readiness => "PING".to_owned(),
        };
        format!("RESP  {endpoint}   {token}redis-cli {tls}{at} {command}\n")
    }

    /// The flags that name certificates, each behind `dashes`: curl, redis-cli and grpcurl call
    /// them alike.
    fn certificates(&self, dashes: &str) -> String {
        let Some(tls) = &self.tls else { return String::new() };
        let trusted = shell_word(&tls.certificate.display().to_string());
        let own = match tls.client_authority {
            Some(_) => {
                format!(r#"{dashes}cert "$TOLLWAY_CLIENT_CERT" {dashes}key "$TOLLWAY_CLIENT_KEY" "#)
            }
            None => String::new(),
        };
        format!("{dashes}cacert {trusted} {own}")
    }

    /// A name that the certificate is good for, if it is not good for where clients connect.
    fn other_name(&self, endpoint: &Endpoint) -> Option<String> {
        let tls = self.tls.as_ref()?;
        let (usual, name) = match endpoint {
            Endpoint::Tcp(address) => {
                let usual = reached(*address).ip().to_string();
                let name = tls.name_for(&[&usual]);
                (usual, name)
            }
            Endpoint::Unix(_) => {
                ("localhost".to_owned(), tls.name_for(&["localhost", "127.0.0.1"]))
            }
        };
        name.filter(|name| *name != usual)
    }
}

/// Where a client on this machine connects to.
fn reached(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(hints: &Hints, endpoint: &str) -> String {
        let endpoint: Endpoint = endpoint.parse().expect("a place");
        hints.about_tokens() + &Front::ALL.map(|front| hints.of(front, &endpoint)).concat()
    }

    fn open() -> Hints {
        Hints { example: Example::Policy("api".to_owned()), tls: None, has_token: false }
    }

    #[test]
    fn a_service_that_has_queues_alone_proposes_to_enqueue() {
        let queue = Hints { example: Example::Queue("mail".to_owned()), ..open() };
        let told = told(&queue, "127.0.0.1:8080");
        let command =
            r#"curl --json '{"payload":"hello"}' http://127.0.0.1:8080/v1/queues/mail/jobs"#;
        assert!(told.contains(command), "{told}");
        assert!(!told.contains("/v1/check") && !told.contains("TOLL.CHECK"), "{told}");
    }

    #[test]
    fn commands_are_plain_where_nothing_else_is_needed() {
        let told = told(&open(), "127.0.0.1:8080");
        for command in [
            "   http://127.0.0.1:8080/\n",
            r#"curl --json '{"policy":"api","key":"ada"}' http://127.0.0.1:8080/v1/check"#,
            "grpcurl -plaintext 127.0.0.1:8080 describe",
            "   redis-cli -p 8080 TOLL.CHECK api ada\n",
        ] {
            assert!(told.contains(command), "{command}\n{told}");
        }
    }

    #[test]
    fn commands_say_what_certificates_and_tokens_need() {
        let tls = Tls {
            certificate: "/etc/my certs/chain.pem".into(),
            key: "/etc/key.pem".into(),
            client_authority: Some("/etc/ca.pem".into()),
            client_name: None,
            client_optional: false,
            fronts: Front::ALL.to_vec(),
        };
        let told = told(&Hints { tls: Some(tls), has_token: true, ..open() }, "192.0.2.1:8080");
        for command in [
            "https://192.0.2.1:8080/\n",
            "curl --cacert '/etc/my certs/chain.pem' --cert \"$TOLLWAY_CLIENT_CERT\" \
             --key \"$TOLLWAY_CLIENT_KEY\" -H \"Authorization: Bearer $TOLLWAY_TOKEN\" --json",
            "grpcurl -cacert '/etc/my certs/chain.pem' -cert",
            r#"-H "authorization: Bearer $TOLLWAY_TOKEN" 192.0.2.1:8080 describe"#,
            r#"REDISCLI_AUTH="$TOLLWAY_TOKEN" redis-cli --tls --cacert '/etc/my certs/chain.pem'"#,
            r#"--key "$TOLLWAY_CLIENT_KEY" -h 192.0.2.1 -p 8080"#,
            "TOLLWAY_TOKEN has to hold",
            "TOLLWAY_CLIENT_KEY have to name",
        ] {
            assert!(told.contains(command), "{command}\n{told}");
        }
        assert!(!told.contains("http://") && !told.contains("-plaintext"), "{told}");
    }

    #[test]
    fn a_unix_socket_is_named_by_its_path() {
        let told = told(&open(), "unix:/run/t.sock?mode=0660");
        for command in [
            "curl --unix-socket /run/t.sock --json",
            "grpcurl -plaintext -unix -authority localhost /run/t.sock describe",
            "redis-cli -s /run/t.sock TOLL.CHECK",
        ] {
            assert!(told.contains(command), "{command}\n{told}");
        }
        assert!(!told.contains("mode="), "{told}");
    }

    #[test]
    fn a_place_that_takes_every_address_is_reached_on_this_machine() {
        let told_v4 = told(&open(), "0.0.0.0:8080");
        assert!(told_v4.contains(" http://127.0.0.1:8080/v1/check"), "{told_v4}");
        assert!(told_v4.contains("redis-cli -p 8080"), "{told_v4}");
        let told_v6 = told(&open(), "[::]:8080");
        assert!(told_v6.contains(" 'http://[::1]:8080/v1/check'"), "{told_v6}");
        assert!(told_v6.contains("redis-cli -h ::1 -p 8080"), "{told_v6}");
    }

    #[test]
    fn a_service_of_descriptors_alone_is_asked_whether_it_is_ready() {
        let told = told(&Hints { example: Example::Readiness, ..open() }, "127.0.0.1:8080");
        assert!(told.contains("curl http://127.0.0.1:8080/readyz\n"), "{told}");
        assert!(told.contains("redis-cli -p 8080 PING"), "{told}");
    }
}
