//! The report: a table of figures, as text and as one self-contained HTML file with the charts.

mod page;
mod table;

pub use page::html;
pub use table::{Row, text};
