//! How many jobs start in so many rounds, if every group that has one starts one in each.
//!
//! Groups take turns. Before the job that is third in its group, the two before it start, and of
//! every other group at most three: the sum over groups of `min(jobs, 3)`. How many groups have
//! more than `n` jobs changes for one `n` when a job comes or goes, so the sums cost nothing to
//! keep.

/// How many jobs the groups of a queue have, longest lines left out.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// At `n`, how many groups have more than `n` jobs.
    groups_with_more: Vec<u64>,
}

impl Rounds {
    /// Up to how many jobs of each group are told apart.
    const EXACT_MAX: usize = 1_024;

    /// A group that had `before` jobs has one more.
    pub(crate) fn grow(&mut self, before: u32) {
        let index = before as usize;
        if index >= Self::EXACT_MAX {
            return;
        }
        if self.groups_with_more.len() <= index {
            self.groups_with_more.resize(index + 1, 0);
        }
        self.groups_with_more[index] += 1;
    }

    /// A group that has `left` jobs had one more.
    pub(crate) fn shrink(&mut self, left: u32) {
        if let Some(groups) = self.groups_with_more.get_mut(left as usize) {
            *groups -= 1;
        }
    }

    /// How many jobs start in so many rounds, at most.
    pub(crate) fn jobs(&self, rounds: u64) -> u64 {
        let exact = usize::try_from(rounds).unwrap_or(usize::MAX).min(self.groups_with_more.len());
        let sum: u64 = self.groups_with_more[..exact].iter().sum();
        // Of longer lines it is only known how many groups have one.
        let longer = self.groups_with_more.get(Self::EXACT_MAX - 1).copied().unwrap_or(0);
        sum.saturating_add(longer.saturating_mul(rounds - exact as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jobs_of_some_rounds_are_the_sum_over_groups_of_what_each_may_start() {
        let mut lines = [0u32; 20];
        let (mut rounds, mut random) = (Rounds::default(), 7u64);
        for _ in 0..5_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let line = &mut lines[(random >> 40) as usize % 20];
            if random >> 60 > 5 || *line == 0 {
                rounds.grow(*line);
                *line += 1;
            } else {
                *line -= 1;
                rounds.shrink(*line);
            }
        }
        for some in [0u32, 1, 2, 17, 100, 1_000] {
            let sum: u64 = lines.iter().map(|line| u64::from(*line.min(&some))).sum();
            assert_eq!(rounds.jobs(some.into()), sum, "{some} rounds");
        }
    }

    #[test]
    fn a_line_beyond_what_is_told_apart_counts_as_endless() {
        let mut rounds = Rounds::default();
        (0..100_000).for_each(|before| rounds.grow(before));
        assert_eq!((rounds.jobs(3), rounds.jobs(5_000)), (3, 5_000));
        (0..100_000).rev().for_each(|left| rounds.shrink(left));
        assert_eq!(rounds.jobs(5_000), 0);
    }
}
