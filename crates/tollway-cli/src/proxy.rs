//! `tollway proxy`: budgets in front of an upstream, from flags and environment.

mod admin_place;
mod invalid_requests;
mod ledgers;
mod models;
mod naming;
mod outage;

use std::collections::HashMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tollway_core::fields::Hosts;
use tollway_proxy::{Admin, Parts, Proxy, Settings, Upstream, Versions};
use tollway_upstream::profile::Profile;
use tracing::info;

use crate::amounts::{duration, size};
use crate::misuse::{OrMisuse as _, misuse};
use crate::output::output;
use admin_place::AdminPlace;
use invalid_requests::InvalidCounter;

/// How long a stop waits for requests at work.
const DRAIN: Duration = Duration::from_secs(30);
/// Holds the admin token; a flag would show it to everybody on the machine.
const TOKEN: &str = "TOLLWAY_ADMIN_TOKEN";

/// Obey an upstream's limits for clients in any language.
///
/// Point clients at it instead of the upstream. A client may send X-Tollway-Deadline (seconds),
/// X-Tollway-Priority (high, normal, low) and X-Tollway-Client (a name, for fair shares). The
/// admin token is taken from TOLLWAY_ADMIN_TOKEN.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to send requests [default: the profile's upstream]
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,

    /// How the upstream reports its limits: a name (tollway profile list), or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "generic")]
    profile: String,

    /// memory, or the URL of a Redis or Valkey that all proxies of a fleet share
    #[arg(long, value_name = "URL", default_value = "memory")]
    store: String,

    /// Do not start without the store; by default this proxy uses its part of the budgets until it
    /// finds the store
    #[arg(long)]
    store_required: bool,

    /// Share each credential fairly with processes that this proxy cannot see, by what the
    /// upstream says is left; needs a profile with a common dimension, such as heroku
    #[arg(long, conflicts_with = "store")]
    pace: bool,

    #[command(flatten)]
    keys: naming::Keys,

    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8090")]
    listen: SocketAddr,

    /// Where to serve health, metrics and /admin: an address, a path prefix on --listen such as
    /// /-/tollway, or off [default: 127.0.0.1:8091, or a free port if that is taken]
    #[arg(long, value_name = "ADDRESS:PORT|/PREFIX|off")]
    admin: Option<AdminPlace>,

    /// Accept connections from other machines although no admin token is set
    #[arg(long)]
    listen_public: bool,

    /// A host name that clients on this machine use, besides localhost and 127.0.0.1; may be given
    /// repeatedly
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,

    /// How long a request may wait if it has no X-Tollway-Deadline
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    patience: Duration,

    /// How long to wait for the head of the upstream's response [default: the profile's, or 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    /// How long a body may make no progress, in either direction [default: the profile's, or 60s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle: Option<Duration>,

    /// How many invalid requests, in what time, make the upstream ban the address; or off
    #[arg(long, value_name = "COUNT/TIME", default_value = "10000/10m")]
    invalid: String,

    /// Keep the count of invalid requests across restarts (with --store memory); an unusable file
    /// is set aside
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    /// Do not start if the state file is unusable
    #[arg(long, requires = "state")]
    state_required: bool,

    /// Budgets of language models by owner and model, in a TOML file; kept in --store
    #[arg(long, value_name = "FILE")]
    budgets: Option<PathBuf>,

    /// The share of a client, relative to 1 for the others; may be given repeatedly
    #[arg(long, value_name = "NAME=SHARE", value_parser = weight)]
    weight: Vec<(String, u32)>,

    /// The largest body that is kept, to be sent again after a refusal (--requests-max and 256 MiB
    /// bound them together)
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size)]
    resend_max: usize,

    /// How many WebSockets may be open
    #[arg(long, value_name = "COUNT", default_value_t = 1_024)]
    tunnels_max: usize,

    /// How long a WebSocket may be idle
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    tunnel_idle: Duration,

    /// How many requests may be active or waiting
    #[arg(long, value_name = "COUNT", default_value_t = 16_384)]
    requests_max: usize,

    /// Use only this version of HTTP to the upstream
    #[arg(long, value_enum, value_name = "VERSION")]
    http: Option<VersionArg>,

    /// Trust the certificates in this PEM file instead of the system's
    #[arg(long, value_name = "FILE")]
    upstream_ca: Option<PathBuf>,

    /// Log format: text or json
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    log_format: LogFormatArg,

    /// Worker threads [default: one per processor]
    #[arg(long, value_name = "COUNT")]
    workers: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum VersionArg {
    #[value(name = "1.1", alias = "1")]
    Http1,
    #[value(name = "2")]
    Http2,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum LogFormatArg {
    #[default]
    Text,
    Json,
}

/// Serves until a signal says stop.
pub(crate) fn run(args: Args) -> Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = args.workers {
        builder.worker_threads(workers.max(1));
    }
    builder.enable_all().build()?.block_on(serve(args))
}

impl Args {
    /// Refuses to listen to the world, unless that is said: for a proxy without a token.
    fn check_that_only_this_machine_connects(&self) -> Result<()> {
        let admin_address = match &self.admin {
            Some(AdminPlace::Address(address)) => Some(*address),
            _ => None,
        };
        for address in [self.listen].into_iter().chain(admin_address) {
            if !address.ip().is_loopback() && !self.listen_public {
                return Err(misuse(format_args!(
                    "{address} can be reached by others: set {TOKEN}, or pass --listen-public"
                )));
            }
        }
        Ok(())
    }

    /// The upstream that is named, or else the profile's.
    fn upstream(&self, profile: &Profile) -> Result<Upstream> {
        let upstream = self.upstream.as_deref().or(profile.upstream());
        let missing = || misuse("--upstream is missing, and the profile names none");
        let upstream = upstream.ok_or_else(missing)?;
        Upstream::parse(upstream)
            .with_context(|| format!("invalid --upstream {upstream:?}"))
            .or_misuse()
    }

