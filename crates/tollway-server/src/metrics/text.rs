//! Prometheus's text format, version 0.0.4.

use std::fmt::Write;

/// Metric families being written.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
    family: String,
}

impl Exposition {
    /// The media type of the text.
    pub(crate) const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Begins a family; its samples must follow.
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.family);
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample of the family.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.sample_of("", labels, value);
    }

    /// A sample of the family whose name has a suffix.
    pub(crate) fn sample_of(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(&self.family);
        self.text.push_str(suffix);
        for (index, (name, value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            push_escaped(&mut self.text, value);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// The text.
    pub(crate) fn finish(self) -> String {
        self.text
    }
}

fn push_escaped(text: &mut String, value: &str) {
    for char in value.chars() {
        match char {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut text = Exposition::default();
        text.family("x_total", "counter", "X.");
        text.sample(&[("a", "q\"\\\n")], 1.5);
        let expected =
            "# HELP x_total X.\n# TYPE x_total counter\nx_total{a=\"q\\\"\\\\\\n\"} 1.5\n";
        assert_eq!(text.finish(), expected);
    }
}
