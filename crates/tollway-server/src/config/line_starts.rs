//! Which line a byte of a text stands on, without counting from the beginning each time.
//!
//! A file of 20,000 policies has 60,000 values, and each remembers its line: counted from the
//! start, reading would cost the square of the file's length.

use super::work;

/// Where the lines of a text begin.
#[derive(Debug)]
pub(super) struct LineStarts(Vec<usize>);

impl LineStarts {
    /// Looks at the whole text once.
    pub(super) fn of(text: &str) -> Self {
        work::done(text.len());
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        Self(std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect())
    }

    /// The line that the byte at `at` stands on, from 1; the last one if it lies behind the end.
    pub(super) fn line(&self, at: usize) -> usize {
        work::done(self.0.len().ilog2() as usize + 1);
        self.0.partition_point(|&start| start <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_stands_on_the_line_that_began_last() {
        let lines = LineStarts::of("ab\n\nc");
        let found: Vec<usize> = (0..7).map(|at| lines.line(at)).collect();
        assert_eq!(found, [1, 1, 1, 2, 3, 3, 3]);
        assert_eq!((LineStarts::of("").line(0), LineStarts::of("\n").line(1)), (1, 2));
    }
}
