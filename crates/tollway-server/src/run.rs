//! Running until told to stop: signals, changed files, snapshots, then a drain.
//!
//! `SIGHUP` and a changed file reload the rules, the tokens and the certificates; `SIGTERM` and
//! `SIGINT` drain; a second one quits at once. Files are looked at once a second and read when two
//! looks in a row agree, so that a file caught half written is not refused for that.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};
use tollway_memory::DumpError;
use tracing::{error, info, warn};

use crate::config::{Drain, Tls, files_now};
use crate::pressure::PressureWatch;
use crate::reload::{Sighting, reload, reload_certificates};
use crate::server::Server;
use crate::service::Service;

const LOOK_EVERY: Duration = Duration::from_secs(1);
const SNAPSHOT_EVERY: Duration = Duration::from_secs(60);

/// How a service ended.
#[derive(Debug)]
pub struct Ended {
    /// Whether every request in flight was finished.
    pub finished: bool,
    /// Whether the last snapshot was written, if there was one to write. The log says so, too.
    pub snapshot: Result<(), DumpError>,
}

/// Serves until a signal says stop.
///
/// With a `snapshot`, states in memory are written there every minute and at the end.
///
/// # Errors
///
/// If signals cannot be received.
pub async fn until_told(
    server: Server,
    drain: Drain,
    snapshot: Option<PathBuf>,
) -> io::Result<Ended> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let service = Arc::clone(server.service());
    watch(&service, &mut terminate, &mut interrupt, snapshot.as_ref()).await?;
    info!(delay_ms = drain.delay.as_millis() as u64, "draining");
    let finished = tokio::select! {
        finished = server.drain(drain) => finished,
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
    };
    let snapshot = snapshot.map_or(Ok(()), |path| write_snapshot(&service, &path));
    if finished {
        info!("stopped");
    } else {
        warn!("stopped with requests in flight");
    }
    Ok(Ended { finished, snapshot })
}

/// Reloads and writes snapshots until a signal says stop.
async fn watch(
    service: &Arc<Service>,
    terminate: &mut Signal,
    interrupt: &mut Signal,
    snapshot: Option<&PathBuf>,
) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut files = Watched::new(configuration_files(service));
    if let Some(seen) = &service.origin.seen {
        // A file that a folder has got since then is not among them.
        files.in_force = seen.followed_by(&Sighting::of(service.auth().files()));
    }
    let mut certificates = Watched::new(certificate_files(service));
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut write = interval_at(Instant::now() + SNAPSHOT_EVERY, SNAPSHOT_EVERY);
    let mut writing = None::<JoinHandle<_>>;
    if snapshot.is_some() && service.enforcer.memory().is_some() {
        service.snapshots.written(service.clock().now());
    }
    let mut pressure = PressureWatch::default();
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => {
                files.take();
                // Told in the log, in a metric and in /readyz.
                let _ = reload(service);
                files.follow(configuration_files(service));
                certificates = Watched::new(certificate_files(service));
            }
            _ = look.tick() => {
                pressure.look(service);
                files.list(configuration_files(service));
                if files.has_changed() {
                    let _ = reload(service);
                    files.follow(configuration_files(service));
                    certificates = Watched::new(certificate_files(service));
                } else if certificates.has_changed() {
                    reload_certificates(service);
                }
            }
            _ = write.tick(), if snapshot.is_some() => {
                // A disk that hangs gathers no threads.
                if let Some(path) = snapshot.cloned()
                    && writing.as_ref().is_none_or(JoinHandle::is_finished)
                {
                    let service = Arc::clone(service);
                    writing = Some(spawn_blocking(move || write_snapshot(&service, &path)));
                }
            }
        }
    }
}

/// The files of the configuration, and those of tokens that they name.
fn configuration_files(service: &Service) -> Vec<PathBuf> {
    [&files_now(&service.origin.files)[..], service.auth().files()].concat()
}

fn certificate_files(service: &Service) -> Vec<PathBuf> {
    let Some(certificates) = service.certificates() else { return Vec::new() };
    let Tls { certificate, key, client_authority, .. } = certificates.files();
    [certificate, key].into_iter().chain(client_authority).collect()
}

/// Files, and what they looked like when they were read and when they were looked at.
struct Watched {
    files: Vec<PathBuf>,
    in_force: Sighting,
    last_seen: Sighting,
}

impl Watched {
    fn new(files: Vec<PathBuf>) -> Self {
        let seen = Sighting::of(&files);
        Self { files, in_force: seen.clone(), last_seen: seen }
    }

    /// Takes these for the files that there are: a folder may hold others than it did. Those in
    /// force stay what they are, so that the difference is noticed.
    fn list(&mut self, files: Vec<PathBuf>) {
        self.files = files;
    }

    /// Watches these files from now on, if they are others than before.
    fn follow(&mut self, files: Vec<PathBuf>) {
        if self.files != files {
            *self = Self::new(files);
        }
    }

    /// Takes the files as they are now for those in force.
    fn take(&mut self) {
        self.in_force = self.last_seen.again(&self.files);
        self.last_seen = self.in_force.clone();
    }

    /// Whether the files differ from those in force and rest, which takes them for those in force.
    fn has_changed(&mut self) -> bool {
        let seen = self.last_seen.again(&self.files);
        let rests = seen == self.last_seen;
        self.last_seen = seen;
        let has_changed = rests && self.last_seen != self.in_force;
        if has_changed {
            self.in_force = self.last_seen.clone();
        }
        has_changed
    }
}

fn write_snapshot(service: &Service, path: &Path) -> Result<(), DumpError> {
    let Some(memory) = service.enforcer.memory() else { return Ok(()) };
    let now = service.clock().now();
    memory.dump(path, now).inspect(|()| service.snapshots.written(now)).inspect_err(|wrong| {
        let reason = tollway_core::explained(wrong);
        error!(path = %path.display(), %reason, "the snapshot could not be written");
        service.snapshots.failed(reason);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_after_it_was_read_and_before_it_is_watched_is_not_in_force() {
        let name = format!("tollway-watched-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "as it was read").unwrap();
        let read = Sighting::of(&[&path]);
        std::fs::write(&path, "as it is now").unwrap();
        let mut files = Watched::new(vec![path.clone()]);
        files.in_force = read.clone();
        assert!(files.has_changed());
        assert!(!files.has_changed(), "once");
        // One more file than was read.
        let mut files = Watched::new(vec![path.clone(), path.clone()]);
        files.in_force = Sighting::of(&[&path]).followed_by(&Sighting::of::<PathBuf>(&[]));
        assert!(files.has_changed());
        std::fs::remove_file(path).unwrap();
    }
}
