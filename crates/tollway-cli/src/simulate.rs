//! `tollway simulate`: how clients that cannot see each other share a token, over simulated days.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tollway_sim::chart::sheet;
use tollway_sim::measure::{Run, run_with_progress};
use tollway_sim::report::{Row, html, text};
use tollway_sim::strategy::{Program, StrategyFailed, Table};
use tollway_sim::{Kind, Scenario, StrategyChoice};

use crate::amounts::duration;
use crate::misuse::{OrMisuse as _, misuse};
use crate::terminal_size::terminal_size;

/// More seeds than this are a mistake.
const SEEDS_MAX: u64 = 10_000;

/// Simulate clients that share one token, and measure how fairly they share it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// lone, five-by-five, fast-slow, flappy, join-leave, fixed-window, latency, many,
    /// shares, or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "five-by-five")]
    scenario: String,

    /// ticket, aimd, cubic, sre, header-proportional, backoff, gradual, proportional,
    /// proportional-remaining; several separated by commas, or all. Or your own: program:COMMAND
    /// is asked over its standard input and output, table:FILE is a table of pauses in TOML
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "ticket")]
    strategy: Vec<String>,

    /// How long to simulate, such as 48h, instead of the scenario's own length
    #[arg(long, value_name = "TIME", value_parser = duration)]
    length: Option<Duration>,

    /// The same as a number of hours, as it was written once
    #[arg(long, hide = true, conflicts_with = "length", value_parser = hours)]
    hours: Option<Duration>,

    /// The first seed: the same seed gives the same result on every machine
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// How many seeds to run, counting up from the first
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,

    /// How long to wait for an answer of a program, in real time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    program_timeout: Duration,

    /// Print the figures as JSON instead of a table
    #[arg(long)]
    json: bool,

    /// Write the charts of the first seed as one SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write a report with table and charts as one self-contained HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs what `args` ask for and prints what came of it.
pub(crate) fn run(args: Args) -> Result<()> {
    let scenario = scenario(&args)?;
    let strategies = strategies(&args)?;
    let start = Instant::now();
    let rows = simulate(&scenario, &strategies, args.seed, args.seeds)?;
    let took = start.elapsed();
    if let Some(path) = &args.svg {
        let runs: Vec<&Run> = rows.iter().filter_map(|row| row.runs.first()).collect();
        write_file(path, &sheet(&runs))?;
    }
    if let Some(path) = &args.html {
        write_file(path, &html(&scenario, &rows))?;
    }
    if args.json {
        return crate::say(&as_json(&scenario, &rows)?);
    }
    let letters = terminal_size().map(|size| size.columns);
    crate::say(&as_text(&scenario, &rows, took, letters))
}

fn scenario(args: &Args) -> Result<Scenario> {
    let path = Path::new(&args.scenario);
    let scenario = if path.extension().is_some_and(|extension| extension == "toml") {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the scenario {}", path.display()))?;
        Scenario::from_toml(&text)
            .with_context(|| format!("{} is not a scenario", path.display()))?
    } else {
        Scenario::named(&args.scenario).context("invalid --scenario").or_misuse()?
    };
    let Some(length) = args.length.or(args.hours) else { return Ok(scenario) };
    let wrong = || format!("invalid --length {length:?}: expected more than 0s and at most 366d");
    scenario.lasting(length).checked().with_context(wrong).or_misuse()
}

fn hours(text: &str) -> Result<Duration, String> {
    let hours: Option<f64> = text.parse().ok();
    let length = hours.and_then(|hours| Duration::try_from_secs_f64(hours * 3_600.0).ok());
    length.ok_or_else(|| "expected a number of hours; better write --length 48h".to_owned())
}

fn strategies(args: &Args) -> Result<Vec<StrategyChoice>> {
    if args.strategy.iter().any(|name| name == "all") {
        return Ok(Kind::ALL.into_iter().map(StrategyChoice::from).collect());
    }
    args.strategy.iter().map(|name| strategy(name, args.program_timeout)).collect()
}

fn strategy(name: &str, program_timeout: Duration) -> Result<StrategyChoice> {
    if let Some(command) = name.strip_prefix("program:") {
        let program = Program::new(command, program_timeout);
        let wrong = || misuse("invalid --strategy program: expected program:COMMAND");
        let program = program.ok_or_else(wrong)?;
        return Ok(StrategyChoice::Program(Arc::new(program)));
    }
    if let Some(path) = name.strip_prefix("table:") {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        let table = Table::from_toml(name, &text);
        let table = table.with_context(|| format!("{path} is not a table of pauses"))?;
        return Ok(StrategyChoice::Table(Arc::new(table)));
    }
    let kind: Kind = name.parse().context("invalid --strategy").or_misuse()?;
    Ok(kind.into())
}

