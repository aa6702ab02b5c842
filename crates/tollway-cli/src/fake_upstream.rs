//! `tollway fake-upstream`: an API with limits, faults and a ban, to try clients and proxies on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tollway_core::spelling::unknown;
use tollway_sim::fake_api::loopback::Loopback;
use tollway_sim::fake_api::{Example, Fault, Spec};

use crate::amounts::duration;
use crate::misuse::{OrMisuse as _, misuse};
use crate::shell_word::shell_word;

/// Serve a fake API that limits like a real one, on a loopback port.
///
/// GET /_fake/counters returns what it has counted; POST /_fake/faults injects faults.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The API to imitate: discord, github, gitlab, heroku, ietf, openai, anthropic, shopify,
    /// slack, stripe
    #[arg(long, value_name = "NAME", default_value = "discord")]
    profile: String,

    /// A description in TOML instead of a profile
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    spec: Option<PathBuf>,

    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Divide every period by this
    #[arg(long, value_name = "FACTOR", default_value_t = 1)]
    faster: u32,

    /// How many tokens an answer of a model has if the request does not say (openai, anthropic)
    #[arg(long, value_name = "COUNT")]
    tokens: Option<u64>,

    /// How long a model takes for each token
    #[arg(long, value_name = "TIME", value_parser = duration)]
    token_time: Option<Duration>,

    /// Inject a fault from the start, such as '{"do":"late","count":9,"by":"80ms"}'; may be given
    /// repeatedly
    #[arg(long, value_name = "JSON")]
    fault: Vec<String>,
}

/// Serves until interrupted.
pub(crate) fn run(args: Args) -> Result<()> {
    // A playground that answers anybody is nothing to offer to a network.
    if !args.listen.ip().is_loopback() {
        let told = format_args!("invalid --listen {}: expected a loopback address", args.listen);
        return Err(misuse(told));
    }
    let mut spec = spec(&args)?.faster(args.faster);
    set_models(&mut spec, &args)?;
    let faults: Vec<Fault> = args
        .fault
        .iter()
        .map(|text| {
            serde_json::from_str(text)
                .with_context(|| format!("invalid --fault {text:?}: expected a fault in JSON"))
        })
        .collect::<Result<_>>()
        .or_misuse()?;
    let example = spec.example();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = Loopback::start(spec, args.listen)
            .await
            .with_context(|| format!("cannot listen on {}", args.listen))?;
        faults.into_iter().for_each(|fault| server.inject(fault));
        let address = server.address();
        crate::say(&format!(
            "fake upstream  http://{address}\n  {example}\n  curl http://{address}/_fake/counters\n",
            example = example.map_or_else(String::new, |example| curl(&example, address)),
        ))?;
        tokio::signal::ctrl_c().await?;
        Ok(())
    })
}

/// The command that asks once.
fn curl(example: &Example, address: SocketAddr) -> String {
    let method = match example.method.as_str() {
        "GET" => String::new(),
        method => format!("-X {method} "),
    };
    format!("curl -i {method}{}", shell_word(&format!("http://{address}{}", example.path)))
}

fn set_models(spec: &mut Spec, args: &Args) -> Result<()> {
    if args.tokens.is_none() && args.token_time.is_none() {
        return Ok(());
    }
    let Some(model) = &mut spec.model else {
        return Err(misuse("--tokens and --token-time need an API of models: openai or anthropic"));
    };
    model.tokens = args.tokens.unwrap_or(model.tokens);
    model.every = args.token_time.unwrap_or(model.every);
    Ok(())
}

fn spec(args: &Args) -> Result<Spec> {
    let Some(path) = &args.spec else {
        let unknown = || unknown("profile", &args.profile, Spec::names().collect::<Vec<_>>());
        return Spec::named(&args.profile)
            .ok_or_else(|| misuse(format_args!("invalid --profile: {}", unknown())));
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    Spec::from_toml(&text).with_context(|| format!("{}", path.display()))
}
