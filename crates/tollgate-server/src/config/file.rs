//! The configuration as a whole.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate_core::Policy;

use super::error::ConfigError;
use super::layers::Overrides;
use super::listen::{Listen, outside, place_to_listen};
use super::reader::{Place, Table};
use super::tree::parse;
use super::{descriptors, policies, queues};
use crate::auth::Role;
use crate::descriptors::Domain;
use crate::metrics::Metrics;
use crate::queues::QueuePlan;
use crate::rules::{Lists, Rule, RuleOptions, Rules};
use crate::settings::Settings;

/// Everything that can be configured.
pub struct Config {
    /// Where to listen.
    pub listen: Listen,
    /// A store shared with other processes, by URL; `None` for memory.
    pub store: Option<String>,
    /// Memory for states in this process, in bytes.
    pub memory_bytes: usize,
    /// Threads that serve; one for every two processors if 0.
    pub workers: usize,
    /// Certificates, if the fronts speak TLS.
    pub tls: Option<Tls>,
    /// How to stop.
    pub drain: Drain,
    /// How to log.
    pub log: LogFormat,
    /// Bounds and who may ask.
    pub settings: Settings,
    /// The rules.
    pub rules: Rules,
    /// The queues.
    pub queues: QueuePlan,
    /// What the files say that has no effect, and why.
    pub notes: Vec<ConfigError>,
}

/// Certificates in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that clients must be certified by, if they must.
    pub client_authority: Option<PathBuf>,
}

/// How to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// How long to go on serving, unready, until everybody has noticed.
    pub delay: Duration,
    /// How long to wait for requests in flight after that.
    pub timeout: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { delay: Duration::ZERO, timeout: Duration::from_secs(20) }
    }
}

/// How to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// Lines for machines.
    Json,
}

const MEMORY_BYTES_DEFAULT: usize = 256 << 20;
/// The policy of a service that was started without any.
const EXAMPLE: (&str, &str) = ("example", "10/1s burst 20");

/// What files say, before environment and flags.
#[derive(Default)]
struct Draft {
    rules: Vec<Rule>,
    domains: Vec<Domain>,
    lists: Lists,
    shadow: bool,
    overrides: Overrides,
    tls: Option<Tls>,
    drain: Drain,
    settings: Settings,
    queues: QueuePlan,
    notes: Vec<ConfigError>,
}

impl Config {
    /// Reads `files` in order, then applies `overrides`. Without files, an example policy.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or says something wrong.
    pub fn load(
        files: &[PathBuf],
        overrides: &Overrides,
        metrics: &Metrics,
    ) -> Result<Self, ConfigError> {
        let mut texts = Vec::with_capacity(files.len());
        for file in files {
            texts.push((file.display().to_string(), read(file)?));
        }
        Self::from_texts(&texts, overrides, metrics)
    }

