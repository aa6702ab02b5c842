//! `tollway top`: the keys most often allowed and denied in the last minutes, as a view that
//! refreshes.
//!
//! ```text
//!   look (two calls) ──► Figures ──► view (lines that fit) ──► Screen, or standard output
//!      ▲ every --every                 ▲ keys, a new size
//! ```
//!
//! On a terminal the view fills the screen and keys work. Elsewhere each view follows the one
//! before, without any code of a terminal, and is as wide as its content.

mod figures;
mod terminal;
mod view;

use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http::Method;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::amounts::interval;
use crate::client::{Client, Trust};
use crate::say;

use figures::{Answers, Figures};
use terminal::{Keyboard, Pressed, Screen};
use view::{Sort, View};

/// Rows where no terminal says how many fit.
const ROWS: u8 = 15;
/// The most keys that a service lists.
const LISTED_MAX: u8 = 100;

/// Show the busiest and the most denied keys of a running service.
///
/// Rates are per second, over the last minute and the last five. On a terminal: q quits, p pauses,
/// s sorts by the next column, d by denials, a by allowed requests. If the service needs a token,
/// set TOLLWAY_TOKEN to one with the role admin.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The service's HTTP address: host:port, https://host:port or unix:/path
    #[arg(default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    address: String,

    #[command(flatten)]
    trust: Trust,

    /// How many keys to show [default: as many as fit on the terminal; 15 elsewhere]
    #[arg(short, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=i64::from(LISTED_MAX)))]
    n: Option<u8>,

    /// The time between updates
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval)]
    every: Duration,

    /// What to sort by at first
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,

    /// Print once and exit
    #[arg(long)]
    once: bool,
}

/// Shows the view until interrupted.
pub(crate) fn run(args: Args) -> Result<()> {
    let client = Client::new(&args.address, &args.trust)?;
    if !args.once && terminal::is_one() {
        on_a_screen(&client, &args)
    } else {
        as_lines(&client, &args)
    }
}

/// One view after the other, as plain lines.
fn as_lines(client: &Client, args: &Args) -> Result<()> {
    let rows = args.n.unwrap_or(ROWS);
    let mut figures = Figures::default();
    loop {
        figures.update(client.block_on(look(client, rows))?, std::time::Instant::now());
        let view =
            View { address: &args.address, figures: &figures, sort: args.sort, trouble: None };
        say(&view.lines(rows.into()))?;
        if args.once {
            return Ok(());
        }
        say("\n")?;
        std::thread::sleep(args.every);
    }
}

/// What the service says now.
async fn look(client: &Client, most: u8) -> Result<Answers> {
    let top = client.send(Method::GET, &format!("/admin/top?n={most}"), Default::default()).await?;
    // Whoever may see the keys may see the counts; where it is not so, there are no totals.
    let counts = client.text("/metrics").await.ok();
    Answers::read(&top, counts.as_deref()).context("what answers there is no Tollway")
}

fn on_a_screen(client: &Client, args: &Args) -> Result<()> {
    client.block_on(async {
        // The first look fails before the screen is taken: then the error is read in peace.
        let first = look(client, LISTED_MAX).await?;
        let mut figures = Figures::default();
        figures.update(first, std::time::Instant::now());
        let (signals, screen) = (Signals::new()?, Screen::take()?);
        let shown = Shown { args, figures, sort: args.sort, is_paused: false, trouble: None };
        shown.go_on(client, screen, signals).await
    })
}

/// What is on the screen, and how it came to be.
struct Shown<'a> {
    args: &'a Args,
    figures: Figures,
    sort: Sort,
    is_paused: bool,
    /// Why the last look failed, if it did.
    trouble: Option<String>,
}

/// A look under way.
type Look<'a> = Pin<Box<dyn Future<Output = Result<Answers>> + 'a>>;

impl Shown<'_> {
    async fn go_on(
        mut self,
        client: &Client,
        mut screen: Screen,
        mut signals: Signals,
    ) -> Result<()> {
        let mut keyboard = Keyboard::listen();
        let mut look_under_way: Option<Look<'_>> = None;
        let mut next = Instant::now() + self.args.every;
        loop {
            self.draw(&mut screen)?;
            tokio::select! {
                answer = under_way(&mut look_under_way) => {
                    look_under_way = None;
                    next = Instant::now() + self.args.every;
                    self.heard(answer);
                }
                () = sleep_until(next), if look_under_way.is_none() && !self.is_paused => {
                    look_under_way = Some(Box::pin(look(client, LISTED_MAX)));
                }
                Some(key) = keyboard.pressed() => match key {
                    Pressed::Quit => return Ok(()),
                    Pressed::Pause => self.is_paused = !self.is_paused,
                    Pressed::NextSort => self.sort = self.sort.next(),
                    Pressed::Denied => self.sort = Sort::Denied,
                    Pressed::Allowed => self.sort = Sort::Allowed,
                },
                is_end = signals.told() => if is_end {
                    return Ok(());
                },
            }
        }
    }

    fn heard(&mut self, answer: Result<Answers>) {
        match answer {
            // What was asked for before the pause must not move what is being read.
            Ok(_) if self.is_paused => {}
            Ok(answers) => {
                self.figures.update(answers, std::time::Instant::now());
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(tollway_core::explained(&*error)),
        }
    }

    fn draw(&self, screen: &mut Screen) -> Result<()> {
        let trouble = match (&self.trouble, self.is_paused) {
            (Some(trouble), _) => Some(trouble.as_str()),
            (None, true) => Some("paused"),
            (None, false) => None,
        };
        let (address, figures) = (&*self.args.address, &self.figures);
        let view = View { address, figures, sort: self.sort, trouble };
        let size = screen.size();
        screen.show(&view.screen(size, self.args.n.map(usize::from), screen.has_colours()))
    }
}

async fn under_way(look: &mut Option<Look<'_>>) -> Result<Answers> {
    match look {
        Some(look) => look.await,
        None => std::future::pending().await,
    }
}

/// What the system tells a view.
struct Signals {
    resized: Signal,
    ends: [Signal; 3],
}

impl Signals {
    fn new() -> Result<Self> {
        let ends = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = ends.map(signal);
        let ends = [interrupt?, terminate?, hangup?];
        Ok(Self { resized: signal(SignalKind::window_change())?, ends })
    }

    /// Waits for one of them; whether it says to end.
    async fn told(&mut self) -> bool {
        let [interrupt, terminate, hangup] = &mut self.ends;
        tokio::select! {
            _ = self.resized.recv() => false,
            _ = interrupt.recv() => true,
            _ = terminate.recv() => true,
            _ = hangup.recv() => true,
        }
    }
}
