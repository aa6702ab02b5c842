//! From the text of a profile to a validated one.

use std::time::Duration;

use tollway_core::fields::Form;
use tollway_core::{Quota, parse_duration};
use toml::Spanned;

use super::dimension::{Dimension, Fields, Reach, Source, Value, Window};
use super::file::{self, File, error_at};
use super::pattern::{Id, Pattern};
use super::routing::{By, Lane, Routing, Rule};
use super::signal::{BodyValue, Invalid, Meaning, Retry, Signal};
use super::{DIMENSIONS_MAX, GlobalLimit, Profile, ProfileError};

/// Rules, signals, patterns: more of any of them are a mistake.
const ENTRIES_MAX: usize = 256;
/// The usual difference in how long requests travel; see [`GlobalLimit`].
const JITTER: Duration = Duration::from_millis(100);
/// The wait after a refusal that does not say one.
const UNSAID: Duration = Duration::from_secs(1);

type Result<T> = std::result::Result<T, ProfileError>;

/// Reads and validates the text of a profile.
pub(super) fn build(text: &str) -> Result<Profile> {
    let file = file::read(text)?;
    let builder = Builder { text };
    let dimensions = builder.dimensions(&file)?;
    Ok(Profile {
        name: builder.name(&file.name)?,
        about: file.about.clone().unwrap_or_default(),
        docs: file.docs.clone(),
        upstream: file.upstream.clone(),
        routing: builder.routing(&file, &dimensions)?,
        global: builder.global(&file)?,
        concurrency: file.concurrency.as_ref().map(|value| *value.get_ref()),
        bucket: file.bucket.as_ref().map(|name| builder.header(name)).transpose()?,
        retry: builder.retry(&file.retry)?,
        signals: file.signals.iter().map(|signal| builder.signal(signal)).collect::<Result<_>>()?,
        invalid: file.invalid.as_ref().map(|invalid| Invalid {
            status: invalid.status.get_ref().clone(),
            shared_counts: invalid.shared_counts,
        }),
        dimensions,
    })
}

struct Builder<'t> {
    text: &'t str,
}

