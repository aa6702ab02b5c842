//! Budgets as a middleware for reqwest clients.

use http::Extensions;
use reqwest::{Request, Response, ResponseBuilderExt as _};
use reqwest_middleware::{Error, Middleware, Next, Result};

use super::{Asking, Conduct};
use crate::budget::Refusal;
use crate::message::lines;
use crate::profile::Observation;

/// The most of an answer's body that is read to tell a limit from another answer.
const BODY_MAX: u64 = 64 << 10;

/// Makes a client keep to its budgets. One per credential; clones share the budgets.
///
/// It sends a refused request again by itself where reqwest can clone it: a body in memory, not a
/// stream. Leave 429s out of any other middleware that retries. An [`Asking`] in a request's
/// extensions says how long it can wait. A request that is not sent fails with
/// [`Error::Middleware`], whose source is a [`Refusal`].
///
/// ```no_run
/// # fn example(ledger: std::sync::Arc<dyn tollway_upstream::budget::Ledger>) -> Option<()> {
/// use reqwest_middleware::ClientBuilder;
/// use tollway_upstream::client::{Conduct, reqwest::BudgetMiddleware};
/// use tollway_upstream::profile::Profile;
///
/// let conduct = Conduct::new(ledger, Profile::builtin("discord")?);
/// let middleware = BudgetMiddleware::new(conduct);
/// let client = ClientBuilder::new(reqwest::Client::new()).with(middleware).build();
/// # Some(()) }
/// ```
#[derive(Clone, Debug)]
pub struct BudgetMiddleware {
    conduct: Conduct,
}

impl BudgetMiddleware {
    /// A middleware that conducts itself like that.
    #[must_use]
    pub const fn new(conduct: Conduct) -> Self {
        Self { conduct }
    }

    /// What the answer says; its body is read only where the profile needs it and it is small.
    async fn observe(&self, response: Response) -> Result<(Observation, Response)> {
        let status = response.status().as_u16();
        let wanted = self.conduct.profile.body_wanted(status, &lines(response.headers()));
        let small = response.content_length().is_some_and(|length| length <= BODY_MAX);
        if wanted == 0 || !small {
            let observation = self.conduct.read(status, response.headers(), &[]);
            return Ok((observation, response));
        }
        let (url, version) = (response.url().clone(), response.version());
        let (headers, extensions) = (response.headers().clone(), response.extensions().clone());
        let body = response.bytes().await.map_err(Error::Reqwest)?;
        let observation = self.conduct.read(status, &headers, &body[..body.len().min(wanted)]);
        let mut rebuilt = http::Response::builder().status(status).version(version).url(url);
        if let Some(map) = rebuilt.headers_mut() {
            *map = headers;
        }
        if let Some(map) = rebuilt.extensions_mut() {
            map.extend(extensions);
        }
        let rebuilt = rebuilt.body(body).map_err(Error::middleware)?;
        Ok((observation, Response::from(rebuilt)))
    }
}

#[async_trait::async_trait]
impl Middleware for BudgetMiddleware {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let asking = extensions.get::<Asking>().copied().unwrap_or_default();
        let deadline = self.conduct.deadline(&asking);
        let route = self.conduct.profile.route_with_body(
            request.method().as_str(),
            &target(request.url()),
            request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default(),
        );
        let mut retries = self.conduct.retries_max;
        let mut refused = None;
        loop {
            let permit = match (self.conduct.enter(&route, &asking, deadline).await, refused) {
                (Ok(permit), _) => permit,
                // The upstream's own words say more than ours.
                (Err(_), Some(response)) => return Ok(response),
                (Err(refusal), None) => return Err(not_sent(refusal)),
            };
            let again = if retries == 0 { None } else { request.try_clone() };
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
            permit.complete(&observation);
            let Some(next_request) = again.filter(|_| observation.is_limited()) else {
                return Ok(response);
            };
            retries -= 1;
            request = next_request;
            refused = Some(response);
        }
    }
}

fn not_sent(refusal: Refusal) -> Error {
    Error::Middleware(refusal.into())
}

fn target(url: &reqwest::Url) -> String {
    match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    }
}
