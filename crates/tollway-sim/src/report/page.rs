//! One HTML file: nothing is loaded, nothing runs, it prints.

use std::fmt::Write as _;
use std::time::Duration;

use super::table::{HEADINGS, Row, percent, time};
use crate::Scenario;
use crate::chart::{Chart, escape, panels};
use crate::measure::Run;

/// The report on `rows`, all of the same scenario. Charts show each strategy's first seed.
pub fn html(scenario: &Scenario, rows: &[Row]) -> String {
    let firsts: Vec<&Run> = rows.iter().filter_map(|row| row.runs.first()).collect();
    let mut body = String::new();
    head(&mut body, scenario, rows);
    table(&mut body, rows);
    body.push_str("<main class=\"runs\">\n");
    for (run, charts) in firsts.iter().zip(panels(&firsts)) {
        card(&mut body, run, &charts);
    }
    body.push_str("</main>\n");
    body.push_str(NOTES);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{} · tollway simulate</title>\n<style>\n{}{}</style>\n</head>\n<body>\n{body}\
         </body>\n</html>\n",
        escape(&scenario.name),
        include_str!("../chart/chart.css"),
        include_str!("page.css"),
    )
}

fn head(body: &mut String, scenario: &Scenario, rows: &[Row]) {
    let seeds: Vec<u64> =
        rows.first().map_or(Vec::new(), |row| row.runs.iter().map(|run| run.seed).collect());
    let seeds = match seeds.as_slice() {
        [one] => format!("seed {one}"),
        [first, .., last] => format!("seeds {first} to {last}"),
        [] => String::new(),
    };
    let processes: u32 = scenario.clients.iter().map(|client| client.processes).sum();
    let threads: u32 =
        scenario.clients.iter().map(|client| client.processes * client.threads).sum();
    let _ = write!(
        body,
        "<header>\n<h1>{}</h1>\n<p>{}.</p>\n<p class=\"soft\">{} per {}, {processes} processes, \
         {threads} threads; {} simulated, {seeds}</p>\n</header>\n",
        escape(&scenario.name),
        escape(&sentence(&scenario.about)),
        scenario.server.limit,
        span(scenario.server.period),
        span(scenario.length),
    );
}

/// A length as people write it when it is a round one.
fn span(length: Duration) -> String {
    match length.as_secs() {
        3_600 => "hour".to_owned(),
        seconds if seconds > 0 && seconds % 3_600 == 0 => format!("{} hours", seconds / 3_600),
        seconds if seconds > 0 && seconds % 60 == 0 => format!("{} min", seconds / 60),
        _ => time(length.as_secs_f64()),
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(
        || "A scenario of your own".to_owned(),
        |first| first.to_uppercase().chain(letters).collect(),
    )
}

fn table(body: &mut String, rows: &[Row]) {
    body.push_str("<table>\n<thead><tr>");
    for heading in HEADINGS {
        let _ = write!(body, "<th scope=\"col\">{heading}</th>");
    }
    body.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        let cells = row.cells();
        let _ = write!(body, "<tr><th scope=\"row\">{}</th>", escape(&cells[0]));
        // On a phone each row becomes a block whose cells carry their heading with them.
        for (cell, heading) in cells.iter().zip(HEADINGS).skip(1) {
            let _ = write!(body, "<td data-heading=\"{heading}\">{}</td>", escape(cell));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody>\n</table>\n");
}

fn card(body: &mut String, run: &Run, charts: &[Chart; 4]) {
    let figures = &run.figures;
    let _ = write!(
        body,
        "<section>\n<h2>{}</h2>\n<p class=\"soft\">{} of {} requests refused, {} in the last \
         hour; Jain's index {:.4}</p>\n",
        escape(&run.strategy),
        percent(figures.limited_share),
        figures.requests,
        figures.limited_last_hour,
        figures.jain_process,
    );
    for chart in charts {
        body.push_str(&chart.render());
    }
    body.push_str("</section>\n");
}

const NOTES: &str = "<footer>\n\
    <p>429 share: refused of all requests. Utilisation: units spent of those that came back or \
    were there. Jain's index over the last hour: 1 if all have the same, 1/n if one has \
    everything. Converges: from when on every ten minutes are shared with an index of 0.95 or \
    more. Drains: until as many units are spent as there were at the start. Stdev: of requests \
    per thread, refused ones included. With several seeds, means; for times, the worst.</p>\n\
    <p>Charts side by side have the same scale; rare spikes are cut off at its edge. \
    More than eight processes are shown as the span between the slowest and the fastest, and \
    their mean.</p>\n\
    </footer>\n";
