//! A strategy as a program: asked by a line of JSON on its standard input, it answers by one on its
//! standard output.
//!
//! ```text
//! to it    {"event":"start","units":4500,"period_s":3600.0,"tasks":5,"cost":1,"weight":1,
//!           "start_sleep_s":0.0,"seed":2345,"now_s":1000000.0}
//! to it    {"event":"want","task":0,"retry":false,"now_s":1000000.0}
//! from it  {"send_in_s":0.8}
//! to it    {"event":"answer","task":0,"outcome":"accepted","remaining":4499.0,"now_s":1000000.85}
//! ```
//!
//! The program is started once for each process of a scenario, and ends when its standard input
//! does. Only `want` is answered. Times are seconds of the process's own clock, so a program that
//! looks at no other clock and draws from `seed` gives the same run each time.
//!
//! **Bounded.** An answer is a line of at most 4 KiB, and comes within the program's patience of
//! real time. Whatever else happens (no program, an end, silence, a wrong answer) is an error that
//! names the program, and the run ends there.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_upstream::pace::{Feedback, Outcome};

use super::{NANOS_PER_S, NextSend, Setting, Strategy, StrategyFailed, to_ns};

/// The longest answer, its end of line included.
const ANSWER_BYTES_MAX: u64 = 4 << 10;
/// Messages are handed over together once they are so long.
const PENDING_BYTES_MAX: usize = 64 << 10;
/// How many such packets may wait for the program to read.
const PACKETS_MAX: usize = 16;
/// How long the end of a program is waited for before it is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// How often a program is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The longest wait that it may answer, in seconds: a year.
const SEND_IN_S_MAX: f64 = 366.0 * 86_400.0;

/// A program that decides when its tasks send.
#[derive(Debug)]
pub struct Program {
    name: String,
    words: Vec<String>,
    patience: Duration,
    failure: Mutex<Option<String>>,
}

impl Program {
    /// The most processes of a scenario that may be programs.
    pub const PROCESSES_MAX: usize = 256;

    /// The program that a command starts: words with spaces between them. `None` if it is empty.
    /// Each answer is waited for so long.
    pub fn new(command: &str, patience: Duration) -> Option<Self> {
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        let name = format!("program:{}", words.join(" "));
        (!words.is_empty()).then_some(Self { name, words, patience, failure: Mutex::default() })
    }

    /// What it is called in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether so many processes are not too many.
    pub(super) fn suits(&self, processes: usize) -> Result<(), StrategyFailed> {
        if processes <= Self::PROCESSES_MAX {
            return Ok(());
        }
        let most = Self::PROCESSES_MAX;
        let why = format!("the scenario has {processes} processes; programs are at most {most}");
        Err(StrategyFailed(format!("{}: {why}", self.name)))
    }

    /// Whether all its processes have answered as they must.
    pub(super) fn check(&self) -> Result<(), StrategyFailed> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map_or(Ok(()), |why| Err(StrategyFailed(format!("{}: {why}", self.name))))
    }

    /// The strategy of one process.
    pub(super) fn start(program: &Arc<Self>, setting: &Setting) -> Box<dyn Strategy> {
        let mut asked = Asked {
            program: Arc::clone(program),
            setting: setting.clone(),
            running: None,
            pending: String::new(),
            pause_ns: 0,
        };
        asked.running = Running::start(&program.words).map_err(|why| asked.fail(why)).ok();
        Box::new(asked)
    }

    fn fail(&self, why: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(why);
    }
}

/// One process of a scenario, decided by a program.
struct Asked {
    program: Arc<Program>,
    setting: Setting,
    /// `None` once it has failed.
    running: Option<Running>,
    pending: String,
    pause_ns: u64,
}

impl Asked {
    fn fail(&mut self, why: String) {
        self.program.fail(why);
        self.running = None;
    }

    /// Adds a message to what the program reads next.
    fn tell(&mut self, message: &Value) {
        self.pending.push_str(&message.to_string());
        self.pending.push('\n');
        if self.pending.len() >= PENDING_BYTES_MAX {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        let packet = std::mem::take(&mut self.pending);
        let Some(running) = &mut self.running else { return };
        if let Err(why) = running.send(packet, self.program.patience) {
            self.fail(why);
        }
    }

    /// The answer to what was told last.
    fn answer(&mut self) -> Option<f64> {
        self.hand_over();
        let answer = self.running.as_mut()?.receive(self.program.patience);
        answer.and_then(|line| send_in_s(&line)).map_err(|why| self.fail(why)).ok()
    }
}

impl Strategy for Asked {
    fn on_join(&mut self, now_ns: u64) {
        let quota = self.setting.quota;
        // Programs read their numbers as doubles, which hold this many bits for certain.
        let seed = (self.setting.dice.unit() * 2f64.powi(53)) as u64;
        self.tell(&json!({
            "event": "start",
            "units": quota.units(),
            "period_s": quota.period().as_secs_f64(),
            "tasks": self.setting.tasks,
            "cost": self.setting.cost.get(),
            "weight": self.setting.weight,
            "start_sleep_s": self.setting.start_sleep_ns as f64 / NANOS_PER_S,
            "seed": seed,
            "now_s": now_ns as f64 / NANOS_PER_S,
        }));
    }

