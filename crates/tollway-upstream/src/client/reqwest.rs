//! Budgets as a middleware for reqwest clients.

use std::ops::Deref;

use http::Extensions;
use reqwest::{Request, Response, ResponseBuilderExt as _};
use reqwest_middleware::{Error, Middleware, Next, Result};

use super::{Attempts, ClientSettings};
use crate::message;
use crate::profile::Observation;

/// The most of an answer's body that is read to tell a limit from another answer.
const BODY_MAX: u64 = 64 << 10;

/// Makes a client keep to its budgets. One per credential; clones share the budgets.
///
/// It sends a refused request again by itself where reqwest can clone it: a body in memory, not a
/// stream. Leave 429s out of any other middleware that retries. A
/// [`ClaimOptions`](super::ClaimOptions) in a request's extensions says how long it can wait. A
/// request that is not sent fails with [`Error::Middleware`], whose source is a
/// [`Refusal`](crate::budget::Refusal).
///
/// ```no_run
/// # fn example(ledger: std::sync::Arc<dyn tollway_upstream::budget::Ledger>) -> Option<()> {
/// use reqwest_middleware::ClientBuilder;
/// use tollway_upstream::client::{ClientSettings, reqwest::BudgetMiddleware};
/// use tollway_upstream::profile::Profile;
///
/// let settings = ClientSettings::new(ledger, Profile::builtin("discord")?);
/// let middleware = BudgetMiddleware::new(settings);
/// let client = ClientBuilder::new(reqwest::Client::new()).with(middleware).build();
/// # Some(()) }
/// ```
#[derive(Clone, Debug)]
pub struct BudgetMiddleware {
    settings: ClientSettings,
}

impl BudgetMiddleware {
    /// A middleware with these settings.
    #[must_use]
    pub const fn new(settings: ClientSettings) -> Self {
        Self { settings }
    }

    /// What the answer says; its body is read only where the profile needs it and it is small.
    async fn observe(&self, response: Response) -> Result<(Observation, Response)> {
        let status = response.status().as_u16();
        let wanted = self.settings.profile.body_wanted(status, &message::lines(response.headers()));
        let small = response.content_length().is_some_and(|length| length <= BODY_MAX);
        if wanted == 0 || !small {
            let observation =
                message::read(&self.settings.profile, status, response.headers(), &[]);
            return Ok((observation, response));
        }
        let (body, response) = whole(response).await?;
        let beginning = &body[..body.len().min(wanted)];
        let profile = &self.settings.profile;
        Ok((message::read(profile, status, response.headers(), beginning), response))
    }

    /// Reads what the request took out of the body, where only that tells it and it is small. The
    /// permit is completed before: nobody waits for this.
    async fn settle_body<R>(
        &self,
        attempts: &Attempts<'_, R>,
        observation: &Observation,
        response: Response,
    ) -> Result<Response> {
        let (profile, status) = (&self.settings.profile, response.status().as_u16());
        let is_told =
            profile.usage_is_in_body(status, &message::lines(response.headers()), observation);
        let small = response.content_length().is_some_and(|length| length <= BODY_MAX);
        if !is_told || !small {
            return Ok(response);
        }
        let (body, response) = whole(response).await?;
        attempts.correct(observation, &profile.usage_in_body(&body));
        Ok(response)
    }
}

/// The body of a response, and the response with the same body.
async fn whole(response: Response) -> Result<(impl Deref<Target = [u8]>, Response)> {
    let (url, version) = (response.url().clone(), response.version());
    let (headers, extensions) = (response.headers().clone(), response.extensions().clone());
    let status = response.status();
    let body = response.bytes().await.map_err(Error::Reqwest)?;
    let mut rebuilt = http::Response::builder().status(status).version(version).url(url);
    if let Some(map) = rebuilt.headers_mut() {
        *map = headers;
    }
    if let Some(map) = rebuilt.extensions_mut() {
        map.extend(extensions);
    }
    let rebuilt = rebuilt.body(body.clone()).map_err(Error::middleware)?;
    Ok((body, Response::from(rebuilt)))
}

#[async_trait::async_trait]
impl Middleware for BudgetMiddleware {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let route = self.settings.profile.route_with_body(
            request.method().as_str(),
            &target(request.url()),
            request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default(),
        );
        let attempts = self.settings.attempts(extensions.get(), route);
        let mut attempts = attempts.map_err(|ours| Error::Middleware(ours.into()))?;
        loop {
            let permit = match attempts.permit().await {
                Ok(permit) => permit,
                Err(instead) => return instead.map_err(|ours| Error::Middleware(ours.into())),
            };
            let spare = attempts.spare(|| request.try_clone());
            let response = match next.clone().run(request, extensions).await {
                Ok(response) => response,
                Err(error) => {
                    // Without a connection nothing can have been counted.
                    if matches!(&error, Error::Reqwest(error) if error.is_connect()) {
                        permit.cancel();
                    }
                    return Err(error);
                }
            };
            let (observation, response) = self.observe(response).await?;
            let profile = &self.settings.profile;
            let usage = profile.usage_in_head(&message::lines(response.headers()));
            request = match attempts.settle(permit, (&observation, &usage), response, spare) {
                Ok(next) => next,
                Err(response) => return self.settle_body(&attempts, &observation, response).await,
            };
        }
    }
}

fn target(url: &reqwest::Url) -> String {
    match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    }
}
