//! Charts as SVG text: the same input gives the same bytes.
//!
//! ```text
//!  title                         unit
//!  max +-----------------------------+     360 wide: at its natural size the text of a chart
//!      |        lines or band        |     is legible on a phone of 400 pixels
//!    0 +-----------------------------+
//!      0         6        12        24 h
//! ```
//!
//! Colours are CSS variables (`--line-0` …), so that a page can be light, dark or printed. Made by
//! hand: a drawing crate would bring its own rounding, and golden files would change with it.

mod axis;
mod panels;
mod sheet;

use std::fmt::Write as _;

pub(crate) use panels::panels;
pub use sheet::{columns_of, sheet};

use axis::{Axis, number, time_axis};

/// Width of a chart.
pub(crate) const WIDTH: f64 = 360.0;
/// Height of a chart.
pub(crate) const HEIGHT: f64 = 176.0;

const LEFT: f64 = 40.0;
const RIGHT: f64 = 350.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 152.0;

/// More lines than this are drawn as a band with its mean.
const LINES_MAX: usize = 8;

/// Values over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// A value per step; none where there is nothing to show.
    pub values: Vec<Option<f64>>,
    /// Seconds per step.
    pub step_s: f64,
}

/// A picture of some lines over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The unit of its values.
    pub unit: String,
    /// The lines.
    pub lines: Vec<Curve>,
    /// Simulated seconds from left to right.
    pub length_s: f64,
    /// The value at the top, given from outside so that charts side by side compare. What is
    /// higher is drawn at the edge.
    pub top: f64,
}

impl Chart {
    /// The chart as an `svg` element.
    pub fn render(&self) -> String {
        let mut svg = format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{}\">\n",
            escape(&format!("{}, {}", self.title, self.unit)),
        );
        self.draw(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    /// The chart's contents, for whoever has an `svg` element already.
    pub(crate) fn draw(&self, svg: &mut String) {
        let value_axis = Axis::from_zero(self.top);
        let text = |svg: &mut String, class: &str, x: f64, y: f64, content: &str| {
            let content = escape(content);
            let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{content}</text>");
        };
        text(svg, "title", LEFT, 15.0, &self.title);
        text(svg, "unit", RIGHT, 15.0, &self.unit);
        for tick in value_axis.ticks() {
            let y = value_axis.place(tick, BOTTOM, TOP);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>");
            text(svg, "value", LEFT - 5.0, (y + 3.5).round(), &number(tick));
        }
        for (place, label) in time_axis(self.length_s) {
            let x = (LEFT + place * (RIGHT - LEFT)).round();
            // Centred on its tick, the last label would be cut off at the edge.
            let class = if place > 0.97 { "time end" } else { "time" };
            text(svg, class, x, BOTTOM + 15.0, &label);
        }
        if self.lines.len() > LINES_MAX {
            self.draw_band(svg, &value_axis);
        } else {
            for (index, line) in self.lines.iter().enumerate() {
                let path = self.path(line, &value_axis);
                let _ = writeln!(svg, "<path class=\"line line-{index}\" d=\"{path}\"/>");
            }
        }
    }

    fn x(&self, step: usize, step_s: f64) -> f64 {
        let part = ((step + 1) as f64 * step_s / self.length_s).min(1.0);
        LEFT + part * (RIGHT - LEFT)
    }

    fn path(&self, line: &Curve, axis: &Axis) -> String {
        let mut path = String::new();
        let mut drawing = false;
        for (step, value) in line.values.iter().enumerate() {
            let Some(value) = value else {
                drawing = false;
                continue;
            };
            let (x, y) = (self.x(step, line.step_s), axis.place(*value, BOTTOM, TOP));
            let _ = write!(path, "{}{x:.1} {y:.1}", if drawing { 'L' } else { 'M' });
            drawing = true;
        }
        path
    }

    /// Many lines as the span between the lowest and the highest, and their mean.
    fn draw_band(&self, svg: &mut String, axis: &Axis) {
        let step_s = self.lines[0].step_s;
        let steps = self.lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
        let (mut upper, mut lower, mut means) = (Vec::new(), Vec::new(), Vec::new());
        for step in 0..steps {
            let values = self.lines.iter().filter_map(|line| *line.values.get(step)?);
            let (mut low, mut high, mut sum, mut count) = (f64::MAX, 0.0_f64, 0.0, 0.0);
            for value in values {
                (low, high, sum, count) =
                    (low.min(value), high.max(value), sum + value, count + 1.0);
            }
            means.push((count > 0.0).then(|| sum / count));
            if count > 0.0 {
                let x = self.x(step, step_s);
                upper.push(format!("{x:.1} {:.1}", axis.place(high, BOTTOM, TOP)));
                lower.push(format!("{x:.1} {:.1}", axis.place(low, BOTTOM, TOP)));
            }
        }
        lower.reverse();
        let outline = [upper, lower].concat().join("L");
        let _ = writeln!(svg, "<path class=\"band\" d=\"M{outline}Z\"/>");
        let mean = self.path(&Curve { values: means, step_s }, axis);
        let _ = writeln!(svg, "<path class=\"line line-0\" d=\"{mean}\"/>");
    }
}

/// Text that may stand in markup.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: usize) -> Chart {
        let line = Curve { values: vec![Some(1.0), None, Some(3.0), Some(2.0)], step_s: 900.0 };
        Chart {
            title: "a < b".to_owned(),
            unit: "per minute".to_owned(),
            lines: vec![line; lines],
            length_s: 3_600.0,
            top: 3.0,
        }
    }

    #[test]
    fn titles_cannot_break_out_of_the_markup() {
        let svg = chart(1).render();
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
    }

    #[test]
    fn a_gap_in_the_values_is_a_gap_in_the_line() {
        let svg = chart(1).render();
        let path = svg.lines().find(|line| line.contains("line-0")).unwrap();
        assert_eq!(path.matches('M').count(), 2, "{path}");
    }

    #[test]
    fn many_lines_become_a_band_with_its_mean() {
        let svg = chart(9).render();
        assert_eq!(svg.matches("class=\"band\"").count(), 1);
        assert_eq!(svg.matches("class=\"line").count(), 1);
        assert_eq!(chart(8).render().matches("class=\"line").count(), 8);
    }
}
