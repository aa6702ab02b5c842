//! All charts of several runs on one sheet: a column per run, for `--svg`.

use std::fmt::Write as _;

use super::{Chart, HEIGHT, WIDTH, escape, panels};
use crate::measure::Run;

/// Room above the charts for the name of the strategy.
const HEAD: f64 = 34.0;
const GAP: f64 = 16.0;

/// One SVG file for `runs`, light or dark as the viewer prefers.
pub fn sheet(runs: &[&Run]) -> String {
    let columns = runs
        .iter()
        .zip(panels(runs))
        .map(|(run, charts)| (format!("{} · {}", run.scenario, run.strategy), Vec::from(charts)));
    columns_of(&columns.collect::<Vec<_>>())
}

/// One SVG file of columns of charts, each under its name.
pub fn columns_of(columns: &[(String, Vec<Chart>)]) -> String {
    let rows = columns.iter().map(|(_, charts)| charts.len()).max().unwrap_or(0);
    let width = GAP + columns.len() as f64 * (WIDTH + GAP);
    let height = HEAD + rows as f64 * (HEIGHT + GAP);
    let style = include_str!("chart.css");
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\">\n<style>\n{style}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n",
    );
    for (column, (name, charts)) in columns.iter().enumerate() {
        let x = GAP + column as f64 * (WIDTH + GAP);
        let name = escape(name);
        let _ = writeln!(svg, "<text class=\"head\" x=\"{x}\" y=\"24\">{name}</text>");
        for (row, chart) in charts.iter().enumerate() {
            let y = HEAD + row as f64 * (HEIGHT + GAP);
            let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
            chart.draw(&mut svg);
            svg.push_str("</g>\n");
        }
    }
    svg.push_str("</svg>\n");
    svg
}
