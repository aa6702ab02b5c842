//! About how often keys that are not on the list were seen lately: a count-min sketch.
//!
//! ```text
//!   key --hash--> row 0 [ . . (now 3, before 4) . ]   estimate = min over rows of now + before
//!             \-> row 1 [ (now 5, before 4) . . . ]
//! ```
//!
//! Each cell counts the generation that runs and the one before it, side by side in one cache line.
//! An estimate is never lower than what was counted in both, and higher by at most
//! `e * counted / WIDTH` with probability `1 - 1/e^2`.

const WIDTH: usize = 4_096;
const ROWS: usize = 2;

/// Counts by hash, over two generations.
#[derive(Debug)]
pub(super) struct Sketch {
    rows: Box<[[Cell; WIDTH]; ROWS]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    now: u32,
    before: u32,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { rows: Box::new([[Cell::default(); WIDTH]; ROWS]) }
    }
}

impl Sketch {
    /// Counts `times` sightings more and estimates how many there were.
    #[inline]
    pub(super) fn add(&mut self, hash: u64, times: u32) -> u32 {
        let mut estimate = u32::MAX;
        for (row, cells) in self.rows.iter_mut().enumerate() {
            let cell = &mut cells[(hash >> (row * 32)) as usize % WIDTH];
            cell.now = cell.now.saturating_add(times);
            estimate = estimate.min(cell.now.saturating_add(cell.before));
        }
        estimate
    }

    /// Starts a generation; the one before the last is forgotten.
    pub(super) fn turn(&mut self) {
        for cell in self.rows.iter_mut().flatten() {
            *cell = Cell { now: 0, before: cell.now };
        }
    }
}