fn simulate(
    scenario: &Scenario,
    strategies: &[StrategyChoice],
    first: u64,
    seeds: u64,
) -> Result<Vec<Row>, StrategyFailed> {
    const PARTS: u64 = 100;
    let bar = progress_bar(PARTS * seeds * strategies.len() as u64);
    let row = |strategy: &StrategyChoice| {
        bar.set_message(strategy.to_string());
        let run = |offset| {
            let seed = first.wrapping_add(offset);
            run_with_progress(scenario, strategy, seed, |_part| bar.inc(1))
        };
        Ok(Row { runs: (0..seeds).map(run).collect::<Result<_, _>>()? })
    };
    let rows = strategies.iter().map(row).collect();
    bar.finish_and_clear();
    rows
}

/// A bar on the terminal, if there is one; it shows itself only when a run takes a while.
fn progress_bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} % {msg}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}

/// The report in lines; the table is for a terminal that is so many letters wide, if it is for one.
fn as_text(scenario: &Scenario, rows: &[Row], took: Duration, letters: Option<usize>) -> String {
    let runs = || rows.iter().flat_map(|row| &row.runs);
    let events: u64 = runs().map(|run| run.events).sum();
    let simulated_s: f64 = runs().map(|run| run.length_s).sum();
    let took_s = took.as_secs_f64().max(1e-9);
    format!(
        "{}: {}\n\n{}\n{:.1} simulated hours in {took_s:.2} s: {:.0} times real time\n\
         {events} events: {:.1} million events/s\n",
        scenario.name,
        scenario.about,
        text(rows, letters),
        simulated_s / 3_600.0,
        simulated_s / took_s,
        events as f64 / took_s / 1e6,
    )
}

fn as_json(scenario: &Scenario, rows: &[Row]) -> Result<String> {
    let runs: Vec<_> = rows
        .iter()
        .flat_map(|row| &row.runs)
        .map(|run| {
            json!({
                "strategy": run.strategy,
                "seed": run.seed,
                "length_s": run.length_s,
                "events": run.events,
                "figures": run.figures,
            })
        })
        .collect();
    let document = json!({ "scenario": scenario.name, "runs": runs });
    let mut text = serde_json::to_string_pretty(&document).context("figures are plain numbers")?;
    text.push('\n');
    Ok(text)
}

fn write_file(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(scenario: &str) -> Args {
        Args {
            scenario: scenario.to_owned(),
            strategy: vec!["ticket".to_owned()],
            length: None,
            hours: None,
            seed: 1,
            seeds: 1,
            program_timeout: Duration::from_secs(10),
            json: false,
            svg: None,
            html: None,
        }
    }

    #[test]
    fn a_length_that_no_simulation_has_is_refused() {
        for length in [Duration::ZERO, Duration::from_secs(400 * 86_400)] {
            let args = Args { length: Some(length), ..args("lone") };
            assert!(scenario(&args).is_err(), "{length:?}");
        }
        for text in ["-1", "NaN", "inf", "1e99", "1h"] {
            assert!(hours(text).is_err(), "{text}");
        }
        assert_eq!(hours("0.5"), Ok(Duration::from_secs(1_800)));
    }

    #[test]
    fn unknown_names_are_answered_with_the_known_ones() {
        let second = Duration::from_secs(1);
        let wrong = |name: &str| format!("{:#}", strategy(name, second).unwrap_err());
        assert!(wrong("tickets").contains("did you mean \"ticket\"?"), "{}", wrong("tickets"));
        assert!(
            wrong("fast").contains("expected one of ticket, proxied, aimd"),
            "{}",
            wrong("fast")
        );
        let wrong = |name: &str| format!("{:#}", scenario(&args(name)).unwrap_err());
        assert!(wrong("five").contains("lone, five-by-five, "), "{}", wrong("five"));
        assert!(wrong("flapy").contains("did you mean \"flappy\"?"), "{}", wrong("flapy"));
        assert!(scenario(&args("absent.toml")).unwrap_err().to_string().contains("absent.toml"));
    }

    #[test]
    fn all_means_every_strategy() {
        let all = Args { strategy: vec!["all".to_owned()], ..args("lone") };
        let names = strategies(&all).unwrap().into_iter().map(|strategy| strategy.to_string());
        assert_eq!(names.collect::<Vec<_>>(), Kind::ALL.map(|kind| kind.to_string()));
    }

    #[test]
    fn the_json_holds_the_figures_of_every_run() {
        let scenario = Scenario::named("lone").unwrap().lasting(Duration::from_secs(60));
        let both = [Kind::Ticket, Kind::HeaderProportional].map(StrategyChoice::from);
        let rows = simulate(&scenario, &both, 5, 2).unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&as_json(&scenario, &rows).unwrap()).unwrap();
        assert_eq!(json["runs"].as_array().unwrap().len(), 4);
        assert_eq!(json["runs"][3]["seed"], 6);
        assert!(json["runs"][0]["figures"]["accepted"].as_u64().unwrap() > 4_000);
    }
}
