//! The configuration as a whole.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::Policy;
use tollway_core::spelling::unknown;
use tollway_memory::WhenFull;

use super::descriptors::Domains;
use super::error::{ConfigError, Finding, Mistakes};
use super::layers::Overrides;
use super::listen::{Listen, ListenFields, host_names, outside, place_to_listen};
use super::names::Names;
use super::policies::ByStore;
use super::reader::{ConfigValue, Source, Table};
use super::sources::{Given, read_all};
use super::stores::{check_file, check_queue_file, check_queue_store, check_store, place_of};
use super::tree::{from_json, parse};
use super::{descriptors, limits, policies, queues, quota_streams, tls, tokens, xds};
use crate::auth::Role;
use crate::config_line::ConfigLine;
use crate::descriptors::Domain;
use crate::endpoint::Endpoint;
use crate::front::Front;
use crate::metrics::Metrics;
use crate::queues::QueuePlan;
use crate::rules::{Lists, Rule, RuleOptions, Rules};
use crate::settings::{Manner, Ratelimit, Settings};
use crate::xds::XdsSettings;

/// Everything that can be configured.
pub struct Config {
    /// Where to listen.
    pub listen: Listen,
    /// A store shared with other processes, by URL; `None` for memory.
    pub store: Option<String>,
    /// Memory for states in this process, in bytes.
    pub memory_bytes: usize,
    /// The file of durable counts, if states are in this process.
    pub durable_file: Option<PathBuf>,
    /// What happens to a new key when that memory is full of keys with nothing left.
    pub when_full: WhenFull,
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
    /// Who pushes rules, if anybody does.
    pub xds: Option<XdsSettings>,
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
    /// The name that a client's certificate must be good for, if it must.
    pub client_name: Option<String>,
    /// Whether a client may show no certificate; one that it shows is looked at in any case.
    pub client_optional: bool,
    /// The fronts that speak TLS; the others speak without it.
    pub fronts: Vec<Front>,
}

impl Tls {
    /// What a client must ask for: the first of `hosts` that the certificate is good for, or else
    /// another name that it is good for; `None` if that cannot be told.
    pub fn name_for(&self, hosts: &[&str]) -> Option<String> {
        crate::tls::name_for(self, hosts)
    }
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
    /// Objects of JSON, one a line, for machines.
    Json,
}

const MEMORY_BYTES_DEFAULT: usize = 256 << 20;
/// With less, tables have room for a handful of keys or for none, and nearly everybody is denied.
const MEMORY_BYTES_MIN: usize = 64 << 10;
/// The policy of a service that was started without any.
const EXAMPLE: (&str, &str) = ("example", "10/1s burst 20");

/// What files say, before environment and flags.
#[derive(Default)]
pub(super) struct Draft {
    rules: Vec<Rule>,
    pub(super) domains: Vec<Domain>,
    domain_places: HashMap<String, usize>,
    lists: Lists,
    shadow: bool,
    shadow_at: ConfigLine,
    overrides: Overrides,
    tls: Option<Tls>,
    drain: Drain,
    settings: Settings,
    queues: QueuePlan,
    xds: Option<XdsSettings>,
    pub(super) notes: Vec<ConfigError>,
    by_store: ByStore,
    policy_names: Names,
    queue_names: Names,
    listen_fields: ListenFields,
    more_http: Vec<Endpoint>,
    without_token: Option<Role>,
}

impl Config {
    /// Reads `files` in order, then applies `overrides`. Without files, an example policy.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or says something wrong; all that is wrong is told.
    pub fn load(
        files: &[PathBuf],
        overrides: &Overrides,
        metrics: &Metrics,
    ) -> Result<Self, Mistakes> {
        Self::load_with(&[], files, overrides, metrics)
    }

