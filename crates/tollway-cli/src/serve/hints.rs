//! What a starting service prints: where each front listens, and a command that works there.

use tollway_server::{Endpoint, Front};

/// What the commands depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hints<'a> {
    /// A policy to ask.
    pub policy: &'a str,
    /// A queue to try instead, if there are no policies.
    pub queue: Option<&'a str>,
    /// Whether connections are encrypted.
    pub has_tls: bool,
    /// Whether a token is needed. The environment of whoever types the command has it, under the
    /// name that the service's own has.
    pub has_token: bool,
}

impl Hints<'_> {
    /// The lines for a front.
    pub(super) fn of(self, front: Front, endpoint: &Endpoint) -> String {
        match front {
            Front::Http => self.http(endpoint),
            Front::Grpc => self.grpc(endpoint),
            Front::Resp => self.resp(endpoint),
        }
    }

    fn http(self, endpoint: &Endpoint) -> String {
        let scheme = if self.has_tls { "https" } else { "http" };
        let (body, path) = match self.queue {
            Some(queue) => {
                (r#"{"payload":"hello"}"#.to_owned(), format!("/v1/queues/{queue}/jobs"))
            }
            None => {
                let body = format!(r#"{{"policy":"{}","key":"ada"}}"#, self.policy);
                (body, "/v1/check".to_owned())
            }
        };
        let token =
            if self.has_token { r#"-H "Authorization: Bearer $TOLLWAY_TOKEN" "# } else { "" };
        match endpoint {
            Endpoint::Tcp(address) => format!(
                "page  {endpoint}   {scheme}://{address}/\n\
                 HTTP  {endpoint}   curl {token}--json '{body}' {scheme}://{address}{path}\n"
            ),
            Endpoint::Unix(socket) => format!(
                "HTTP  {endpoint}   curl --unix-socket {} {token}--json '{body}' \
                 {scheme}://localhost{path}\n",
                socket.path.display()
            ),
        }
    }

    fn grpc(self, endpoint: &Endpoint) -> String {
        let service = "envoy.service.ratelimit.v3.RateLimitService";
        let plain = if self.has_tls { "" } else { "-plaintext " };
        let token =
            if self.has_token { r#"-H "authorization: Bearer $TOLLWAY_TOKEN" "# } else { "" };
        let unix =
            if let Endpoint::Unix(_) = endpoint { "-unix -authority localhost " } else { "" };
        let at = match endpoint {
            Endpoint::Tcp(address) => address.to_string(),
            Endpoint::Unix(socket) => socket.path.display().to_string(),
        };
        format!("gRPC  {endpoint}   grpcurl {plain}{unix}{token}{at} describe {service}\n")
    }

    fn resp(self, endpoint: &Endpoint) -> String {
        // From the environment, as redis-cli would warn of one on the command line.
        let token = if self.has_token { r#"REDISCLI_AUTH="$TOLLWAY_TOKEN" "# } else { "" };
        let tls = if self.has_tls { "--tls " } else { "" };
        let at = match endpoint {
            Endpoint::Tcp(address) if address.ip().is_loopback() => {
                format!("-p {}", address.port())
            }
            Endpoint::Tcp(address) => format!("-h {} -p {}", address.ip(), address.port()),
            Endpoint::Unix(socket) => format!("-s {}", socket.path.display()),
        };
        let command = match self.queue {
            Some(_) => "PING".to_owned(),
            None => format!("TOLL.CHECK {} ada", self.policy),
        };
        format!("RESP  {endpoint}   {token}redis-cli {tls}{at} {command}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(hints: Hints<'_>, endpoint: &str) -> String {
        let endpoint: Endpoint = endpoint.parse().expect("a place");
        Front::ALL.map(|front| hints.of(front, &endpoint)).concat()
    }

    const OPEN: Hints<'_> = Hints { policy: "api", queue: None, has_tls: false, has_token: false };

    #[test]
    fn a_service_that_has_queues_alone_proposes_to_enqueue() {
        let told = told(Hints { queue: Some("mail"), ..OPEN }, "127.0.0.1:8080");
        let command =
            r#"curl --json '{"payload":"hello"}' http://127.0.0.1:8080/v1/queues/mail/jobs"#;
        assert!(told.contains(command), "{told}");
        assert!(!told.contains("/v1/check") && !told.contains("TOLL.CHECK"), "{told}");
    }

    #[test]
    fn commands_are_plain_where_nothing_else_is_needed() {
        let told = told(OPEN, "127.0.0.1:8080");
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
        let told = told(Hints { has_tls: true, has_token: true, ..OPEN }, "192.0.2.1:8080");
        for command in [
            "https://192.0.2.1:8080/\n",
            r#"curl -H "Authorization: Bearer $TOLLWAY_TOKEN" --json"#,
            r#"grpcurl -H "authorization: Bearer $TOLLWAY_TOKEN" 192.0.2.1:8080"#,
            r#"REDISCLI_AUTH="$TOLLWAY_TOKEN" redis-cli --tls -h 192.0.2.1 -p 8080"#,
        ] {
            assert!(told.contains(command), "{command}\n{told}");
        }
        assert!(!told.contains("http://") && !told.contains("-plaintext"), "{told}");
    }

    #[test]
    fn a_unix_socket_is_named_by_its_path() {
        let told = told(OPEN, "unix:/run/t.sock?mode=0660");
        for command in [
            "curl --unix-socket /run/t.sock --json",
            "grpcurl -plaintext -unix -authority localhost /run/t.sock describe",
            "redis-cli -s /run/t.sock TOLL.CHECK",
        ] {
            assert!(told.contains(command), "{command}\n{told}");
        }
        assert!(!told.contains("mode="), "{told}");
    }
}
