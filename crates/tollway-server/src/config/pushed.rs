//! Rules that a control plane pushes, read as files are: the same tree, the same checks, and what
//! is wrong is told by domain, descriptor and field.

use std::sync::Arc;

use prost_types::value::Kind;

use super::error::{ConfigError, Finding, Mistakes};
use super::file::Draft;
use super::reader::{ConfigValue, Source};
use super::tree::{Node, Value};
use crate::descriptors::Domain;
use crate::metrics::Metrics;
use crate::rls::Unit;
use crate::settings::Manner;
use crate::xds::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};

/// A limit is called by the keys and values that lead to it, in metrics too: all of these names
/// together. A long key at the root of a large tree would be repeated for each of its limits.
const PATH_BYTES_MAX: usize = 32 << 20;
/// Mistakes that are told; whoever pushes more sees them after these are mended.
const TOLD_MAX: usize = 5;

/// What was pushed.
pub(crate) struct PushedRules {
    /// The domains.
    pub domains: Vec<Domain>,
    /// What has no effect, and why.
    pub notes: Vec<ConfigError>,
}

/// Reads the resources of one response.
///
/// # Errors
///
/// If one of them is wrong: then none of them counts. The text names resource, domain, descriptor
/// and field.
pub(crate) fn read(
    resources: &[RateLimitConfig],
    metrics: &Metrics,
    manner: Manner,
) -> Result<PushedRules, String> {
    check_paths(resources)?;
    let (mut draft, finding) = (Draft::read_as(manner), Finding::default());
    let names: Vec<Arc<str>> =
        resources.iter().enumerate().map(|(at, it)| source(at, it).into()).collect();
    for (config, name) in resources.iter().zip(&names) {
        let tree = of_config(config);
        let source = Source { name, finding: &finding, looks_at_files: false };
        let root = ConfigValue::root(source, &tree);
        if let Some(table) = root.tell(root.table()) {
            draft.read_domain(&table, metrics);
        }
    }
    let Draft { domains, notes, .. } = draft;
    let rules = finding.finish(Some(PushedRules { domains, notes }));
    rules.map_err(|mistakes| told(&mistakes, resources, &names))
}

/// What a resource is called in an error.
fn source(index: usize, config: &RateLimitConfig) -> String {
    format!("resource {index} (name {:?})", config.name)
}

fn check_paths(resources: &[RateLimitConfig]) -> Result<(), String> {
    fn bytes(descriptors: &[RateLimitDescriptor], above: usize) -> usize {
        let of = |it: &RateLimitDescriptor| {
            let path = above + it.key.len() + it.value.len() + 2;
            path + bytes(&it.descriptors, path)
        };
        descriptors.iter().map(of).fold(0, usize::saturating_add)
    }
    let all = resources.iter().map(|config| bytes(&config.descriptors, config.domain.len()));
    let all = all.fold(0, usize::saturating_add);
    if all <= PATH_BYTES_MAX {
        return Ok(());
    }
    let problem = "keys and values of descriptors, with those that lead to each, come to";
    Err(format!("{problem} {all} bytes; expected at most {PATH_BYTES_MAX}"))
}

/// The mistakes as the server is told of them.
fn told(mistakes: &Mistakes, resources: &[RateLimitConfig], names: &[Arc<str>]) -> String {
    let one = |mistake: &ConfigError| {
        let at = names.iter().position(|name| **name == *mistake.source);
        let Some(config) = at.map(|at| &resources[at]) else { return mistake.to_string() };
        let (path, field) = path_and_field(&config.descriptors, &mistake.field);
        let descriptor =
            if path.is_empty() { String::new() } else { format!(", descriptor {path:?}") };
        let colon = if field.is_empty() { "" } else { ": " };
        let ConfigError { source, problem, .. } = mistake;
        format!("{source}, domain {:?}{descriptor}: {field}{colon}{problem}", config.domain)
    };
    let first: Vec<String> = mistakes.told().iter().take(TOLD_MAX).map(one).collect();
    match mistakes.count() - first.len() {
        0 => first.join("; "),
        more => format!("{}; and {more} more", first.join("; ")),
    }
}

