//! `tollway serve`: the service, from flags, environment and files.

mod durability;
mod hints;
mod places;
mod zone_data;

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use tollway_core::Timestamp;
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_redis::{
    Certificates, PolicySettings, RedisStore, RemoteStore, UsageBook, UsageBounds,
};
use tollway_server::config::{Config, ConfigError, Given, LogFormat, Overrides, files_now};
use tollway_server::{
    Backing, Bound, DurableStore, Front, Metrics, Origin, OwnQuotaKeeper, ProxyAdmin, QueuePlan,
    Queues, Server, Service, Sighting, UsageStore, open_queue_store, until_told,
};
#[cfg(feature = "otlp")]
use tollway_server::{Collector, Traces};
use tracing::warn;

use crate::amounts::bytes;
use crate::config_files;
use crate::misuse::{OrMisuse as _, misuse};
use crate::snapshot::{self, Refused, Snapshot};

use hints::{Example, Hints};
use places::Places;

/// Serve limits over HTTP, gRPC and RESP.
///
/// A flag overrides the environment (TOLLWAY_HTTP, TOLLWAY_STORE, ...), which overrides the files.
/// Tokens come from TOLLWAY_TOKEN or from a file, never from a flag. Without --config the first of
/// these counts: the files in TOLLWAY_CONFIG (with colons between them), ./tollway.toml,
/// $XDG_CONFIG_HOME/tollway/tollway.toml, /etc/tollway/tollway.toml.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Rules and settings in TOML or YAML, or envoyproxy/ratelimit's YAML; a folder stands for the
    /// files in it; may be given repeatedly
    #[arg(short, long, value_name = "FILE")]
    config: Vec<PathBuf>,

    #[command(flatten)]
    places: Places,

    /// memory, or the URL of a Redis, a Valkey or another Tollway that all nodes of a fleet share
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Do not start without the stores of policies and queues; by default, until they are found,
    /// policies follow their on_store_error and queues are unavailable
    #[arg(long)]
    store_required: bool,

    /// Let the {tag} in a key choose its slot in a cluster, so that keys with one tag can be
    /// charged together; use it only if clients cannot choose their keys
    #[arg(long)]
    store_key_tags: bool,

    /// Where to store queues: memory, redb:PATH, or the URL of a Redis or Valkey [default: memory]
    #[arg(long, value_name = "WHERE")]
    queue_store: Option<String>,

    /// The file that keeps counts of durable policies; without it no policy may be durable
    #[arg(long, value_name = "FILE")]
    durable_file: Option<String>,

    /// Memory for states, such as 512MiB, or a number of bytes [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory_bytes: Option<usize>,

    /// What to do with a new key when memory is full of exhausted keys: deny it, or forget the one
    /// nearest to recovery [default: deny]
    #[arg(long, value_name = "deny|forget")]
    when_full: Option<String>,

    /// Worker threads [default: one for every two processors]
    #[arg(long, value_name = "COUNT")]
    workers: Option<usize>,

    /// Accept connections from other machines although no token is set
    #[arg(long)]
    listen_public: bool,

    /// A host name to answer over HTTP while no token is set, besides localhost; may be given
    /// repeatedly
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,

    /// Deny nothing; only count what would have been denied
    #[arg(long)]
    shadow: bool,

    /// Write states to this file every minute and at the end, and start from them; an unusable file
    /// is set aside
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,

    /// Do not start if the snapshot is unusable
    #[arg(long, requires = "snapshot")]
    snapshot_required: bool,

    /// Log format: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// Where to send traces: the http:// address of an OpenTelemetry collector; also TOLLWAY_OTLP
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,

    /// Trace one request in this many; requests with a sampled traceparent are always traced
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    otlp_every: u32,

    /// The admin address of a `tollway proxy`, to show its buckets on the dashboard; also
    /// TOLLWAY_PROXY_ADMIN, and TOLLWAY_PROXY_TOKEN if it needs a token
    #[arg(long, value_name = "ADDRESS")]
    proxy_admin: Option<String>,
}