    /// As [`Self::load`], from texts with the names of their files.
    ///
    /// # Errors
    ///
    /// If a text says something wrong.
    pub fn from_texts(
        texts: &[(String, String)],
        overrides: &Overrides,
        metrics: &Metrics,
    ) -> Result<Self, ConfigError> {
        let mut draft = Draft::default();
        for (source, text) in texts {
            let tree = parse(source, text)?;
            draft.read(&Place::root(source, &tree).table()?, metrics)?;
        }
        if texts.is_empty() {
            let (name, quota) = EXAMPLE;
            let policy = Policy::parse(name, quota).expect("the example reads");
            draft.rules.push(Rule::new(policy, metrics.tally("", name), RuleOptions::default()));
        }
        draft.finish(overrides.clone())
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The store's URL may hold a password.
        f.debug_struct("Config").field("listen", &self.listen).finish_non_exhaustive()
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(|error| ConfigError {
        source: file.display().to_string(),
        line: 0,
        field: String::new(),
        problem: format!("cannot be read: {error}"),
    })
}

impl Draft {
    fn read(&mut self, table: &Table<'_>, metrics: &Metrics) -> Result<(), ConfigError> {
        // A file of envoyproxy/ratelimit has nothing but these two at its top.
        if table.get("domain").is_some() {
            let domain = descriptors::domain(table, metrics, &mut self.notes)?;
            self.add_domain(domain, table)?;
            return table.finish_ref();
        }
        if let Some(policies) = table.get("policies") {
            for place in policies.list()? {
                let rule = policies::rule(&place, metrics)?;
                if self.rules.iter().any(|known| known.policy().name() == rule.policy().name()) {
                    let name = rule.policy().name();
                    return Err(place.wrong(format!("a policy named {name:?} stands above")));
                }
                self.rules.push(rule);
            }
        }
        if let Some(domains) = table.get("domains") {
            for place in domains.list()? {
                let inner = place.table()?;
                let domain = descriptors::domain(&inner, metrics, &mut self.notes)?;
                self.add_domain(domain, &inner)?;
                inner.finish()?;
            }
        }
        if let Some(lists) = table.get("lists") {
            let inner = lists.table()?;
            self.lists.extend(policies::lists(&inner)?);
            inner.finish()?;
        }
        table.set("shadow", &mut self.shadow, |place| place.boolean())?;
        self.read_service(table)?;
        table.finish_ref()
    }

    fn add_domain(&mut self, domain: Domain, table: &Table<'_>) -> Result<(), ConfigError> {
        if self.domains.iter().any(|known| known.name() == domain.name()) {
            let name = domain.name();
            return Err(table.wrong(format!("a domain named {name:?} stands above")));
        }
        self.domains.push(domain);
        Ok(())
    }

    fn read_service(&mut self, table: &Table<'_>) -> Result<(), ConfigError> {
        if let Some(listen) = table.get("listen") {
            let inner = listen.table()?;
            inner.set("http", &mut self.overrides.http, place_to_listen)?;
            inner.set("grpc", &mut self.overrides.grpc, place_to_listen)?;
            inner.set("resp", &mut self.overrides.resp, place_to_listen)?;
            let public = |place: &Place<'_>| place.boolean().map(Some);
            inner.set("public", &mut self.overrides.listen_public, public)?;
            inner.finish()?;
        }
        table.set("store", &mut self.overrides.store, |place| place.text().map(Some))?;
        let number = |place: &Place<'_>| place.number().map(Some);
        table.set("memory_bytes", &mut self.overrides.memory_bytes, number)?;
        table.set("workers", &mut self.overrides.workers, number)?;
        table.set("log", &mut self.overrides.log_format, |place| {
            let text = place.text()?;
            log_format(Some(&text)).map_err(|error| place.wrong(error.problem))?;
            Ok(Some(text))
        })?;
        table.set("headers", &mut self.settings.dialect, |place| place.parsed())?;
        table.set("trusted_proxies", &mut self.settings.trusted_proxies, |place| {
            place.list()?.iter().map(Place::parsed).collect()
        })?;
        table.set("forwarded_by", &mut self.settings.forwarded_by, |place| place.parsed())?;
        table
            .set("queue_store", &mut self.overrides.queue_store, |place| place.text().map(Some))?;
        queues::read(table, &mut self.queues)?;
        self.read_limits(table)?;
        self.read_auth(table)?;
        self.read_tls(table)?;
        if let Some(drain) = table.get("drain") {
            let inner = drain.table()?;
            inner.set("delay", &mut self.drain.delay, |place| place.duration())?;
            inner.set("timeout", &mut self.drain.timeout, |place| place.duration())?;
            inner.finish()?;
        }
        Ok(())
    }

