//! `tollway queue work`: a worker for any program.
//!
//! ```text
//!   each of --concurrency:  lease ──> run the program ──> ack | fail | retry-later ──> lease
//!                             │         └─ heartbeat, three times a lease
//!                             └─ waits at the service; ends at once when told to stop
//! ```
//!
//! Told to stop (SIGTERM, SIGINT) it leases nothing more and waits for its programs. After --grace,
//! or told again, it ends them and releases their jobs, uncharged. A job whose lease was lost is
//! another worker's: its program is ended, and nothing is told.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io::Write as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use http::Method;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tollway_core::parse_duration;
use tollway_queue::QueueName;

use super::below;
use super::handler::{Handler, Process};
use crate::amounts::duration;
use crate::client::{Client, Refused};

/// How long a lease call waits at the service.
const WAIT_MS: u64 = 20_000;
/// How often a service that does not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long what came of a job is told again, if the service does not hear it.
const TELL_FOR: Duration = Duration::from_secs(60);
/// How old the length of leases may be, as it was last read.
const LEASE_READ_EVERY: Duration = Duration::from_secs(30);
/// How long a program has that was asked to end.
const END_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The queue
    queue: QueueName,
    /// How many jobs to run at once
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// What the queue calls this worker [default: the process id]
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Keep what the program writes on standard output as the job's result, up to 64 KiB
    #[arg(long)]
    keep_result: bool,
    /// How to read header fields after exit code 75 (tollway profile list)
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// How long a group waits after exit code 75 without header fields
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    wait: Duration,
    /// How long programs may continue after the worker has been asked to stop
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    grace: Duration,
    /// Stop when no job is waiting, delayed or running
    #[arg(long)]
    until_empty: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Stop {
    No,
    /// Lease nothing more.
    Soon,
    /// End what runs.
    Now,
}

/// What all that run at once share.
struct Worker {
    client: Rc<Client>,
    args: Args,
    name: String,
    stop: watch::Sender<Stop>,
    /// How long leases last, and when that was read.
    lease: RefCell<Option<(Duration, Instant)>>,
    /// Whether the service has not answered, which was told.
    is_away: Cell<bool>,
}

/// Works until told to stop.
pub(super) fn run(client: Client, args: Args) -> Result<()> {
    let client = Rc::new(client);
    let name = args.worker.clone().unwrap_or_else(|| format!("process {}", std::process::id()));
    let worker = Rc::new(Worker {
        client: Rc::clone(&client),
        name,
        stop: watch::Sender::new(Stop::No),
        lease: RefCell::default(),
        is_away: Cell::new(false),
        args,
    });
    client.block_on(LocalSet::new().run_until(worker.work()))
}

impl Worker {
    async fn work(self: Rc<Self>) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut places = JoinSet::new();
        for _ in 0..self.args.concurrency {
            places.spawn_local(Rc::clone(&self).take_jobs());
        }
        let (mut outcome, mut give_up_at) = (Ok(()), None);
        loop {
            let grace_is_over = async {
                match give_up_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let is_told = tokio::select! {
                ended = places.join_next() => match ended {
                    None => return outcome,
                    Some(ended) => {
                        if let Err(error) = ended.context("a place broke off").flatten() {
                            // It concerns the others, too: no such queue, no such program.
                            outcome = outcome.and(Err(error));
                            self.stop.send_replace(Stop::Soon);
                        }
                        false
                    }
                },
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
                () = grace_is_over => true,
            };
            if is_told {
                let is_again = *self.stop.borrow() == Stop::Now || give_up_at.is_some();
                self.stop.send_replace(if is_again { Stop::Now } else { Stop::Soon });
                give_up_at = (!is_again).then(|| tokio::time::Instant::now() + self.args.grace);
            }
        }
    }

