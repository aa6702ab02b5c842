//! The lines of a view: as many rows and columns as fit, the sorted column marked.
//!
//! ```text
//!   tollway top  127.0.0.1:8080                                        title, trouble or pause
//!   now 12.3/s allowed, 1.20/s denied (9 %)   in all 4,711 and 81      totals
//!   DENIED/s     5 min ALLOWED/s     5 min REASON     POLICY     KEY   columns, the less
//!       1.20      0.90         -         - exhausted  api        evil  important ones where
//!   q quit  p pause  s sort: denied, 1 min                       there is room
//! ```

use crate::terminal_size::Size;

use super::figures::{Counts, Figures, Rates, Row};

/// Columns of figures.
const FIGURE: usize = 9;
const REASON: usize = 10;
const POLICY: usize = 16;
/// From these widths of a terminal on there is room for the figures of five minutes, reasons and
/// policies beside a key of some length.
const FIVE_MINUTES_FROM: usize = 60;
const REASON_FROM: usize = 72;
const POLICY_FROM: usize = 100;
/// From this height on a blank line sets the table off.
const BLANK_FROM: usize = 16;

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const REVERSE: &str = "\x1b[7m";
const PLAIN: &str = "\x1b[0m";

/// What rows are sorted by, the highest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sort {
    /// Denials in the last minute
    #[default]
    Denied,
    /// Denials in the last five minutes
    Denied5m,
    /// Allowed requests in the last minute
    Allowed,
    /// Allowed requests in the last five minutes
    Allowed5m,
}

impl Sort {
    /// The next in turn.
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Denied => Self::Denied5m,
            Self::Denied5m => Self::Allowed,
            Self::Allowed => Self::Allowed5m,
            Self::Allowed5m => Self::Denied,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Denied => "denied, 1 min",
            Self::Denied5m => "denied, 5 min",
            Self::Allowed => "allowed, 1 min",
            Self::Allowed5m => "allowed, 5 min",
        }
    }

    fn of(self, row: &Row) -> Option<f64> {
        let minute = |rates: Option<Rates>| rates.map(|rates| rates.minute);
        let five_minutes = |rates: Option<Rates>| rates.map(|rates| rates.five_minutes);
        match self {
            Self::Denied => minute(row.denied),
            Self::Denied5m => five_minutes(row.denied),
            Self::Allowed => minute(row.allowed),
            Self::Allowed5m => five_minutes(row.allowed),
        }
    }
}

/// What is shown.
pub(super) struct View<'a> {
    pub(super) address: &'a str,
    pub(super) figures: &'a Figures,
    pub(super) sort: Sort,
    /// What whoever watches has to know first.
    pub(super) trouble: Option<&'a str>,
}

/// What there is room for.
#[derive(Clone, Copy)]
struct Columns {
    five_minutes: bool,
    reason: bool,
    policy: bool,
    /// Cut off lines here; `None` where nothing is cut.
    width: Option<usize>,
    colours: bool,
}