    fn next_send(&mut self, task: usize, retry: bool, now_ns: u64) -> NextSend {
        let now_s = now_ns as f64 / NANOS_PER_S;
        self.tell(&json!({"event": "want", "task": task, "retry": retry, "now_s": now_s}));
        match self.answer() {
            Some(send_in_s) => {
                self.pause_ns = to_ns(send_in_s);
                NextSend::At(now_ns.saturating_add(self.pause_ns))
            }
            None => NextSend::Later(u64::MAX),
        }
    }

    fn on_response(&mut self, task: usize, answer: &Feedback, now_ns: u64) {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        self.tell(&json!({
            "event": "answer",
            "task": task,
            "outcome": match answer.outcome {
                Outcome::Accepted => "accepted",
                Outcome::Limited => "limited",
                Outcome::Failed => "failed",
            },
            "remaining": answer.remaining,
            "limit": answer.limit,
            "period_s": seconds(answer.period),
            "reset_after_s": seconds(answer.reset_after),
            "retry_after_s": seconds(answer.retry_after),
            "now_s": now_ns as f64 / NANOS_PER_S,
        }));
    }

    fn on_lost(&mut self, task: usize, now_ns: u64) {
        let now_s = now_ns as f64 / NANOS_PER_S;
        self.tell(&json!({"event": "answer", "task": task, "outcome": "lost", "now_s": now_s}));
    }

    fn pause_ns(&self) -> u64 {
        self.pause_ns
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    send_in_s: f64,
}

/// The wait that an answer says.
fn send_in_s(line: &str) -> Result<f64, String> {
    let shown: String = line.chars().take(80).collect();
    let right = "expected for example {\"send_in_s\":0.8}";
    let answer: Wait = serde_json::from_str(line)
        .map_err(|error| format!("answered {shown:?}: {error}; {right}"))?;
    match (0.0..=SEND_IN_S_MAX).contains(&answer.send_in_s) {
        true => Ok(answer.send_in_s),
        false => Err(format!("answered {shown:?}: expected seconds from 0 to a year")),
    }
}

/// What a program wrote.
enum Said {
    Line(String),
    TooLong,
}

/// A program that runs. Threads write to it and read from it, so that neither can block the run.
struct Running {
    child: Child,
    /// `None` once it is to end.
    to: Option<SyncSender<String>>,
    from: Receiver<Said>,
}

impl Running {
    fn start(words: &[String]) -> Result<Self, String> {
        let (command, arguments) = words.split_first().ok_or("no command")?;
        let mut child = Command::new(command)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot be started: {error}"))?;
        let (to, packets) = sync_channel::<String>(PACKETS_MAX);
        let (said, from) = sync_channel(PACKETS_MAX);
        if let Some(mut stdin) = child.stdin.take() {
            // It ends with the channel, or with the program.
            thread::spawn(move || {
                while let Ok(packet) = packets.recv() {
                    if stdin.write_all(packet.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || read_lines(stdout, &said));
        }
        Ok(Self { child, to: Some(to), from })
    }

    fn send(&mut self, packet: String, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        let mut packet = packet;
        loop {
            let sent = self.to.as_ref().map(|to| to.try_send(packet));
            packet = match sent {
                Some(Ok(())) => return Ok(()),
                Some(Err(TrySendError::Full(packet))) if Instant::now() < deadline => packet,
                Some(Err(TrySendError::Full(_))) => {
                    return Err(format!("read nothing for {patience:?}"));
                }
                Some(Err(TrySendError::Disconnected(_))) | None => return Err(self.ended()),
            };
            thread::sleep(LOOK_EVERY);
        }
    }

    fn receive(&mut self, patience: Duration) -> Result<String, String> {
        match self.from.recv_timeout(patience) {
            Ok(Said::Line(line)) => Ok(line),
            Ok(Said::TooLong) => Err(format!("wrote a line of more than {ANSWER_BYTES_MAX} bytes")),
            Err(RecvTimeoutError::Timeout) => Err(format!("did not answer within {patience:?}")),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    /// That it ended, and how.
    fn ended(&mut self) -> String {
        match wait(&mut self.child, ENDS_WITHIN) {
            Some(status) => format!("ended before the run did ({status})"),
            None => "closed its standard output before the run ended".to_owned(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.to = None;
        if wait(&mut self.child, ENDS_WITHIN).is_none() {
            // It may have ended meanwhile: then there is nothing to kill.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// How a child ended, if it does within some time.
fn wait(child: &mut Child, within: Duration) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + within;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
            Ok(None) | Err(_) => return None,
        }
    }
}

fn read_lines(stdout: impl Read, said: &SyncSender<Said>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let mut within = (&mut stdout).take(ANSWER_BYTES_MAX);
        if !matches!(within.read_until(b'\n', &mut line), Ok(1..)) {
            return;
        }
        let is_whole = line.ends_with(b"\n");
        if !is_whole && line.len() as u64 == ANSWER_BYTES_MAX {
            let _ = said.send(Said::TooLong);
            return;
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if said.send(Said::Line(line)).is_err() {
            return;
        }
    }
}