    /// As [`Self::load`], after what is `given` outside of files. A folder among `files` stands for
    /// the files in it.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn load_with(
        given: &[Given],
        files: &[PathBuf],
        overrides: &Overrides,
        metrics: &Metrics,
    ) -> Result<Self, Mistakes> {
        Self::read((given, &read_all(files)?), overrides, metrics, false)
    }

    /// As [`Self::load`], and looks at what the files name, too: certificates, folders, groups.
    /// Places to listen that cannot be had just now are among the notes.
    ///
    /// # Errors
    ///
    /// As [`Self::load`], and if a certificate or key is missing, cannot be decoded, or does not
    /// belong to the other, or if a folder or group is missing.
    pub fn check(
        files: &[PathBuf],
        overrides: &Overrides,
        metrics: &Metrics,
    ) -> Result<Self, Mistakes> {
        Self::read((&[], &read_all(files)?), overrides, metrics, true)
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
    ) -> Result<Self, Mistakes> {
        Self::read((&[], texts), overrides, metrics, false)
    }

    fn read(
        (given, texts): (&[Given], &[(String, String)]),
        overrides: &Overrides,
        metrics: &Metrics,
        looks_at_files: bool,
    ) -> Result<Self, Mistakes> {
        let (mut draft, finding) = (Draft::default(), Finding::default());
        let given_trees = given.iter().map(|part| (&part.name, Ok(from_json(&part.value))));
        let text_trees = texts.iter().map(|(name, text)| (name, parse(name, text)));
        for (name, tree) in given_trees.chain(text_trees) {
            let Some(tree) = finding.tell(tree) else { continue };
            let name = &Arc::from(name.as_str());
            let root = ConfigValue::root(Source { name, finding: &finding, looks_at_files }, &tree);
            if let Some(table) = root.tell(root.table()) {
                draft.read(&table, metrics);
            }
        }
        if texts.is_empty() && given.is_empty() {
            let (name, quota) = EXAMPLE;
            let policy = Policy::parse(name, quota).expect("the example reads");
            draft.rules.push(Rule::new(policy, metrics.tally("", name), RuleOptions::default()));
        }
        let config = draft.finish(overrides, &finding, looks_at_files);
        finding.finish(config)
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The store's URL may hold a password.
        f.debug_struct("Config").field("listen", &self.listen).finish_non_exhaustive()
    }
}

impl Draft {
    fn read(&mut self, table: &Table<'_>, metrics: &Metrics) {
        // A file of envoyproxy/ratelimit has nothing but these two at its top.
        if table.has("domain") || table.has("descriptors") {
            self.read_domain(table, metrics);
            return;
        }
        // Before the domains: it says how they are read, here and in the files that follow.
        table.set("merge_domains", &mut self.settings.manner.merges, ConfigValue::boolean);
        table.set("quota_mode", &mut self.settings.manner.quota_mode, ConfigValue::boolean);
        self.settings.manner.tells_store_errors |= table.has("ratelimit");
        for place in table.each("policies") {
            let Some(rule) = policies::rule(&place, metrics, &mut self.by_store) else { continue };
            if !self.policy_names.add(rule.policy().name()) {
                place.note(format!("a policy named {:?} is defined above", rule.policy().name()));
            }
            self.rules.push(rule);
        }
        for place in table.each("domains") {
            if let Some(inner) = place.tell(place.table()) {
                self.read_domain(&inner, metrics);
            }
        }
        if let Some(inner) = inner(table, "lists") {
            self.lists.extend(policies::lists(&inner));
            inner.finish();
        }
        table.set("shadow", &mut self.shadow, ConfigValue::boolean);
        if let Some(place) = table.get("shadow") {
            self.shadow_at = place.place();
        }
        self.read_service(table);
        table.finish();
    }

    /// Nothing yet; domains are read in this manner.
    pub(super) fn read_as(manner: Manner) -> Self {
        let settings = Settings { manner, ..Settings::default() };
        Self { settings, ..Self::default() }
    }

    /// Reads one domain, of a file or of what was pushed.
    pub(super) fn read_domain(&mut self, table: &Table<'_>, metrics: &Metrics) {
        let Self { domains: list, domain_places: places, settings, .. } = self;
        descriptors::domain(table, metrics, settings.manner, Domains { list, places });
        table.finish();
    }