impl Args {
    fn overrides(&self) -> Result<Overrides> {
        let mut flags = Overrides {
            store: self.store.clone(),
            queue_store: self.queue_store.clone(),
            durable_file: self.durable_file.clone(),
            memory_bytes: self.memory_bytes,
            when_full: self.when_full.clone(),
            workers: self.workers,
            listen_public: self.listen_public.then_some(true),
            hosts: (!self.host.is_empty()).then(|| self.host.clone()),
            shadow: self.shadow.then_some(true),
            log_format: self.log_format.clone(),
            ..Overrides::default()
        };
        for (front, place) in Front::ALL.into_iter().zip(&self.places.0) {
            *flags.place_mut(front) = place.clone();
        }
        Ok(flags.over(Overrides::from_env(|name| std::env::var(name).ok()).or_misuse()?))
    }

    fn proxy_admin(&self) -> Option<ProxyAdmin> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let address = self.proxy_admin.clone().or_else(|| variable("TOLLWAY_PROXY_ADMIN"))?;
        Some(ProxyAdmin::new(&address, variable("TOLLWAY_PROXY_TOKEN")))
    }
}

#[cfg(feature = "otlp")]
impl Args {
    /// Where spans go, if they go anywhere.
    fn traces(&self) -> Result<Option<Traces>> {
        let variable = || std::env::var("TOLLWAY_OTLP").ok().filter(|value| !value.is_empty());
        let Some(url) = self.otlp.clone().or_else(variable) else { return Ok(None) };
        let collector = Collector::parse(&url).map_err(anyhow::Error::msg).or_misuse()?;
        Ok(Some(Traces::start(collector, self.otlp_every)))
    }
}

/// What is to be served beside what flags say.
#[derive(Debug, Default)]
pub(crate) struct StartSettings {
    /// What was said outside of files, and is read before them.
    pub given: Vec<Given>,
    /// Files and folders.
    pub files: Vec<PathBuf>,
    /// How the store is spoken to.
    pub store: StoreOptions,
    /// What is logged at least, unless RUST_LOG says it.
    pub log_level: Option<String>,
    /// Where spans go.
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "no spans are sent"))]
    pub tracing: Option<Tracing>,
    /// What is told in the log once.
    pub notes: Vec<String>,
}

/// How the store is spoken to.
#[derive(Debug, Default)]
pub(crate) struct StoreOptions {
    /// For TLS.
    pub certificates: Certificates,
    /// What all of its keys begin with, if not with the usual.
    pub prefix: Option<String>,
}

/// Where spans go.
#[derive(Debug)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "no spans are sent"))]
pub(crate) struct Tracing {
    /// The collector's address.
    pub collector: String,
    /// One request in so many is traced.
    pub every: u32,
}

/// Serves until a signal says stop.
pub(crate) fn run(args: Args) -> Result<()> {
    let found = config_files::find(args.config.clone())?;
    crate::say(&format!("config  {found}\n"))?;
    serve_until_told(args, StartSettings { files: found.files, ..StartSettings::default() })
}

/// Serves what a plan says, until a signal says stop.
pub(crate) fn run_as(plan: StartSettings) -> Result<()> {
    let args = Args::default();
    #[cfg(feature = "otlp")]
    let args = match &plan.tracing {
        Some(Tracing { collector, every }) => {
            Args { otlp: Some(collector.clone()), otlp_every: *every, ..args }
        }
        None => Args { otlp_every: 100, ..args },
    };
    serve_until_told(args, plan)
}

fn serve_until_told(args: Args, plan: StartSettings) -> Result<()> {
    // States on a shared store are fetched by this runtime; connections have threads of their own.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(serve(args, plan))
}

