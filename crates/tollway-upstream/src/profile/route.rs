//! Where a request goes, as far as limits are concerned.

use std::sync::Arc;

use tollway_core::Quota;

use crate::budget::encoding::encoded;

/// The most dimensions (requests, tokens, points) a profile may have.
pub const DIMENSIONS_MAX: usize = 8;

/// What a request takes from each dimension of a profile, in the profile's order.
pub type Costs = [u32; DIMENSIONS_MAX];

/// Where a request goes, as far as limits are concerned. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route(Arc<RouteFields>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteFields {
    pub(crate) method: Box<str>,
    pub(crate) template: Box<str>,
    /// Made of both once, because every claim asks for it.
    pub(crate) name: Box<str>,
    pub(crate) path: Box<str>,
    pub(crate) major: Box<str>,
    pub(crate) class: Option<Box<str>>,
    /// Method and path, where the profile leaves both out of the template.
    pub(crate) shape: Option<Box<str>>,
    pub(crate) lane: Option<Box<str>>,
    pub(crate) costs: Costs,
    pub(crate) exempt_global: bool,
    pub(crate) exempt: bool,
    pub(crate) stated: Option<Quota>,
}

// What the store keeps of a route names it. What it takes stands with each request, and no path is
// kept: it may hold secrets.
encoded!(RouteFields { name, major, class, shape, lane, exempt_global } made {
    method, template, path, costs, exempt, stated
});

impl RouteFields {
    /// The route of these fields.
    pub(crate) fn named(mut self) -> Route {
        self.name = match (&*self.method, &*self.template) {
            ("", "") => "all".into(),
            ("", template) => template.into(),
            (method, template) => [method, " ", template].concat().into(),
        };
        Route(Arc::new(self))
    }
}

impl Route {
    /// A route of a method, a template and a major parameter, that costs one unit.
    #[must_use]
    pub fn new(method: &str, template: &str, major: &str) -> Self {
        let mut costs = [0; DIMENSIONS_MAX];
        costs[0] = 1;
        let fields = RouteFields {
            method: method.into(),
            template: template.into(),
            path: template.into(),
            major: major.into(),
            costs,
            ..RouteFields::default()
        };
        fields.named()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn fields(&self) -> &RouteFields {
        &self.0
    }

    #[cfg(feature = "redis")]
    pub(crate) fn of_fields(fields: RouteFields) -> Self {
        Self(Arc::new(fields))
    }

    /// The method, as sent; empty if the upstream's limits do not distinguish methods.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.0.method
    }

    /// The path with every parameter replaced by its name: `/channels/:major/messages/:id`.
    #[must_use]
    pub fn template(&self) -> &str {
        &self.0.template
    }

    /// The path with the major parameters kept: `/channels/81384788765712384/messages/:id`.
    ///
    /// This is the Spectacles notion of a route.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// The major parameters, joined by `/`: each value has limits of its own. Often empty.
    #[must_use]
    pub fn major(&self) -> &str {
        &self.0.major
    }

    /// The upstream's own name of the bucket, where the profile knows it beforehand.
    #[must_use]
    pub fn class(&self) -> Option<&str> {
        self.0.class.as_deref()
    }

    /// The route without its major parameters: `GET /channels/:major`; `all` where there is but
    /// one.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// What the upstream's own name of its bucket is remembered by: its name, or method and path
    /// where the profile puts routes together in classes.
    pub(crate) fn shape(&self) -> &str {
        self.0.shape.as_deref().unwrap_or(&self.0.name)
    }

    /// A sub-limit that this request may meet, such as the renaming of a channel.
    #[must_use]
    pub fn lane(&self) -> Option<&str> {
        self.0.lane.as_deref()
    }

    /// What it takes from each dimension, unless the claim says otherwise.
    #[must_use]
    pub fn costs(&self) -> &Costs {
        &self.0.costs
    }

    /// Whether the limit over all routes does not count it.
    #[must_use]
    pub fn is_exempt_from_global(&self) -> bool {
        self.0.exempt_global
    }

    /// Whether no limit counts it.
    #[must_use]
    pub fn is_exempt(&self) -> bool {
        self.0.exempt
    }

    /// A limit that the profile states because the upstream never tells it.
    #[must_use]
    pub fn stated(&self) -> Option<Quota> {
        self.0.stated
    }
}