impl View<'_> {
    /// Plain lines for a file or a pipe, with at most so many rows.
    pub(super) fn lines(&self, rows: usize) -> String {
        let columns =
            Columns { five_minutes: true, reason: true, policy: true, width: None, colours: false };
        let mut lines = vec![self.totals()];
        lines.extend(self.table(rows, columns));
        lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// The lines that fill a screen of that size; at most `most` rows of the table.
    pub(super) fn screen(&self, size: Size, most: Option<usize>, colours: bool) -> Vec<String> {
        let width = size.columns;
        let columns = Columns {
            five_minutes: width >= FIVE_MINUTES_FROM,
            reason: width >= REASON_FROM,
            policy: width >= POLICY_FROM,
            width: Some(width),
            colours,
        };
        let paint = |text: &str, code: &str| painted(&cut(text, width), code, colours);
        let title = format!("tollway top  {}", self.address);
        let mut lines = vec![match self.trouble {
            Some(trouble) => paint(&format!("{title}  {trouble}"), RED),
            None => paint(&title, BOLD),
        }];
        lines.push(cut(&self.totals(), width));
        if size.rows >= BLANK_FROM {
            lines.push(String::new());
        }
        // Title, totals and the heads of the columns above, the keys below.
        let room = size.rows.saturating_sub(lines.len() + 2);
        lines.extend(self.table(most.map_or(room, |most| most.min(room)), columns));
        lines.truncate(size.rows.saturating_sub(1));
        lines.resize(size.rows.saturating_sub(1), String::new());
        let keys = format!("q quit  p pause  s sort: {}", self.sort.words());
        lines.push(paint(&keys, DIM));
        lines
    }

    fn totals(&self) -> String {
        let Some(Counts { allowed, denied }) = self.figures.counts else { return String::new() };
        let all = format!("in all {} allowed, {} denied", thousands(allowed), thousands(denied));
        let Some(now) = self.figures.rates else { return all };
        let per_cent = match now.allowed + now.denied {
            0.0 => String::new(),
            sum => format!(" ({:.0} %)", now.denied / sum * 100.0),
        };
        let (allowed, denied) = (rate(now.allowed), rate(now.denied));
        format!("now {allowed}/s allowed, {denied}/s denied{per_cent}   {all}")
    }

    /// The heads of the columns, and rows.
    fn table(&self, rows: usize, columns: Columns) -> Vec<String> {
        let mut sorted: Vec<&Row> = self.figures.rows.iter().collect();
        let value = |row: &Row| self.sort.of(row).unwrap_or(-1.0);
        sorted.sort_by(|one, other| value(other).total_cmp(&value(one)));
        let mut lines = vec![self.heads(columns)];
        lines.extend(sorted.into_iter().take(rows).map(|row| line(row, columns)));
        lines
    }

    fn heads(&self, columns: Columns) -> String {
        let marked = |text: &str, sort: Sort| {
            let text = format!("{text:>FIGURE$}");
            if sort == self.sort { painted(&text, REVERSE, columns.colours) } else { text }
        };
        let mut cells = vec![marked("DENIED/s", Sort::Denied)];
        if columns.five_minutes {
            cells.push(marked("5 min", Sort::Denied5m));
        }
        cells.push(marked("ALLOWED/s", Sort::Allowed));
        if columns.five_minutes {
            cells.push(marked("5 min", Sort::Allowed5m));
        }
        if columns.reason {
            cells.push(format!("{:<REASON$}", "REASON"));
        }
        if columns.policy {
            cells.push(format!("{:<POLICY$}", "POLICY"));
        }
        cells.push("KEY".to_owned());
        cells.join(" ")
    }
}

fn line(row: &Row, columns: Columns) -> String {
    let figure = |rates: Option<Rates>, pick: fn(Rates) -> f64| {
        let text = rates.map_or_else(|| "-".to_owned(), |rates| rate(pick(rates)));
        format!("{text:>FIGURE$}")
    };
    let is_denied = row.denied.is_some_and(|rates| rates.minute > 0.0);
    let denied = figure(row.denied, |rates| rates.minute);
    let mut cells = vec![painted(&denied, RED, columns.colours && is_denied)];
    if columns.five_minutes {
        cells.push(figure(row.denied, |rates| rates.five_minutes));
    }
    cells.push(figure(row.allowed, |rates| rates.minute));
    if columns.five_minutes {
        cells.push(figure(row.allowed, |rates| rates.five_minutes));
    }
    let mut taken = cells.len() * (FIGURE + 1);
    if columns.reason {
        cells.push(format!("{:<REASON$}", cut(&row.reason, REASON)));
        taken += REASON + 1;
    }
    if columns.policy {
        // Only where nothing else is to be cut.
        let policy =
            if columns.width.is_some() { cut(&row.policy, POLICY) } else { row.policy.clone() };
        cells.push(format!("{policy:<POLICY$}"));
        taken += POLICY + 1;
    }
    cells.push(match columns.width {
        Some(width) => cut(&row.key, width.saturating_sub(taken)),
        None => row.key.clone(),
    });
    cells.join(" ")
}

fn painted(text: &str, code: &str, colours: bool) -> String {
    if colours { format!("{code}{text}{PLAIN}") } else { text.to_owned() }
}

/// At most `width` letters of `text`; that more were there is shown.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain((width > 0).then_some('…')).collect()
}

