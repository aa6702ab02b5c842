//! All charts of several runs on one sheet: a column per run, for `--svg`.

use std::fmt::Write as _;

use super::{HEIGHT, WIDTH, escape, panels};
use crate::measure::Run;

/// Room above the charts for the name of the strategy.
const HEAD: f64 = 34.0;
const GAP: f64 = 16.0;

/// One SVG file for `runs`, light or dark as the viewer prefers.
#[must_use]
pub fn sheet(runs: &[&Run]) -> String {
    let width = GAP + runs.len() as f64 * (WIDTH + GAP);
    let height = HEAD + 4.0 * (HEIGHT + GAP);
    let style = include_str!("chart.css");
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\">\n<style>\n{style}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n",
    );
    for (column, (run, charts)) in runs.iter().zip(panels(runs)).enumerate() {
        let x = GAP + column as f64 * (WIDTH + GAP);
        let name = escape(&format!("{} · {}", run.scenario, run.strategy));
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
