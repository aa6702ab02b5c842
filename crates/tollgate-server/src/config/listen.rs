//! Where to listen, and who may be let in there.

use super::error::ConfigError;
use super::layers::Overrides;
use super::reader::Place;
use crate::endpoint::Endpoint;
use tollgate_core::fields::Hosts;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// HTTP.
    pub http: Option<Endpoint>,
    /// gRPC.
    pub grpc: Option<Endpoint>,
    /// RESP.
    pub resp: Option<Endpoint>,
    /// Whether others than this machine may connect without a token.
    pub public: bool,
}

impl Default for Listen {
    fn default() -> Self {
        let local = |port| Some(Endpoint::loopback(port));
        Self { http: local(8080), grpc: local(8081), resp: local(6380), public: false }
    }
}

impl Listen {
    /// What is left when environment and flags have had their say.
    pub(super) fn new(over: &Overrides) -> Result<Self, ConfigError> {
        let endpoint = |field: &str, text: &Option<String>, default: Option<Endpoint>| match text {
            None => Ok(default),
            Some(text) if text == "off" => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|problem: String| outside(field, problem)),
        };
        let default = Self::default();
        Ok(Self {
            http: endpoint("listen.http", &over.http, default.http)?,
            grpc: endpoint("listen.grpc", &over.grpc, default.grpc)?,
            resp: endpoint("listen.resp", &over.resp, default.resp)?,
            public: over.listen_public.unwrap_or(false),
        })
    }

    /// The names by which the service answers while it knows no token. Others reach a public service
    /// by its address, which no web page can make its own.
    pub(super) fn hosts(&self, over: &Overrides) -> Result<Hosts, ConfigError> {
        let mut hosts = Hosts::default();
        for name in over.hosts.iter().flatten() {
            let wrong = |problem| outside("listen.hosts", format!("{name:?}: {problem}"));
            hosts.add(name).map_err(wrong)?;
        }
        Ok(if self.public { hosts.with_any_address() } else { hosts })
    }

    /// Refuses to listen to the world without a token, unless that is said.
    pub(super) fn guard(&self) -> Result<(), ConfigError> {
        let fronts =
            [("listen.http", &self.http), ("listen.grpc", &self.grpc), ("listen.resp", &self.resp)];
        for (field, endpoint) in fronts.into_iter().filter(|_| !self.public) {
            if let Some(endpoint) = endpoint.as_ref().filter(|endpoint| !endpoint.is_local()) {
                let remedy = "give a token (TOLLGATE_TOKEN or tokens) or say --listen-public";
                return Err(outside(field, format!("{endpoint} is open to others; {remedy}")));
            }
        }
        Ok(())
    }
}

/// The text is kept, since a flag may take its place; that it reads is said here, with its line.
pub(super) fn place_to_listen(place: &Place<'_>) -> Result<Option<String>, ConfigError> {
    let text = place.text()?;
    if text != "off" {
        text.parse::<Endpoint>().map_err(|problem| place.wrong(problem))?;
    }
    Ok(Some(text))
}

/// Names of hosts; that each is one is said here, with its line.
pub(super) fn host_names(place: &Place<'_>) -> Result<Option<Vec<String>>, ConfigError> {
    let name = |place: &Place<'_>| {
        let text = place.text()?;
        Hosts::default().add(&text).map_err(|problem| place.wrong(problem.to_string()))?;
        Ok(text)
    };
    place.list()?.iter().map(name).collect::<Result<_, _>>().map(Some)
}

/// An error about what environment, flags and files came to together.
pub(super) fn outside(field: &str, problem: String) -> ConfigError {
    ConfigError { source: "settings".to_owned(), line: 0, field: field.to_owned(), problem }
}
