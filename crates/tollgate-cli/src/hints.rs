//! What a service says when it starts: where it listens, and a command that asks it there.

use tollgate_server::endpoint::Endpoint;
use tollgate_server::metrics::Front;

/// What a command must say to be answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hints<'a> {
    /// A policy to ask for.
    pub policy: &'a str,
    /// Whether the fronts speak TLS.
    pub tls: bool,
    /// Whether a token is needed.
    pub token: bool,
}

impl Hints<'_> {
    /// The lines for a front that listens there.
    pub(crate) fn lines(self, front: Front, endpoint: &Endpoint) -> Vec<String> {
        match front {
            Front::Http => self.http(endpoint),
            Front::Grpc => vec![self.grpc(endpoint)],
            Front::Resp => vec![self.resp(endpoint)],
        }
    }

    fn http(self, endpoint: &Endpoint) -> Vec<String> {
        let scheme = if self.tls { "https" } else { "http" };
        let field = if self.token { " -H \"Authorization: Bearer $TOLLGATE_TOKEN\"" } else { "" };
        let body = format!(r#"{{"policy":"{}","key":"ada"}}"#, self.policy);
        let ask = format!("curl{field} --json '{body}'");
        match endpoint {
            Endpoint::Tcp(address) => vec![
                format!("page  {endpoint}   {scheme}://{address}/"),
                format!("HTTP  {endpoint}   {ask} {scheme}://{address}/v1/check"),
            ],
            Endpoint::Unix(path) => {
                let socket = format!("--unix-socket {}", path.display());
                vec![format!("HTTP  {endpoint}   {ask} {socket} {scheme}://localhost/v1/check")]
            }
        }
    }

    fn grpc(self, endpoint: &Endpoint) -> String {
        let service = "envoy.service.ratelimit.v3.RateLimitService";
        let plain = if self.tls { "" } else { " -plaintext" };
        let field = if self.token { " -H \"authorization: Bearer $TOLLGATE_TOKEN\"" } else { "" };
        let at = match endpoint {
            Endpoint::Tcp(address) => address.to_string(),
            Endpoint::Unix(path) => format!("-unix {}", path.display()),
        };
        format!("gRPC  {endpoint}   grpcurl{plain}{field} {at} describe {service}")
    }

    fn resp(self, endpoint: &Endpoint) -> String {
        let at = match endpoint {
            Endpoint::Tcp(address) => format!("-p {}", address.port()),
            Endpoint::Unix(path) => format!("-s {}", path.display()),
        };
        let tls = if self.tls { " --tls" } else { "" };
        // In the environment, not on the command line, where others can read it.
        let token = if self.token { "REDISCLI_AUTH=\"$TOLLGATE_TOKEN\" " } else { "" };
        format!("RESP  {endpoint}   {token}redis-cli {at}{tls} TOLL.CHECK {} ada", self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(hints: Hints<'_>, endpoint: &str) -> String {
        let endpoint = endpoint.parse().expect("a place to listen");
        let fronts = [Front::Http, Front::Grpc, Front::Resp];
        fronts.map(|front| hints.lines(front, &endpoint).join("\n")).join("\n")
    }

    #[test]
    fn a_hint_says_all_that_the_service_asks_for() {
        let plain = Hints { policy: "api", tls: false, token: false };
        let told = lines(plain, "127.0.0.1:8080");
        assert!(told.contains("curl --json '{\"policy\":\"api\""), "{told}");
        assert!(told.contains("http://127.0.0.1:8080/v1/check"), "{told}");
        assert!(told.contains("grpcurl -plaintext 127.0.0.1:8080"), "{told}");
        assert!(told.contains("   redis-cli -p 8080 TOLL.CHECK api ada"), "{told}");
        let guarded = Hints { tls: true, token: true, ..plain };
        let told = lines(guarded, "127.0.0.1:8080");
        assert_eq!(told.matches("$TOLLGATE_TOKEN").count(), 3, "{told}");
        assert!(told.contains("https://127.0.0.1:8080/v1/check"), "{told}");
        assert!(!told.contains("plaintext") && !told.contains("http://"), "{told}");
        assert!(told.contains("redis-cli -p 8080 --tls TOLL.CHECK"), "{told}");
    }

    #[test]
    fn a_socket_is_named_as_each_tool_wants_it() {
        let hints = Hints { policy: "api", tls: false, token: false };
        let told = lines(hints, "unix:/run/t.sock");
        assert!(told.contains("--unix-socket /run/t.sock http://localhost/v1/check"), "{told}");
        assert!(told.contains("-unix /run/t.sock") && told.contains("-s /run/t.sock"), "{told}");
    }
}