    fn read_service(&mut self, table: &Table<'_>) {
        self.read_listen(table);
        table.set("store", &mut self.overrides.store, place_of(check_store));
        let number = |place: &ConfigValue<'_>| place.number().map(Some);
        table.set("memory_bytes", &mut self.overrides.memory_bytes, |place| {
            let bytes = place.bytes()?;
            check_memory(bytes).map_err(|problem| place.wrong(problem))?;
            Ok(Some(bytes))
        });
        table.set("workers", &mut self.overrides.workers, number);
        table.set("when_full", &mut self.overrides.when_full, |place| {
            let text = place.text()?;
            when_full(Some(&text)).map_err(|error| place.wrong(error.problem))?;
            Ok(Some(text))
        });
        table.set("log", &mut self.overrides.log_format, |place| {
            let text = place.text()?;
            log_format(Some(&text)).map_err(|error| place.wrong(error.problem))?;
            Ok(Some(text))
        });
        table.set("headers", &mut self.settings.dialect, ConfigValue::parsed);
        table.set("trusted_proxies", &mut self.settings.trusted_proxies, |place| {
            place.all(ConfigValue::parsed)
        });
        table.set("forwarded_by", &mut self.settings.forwarded_by, ConfigValue::parsed);
        table.set("durable_file", &mut self.overrides.durable_file, |place| {
            let path = place.text()?;
            if place.looks_at_files() {
                check_file(Path::new(&path)).map_err(|problem| place.wrong(problem))?;
            }
            Ok(Some(path))
        });
        table.set("queue_store", &mut self.overrides.queue_store, |place| {
            let text = place_of(check_queue_store)(place)?;
            if let (Some(text), true) = (&text, place.looks_at_files()) {
                check_queue_file(text).map_err(|problem| place.wrong(problem))?;
            }
            Ok(text)
        });
        quota_streams::read(table, &mut self.settings);
        queues::read(table, &mut self.queues, &mut self.queue_names);
        limits::read(table, &mut self.settings.limits);
        for place in table.each("tokens") {
            place.tell(tokens::read(&place, &mut self.settings.auth));
        }
        table.set("without_token", &mut self.without_token, |place| tokens::role(place).map(Some));
        if let Some(inner) = inner(table, "ratelimit") {
            self.settings.ratelimit = Some(Ratelimit {
                needs_rules: inner.flag("needs_rules"),
                needs_store: inner.flag("needs_store"),
            });
            inner.finish();
        }
        if let Some(tls) = tls::read(table) {
            self.tls = Some(tls);
        }
        if let Some(inner) = inner(table, "xds") {
            self.xds = xds::read(&inner);
        }
        if let Some(inner) = inner(table, "drain") {
            inner.set("delay", &mut self.drain.delay, ConfigValue::duration);
            inner.set("timeout", &mut self.drain.timeout, ConfigValue::duration);
            inner.finish();
        }
    }

    fn read_listen(&mut self, table: &Table<'_>) {
        let Some(inner) = inner(table, "listen") else { return };
        inner.set("http", &mut self.overrides.http, place_to_listen);
        inner.set("grpc", &mut self.overrides.grpc, place_to_listen);
        inner.set("resp", &mut self.overrides.resp, place_to_listen);
        let fields = ["http", "grpc", "resp"].into_iter().filter_map(|name| inner.get(name));
        fields.for_each(|place| self.listen_fields.add(&place));
        let public = |place: &ConfigValue<'_>| place.boolean().map(Some);
        inner.set("public", &mut self.overrides.listen_public, public);
        inner.set("more_http", &mut self.more_http, |place| place.all(ConfigValue::parsed));
        inner.set("hosts", &mut self.overrides.hosts, host_names);
        inner.finish();
    }

