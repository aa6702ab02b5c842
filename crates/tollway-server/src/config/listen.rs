//! Where to listen, and who may be let in there.

use super::error::{ConfigError, Finding};
use super::layers::Overrides;
use super::reader::ConfigValue;
use crate::endpoint::Endpoint;
use crate::front::{Front, with_fronts};
use tollway_core::fields::Hosts;

macro_rules! listen {
    ({ $(
        $front:ident $field:ident $name:literal $title:literal $variable:literal $port:literal,
    )* }) => {
        /// Where to listen.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Listen {
            $(#[doc = $title] pub $field: Option<Endpoint>,)*
            /// Where HTTP listens beside that.
            pub more_http: Vec<Endpoint>,
            /// Whether others than this machine may connect without a token.
            pub public: bool,
        }

        impl Default for Listen {
            fn default() -> Self {
                let more_http = Vec::new();
                Self { $($field: Some(Endpoint::loopback($port)),)* more_http, public: false }
            }
        }

        impl Listen {
            /// Where a front listens.
            pub const fn of(&self, front: Front) -> Option<&Endpoint> {
                match front { $(Front::$front => self.$field.as_ref(),)* }
            }

            const fn of_mut(&mut self, front: Front) -> &mut Option<Endpoint> {
                match front { $(Front::$front => &mut self.$field,)* }
            }
        }
    };
}

with_fronts!(listen! {});

/// Where the fields that say where to listen stand in files, to tell mistakes with their line.
#[derive(Debug, Default)]
pub(super) struct ListenFields(Vec<ConfigError>);

impl ListenFields {
    /// Notes where a field stands.
    pub(super) fn add(&mut self, place: &ConfigValue<'_>) {
        self.0.push(place.wrong(""));
    }

    /// A mistake in a field: with its line if a file says it, and `is_outside` if a flag or the
    /// environment does.
    fn wrong(&self, field: &str, is_outside: bool, problem: String) -> ConfigError {
        let place = self.0.iter().rev().find(|place| place.field == field && !is_outside);
        place.map_or_else(
            || outside(field, problem.clone()),
            |place| ConfigError { problem: problem.clone(), ..place.clone() },
        )
    }

    fn has(&self, field: &str) -> bool {
        self.0.iter().any(|place| place.field == field)
    }
}

impl Listen {
    /// What is left when environment and flags have had their say. What cannot be read is noted.
    pub(super) fn new(over: &Overrides, finding: &Finding) -> Self {
        let public = over.listen_public.unwrap_or(false);
        let mut listen = Self { public, ..Self::default() };
        for front in Front::ALL {
            let Some(text) = over.place(front) else { continue };
            let parsed = || text.parse().map_err(|problem| outside(front.field(), problem));
            *listen.of_mut(front) = if text == "off" { None } else { finding.tell(parsed()) };
        }
        listen
    }

    /// Notes fronts that would listen in the same place; `flags` are what beats the files.
    pub(super) fn check_apart(&self, fields: &ListenFields, flags: &Overrides, finding: &Finding) {
        let from_flags = Front::ALL.map(|front| flags.place(front).is_some());
        let fronts = self.fronts();
        for (index, (field, endpoint)) in fronts.iter().enumerate() {
            let Some(endpoint) = endpoint else { continue };
            for (other_field, other) in &fronts[..index] {
                if other.is_some_and(|other| endpoint.collides(other)) {
                    // Of two fields the one that was written is to be changed, not a default.
                    let (field, other, at) = if fields.has(field) || from_flags[index] {
                        (*field, *other_field, index)
                    } else {
                        let at = fronts.iter().position(|(name, _)| name == other_field);
                        (*other_field, *field, at.unwrap_or(index))
                    };
                    let problem = format!("{endpoint} is also where {other} listens");
                    finding.note(fields.wrong(field, from_flags[at], problem));
                }
            }
        }
    }

    /// What the system says about the places that files name, as it is now: a place that is taken
    /// may be so by the very service that the files are for.
    pub(super) fn taken(&self, fields: &ListenFields) -> Vec<ConfigError> {
        let fronts = self.fronts().into_iter().filter(|(field, _)| fields.has(field));
        let look = |(field, endpoint): (&str, Option<&Endpoint>)| {
            let error = endpoint?.try_out().err()?;
            let hint = "the service that has this file may be what listens there";
            let problem = match error.kind() {
                std::io::ErrorKind::AddrInUse => format!("is taken now: {error}; {hint}"),
                _ => format!("cannot be listened on here: {error}"),
            };
            Some(fields.wrong(field, false, problem))
        };
        fronts.filter_map(look).collect()
    }

    /// Whether nothing listens: whoever serves like that serves nobody.
    pub fn is_nowhere(&self) -> bool {
        Front::ALL.into_iter().all(|front| self.of(front).is_none())
    }

    fn fronts(&self) -> [(&'static str, Option<&Endpoint>); Front::ALL.len()] {
        Front::ALL.map(|front| (front.field(), self.of(front)))
    }

    /// The names by which the service answers while it knows no token. Others reach a public
    /// service by its address, which no web page can make its own.
    pub(super) fn hosts(&self, over: &Overrides, finding: &Finding) -> Hosts {
        let mut hosts = Hosts::default();
        for name in over.hosts.iter().flatten() {
            let wrong = |problem| outside("listen.hosts", format!("{name:?}: {problem}"));
            finding.tell(hosts.add(name).map_err(wrong));
        }
        if self.public { hosts.with_any_address() } else { hosts }
    }

    /// Refuses to listen to the world without a token, unless that is said.
    pub(super) fn guard(&self, finding: &Finding) {
        let more = self.more_http.iter().map(|more| ("listen.more_http", Some(more)));
        let all = self.fronts().into_iter().chain(more);
        for (field, endpoint) in all.filter(|_| !self.public) {
            if let Some(endpoint) = endpoint.filter(|endpoint| !endpoint.is_local()) {
                let remedy = "set a token (TOLLWAY_TOKEN or tokens) or pass --listen-public";
                finding.note(outside(
                    field,
                    format!("{endpoint} can be reached from other machines; {remedy}"),
                ));
            }
        }
    }
}

/// The text is kept, since a flag may take its place; that it reads is said here, with its line.
pub(super) fn place_to_listen(place: &ConfigValue<'_>) -> Result<Option<String>, ConfigError> {
    let text = place.text()?;
    if text != "off" {
        let endpoint: Endpoint = text.parse().map_err(|problem| place.wrong(problem))?;
        if let (Endpoint::Unix(socket), true) = (endpoint, place.looks_at_files()) {
            socket.check().map_err(|problem| place.wrong(problem))?;
        }
    }
    Ok(Some(text))
}

/// Names of hosts; that each is one is said here, with its line.
pub(super) fn host_names(place: &ConfigValue<'_>) -> Result<Option<Vec<String>>, ConfigError> {
    let name = |place: &ConfigValue<'_>| {
        let text = place.text()?;
        Hosts::default().add(&text).map_err(|problem| place.wrong(problem.to_string()))?;
        Ok(text)
    };
    place.all(name).map(Some)
}

/// An error about what environment, flags and files came to together.
pub(super) fn outside(field: &str, problem: String) -> ConfigError {
    ConfigError { source: super::OUTSIDE.to_owned(), line: 0, field: field.to_owned(), problem }
}
