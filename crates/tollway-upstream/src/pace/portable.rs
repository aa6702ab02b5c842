//! Exponential and logarithm that give the same bits on every machine.
//!
//! The standard library's `exp` and `ln` come from the platform's libm and differ in the last bit
//! between platforms; a simulated day then differs in every digit. These use only additions,
//! multiplications and divisions, whose results IEEE 754 fixes, and are good to about 1e-15.

use core::f64::consts::{LN_2, LOG2_E};

/// Beyond this the result would not be a normal number.
const EXPONENT_MAX: f64 = 700.0;

/// `e` to the power of `x`; `x` is clamped to ±700.
///
/// ```
/// use tollway_upstream::pace::portable::exp;
/// assert!((exp(1.0) - std::f64::consts::E).abs() < 1e-15);
/// ```
#[must_use]
pub fn exp(x: f64) -> f64 {
    let x = x.clamp(-EXPONENT_MAX, EXPONENT_MAX);
    let halvings = (x * LOG2_E).round();
    let rest = x - halvings * LN_2;
    // Taylor's series: |rest| is at most ln(2)/2, so the fourteenth term is below 1e-16.
    let mut sum = 1.0;
    for term in (1..=14).rev() {
        sum = 1.0 + sum * rest / f64::from(term);
    }
    let power_of_two = f64::from_bits(((halvings as i64 + 1_023) as u64) << 52);
    sum * power_of_two
}

/// The natural logarithm of `x`, which must be positive; anything else counts as the least number
/// whose exponential is normal.
#[must_use]
pub fn ln(x: f64) -> f64 {
    if !(x > 0.0 && x.is_finite()) {
        return -EXPONENT_MAX;
    }
    let exponent = ((x.to_bits() >> 52) & 0x7FF) as i64 - 1_023;
    let mut guess = exponent as f64 * LN_2;
    // Halley's iteration cubes the error; the first guess is within 0.7, so four are enough.
    for _ in 0..5 {
        let there = exp(guess);
        guess += 2.0 * (x - there) / (x + there);
    }
    guess
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_ln_agree_with_the_platform_to_fifteen_digits() {
        for step in -4_000..4_000 {
            let x = f64::from(step) * 0.017;
            let relative = exp(x) / x.exp() - 1.0;
            assert!(relative.abs() < 2e-14, "exp({x}) is off by {relative}");
            let positive = f64::from(step + 4_001) * 0.37;
            assert!((ln(positive) - positive.ln()).abs() < 2e-14, "ln({positive})");
        }
    }

    #[test]
    fn the_bits_are_the_same_everywhere() {
        assert_eq!(exp(-1.0 / 120.0).to_bits(), 4_607_107_670_689_258_978);
        assert_eq!(ln(25.0).to_bits(), 0x4009_C041_F7ED_8D33);
    }

    #[test]
    fn no_input_panics() {
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, f64::MAX, 5e-324] {
            let _ = (exp(x), ln(x));
        }
    }
}