/// The keys and values that lead to a field, and the field there:
/// `descriptors[0].descriptors[1].rate_limit.unit` is `rate_limit.unit` of `route_a.user`.
fn path_and_field<'a>(descriptors: &[RateLimitDescriptor], field: &'a str) -> (String, &'a str) {
    let (mut path, mut rest, mut level) = (String::new(), field, descriptors);
    while let Some((index, behind)) =
        rest.strip_prefix("descriptors[").and_then(|behind| behind.split_once(']'))
    {
        let Some(found) = index.parse().ok().and_then(|index: usize| level.get(index)) else {
            break;
        };
        let dot = if path.is_empty() { "" } else { "." };
        let value = if found.value.is_empty() { "" } else { "_" };
        path += &format!("{dot}{}{value}{}", found.key, found.value);
        (rest, level) = (behind.strip_prefix('.').unwrap_or(behind), &found.descriptors);
    }
    (path, rest)
}

/// Fields of a table, each of which is left out if it says nothing: protocol buffers do not tell an
/// empty text from none.
#[derive(Default)]
struct Fields(Vec<(String, Node)>);

impl Fields {
    fn put(&mut self, name: &str, value: Value) {
        self.0.push((name.to_owned(), node(value)));
    }

    fn text(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.put(name, Value::Text(text.to_owned()));
        }
    }

    fn flag(&mut self, name: &str, is_set: bool) {
        if is_set {
            self.put(name, Value::Bool(true));
        }
    }

    fn list<T>(&mut self, name: &str, items: &[T], read: fn(&T) -> Node) {
        if !items.is_empty() {
            self.put(name, Value::List(items.iter().map(read).collect()));
        }
    }

    fn table(self) -> Node {
        node(Value::Table(self.0))
    }
}

/// A place that is on no line.
const fn node(value: Value) -> Node {
    Node { line: 0, value }
}

fn of_config(config: &RateLimitConfig) -> Node {
    let mut fields = Fields::default();
    fields.text("domain", &config.domain);
    fields.list("descriptors", &config.descriptors, of_descriptor);
    fields.table()
}

fn of_descriptor(descriptor: &RateLimitDescriptor) -> Node {
    let mut fields = Fields::default();
    fields.text("key", &descriptor.key);
    fields.text("value", &descriptor.value);
    if let Some(policy) = &descriptor.rate_limit {
        fields.put("rate_limit", of_policy(policy));
        // Where there is no limit nothing matches of which it could be told.
        let metadata = descriptor.metadata.as_ref().filter(|it| !it.fields.is_empty());
        metadata.into_iter().for_each(|metadata| fields.put("metadata", of_struct(metadata)));
    }
    fields.flag("shadow_mode", descriptor.shadow_mode);
    fields.flag("detailed_metric", descriptor.detailed_metric);
    fields.flag("quota_mode", descriptor.quota_mode);
    fields.list("descriptors", &descriptor.descriptors, of_descriptor);
    fields.table()
}

fn of_policy(policy: &RateLimitPolicy) -> Value {
    let mut fields = Fields::default();
    let unit = Unit::numbered(policy.unit).map_or(policy.unit.to_string(), |it| it.name().into());
    if policy.unit != Unit::Unknown as i32 {
        fields.text("unit", &unit);
    }
    if policy.unlimited {
        fields.flag("unlimited", true);
    } else {
        fields.put("requests_per_unit", Value::Integer(policy.requests_per_unit.into()));
    }
    fields.text("name", &policy.name);
    fields.list("replaces", &policy.replaces, |replaced| {
        let mut fields = Fields::default();
        fields.text("name", &replaced.name);
        fields.table()
    });
    Value::Table(fields.0)
}

fn of_struct(fields: &prost_types::Struct) -> Value {
    let entry = |(name, value): (&String, _)| (name.clone(), node(of_value(value)));
    Value::Table(fields.fields.iter().map(entry).collect())
}