    /// Takes one job after the other.
    async fn take_jobs(self: Rc<Self>) -> Result<()> {
        let mut stop = self.stop.subscribe();
        loop {
            // A call that is dropped leaves nothing leased: the service sees its client leave.
            let leased = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop >= Stop::Soon) => return Ok(()),
                leased = self.lease() => leased?,
            };
            match leased {
                Some(lease) => self.run_job(&lease).await?,
                None if self.args.until_empty && self.is_empty().await? => return Ok(()),
                None => {}
            }
        }
    }

    /// A job, once there is one; none after a while.
    async fn lease(&self) -> Result<Option<Value>> {
        self.read_lease_time().await?;
        let wait_ms = if self.args.until_empty { 500 } else { WAIT_MS };
        let body = json!({"max": 1, "wait_ms": wait_ms, "worker": self.name});
        let answer = self.ask(Method::POST, "lease", &body).await?;
        Ok(answer.and_then(|mut answer| answer["leases"].get_mut(0).map(Value::take)))
    }

    async fn is_empty(&self) -> Result<bool> {
        let Some(figures) = self.ask(Method::GET, "", &Value::Null).await? else {
            return Ok(false);
        };
        let left = ["waiting", "delayed", "running"].map(|field| figures[field].as_u64());
        Ok(left == [Some(0); 3])
    }

    async fn read_lease_time(&self) -> Result<()> {
        let is_known = self.lease.borrow().is_some_and(|(_, at)| at.elapsed() < LEASE_READ_EVERY);
        if is_known {
            return Ok(());
        }
        if let Some(figures) = self.ask(Method::GET, "", &Value::Null).await? {
            let lease =
                figures["settings"]["lease"].as_str().and_then(|text| parse_duration(text).ok());
            let lease = lease.context("the service does not say how long its leases last")?;
            self.lease.replace(Some((lease, Instant::now())));
        }
        Ok(())
    }

    /// What the service says, or nothing after a moment if it does not answer, which is said once.
    async fn ask(&self, method: Method, verb: &str, body: &Value) -> Result<Option<Value>> {
        match self.send(method, verb, body).await {
            Ok(answer) => {
                if self.is_away.replace(false) {
                    note("the service answers again");
                }
                Ok(Some(answer))
            }
            Err(error) if is_lasting(&error) => Err(error),
            Err(error) => {
                if !self.is_away.replace(true) {
                    note(&format!("{}; asked again", tollway_core::explained(&*error)));
                }
                tokio::time::sleep(ASK_AGAIN).await;
                Ok(None)
            }
        }
    }

    async fn send(&self, method: Method, verb: &str, body: &Value) -> Result<Value> {
        let slash = if verb.is_empty() { "" } else { "/" };
        let path = below(&format!("{}{slash}{verb}", self.args.queue));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.client.send(method, &path, body.into()).await
    }

    /// Runs the program for a job and tells what came of it.
    async fn run_job(&self, lease: &Value) -> Result<()> {
        let started = Handler::start(&self.args.program, self.args.queue.as_str(), lease);
        let handler = match started {
            Ok(handler) => handler,
            Err(error) => {
                // No fault of the job: another worker may have the program.
                self.tell(lease, "release", json!({})).await;
                return Err(error);
            }
        };
        let process = handler.process();
        let mut ended = std::pin::pin!(handler.ended(self.args.keep_result));
        let mut stop = self.stop.subscribe();
        let watched = tokio::select! {
            ended = &mut ended => Ok(ended?),
            why = self.keep(lease) => Err(why),
            _ = stop.wait_for(|stop| *stop == Stop::Now) => Err(Broken::Stopped),
        };
        let ended = match watched {
            Ok(ended) => ended,
            Err(why) => {
                end(process, ended).await;
                self.tell_broken(lease, why).await;
                return Ok(());
            }
        };
        let Args { keep_result, profile, wait, .. } = &self.args;
        let wait_ms = wait.as_millis() as u64;
        let (verb, body) = ended.report(*keep_result, profile.as_deref(), wait_ms);
        self.tell(lease, verb, body).await;
        Ok(())
    }

    /// Prolongs the lease until that is no use any more.
    async fn keep(&self, lease: &Value) -> Broken {
        let body = json!({"leases": [{"token": lease["token"]}]});
        let mut is_heard = true;
        loop {
            let length = self.lease.borrow().map_or(Duration::from_secs(30), |(length, _)| length);
            // The service may be back before the lease ends.
            let pause = if is_heard { length / 3 } else { ASK_AGAIN.min(length / 12) };
            tokio::time::sleep(pause).await;
            let beats = self.send(Method::POST, "heartbeat", &body).await;
            is_heard = beats.is_ok();
            let Ok(beats) = beats else { continue };
            match beats["leases"][0]["lease"].as_str() {
                Some("lost") => return Broken::Lost,
                Some("cancelled") => return Broken::Cancelled,
                _ => {}
            }
        }
    }

    /// Tells what came of a job whose program was ended.
    async fn tell_broken(&self, lease: &Value, why: Broken) {
        let job = &lease["id"];
        match why {
            Broken::Stopped => self.tell(lease, "release", json!({})).await,
            Broken::Cancelled => {
                note(&format!("job {job} was cancelled"));
                self.tell(lease, "release", json!({})).await;
            }
            Broken::Lost => note(&format!("job {job}: the lease was lost")),
        }
    }

    /// Tells the service what came of a job, again if it does not hear.
    async fn tell(&self, lease: &Value, verb: &str, mut body: Value) {
        body["token"] = lease["token"].clone();
        let begun = Instant::now();
        while let Err(error) = self.send(Method::POST, verb, &body).await {
            if is_lasting(&error) || begun.elapsed() > TELL_FOR {
                return note(&format!("job {}: {}", lease["id"], tollway_core::explained(&*error)));
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }
}

/// Why a program is ended before it ends itself.
#[derive(Clone, Copy, Debug)]
enum Broken {
    Stopped,
    Cancelled,
    Lost,
}

/// Asks a program to end, and ends it.
async fn end<T>(process: Process, ended: impl Future<Output = T> + Unpin) {
    process.terminate();
    if tokio::time::timeout(END_WITHIN, ended).await.is_err() {
        process.kill();
    }
}

/// Whether the service has heard, and will say the same again.
fn is_lasting(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<Refused>();
    refused.is_some_and(|refused| refused.status.is_client_error())
}

fn note(text: &str) {
    // Whoever cannot even be told has closed the terminal.
    let _ = writeln!(std::io::stderr(), "{text}");
}