    fn read_limits(&mut self, table: &Table<'_>) -> Result<(), ConfigError> {
        let Some(place) = table.get("limits") else { return Ok(()) };
        let inner = place.table()?;
        let limits = &mut self.settings.limits;
        inner.set("connections", &mut limits.connections_max, |place| place.number())?;
        inner.set("frame_bytes", &mut limits.frame_bytes_max, |place| place.number())?;
        inner.set("pipeline", &mut limits.pipeline_max, |place| place.number())?;
        inner.set("body_bytes", &mut limits.body_bytes_max, |place| place.number())?;
        inner.set("charges", &mut limits.charges_max, |place| place.number())?;
        inner.set("slow_client", &mut limits.slow_client_after, |place| place.duration())?;
        inner.set("idle", &mut limits.idle_after, |place| place.duration().map(Some))?;
        if limits.pipeline_max == 0 || limits.charges_max == 0 || limits.connections_max == 0 {
            return Err(inner.wrong("connections, pipeline and charges must be at least 1"));
        }
        inner.finish()
    }

    fn read_auth(&mut self, table: &Table<'_>) -> Result<(), ConfigError> {
        let Some(place) = table.get("tokens") else { return Ok(()) };
        for place in place.list()? {
            let inner = place.table()?;
            let role_place = inner.need("role")?;
            let role = Role::named(&role_place.text()?)
                .ok_or_else(|| role_place.wrong("right would be read, check or admin"))?;
            let token = token(&inner)?;
            if token.is_empty() {
                return Err(place.wrong("the token is empty"));
            }
            inner.finish()?;
            self.settings.auth.add(&token, role);
        }
        Ok(())
    }

    fn read_tls(&mut self, table: &Table<'_>) -> Result<(), ConfigError> {
        let Some(place) = table.get("tls") else { return Ok(()) };
        let inner = place.table()?;
        self.tls = Some(Tls {
            certificate: inner.need("certificate")?.text()?.into(),
            key: inner.need("key")?.text()?.into(),
            client_authority: inner.text("client_authority")?.map(PathBuf::from),
        });
        inner.finish()
    }

    fn finish(self, overrides: Overrides) -> Result<Config, ConfigError> {
        let over = overrides.over(self.overrides);
        let listen = Listen::new(&over)?;
        let mut settings = self.settings;
        if let Some(token) = &over.token {
            settings.auth.add(token, Role::Admin);
        }
        if let Some(token) = &over.read_token {
            settings.auth.add(token, Role::Read);
        }
        let config = Config {
            store: over.store.filter(|store| store != "memory"),
            memory_bytes: over.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT),
            workers: over.workers.unwrap_or(0),
            tls: self.tls,
            drain: self.drain,
            log: log_format(over.log_format.as_deref())?,
            rules: Rules::new(
                self.rules,
                self.domains,
                self.lists,
                over.shadow.unwrap_or(self.shadow),
            ),
            queues: QueuePlan { store: over.queue_store, ..self.queues },
            notes: self.notes,
            listen,
            settings,
        };
        if config.settings.auth.is_open() {
            config.listen.guard()?;
        }
        Ok(config)
    }
}

/// A token: given, or in a file, or in the environment.
fn token(table: &Table<'_>) -> Result<String, ConfigError> {
    match (table.get("token"), table.get("token_file"), table.get("token_env")) {
        (Some(place), None, None) => place.text(),
        (None, Some(place), None) => {
            let text = std::fs::read_to_string(place.text()?);
            let text = text.map_err(|error| place.wrong(format!("cannot be read: {error}")))?;
            Ok(text.trim().to_owned())
        }
        (None, None, Some(place)) => {
            let name = place.text()?;
            std::env::var(&name).map_err(|_| place.wrong(format!("{name} is not set")))
        }
        _ => Err(table.wrong("give one of token, token_file and token_env")),
    }
}

fn log_format(text: Option<&str>) -> Result<LogFormat, ConfigError> {
    match text {
        None | Some("text") => Ok(LogFormat::Text),
        Some("json") => Ok(LogFormat::Json),
        Some(_) => Err(outside("log", "right would be text or json".to_owned())),
    }
}