async fn serve(args: Args, plan: StartSettings) -> Result<()> {
    let overrides = args.overrides()?;
    let metrics = Metrics::default();
    let StartSettings { given, files, store: options, log_level, notes, .. } = plan;
    let stands_in = !given.is_empty();
    let seen = Some(Sighting::of(&files_now(&files)));
    let config = load(&given, &files, &overrides, &metrics)?;
    let level = log_level.as_deref().unwrap_or("info");
    tollway_server::logs::start_at(level, config.log == LogFormat::Json);
    tollway_server::logs::note(&config.notes);
    notes.iter().for_each(|note| warn!("{note}"));
    // Before anything else is touched: a second process started by mistake ends here, and leaves
    // the first one's snapshot and queues alone.
    let bound = Bound::new(&config.listen)?;
    let (backing, store_name) = backing(&config, &args, &options).await?;
    let own_quotas = own_quotas(&config, &args, &options).await?;
    let clock = clock(&backing);
    let queues = queues(&config.queues, !args.store_required).await?;
    let Config { rules, settings, tls, workers, drain, xds, .. } = config;
    let example = Example::of(&rules, &config.queues);
    let proxy_admin = args.proxy_admin();
    #[cfg(feature = "otlp")]
    let traces = args.traces()?;
    let origin = Origin { files, given, overrides, seen };
    let service = Service::new(rules, metrics, backing, Arc::new(clock), settings);
    let service = service.with_own_quotas(own_quotas).with_xds(xds);
    #[cfg(feature = "otlp")]
    let service = service.with_traces(traces);
    let service = service.with_queues(queues.clone());
    let service = Arc::new(
        service.with_store_name(store_name).with_origin(origin).with_proxy_admin(proxy_admin),
    );
    service.start_own_quotas().await;
    let server = bound.serve(service, tls.as_ref(), workers)?;
    tokio::spawn(Arc::clone(server.service()).follow_xds());
    // In place of another service, it asks for no token where that asks for none.
    let has_token = !server.service().auth().is_open() && !stands_in;
    announce(&server, &Hints { example, tls, has_token })?;
    let ended = until_told(server, drain, args.snapshot).await?;
    queues.stop_pushing().await;
    ended.snapshot.context("the last snapshot")
}

/// The configuration. What no file but a flag or the environment makes wrong is a misuse, and so is
/// a service that listens nowhere.
fn load(
    given: &[Given],
    files: &[PathBuf],
    overrides: &Overrides,
    metrics: &Metrics,
) -> Result<Config> {
    let config = match Config::load_with(given, files, overrides, metrics) {
        Ok(config) => config,
        Err(wrong) if wrong.told().iter().all(ConfigError::is_outside_of_files) => {
            return Err(wrong).or_misuse();
        }
        Err(wrong) => return Err(wrong.into()),
    };
    if config.listen.is_nowhere() {
        return Err(misuse(
            "there is nothing to serve: HTTP, gRPC and RESP are all off (--http, --grpc, --resp, \
             their variables, or [listen] in the configuration)",
        ));
    }
    Ok(config)
}

/// The queues that are configured, their jobs being pushed. Without any there is room for those
/// that a reload or a call makes.
pub(crate) async fn queues(plan: &QueuePlan, start_without: bool) -> Result<Queues> {
    // The URL may hold a password: it is not repeated.
    let backend =
        open_queue_store(plan.store.as_deref(), start_without).await.context("the queue store")?;
    let clock = Arc::new(SystemClock::new());
    let queues = Queues::start(backend, clock, plan).await.context("the queues")?;
    queues.push().context("push")?;
    Ok(queues)
}

impl StoreOptions {
    fn settings(&self, start_without: bool) -> tollway_redis::Settings {
        let mut settings = tollway_redis::Settings { start_without, ..Default::default() };
        settings.certificates = self.certificates.clone();
        if let Some(prefix) = &self.prefix {
            settings.prefix.clone_from(prefix);
        }
        settings
    }
}