    async fn invalid_counter(&self) -> Result<InvalidCounter> {
        let state = self.state.as_deref();
        match (&*self.invalid, &*self.store) {
            ("off", _) => Ok(InvalidCounter::off()),
            (quota, "memory") => InvalidCounter::in_memory(quota, state, self.state_required),
            (quota, store) => InvalidCounter::in_store(quota, store, !self.store_required).await,
        }
    }
}

async fn serve(args: Args) -> Result<()> {
    tollway_server::logs::start(args.log_format == LogFormatArg::Json);
    args.keys.check(&args.store).or_misuse()?;
    let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
    if token.is_none() {
        args.check_that_only_this_machine_connects()?;
    }
    let profile = crate::profile::open(&args.profile).context("--profile")?;
    let upstream = args.upstream(&profile)?;
    // Before anything else is touched: a second process started by mistake ends here, and leaves
    // the first one's --state alone.
    let listener = bind(args.listen).await?;
    let admin_listener = AdminPlace::listen(args.admin.as_ref(), args.listen).await?;
    let counter = args.invalid_counter().await?;
    let (ledgers, fleet) = if args.pace {
        (ledgers::paced(Arc::clone(&profile)).context("--pace").or_misuse()?, None)
    } else {
        let start_without = !args.store_required;
        ledgers::open(&args.store, start_without, Arc::clone(&profile), args.keys.clone()).await?
    };
    let budgets = args.budgets.as_deref();
    let models = models::open(budgets, &args.store, !args.store_required).await?;
    let (shown_upstream, profile_name) = (upstream.to_string(), profile.name().to_owned());
    let settings = settings(&args, token, &profile)?;
    let prefix = settings.admin.prefix.clone();
    let parts = Parts {
        upstream,
        ledgers,
        profile,
        guard: counter.guard()?,
        models,
        roots_pem: args.upstream_ca.as_ref().map(std::fs::read).transpose()?,
        settings,
    };
    // Before anybody knows the address: a signal that comes then would end the process at once.
    let signals = Signals::new()?;
    let mut proxy = Proxy::new(parts).context("TLS")?;
    if let Some(fleet) = fleet {
        let shared = outage::Shared { fleet, counts: counter.store.clone() };
        proxy.watch_store(Arc::new(shared));
    }
    let admin_address = admin_listener.as_ref().map(TcpListener::local_addr).transpose()?;
    info!(
        upstream = %shown_upstream,
        profile = profile_name,
        store = without_password(&args.store),
        pace = args.pace,
        proxy = %listener.local_addr()?,
        admin = admin_address.map(tracing::field::display),
        "started"
    );
    let mut out = output();
    let address = listener.local_addr()?;
    writeln!(out, "proxy  http://{address}")?;
    proxy.listen(listener);
    if let Some(listener) = admin_listener {
        writeln!(out, "admin  http://{}", listener.local_addr()?)?;
        proxy.listen_admin(listener);
    } else if let Some(prefix) = prefix {
        writeln!(out, "admin  http://{address}{prefix}")?;
    }
    out.flush()?;
    let keeping = counter.keep_file();
    signals.told().await;
    keeping.abort();
    let in_time = proxy.drain(DRAIN).await;
    let saved = counter.save();
    if !in_time {
        let late = format!("some requests were not finished within {DRAIN:?}");
        return saved.context(late.clone()).and_then(|()| bail!(late));
    }
    saved
}

fn settings(args: &Args, token: Option<String>, profile: &Profile) -> Result<Settings> {
    let versions = match args.http {
        None => Versions::Negotiated,
        Some(VersionArg::Http1) => Versions::Http1,
        Some(VersionArg::Http2) => Versions::Http2,
    };
    let mut hosts = Hosts::default();
    for name in &args.host {
        hosts.add(name).with_context(|| format!("--host {name}")).or_misuse()?;
    }
    let of_profile = Settings::for_profile(profile);
    Ok(Settings {
        hosts,
        patience: args.patience,
        head_timeout: args.timeout.unwrap_or(of_profile.head_timeout),
        idle_timeout: args.idle.unwrap_or(of_profile.idle_timeout),
        requests_max: args.requests_max,
        replay_bytes_max: args.resend_max,
        tunnels_max: args.tunnels_max,
        tunnel_idle: args.tunnel_idle,
        weights: args.weight.iter().cloned().collect::<HashMap<_, _>>(),
        versions,
        admin: Admin { prefix: AdminPlace::prefix(args.admin.as_ref()), token },
        ..of_profile
    })
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

/// What tells the proxy to stop.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    async fn told(mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Where the store is. A password may have any character, so what counts is after the last `@`.
fn without_password(store: &str) -> String {
    let Some((scheme, rest)) = store.split_once("://") else { return store.to_owned() };
    let place = rest.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{}", place.split('?').next().unwrap_or_default())
}

fn weight(text: &str) -> Result<(String, u32), String> {
    let pair = text.split_once('=').and_then(|(name, share)| Some((name, share.parse().ok()?)));
    let (name, share) = pair.ok_or("expected NAME=SHARE, for example web=5")?;
    if share == 0 {
        Err("expected a share of at least 1".to_owned())
    } else {
        Ok((name.to_owned(), share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_shown_without_its_password() {
        for (url, shown) in [
            ("memory", "memory"),
            ("redis://h:1/2", "redis://h:1/2"),
            ("redis://:s3cret@h:1", "redis://h:1"),
            ("rediss://u:s3@c/r?et@h/0?password=s3cret", "rediss://h/0"),
            ("redis+cluster://u:s3cret@a,b", "redis+cluster://a,b"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