fn of_value(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => Value::Float(*number),
        Some(Kind::StringValue(text)) => Value::Text(text.clone()),
        Some(Kind::BoolValue(truth)) => Value::Bool(*truth),
        Some(Kind::StructValue(fields)) => of_struct(fields),
        Some(Kind::ListValue(list)) => {
            Value::List(list.values.iter().map(|value| node(of_value(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(unit: i32, requests_per_unit: u32) -> Option<RateLimitPolicy> {
        Some(RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() })
    }

    fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
        let (key, value) = (key.to_owned(), value.to_owned());
        RateLimitDescriptor { key, value, ..RateLimitDescriptor::default() }
    }

    fn config(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
        RateLimitConfig { name: format!("of-{domain}"), domain: domain.to_owned(), descriptors }
    }

    fn wrong(resources: &[RateLimitConfig]) -> String {
        read(resources, &Metrics::default(), Manner::default())
            .map(|_| ())
            .expect_err("it is taken")
    }

    #[test]
    fn what_a_gateway_pushes_reads_as_the_same_rules_in_a_file() {
        let ada = RateLimitDescriptor { rate_limit: limit(5, 7), ..descriptor("user", "ada") };
        let unlimited =
            RateLimitPolicy { unlimited: true, requests_per_unit: 9, ..Default::default() };
        let any = RateLimitDescriptor { rate_limit: Some(unlimited), ..descriptor("user", "") };
        let route = RateLimitDescriptor {
            shadow_mode: true,
            descriptors: vec![ada, any],
            ..descriptor("route", "a")
        };
        let rules = read(&[config("edge", vec![route])], &Metrics::default(), Manner::default());
        let rules = rules.unwrap_or_else(|wrong| panic!("{wrong}"));
        let [domain] = &rules.domains[..] else { panic!("one domain") };
        let found = domain.find(&[("route", "a"), ("user", "ada")]).unwrap();
        let algorithm = *found.limit.policy.as_ref().unwrap().algorithm();
        let days = std::time::Duration::from_secs(30 * 86_400);
        assert_eq!((algorithm.limit(), algorithm.window()), (7, Some((7, days))));
        assert!(!found.limit.shadow, "that is the inner node's");
        let other = domain.find(&[("route", "a"), ("user", "eve")]).unwrap();
        assert!(other.limit.policy.is_none(), "unlimited");
        assert!(domain.find(&[("route", "a")]).is_none());
    }

    #[test]
    fn a_mistake_names_resource_domain_descriptor_and_field() {
        let bad = RateLimitDescriptor { rate_limit: limit(9, 1), ..descriptor("user", "") };
        let good = RateLimitDescriptor { rate_limit: limit(1, 1), ..descriptor("user", "ada") };
        let route =
            RateLimitDescriptor { descriptors: vec![good, bad], ..descriptor("route", "a") };
        let first = config("one", vec![]);
        let told = wrong(&[first, config("two", vec![route])]);
        let expected = "resource 1 (name \"of-two\"), domain \"two\", descriptor \
            \"route_a.user\": rate_limit.unit: expected second, minute";
        assert!(told.starts_with(expected), "{told}");
    }

    #[test]
    fn a_domain_that_two_resources_have_is_refused() {
        let told = wrong(&[config("edge", vec![]), config("edge", vec![])]);
        assert!(told.contains("resource 1") && told.contains("\"edge\" is defined"), "{told}");
    }

    #[test]
    fn what_is_pushed_is_read_in_the_manner_of_the_files() {
        let limited = |value: &str| RateLimitDescriptor {
            rate_limit: limit(1, 7),
            ..descriptor("user", value)
        };
        let halves = [config("edge", vec![limited("ada")]), config("edge", vec![limited("eve")])];
        let manner = Manner { merges: true, quota_mode: true, tells_store_errors: true };
        let rules = read(&halves, &Metrics::default(), manner);
        let rules = rules.unwrap_or_else(|wrong| panic!("{wrong}"));
        let [domain] = &rules.domains[..] else { panic!("one domain") };
        for user in ["ada", "eve"] {
            let limit = domain.find(&[("user", user)]).expect("both halves").limit;
            assert!(limit.quota_mode, "{user}");
        }
    }

    #[test]
    fn what_is_missing_is_told_and_of_many_mistakes_the_first() {
        let told = wrong(&[config("", vec![descriptor("", "x")])]);
        assert!(told.contains("domain is missing") && told.contains("key is missing"), "{told}");
        let many = (0..20).map(|n| RateLimitDescriptor {
            rate_limit: limit(0, 1),
            ..descriptor("k", &n.to_string())
        });
        let told = wrong(&[config("edge", many.collect())]);
        assert!(told.contains("unit is missing") && told.ends_with("; and 15 more"), "{told}");
    }

    #[test]
    fn a_long_key_above_many_limits_is_refused_before_it_is_repeated() {
        let leaves: Vec<_> = (0..5_000).map(|n| descriptor("k", &n.to_string())).collect();
        let long = "x".repeat(8 << 10);
        let top = RateLimitDescriptor { descriptors: leaves, ..descriptor(&long, "") };
        let told = wrong(&[config("edge", vec![top])]);
        assert!(told.contains("expected at most 33554432"), "{told}");
    }
}