async fn backing(
    config: &Config,
    args: &Args,
    options: &StoreOptions,
) -> Result<(Backing, &'static str)> {
    let start_without = !args.store_required;
    if let Some(url) = &config.store {
        if args.snapshot.is_some() {
            warn!("--snapshot has no effect beside --store: the store keeps the states");
        }
        // The URL may hold a password: it is not repeated.
        if url.starts_with("tollway") {
            let settings = tollway_redis::Settings { start_without, ..Default::default() };
            let store = RemoteStore::connect(url, settings).await.context("the store")?;
            return Ok((Backing::Shared(Arc::new(store)), "remote"));
        }
        let key_tags = args.store_key_tags;
        let split = |(name, parts): (&str, NonZeroU16)| {
            (name.to_owned(), PolicySettings { split: Some(parts), ..PolicySettings::default() })
        };
        let policies = config.rules.splits().map(split).collect();
        let settings = options.settings(start_without);
        let settings = tollway_redis::Settings { key_tags, policies, ..settings };
        let store = RedisStore::connect(url, settings).await.context("the store")?;
        zone_data::watch(&store);
        durability::look(&store, &config.rules).await;
        let (bounds, settings) = (UsageBounds::default(), tollway_redis::Settings::default());
        let book = UsageBook::new(url, bounds, &settings).context("the store of usage")?;
        let store = UsageStore::new(Arc::new(store), book);
        return Ok((Backing::SharedWithUsage(Arc::new(store)), "redis"));
    }
    let memory = Arc::new(memory(config, args)?);
    let Some(file) = &config.durable_file else { return Ok((Backing::Memory(memory), "memory")) };
    let opened = DurableStore::open(file, memory, config.memory_bytes);
    let durable = opened.map_err(|wrong| anyhow!("durable_file {}: {wrong}", file.display()))?;
    Ok((Backing::Durable(Arc::new(durable)), "memory"))
}

/// Where quotas of single keys are kept: where the states are.
async fn own_quotas(
    config: &Config,
    args: &Args,
    options: &StoreOptions,
) -> Result<OwnQuotaKeeper> {
    match (&config.store, &args.snapshot) {
        // Another Tollway decides by the numbers that it is sent.
        (Some(url), _) if url.starts_with("tollway") => Ok(OwnQuotaKeeper::default()),
        (Some(url), _) => {
            let settings = options.settings(!args.store_required);
            OwnQuotaKeeper::in_store(url, &settings).await.context("the store of own quotas")
        }
        (None, Some(snapshot)) => {
            OwnQuotaKeeper::beside_snapshot(snapshot).context("the file of own quotas")
        }
        (None, None) => Ok(OwnQuotaKeeper::default()),
    }
}

/// States in this process, from the snapshot if there is a good one.
fn memory(config: &Config, args: &Args) -> Result<MemoryStore> {
    let when_full = config.when_full;
    let capacity = Capacity { when_full, ..Capacity::bytes(config.memory_bytes) };
    let Some(path) = args.snapshot.as_deref() else { return Ok(MemoryStore::new(capacity)) };
    let is_required = args.snapshot_required;
    let opened = Snapshot { flag: "--snapshot", path, is_required }.open(capacity)?;
    if let Some(reason) = opened.unwritable {
        warn!(path = %path.display(), %reason, "the snapshot cannot be written now");
    }
    if let Some(Refused { reason, aside }) = opened.refused {
        let (path, aside) = (path.display(), aside.display());
        warn!(%path, %reason, %aside, "the snapshot was set aside: all keys start anew");
    }
    let (restored, dropped) = (opened.memory.pressure().used, opened.memory.dropped());
    if dropped > 0 {
        warn!(restored, dropped, "the snapshot did not fit into --memory-bytes");
    }
    Ok(opened.memory)
}

/// The time by which states are judged: never before that of the snapshot they come from.
fn clock(backing: &Backing) -> SystemClock {
    match backing {
        Backing::Memory(memory) => snapshot::clock(memory),
        Backing::Durable(durable) => {
            let written_at = durable.memory().written_at().unwrap_or(Timestamp::MIN);
            SystemClock::not_before(written_at.max(durable.last()))
        }
        Backing::Shared(_) | Backing::SharedWithUsage(_) => SystemClock::new(),
    }
}

fn announce(server: &Server, hints: &Hints) -> Result<()> {
    let mut told = hints.about_tokens();
    for front in Front::ALL {
        let mut endpoints = server.endpoints(front);
        if let Some(endpoint) = endpoints.next() {
            told += &hints.of(front, endpoint);
        }
        endpoints.for_each(|more| told += &format!("HTTP    {more} too\n"));
    }
    crate::say(&told)
}
