//! Which route a request belongs to, and the resource that its bucket is counted by.

use super::{Request, RouteSpec, Spec};

/// The route of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Match {
    /// Its place in the description; `None` for a path that nobody described.
    pub(super) route: Option<usize>,
    /// The ids that the bucket is counted by, separated by dots.
    pub(super) major: String,
    /// Every segment of the path.
    segments: Vec<String>,
}

impl Match {
    /// Whether an id in the path starts with `prefix`.
    pub(super) fn names(&self, prefix: &str) -> bool {
        self.segments.iter().any(|segment| segment.starts_with(prefix))
    }

    /// What the parameters of `template` are in this path, if it fits.
    pub(super) fn named<'a>(&'a self, template: &'a str) -> Option<Vec<(&'a str, &'a str)>> {
        let segments: Vec<&str> = self.segments.iter().map(String::as_str).collect();
        fit_path(template, &segments)
    }
}

/// The first route that fits.
pub(super) fn find(spec: &Spec, request: &Request<'_>) -> Match {
    let path = request.target.split('?').next().unwrap_or_default();
    let segments = unversioned(path);
    let fit = |(index, route): (usize, &RouteSpec)| {
        let method = route.method.as_deref();
        let fits_method = method.is_none_or(|method| method.eq_ignore_ascii_case(request.method));
        let named = fits_method.then(|| fit_path(&route.path, &segments)).flatten()?;
        Some((index, major(&named)))
    };
    let found = spec.routes.iter().enumerate().find_map(fit);
    let (route, major) = found.map_or((None, String::new()), |(index, major)| (Some(index), major));
    Match { route, major, segments: segments.into_iter().map(str::to_owned).collect() }
}

/// What the client wrote into `?tag=`.
pub(super) fn tag(target: &str) -> Option<&str> {
    let (_, query) = target.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix("tag="))
}

/// The segments of a path without a leading `api` and `v10`.
pub(super) fn unversioned(path: &str) -> Vec<&str> {
    let mut segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    if segments.first() == Some(&"api") {
        segments.remove(0);
    }
    if segments.first().is_some_and(|first| is_version(first)) {
        segments.remove(0);
    }
    segments
}

fn is_version(segment: &str) -> bool {
    let digits = segment.strip_prefix('v').unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The parameters by name if `template` fits: `{name}` is any segment, `{+name}` one that counts,
/// `*` any rest.
fn fit_path<'a>(template: &'a str, segments: &[&'a str]) -> Option<Vec<(&'a str, &'a str)>> {
    let mut named = Vec::new();
    let mut rest = segments.iter();
    for part in template.split('/').filter(|part| !part.is_empty()) {
        if part == "*" {
            return Some(named);
        }
        let segment = rest.next()?;
        match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) => named.push((name, *segment)),
            None if part == *segment => {}
            None => return None,
        }
    }
    rest.next().is_none().then_some(named)
}

/// The ids that a bucket is counted by, separated by dots.
fn major(named: &[(&str, &str)]) -> String {
    let counted = named.iter().filter(|(name, _)| name.starts_with('+'));
    counted.map(|(_, segment)| *segment).collect::<Vec<_>>().join(".")
}