/// A rate in at most seven letters, rounded up: a key that is listed was seen.
fn rate(per_second: f64) -> String {
    // Less than what the arithmetic itself adds is not rounded up.
    let up = |factor: f64| (per_second * factor - 1e-6).ceil() / factor;
    match per_second {
        0.0 => "0".to_owned(),
        ..10.0 => format!("{:.2}", up(100.0)),
        ..1_000.0 => format!("{:.1}", up(10.0)),
        ..100_000.0 => thousands(per_second.ceil()),
        _ => format!("{:.1}M", (per_second / 100_000.0).ceil() / 10.0),
    }
}

/// A whole number with commas.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let row = |key: &str, denied: Option<f64>, allowed: f64| {
            let rates = |minute| Rates { minute, five_minutes: minute / 2.0 };
            let reason = denied.map_or("", |_| "exhausted").to_owned();
            let (denied, allowed) = (denied.map(rates), Some(rates(allowed)));
            Row { key: key.to_owned(), denied, allowed, policy: "api".to_owned(), reason }
        };
        let long = "k".repeat(300);
        let rows = vec![
            row("ada", None, 120.0),
            row("mallory", Some(9.0), 0.25),
            row(&long, Some(1.5), 2.0),
        ];
        let counts = Some(Counts { allowed: 1_234_567.0, denied: 81.0 });
        let rates = Some(Counts { allowed: 90.0, denied: 10.0 });
        Figures { rows, counts, rates, ..Figures::default() }
    }

    fn screen(columns: usize, rows: usize, colours: bool) -> Vec<String> {
        let figures = figures();
        let view = View {
            address: "127.0.0.1:8080",
            figures: &figures,
            sort: Sort::Denied,
            trouble: None,
        };
        view.screen(Size { columns, rows }, None, colours)
    }

    #[test]
    fn a_view_fills_any_screen_and_never_more() {
        for (columns, rows) in [(40, 10), (80, 24), (200, 50), (20, 4), (1, 1), (10, 2)] {
            let lines = screen(columns, rows, false);
            assert_eq!(lines.len(), rows, "{columns}x{rows}");
            let widest = lines.iter().map(|line| line.chars().count()).max();
            let heads = 2 * (FIGURE + 1) + "KEY".len();
            assert!(widest <= Some(columns.max(heads)), "{columns}x{rows}: {lines:#?}");
        }
        let lines = screen(80, 24, false);
        assert!(lines[0].starts_with("tollway top  127.0.0.1:8080"));
        assert!(
            lines[1].starts_with("now 90.0/s allowed, 10.0/s denied (10 %)   in all 1,234,567")
        );
        assert!(lines[23].starts_with("q quit  p pause  s sort: denied, 1 min"));
        assert!(lines[5].ends_with('…'), "{lines:#?}");
    }

    #[test]
    fn rows_are_sorted_and_what_is_unknown_is_no_zero() {
        let figures = figures();
        let view = View { address: "", figures: &figures, sort: Sort::Denied, trouble: None };
        let order = |text: &str| -> Vec<String> {
            let keys = text.lines().skip(2).map(|line| line.split_whitespace().last().unwrap());
            keys.map(|key| key.chars().take(7).collect()).collect()
        };
        assert_eq!(order(&view.lines(9)), ["mallory", "kkkkkkk", "ada"]);
        assert_eq!(order(&view.lines(1)), ["mallory"]);
        let by_allowed = View { sort: Sort::Denied.next().next(), ..view };
        let lines = by_allowed.lines(9);
        assert_eq!(order(&lines), ["ada", "kkkkkkk", "mallory"]);
        let ada: Vec<&str> = lines.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(ada, ["-", "-", "120.0", "60.0", "api", "ada"]);
        assert!(lines.contains(&"k".repeat(300)) && !lines.contains('\u{1b}'), "{lines}");
    }

    #[test]
    fn colours_are_used_only_where_they_are_wanted() {
        assert!(screen(80, 24, true).concat().contains(RED));
        assert!(!screen(80, 24, false).concat().contains('\u{1b}'));
    }

    #[test]
    fn rates_are_short_and_never_too_low() {
        for (value, text) in [
            (0.0, "0"),
            (0.001, "0.01"),
            (1.5, "1.50"),
            (0.07, "0.07"),
            (10.01, "10.1"),
            (999.9, "999.9"),
            (1_234.5, "1,235"),
            (250_000.0, "0.3M"),
            (12_300_000.0, "12.3M"),
        ] {
            assert_eq!(rate(value), text);
        }
    }
}