    /// The whole, after environment and flags have had their say. What is wrong with it is noted.
    fn finish(
        mut self,
        overrides: &Overrides,
        finding: &Finding,
        looks_at_files: bool,
    ) -> Option<Config> {
        let over = overrides.clone().over(self.overrides);
        let listen = Listen { more_http: self.more_http, ..Listen::new(&over, finding) };
        listen.check_apart(&self.listen_fields, overrides, finding);
        let mut settings = self.settings;
        settings.hosts = listen.hosts(&over, finding);
        for (token, role, name) in [
            (&over.token, Role::Admin, "TOLLWAY_TOKEN"),
            (&over.read_token, Role::Read, "TOLLWAY_READ_TOKEN"),
        ] {
            token.iter().for_each(|token| settings.auth.add_named(token, role, name));
        }
        if let Some(role) = self.without_token {
            settings.auth.permit_without_token(role);
        }
        if settings.auth.is_open() {
            listen.guard(finding);
        }
        if looks_at_files {
            self.notes.extend(listen.taken(&self.listen_fields));
        }
        let memory_bytes = over.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT);
        // Those of files were looked at where they stand; these may come from elsewhere.
        let named = |text: &Option<String>| text.clone().unwrap_or_else(|| "memory".to_owned());
        for (field, checked) in [
            ("memory_bytes", check_memory(memory_bytes)),
            ("store", check_store(&named(&over.store))),
            ("queue_store", check_queue_store(&named(&over.queue_store))),
        ] {
            finding.tell(checked.map_err(|problem| outside(field, problem)));
        }
        let splits_keys = over.store.as_ref().is_some_and(|store| store.starts_with("redis"));
        if !splits_keys {
            self.notes.append(&mut self.by_store.splits);
        }
        let is_in_process = over.store.as_ref().is_none_or(|store| store == "memory");
        match &over.durable_file {
            None if is_in_process => self.by_store.durable.into_iter().for_each(|wrong| {
                finding.note(wrong);
            }),
            Some(_) if !is_in_process => self.notes.push(outside(
                "durable_file",
                "has no effect: states are on a store of their own, which keeps them".to_owned(),
            )),
            _ => {}
        }
        let when_full = finding.tell(when_full(over.when_full.as_deref()));
        let log = finding.tell(log_format(over.log_format.as_deref()));
        let shadow = over.shadow.unwrap_or(self.shadow);
        let shadow_at = if over.shadow.is_none() { self.shadow_at } else { ConfigLine::default() };
        Some(Config {
            store: over.store.filter(|store| store != "memory"),
            memory_bytes,
            durable_file: over.durable_file.filter(|_| is_in_process).map(PathBuf::from),
            when_full: when_full?,
            workers: over.workers.unwrap_or(0),
            tls: self.tls,
            drain: self.drain,
            log: log?,
            rules: Rules::new(self.rules, self.domains, self.lists, shadow)
                .with_shadow_at(shadow_at),
            queues: QueuePlan { store: over.queue_store, ..self.queues },
            xds: self.xds,
            notes: self.notes,
            listen,
            settings,
        })
    }
}

/// A table within a table, if it is there and is one.
pub(super) fn inner<'a>(table: &Table<'a>, name: &'static str) -> Option<Table<'a>> {
    table.get(name).and_then(|place| place.tell(place.table()))
}

fn check_memory(bytes: usize) -> Result<(), String> {
    if bytes >= MEMORY_BYTES_MIN {
        return Ok(());
    }
    Err(format!("{bytes} bytes hold next to no keys; expected at least {MEMORY_BYTES_MIN}"))
}

fn when_full(text: Option<&str>) -> Result<WhenFull, ConfigError> {
    match text {
        None | Some("deny") => Ok(WhenFull::Deny),
        Some("forget") => Ok(WhenFull::Forget),
        Some(other) => Err(outside("when_full", unknown("choice", other, ["deny", "forget"]))),
    }
}

fn log_format(text: Option<&str>) -> Result<LogFormat, ConfigError> {
    match text {
        None | Some("text") => Ok(LogFormat::Text),
        Some("json") => Ok(LogFormat::Json),
        Some(other) => Err(outside("log", unknown("log format", other, ["text", "json"]))),
    }
}
