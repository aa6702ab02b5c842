//! What tokens cost: prices per million tokens, kept and summed in whole millionths.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::models::usage::Usage;

/// Prices by model: a name, or a beginning and `*`; the longest that fits counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prices(Vec<(String, Price)>);

/// Millionths for a million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Price {
    input: u64,
    cached: u64,
    output: u64,
}

/// As it is written: decimals for a million tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PriceText {
    input: String,
    /// As the input, if it is not given.
    cached: Option<String>,
    output: String,
}

impl Prices {
    pub(crate) fn read(texts: &BTreeMap<String, PriceText>) -> Result<Self, String> {
        let mut prices = Vec::new();
        for (model, text) in texts {
            let read = |field: &str, text: &str| {
                millionths(text).ok_or_else(|| {
                    format!("prices.{model:?}.{field}: `{text}` is no amount such as 0.15")
                })
            };
            let input = read("input", &text.input)?;
            let cached = text.cached.as_deref().map(|text| read("cached", text)).transpose()?;
            let output = read("output", &text.output)?;
            prices.push((model.clone(), Price { input, cached: cached.unwrap_or(input), output }));
        }
        prices.sort_by_key(|(model, _)| std::cmp::Reverse(model.len()));
        Ok(Self(prices))
    }

    pub(crate) fn of(&self, model: &str) -> Option<Price> {
        self.0.iter().find(|(pattern, _)| fits(pattern, model)).map(|(_, price)| *price)
    }
}

impl Price {
    /// Millionths for this use, rounded up: a call is never free because it is small.
    pub(crate) fn of(self, usage: Usage) -> u64 {
        let part = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let sum = part(usage.input, self.input)
            + part(usage.cached, self.cached)
            + part(usage.output, self.output);
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// Whether a model is named by a pattern: its name, or its beginning and `*`.
pub(crate) fn fits(pattern: &str, model: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => model.starts_with(beginning),
        None => pattern == model,
    }
}

/// A decimal in millionths; at most six digits after the point.
pub(crate) fn millionths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(part) || part.len() > 6 {
        return None;
    }
    let part: u64 = format!("{part:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_exactly_and_sums_are_rounded_up() {
        assert_eq!(millionths("0.15"), Some(150_000));
        assert_eq!(millionths("25"), Some(25_000_000));
        for text in ["", ".5", "1e3", "-1", "0.1234567", "99999999999999999999", "1,5"] {
            assert_eq!(millionths(text), None, "{text}");
        }
        let price = Price { input: 150_000, cached: 75_000, output: 600_000 };
        assert_eq!(price.of(Usage { input: 1, cached: 0, output: 0 }), 1);
        let much = Usage { input: 1_000_000, cached: 1_000_000, output: 1_000_000 };
        assert_eq!(price.of(much), 825_000);
        assert_eq!(price.of(Usage { input: u64::MAX, ..much }), 2_767_011_611_057_107_743);
    }

    #[test]
    fn the_closest_name_has_the_price() {
        let text =
            |input: &str| PriceText { input: input.into(), cached: None, output: "2".into() };
        let texts = [("*", "1"), ("gpt-4o*", "3"), ("gpt-4o-mini", "5")];
        let texts = texts.map(|(model, input)| (model.to_owned(), text(input)));
        let prices = Prices::read(&texts.into_iter().collect()).unwrap();
        for (model, input) in [("gpt-4o-mini", 5), ("gpt-4o-2024", 3), ("other", 1)] {
            assert_eq!(prices.of(model).unwrap().input, input * 1_000_000, "{model}");
        }
        let wrong = [("m".to_owned(), text("1.2.3"))];
        let told = Prices::read(&wrong.into_iter().collect()).unwrap_err();
        assert!(told.contains("prices.\"m\".input: `1.2.3`"), "{told}");
    }
}