impl Builder<'_> {
    fn wrong<T, V>(&self, value: &Spanned<V>, message: impl Into<String>) -> Result<T> {
        Err(error_at(self.text, value.span().start, message))
    }

    fn name(&self, name: &Spanned<String>) -> Result<String> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.get_ref().is_empty() || !name.get_ref().bytes().all(plain) {
            return self.wrong(name, "a name is made of lower-case letters, digits and dashes");
        }
        Ok(name.get_ref().clone())
    }

    /// The name of a header field, in lower case.
    fn header(&self, name: &Spanned<String>) -> Result<String> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_!#$%&'*+.^`|~".contains(&byte);
        if name.get_ref().is_empty() || !name.get_ref().bytes().all(token) {
            return self.wrong(name, "this cannot be the name of a header field");
        }
        Ok(name.get_ref().to_ascii_lowercase())
    }

    fn form(&self, form: &Spanned<String>) -> Result<Form> {
        Ok(match form.get_ref().as_str() {
            "epoch_s" => Form::EpochSeconds,
            "epoch_ms" => Form::EpochMillis,
            "delta_s" => Form::DeltaSeconds,
            "delta_ms" => Form::DeltaMillis,
            "http_date" => Form::HttpDate,
            "rfc3339" => Form::Rfc3339,
            "go_duration" => Form::Duration,
            "guess" => Form::Guess,
            _ => {
                let right = "epoch_s, epoch_ms, delta_s, delta_ms, http_date, rfc3339, \
                             go_duration or guess";
                return self.wrong(form, format!("no such form; right would be {right}"));
            }
        })
    }

    fn value(&self, value: &file::Value) -> Result<Value> {
        Ok(Value { header: self.header(&value.header)?, form: self.form(&value.form)? })
    }

    fn duration(&self, text: &Spanned<String>) -> Result<Duration> {
        parse_duration(text.get_ref())
            .or_else(|_| self.wrong(text, "this is no duration such as 100ms, 90s or 1h"))
    }

    fn quota(&self, text: &Spanned<String>) -> Result<Quota> {
        text.get_ref().parse().or_else(|_| self.wrong(text, "this is no quota such as 50/1s"))
    }

    fn pattern(&self, text: &Spanned<String>) -> Result<Pattern> {
        Pattern::parse(text.get_ref()).or_else(|message| self.wrong(text, message))
    }

    fn choice<T: Copy>(&self, text: Option<&Spanned<String>>, of: &[(&str, T)]) -> Result<T> {
        let Some(text) = text else { return Ok(of[0].1) };
        let found = of.iter().find(|(name, _)| name == text.get_ref());
        match found {
            Some((_, value)) => Ok(*value),
            None => {
                let names: Vec<_> = of.iter().map(|(name, _)| *name).collect();
                self.wrong(text, format!("expected one of {}", names.join(", ")))
            }
        }
    }

    fn dimensions(&self, file: &File) -> Result<Vec<Dimension>> {
        let built: Vec<_> =
            file.dimensions.iter().map(|raw| self.dimension(raw)).collect::<Result<_>>()?;
        for (index, raw) in file.dimensions.iter().enumerate() {
            if index >= DIMENSIONS_MAX {
                let message = format!("a profile has at most {DIMENSIONS_MAX} dimensions");
                return self.wrong(&raw.name, message);
            }
            if built[..index].iter().any(|earlier| earlier.name == *raw.name.get_ref()) {
                return self.wrong(&raw.name, "two dimensions have this name");
            }
        }
        Ok(built)
    }

    fn dimension(&self, raw: &file::Dimension) -> Result<Dimension> {
        let optional = |text: &Option<Spanned<String>>| -> Result<Option<Quota>> {
            text.as_ref().map(|text| self.quota(text)).transpose()
        };
        let dimension = Dimension {
            name: raw.name.get_ref().clone(),
            reach: self.choice(
                raw.reach.as_ref(),
                &[("bucket", Reach::Bucket), ("credential", Reach::Credential)],
            )?,
            window: self.choice(
                raw.window.as_ref(),
                &[("auto", Window::Auto), ("fixed", Window::Fixed), ("sliding", Window::Sliding)],
            )?,
            source: self.source(raw)?,
            stated: optional(&raw.stated)?,
            refill: optional(&raw.refill)?,
            slack: raw.slack.as_ref().map_or(Ok(Duration::ZERO), |text| self.duration(text))?,
            verify: self.choice(raw.after_reset.as_ref(), &[("full", false), ("probe", true)])?,
        };
        if dimension.is_modelled() && dimension.stated.is_none() {
            return self.wrong(
                &raw.name,
                "no field tells this dimension: name one (limit, remaining, used, used_of_size, \
                 counts, structured), or state its limit (stated = \"100/1s\")",
            );
        }
        Ok(dimension)
    }

    fn source(&self, raw: &file::Dimension) -> Result<Source> {
        let header = |name: &Option<Spanned<String>>| -> Result<Option<String>> {
            name.as_ref().map(|name| self.header(name)).transpose()
        };
        if let Some(name) = &raw.used_of_size {
            return Ok(Source::UsedOfSize(self.header(name)?));
        }
        if let Some(counts) = &raw.counts {
            let (limit, used) = (self.header(&counts.limit)?, self.header(&counts.used)?);
            return Ok(Source::Counts { limit, used });
        }
        if let Some(text) = &raw.structured {
            return match text.get_ref().as_str() {
                "ietf" => Ok(Source::Structured),
                _ => self.wrong(text, "right would be ietf"),
            };
        }
        let (limit, remaining, used) =
            (header(&raw.limit)?, header(&raw.remaining)?, header(&raw.used)?);
        if remaining.is_none() && used.is_none() {
            return match (&raw.limit, raw.reset.first()) {
                (Some(name), _) => self.wrong(name, "a limit alone tells nothing: add remaining"),
                (None, Some(reset)) => {
                    self.wrong(&reset.header, "a reset alone tells nothing: add remaining")
                }
                (None, None) => Ok(Source::Modelled),
            };
        }
        let reset = raw.reset.iter().map(|value| self.value(value)).collect::<Result<_>>()?;
        let interval = raw.interval.as_ref().map(|value| self.value(value)).transpose()?;
        Ok(Source::Fields(Fields { limit, remaining, used, reset, interval }))
    }

    fn routing(&self, file: &File, dimensions: &[Dimension]) -> Result<Routing> {
        let patterns = |texts: &[Spanned<String>]| -> Result<Vec<Pattern>> {
            texts.iter().map(|text| self.pattern(text)).collect()
        };
        let id = |text: &Spanned<String>| {
            Id::parse(text.get_ref())
                .map_or_else(|| self.wrong(text, "right would be digits, uuid, hex or opaque"), Ok)
        };
        if let Some(rule) = file.rules.get(ENTRIES_MAX) {
            return self.wrong(&rule.pattern, format!("a profile has at most {ENTRIES_MAX} rules"));
        }
        let mut routing = Routing {
            by: self.choice(
                file.route.by.as_ref(),
                &[("method+path", By::MethodAndPath), ("path", By::Path), ("none", By::Nothing)],
            )?,
            strip: patterns(&file.route.strip)?,
            ids: file.route.ids.iter().map(id).collect::<Result<_>>()?,
            ids_after: file.route.ids_after.iter().map(|t| t.get_ref().as_str().into()).collect(),
            major: patterns(&file.route.major)?,
            rules: Vec::new(),
            costs: [0; DIMENSIONS_MAX],
        };
        for (index, raw) in file.dimensions.iter().enumerate() {
            routing.costs[index] = raw.cost.unwrap_or(1);
        }
        if dimensions.is_empty() {
            routing.costs[0] = 1;
        }
        let costs = routing.costs;
        routing.rules = file
            .rules
            .iter()
            .map(|rule| self.rule(rule, dimensions, costs))
            .collect::<Result<_>>()?;
        Ok(routing)
    }

    fn rule(
        &self,
        raw: &file::Rule,
        dimensions: &[Dimension],
        mut costs: super::Costs,
    ) -> Result<Rule> {
        for cost in &raw.cost {
            let name = cost.dimension.get_ref();
            match dimensions.iter().position(|dimension| dimension.name == *name) {
                Some(index) => costs[index] = cost.units,
                None => return self.wrong(&cost.dimension, "no dimension has this name"),
            }
        }
        let exempt =
            self.choice(raw.exempt.as_ref(), &[("nothing", 0), ("global", 1), ("everything", 2)])?;
        Ok(Rule {
            pattern: self.pattern(&raw.pattern)?,
            class: raw.class.as_ref().map(|class| class.get_ref().as_str().into()),
            exempt_global: exempt >= 1,
            exempt: exempt == 2,
            costs,
            stated: raw.limit.as_ref().map(|text| self.quota(text)).transpose()?,
            lane: raw.lane.as_ref().map(|lane| Lane {
                name: lane.name.get_ref().as_str().into(),
                body: lane.body.clone(),
            }),
        })
    }

    fn global(&self, file: &File) -> Result<Option<GlobalLimit>> {
        let Some(raw) = &file.global else { return Ok(None) };
        let jitter = raw.jitter.as_ref().map_or(Ok(JITTER), |text| self.duration(text))?;
        let quota = self.quota(&raw.limit)?;
        if quota.units() > GlobalLimit::UNITS_MAX {
            let message = format!("a global limit has at most {} units", GlobalLimit::UNITS_MAX);
            return self.wrong(&raw.limit, message);
        }
        Ok(Some(GlobalLimit { quota, jitter }))
    }

    fn retry(&self, raw: &file::Retry) -> Result<Retry> {
        let body = raw.body.as_ref().map(|body| {
            Ok(BodyValue { field: body.field.get_ref().clone(), form: self.form(&body.form)? })
        });
        Ok(Retry {
            headers: raw.header.iter().map(|value| self.value(value)).collect::<Result<_>>()?,
            body: body.transpose()?,
            unsaid: raw.unsaid.as_ref().map_or(Ok(UNSAID), |text| self.duration(text))?,
        })
    }

    fn signal(&self, raw: &file::Signal) -> Result<Signal> {
        if raw.status.get_ref().is_empty() {
            return self.wrong(&raw.status, "name at least one status");
        }
        let header = |name: &Option<Spanned<String>>| -> Result<Option<String>> {
            name.as_ref().map(|name| self.header(name)).transpose()
        };
        let meanings = [
            ("limit", Meaning::Limit(None)),
            ("user", Meaning::Limit(Some(super::Scope::User))),
            ("shared", Meaning::Limit(Some(super::Scope::Shared))),
            ("global", Meaning::Limit(Some(super::Scope::Global))),
            ("no-limit", Meaning::NoLimit),
        ];
        Ok(Signal {
            status: raw.status.get_ref().clone(),
            header: header(&raw.header)?,
            equals: raw.equals.clone(),
            absent: header(&raw.absent)?,
            body: raw.body.as_ref().map(|text| text.get_ref().clone()),
            means: self.choice(Some(&raw.means), &meanings)?,
        })
    }
}
