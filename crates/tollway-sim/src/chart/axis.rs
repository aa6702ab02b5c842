//! Round numbers along an axis.

/// At most so many steps on a value axis.
const STEPS_MAX: f64 = 4.0;

/// A value axis from zero to a round number.
pub(super) struct Axis {
    step: f64,
    steps: usize,
}

impl Axis {
    /// The shortest axis of round steps that reaches `top`.
    pub(super) fn from_zero(top: f64) -> Self {
        if top <= 0.0 || !top.is_finite() {
            return Self { step: 1.0, steps: 1 };
        }
        let mut step = power_of_ten_below(top / STEPS_MAX);
        for factor in [1.0, 2.0, 2.5, 5.0, 10.0] {
            if step * factor * STEPS_MAX >= top * 0.999_999 {
                step *= factor;
                break;
            }
        }
        Self { step, steps: ((top * 0.999_999 / step).ceil() as usize).max(1) }
    }

    pub(super) fn ticks(&self) -> impl Iterator<Item = f64> {
        let step = self.step;
        (0..=self.steps).map(move |index| index as f64 * step)
    }

    /// Where `value` stands between `zero` and the end of the axis.
    pub(super) fn place(&self, value: f64, zero: f64, end: f64) -> f64 {
        let part = (value / (self.step * self.steps as f64)).clamp(0.0, 1.0);
        zero + part * (end - zero)
    }
}

fn power_of_ten_below(value: f64) -> f64 {
    let mut power = 1.0;
    while power > value {
        power /= 10.0;
    }
    while power * 10.0 <= value {
        power *= 10.0;
    }
    power
}

/// A number without needless zeros; thousands as `k`.
pub(super) fn number(value: f64) -> String {
    if value >= 10_000.0 {
        return format!("{}k", number(value / 1_000.0));
    }
    let digits = format!("{value:.3}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The labels of a time axis, each with its place from 0 to 1.
pub(super) fn time_axis(length_s: f64) -> Vec<(f64, String)> {
    const DAY: f64 = 86_400.0;
    let (unit_s, name) = match length_s {
        length_s if length_s > 3.0 * DAY => (DAY, "d"),
        length_s if length_s > 5_400.0 => (3_600.0, "h"),
        length_s if length_s > 120.0 => (60.0, "min"),
        _ => (1.0, "s"),
    };
    let length = length_s / unit_s;
    let step = [1.0, 2.0, 3.0, 6.0, 12.0, 24.0].into_iter().find(|step| length / step <= 6.0);
    let step = step.unwrap_or_else(|| 10.0 * (length / 60.0).ceil());
    let steps = (length / step + 1e-9).floor() as usize;
    let label = |index: usize| {
        let value = number(index as f64 * step);
        if index == steps { format!("{value} {name}") } else { value }
    };
    (0..=steps).map(|index| (index as f64 * step / length, label(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers_just_above_the_top() {
        for (top, ticks) in [
            (64.0, vec![0.0, 20.0, 40.0, 60.0, 80.0]),
            (1.0, vec![0.0, 0.25, 0.5, 0.75, 1.0]),
            (4_500.0, vec![0.0, 2_000.0, 4_000.0, 6_000.0]),
            (0.0, vec![0.0, 1.0]),
        ] {
            assert_eq!(Axis::from_zero(top).ticks().collect::<Vec<_>>(), ticks);
        }
    }

    #[test]
    fn a_day_is_labelled_in_hours() {
        let labels: Vec<String> = time_axis(86_400.0).into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0", "6", "12", "18", "24 h"]);
    }

    #[test]
    fn numbers_are_short() {
        let written: Vec<String> = [0.0, 0.25, 20.0, 4_500.0, 12_500.0].map(number).to_vec();
        assert_eq!(written, ["0", "0.25", "20", "4500", "12.5k"]);
    }
}
