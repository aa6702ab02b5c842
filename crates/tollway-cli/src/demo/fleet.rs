//! Client processes of a demo: started together, begun together, heard as one.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tollway_core::Quota;

use super::tally::RequestReport;

/// Lines that wait to be read.
const LINES_MAX: usize = 1_024;

/// What the processes of a fleet are to do.
pub(super) struct Orders {
    /// Where they ask.
    pub(super) url: String,
    pub(super) processes: u32,
    /// Tasks in each.
    pub(super) threads: u32,
    /// The quota that they share, as it is in real time.
    pub(super) quota: Quota,
    /// Simulated seconds in a real one.
    pub(super) scale: f64,
    /// Real time to run for.
    pub(super) length: Duration,
}

impl Orders {
    fn command(&self) -> Result<Command> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command
            .args(["demo", "gcra-client", "--url", &self.url])
            .args(["--threads", &self.threads.to_string()])
            .args(["--quota", &self.quota.to_string()])
            .args(["--scale", &self.scale.to_string()])
            .args(["--millis", &self.length.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        Ok(command)
    }
}

/// Processes that are ready to begin.
pub(super) struct Fleet(Vec<Client>);

impl Fleet {
    /// Starts them, and waits until each is ready.
    pub(super) async fn start(orders: &Orders) -> Result<Self> {
        let mut clients = Vec::new();
        for _ in 0..orders.processes {
            clients.push(Client::start(orders).await?);
        }
        Ok(Self(clients))
    }

    /// Lets all of them begin.
    pub(super) fn begin(self) -> Voices {
        let (sender, lines) = mpsc::channel(LINES_MAX);
        let clients = self.0.into_iter();
        let readers = clients.map(|client| tokio::spawn(client.forward(sender.clone()))).collect();
        Voices { lines, readers }
    }
}

/// What the processes say, in the order in which it is heard.
pub(super) struct Voices {
    lines: mpsc::Receiver<RequestReport>,
    readers: Vec<JoinHandle<Result<()>>>,
}

impl Voices {
    /// The next line; none when all processes have ended.
    ///
    /// # Cancel safety
    ///
    /// No line is lost.
    pub(super) async fn next(&mut self) -> Option<RequestReport> {
        self.lines.recv().await
    }

    /// How it ended.
    pub(super) async fn end(self) -> Result<()> {
        for reader in self.readers {
            reader.await??;
        }
        Ok(())
    }
}

/// A client process that is ready to begin.
struct Client {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Client {
    async fn start(orders: &Orders) -> Result<Self> {
        let mut child = orders.command()?.spawn().context("cannot start a client process")?;
        let stdout = child.stdout.take().context("a client without standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        match lines.next_line().await? {
            Some(line) if line == "ready" => Ok(Self { child, lines }),
            other => bail!("a client process began with {other:?}"),
        }
    }

    /// Lets the process begin and hands on its lines until it ends.
    async fn forward(mut self, sender: mpsc::Sender<RequestReport>) -> Result<()> {
        let mut stdin = self.child.stdin.take().context("a client without standard input")?;
        stdin.write_all(b"go\n").await.context("a client process is gone")?;
        while let Some(text) = self.lines.next_line().await? {
            if let Some(line) = RequestReport::parse(&text)
                && sender.send(line).await.is_err()
            {
                return Ok(());
            }
        }
        let status = self.child.wait().await?;
        if status.success() { Ok(()) } else { bail!("a client process ended with {status}") }
    }
}
