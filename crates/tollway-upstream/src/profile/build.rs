//! From the text of a profile to a validated one: what depends on several values.

use toml::Spanned;

use super::dimension::{Dimension, Fields, Reach, Source};
use super::file::{self, AfterReset, File, error_at};
use super::routing::{By, Routing, Rule};
use super::{Costs, DIMENSIONS_MAX, Profile, ProfileError};

/// Rules: more of them are a mistake.
const RULES_MAX: usize = 256;

type Result<T> = std::result::Result<T, ProfileError>;

/// Reads and validates the text of a profile.
pub(super) fn build(text: &str) -> Result<Profile> {
    let mut file = file::read(text)?;
    let builder = Builder { text };
    let costs = costs(&file);
    let raw = std::mem::take(&mut file.dimensions);
    let dimensions = builder.dimensions(raw, file.route.by)?;
    let rules = builder.rules(file.rules, &dimensions, costs)?;
    Ok(Profile {
        name: file.name,
        about: file.about,
        docs: file.docs,
        upstream: file.upstream,
        credentials: file.credential,
        timeouts: file.timeouts,
        routing: Routing { rules, costs, ..file.route },
        global: file.global,
        concurrency: file.concurrency,
        first_burst: file.first_burst,
        opens_up_to: file.opens_up_to,
        bucket: file.bucket,
        retry: file.retry,
        signals: file.signals,
        invalid: file.invalid,
        dimensions,
    })
}

/// What a request takes of each dimension unless a rule says otherwise.
fn costs(file: &File) -> Costs {
    let mut costs = [0; DIMENSIONS_MAX];
    // Without a dimension requests are counted all the same.
    costs[0] = u32::from(file.dimensions.is_empty());
    for (cost, dimension) in costs.iter_mut().zip(&file.dimensions) {
        *cost = dimension.cost.unwrap_or(1);
    }
    costs
}

struct Builder<'t> {
    text: &'t str,
}

impl Builder<'_> {
    fn wrong<T, V>(&self, value: &Spanned<V>, message: impl Into<String>) -> Result<T> {
        Err(error_at(self.text, value.span().start, message))
    }

    fn dimensions(&self, raw: Vec<file::Dimension>, by: By) -> Result<Vec<Dimension>> {
        let mut built: Vec<Dimension> = Vec::new();
        for raw in raw {
            if built.len() >= DIMENSIONS_MAX {
                let message = format!("a profile has at most {DIMENSIONS_MAX} dimensions");
                return self.wrong(&raw.name, message);
            }
            if built.iter().any(|earlier| earlier.name == *raw.name.get_ref()) {
                return self.wrong(&raw.name, "two dimensions have this name");
            }
            built.push(self.dimension(raw, by)?);
        }
        Ok(built)
    }

    fn dimension(&self, mut raw: file::Dimension, by: By) -> Result<Dimension> {
        let source = self.source(&mut raw)?;
        self.check_common(&raw, &source, by)?;
        if matches!(source, Source::Modelled) && raw.stated.is_none() {
            return self.wrong(
                &raw.name,
                "no field tells this dimension: name one (limit, remaining, used, used_of_size, \
                 counts, structured), or state its limit (stated = \"100/1s\")",
            );
        }
        Ok(Dimension {
            is_common: raw.common.is_some_and(Spanned::into_inner),
            is_paced: false,
            name: raw.name.into_inner(),
            reach: raw.reach,
            window: raw.window,
            source,
            stated: raw.stated,
            refill: raw.refill,
            slack: raw.slack,
            verify: raw.after_reset == AfterReset::Probe,
            usage: raw.usage,
        })
    }

    /// Pacing goes by what is left for all requests of a credential, as the upstream tells it.
    fn check_common(&self, raw: &file::Dimension, source: &Source, by: By) -> Result<()> {
        let Some(common) = raw.common.as_ref().filter(|common| *common.get_ref()) else {
            return Ok(());
        };
        if matches!(source, Source::Modelled) {
            return self.wrong(common, "no field tells what is left of it: add remaining");
        }
        if raw.reach == Reach::Bucket && by != By::Nothing {
            let message =
                "it is counted by route: set reach = \"credential\", or route.by = \"none\"";
            return self.wrong(common, message);
        }
        Ok(())
    }

    fn source(&self, raw: &mut file::Dimension) -> Result<Source> {
        if let Some(name) = raw.used_of_size.take() {
            return Ok(Source::UsedOfSize(name));
        }
        if let Some(file::Counts { limit, used }) = raw.counts.take() {
            return Ok(Source::Counts { limit, used });
        }
        if let Some(file::Structured::Ietf) = raw.structured {
            return Ok(Source::Structured);
        }
        if raw.remaining.is_none() && raw.used.is_none() {
            return match (&raw.limit, raw.reset.first()) {
                (Some(name), _) => self.wrong(name, "a limit alone tells nothing: add remaining"),
                (None, Some(reset)) => {
                    self.wrong(reset, "a reset alone tells nothing: add remaining")
                }
                (None, None) => Ok(Source::Modelled),
            };
        }
        Ok(Source::Fields(Fields {
            limit: raw.limit.take().map(Spanned::into_inner),
            remaining: raw.remaining.take(),
            used: raw.used.take(),
            reset: raw.reset.drain(..).map(Spanned::into_inner).collect(),
            interval: raw.interval.take(),
        }))
    }

    fn rules(&self, rules: Vec<Rule>, of: &[Dimension], costs: Costs) -> Result<Vec<Rule>> {
        if let Some(rule) = rules.get(RULES_MAX) {
            return self.wrong(&rule.pattern, format!("a profile has at most {RULES_MAX} rules"));
        }
        rules.into_iter().map(|rule| self.rule(rule, of, costs)).collect()
    }

    fn rule(&self, mut rule: Rule, dimensions: &[Dimension], costs: Costs) -> Result<Rule> {
        rule.costs = costs;
        for cost in &rule.cost {
            let name = cost.dimension.get_ref();
            match dimensions.iter().position(|dimension| dimension.name == *name) {
                Some(index) => rule.costs[index] = cost.units,
                None => return self.wrong(&cost.dimension, "no dimension has this name"),
            }
        }
        Ok(rule)
    }
}
