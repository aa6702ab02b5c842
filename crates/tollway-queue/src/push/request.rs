//! The request that a job is pushed with: what the configuration says, filled in by the job, or the
//! target of the job's own.
//!
//! A payload names its own target so, if the configuration allows that:
//!
//! ```json
//! { "target": { "url": "https://api.example.com/v1/items", "method": "PUT",
//!               "headers": { "x-request": "7" }, "body": { "name": "a" } } }
//! ```
//!
//! **Invariants.** Such a target has one of the configured origins. Fields of the configuration,
//! which may be secrets, are sent to the configured origin and to no other.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, Method, Request, Uri};
use http_body_util::Full;
use serde_json::{Map, Value};

use super::target::{self, FIELDS_MAX, FieldText, PushBody, PushTarget};
use super::template::{FieldPath, JobValues, Template};
use super::url::{self, Origin, UrlTemplate};
use crate::Task;
use crate::error::Error;

/// How calls are made, read once.
#[derive(Debug)]
pub(super) struct Requests {
    url: Option<(UrlTemplate, Origin)>,
    method: Method,
    fields: Vec<(HeaderName, Text)>,
    body: Body,
    /// The origins that a target of a job's own may have; `None` if it may have none.
    origins: Option<Vec<Origin>>,
    content_type: HeaderValue,
}

#[derive(Debug)]
enum Text {
    Template(Template),
    Value(HeaderValue),
}

#[derive(Debug)]
enum Body {
    Payload,
    Nothing,
    Field(FieldPath),
}

impl Requests {
    /// Reads what `target` says of calls.
    pub(super) fn new(target: &PushTarget) -> Result<Self, Error> {
        let content_type = HeaderValue::from_str(&target.content_type)
            .map_err(|_| Error::invalid("the media type of the push target cannot be sent"))?;
        let url = match &target.url[..] {
            "" if target.allow_target => None,
            url => {
                let template = UrlTemplate::parse(url)?;
                let origin = template.origin()?;
                Some((template, origin))
            }
        };
        let origins: Vec<Origin> =
            target.origins.iter().map(|text| Origin::parse(text)).collect::<Result<_, _>>()?;
        if target.allow_target == origins.is_empty() {
            let message = "allow_target needs origins, and origins need allow_target";
            return Err(Error::invalid(message));
        }
        if target.fields.len() > FIELDS_MAX || target.keep_fields.len() > FIELDS_MAX {
            return Err(Error::invalid(format!("a push has at most {FIELDS_MAX} header fields")));
        }
        let body = match &target.body {
            None if [Method::GET, Method::DELETE].contains(&target.method) => Body::Nothing,
            None | Some(PushBody::Payload) => Body::Payload,
            Some(PushBody::Nothing) => Body::Nothing,
            Some(PushBody::Field(path)) => Body::Field(FieldPath::parse(path)?),
        };
        let origins = target.allow_target.then_some(origins);
        let fields = target.fields.iter().map(field).collect::<Result<_, _>>()?;
        Ok(Self { url, method: target.method.clone(), fields, body, origins, content_type })
    }

    /// The request for a job; or why there can be none, which makes it a dead letter.
    pub(super) fn of(&self, task: &Task) -> Result<Request<Full<Bytes>>, String> {
        let job = JobValues::new(task.lease());
        let own = match &self.origins {
            Some(origins) => own_target(&job, origins)?,
            None => None,
        };
        let (mut request, is_configured) = match own {
            Some(own) => {
                let origin = Origin::of(own.uri()).map_err(|error| error.to_string())?;
                let is_same = self.url.as_ref().is_some_and(|(_, known)| *known == origin);
                (own, is_same)
            }
            None => (self.configured(&job)?, true),
        };
        if is_configured {
            self.add_fields(&job, request.headers_mut())?;
        }
        self.add_queue_fields(task, request.headers_mut());
        Ok(request)
    }

    fn configured(&self, job: &JobValues<'_>) -> Result<Request<Full<Bytes>>, String> {
        let (url, _) = self.url.as_ref().ok_or("the payload does not name a target")?;
        let body = match &self.body {
            Body::Payload => job.lease.payload.clone(),
            Body::Nothing => Bytes::new(),
            Body::Field(path) => sent(path.find(job)?),
        };
        Ok(request(self.method.clone(), url.fill(job)?, body))
    }

    fn add_fields(&self, job: &JobValues<'_>, fields: &mut HeaderMap) -> Result<(), String> {
        let put = |filled: &mut String, value: &str| {
            filled.push_str(value);
            Ok(())
        };
        for (name, text) in &self.fields {
            let value = match text {
                Text::Value(value) => value.clone(),
                Text::Template(template) => value_of(name, &template.fill(job, put)?)?,
            };
            fields.insert(name, value);
        }
        Ok(())
    }

    fn add_queue_fields(&self, task: &Task, fields: &mut HeaderMap) {
        fields.insert(header::CONTENT_TYPE, self.content_type.clone());
        // A queue's name is printable ASCII.
        if let Ok(name) = HeaderValue::from_str(task.queue().name().as_str()) {
            fields.insert("tollway-queue", name);
        }
        fields.insert("tollway-job", task.lease().id.0.into());
        fields.insert("tollway-attempt", task.lease().attempt.into());
    }
}

fn field((name, text): &(HeaderName, FieldText)) -> Result<(HeaderName, Text), Error> {
    target::field_name(name.as_str())?;
    let text = match text {
        FieldText::Text(text) => {
            let template = Template::parse(text)?;
            value_of(name, &template.fill_alike("x")).map_err(Error::invalid)?;
            Text::Template(template)
        }
        FieldText::Secret(secret) => {
            let mut value = value_of(name, &secret.sent()).map_err(Error::invalid)?;
            // Neither compressed by HTTP/2 into a table that lives on, nor shown by `Debug`.
            value.set_sensitive(true);
            Text::Value(value)
        }
    };
    Ok((name.clone(), text))
}

/// What a field may say: printable ASCII, so that no value can begin another field.
fn value_of(name: &HeaderName, text: &str) -> Result<HeaderValue, String> {
    let wrong = |_| format!("the header field {name} may hold printable ASCII only");
    HeaderValue::from_str(text).map_err(wrong)
}

fn request(method: Method, uri: Uri, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    (*request.method_mut(), *request.uri_mut()) = (method, uri);
    request
}

/// The request that the payload asks for, if it names a target.
fn own_target(
    job: &JobValues<'_>,
    origins: &[Origin],
) -> Result<Option<Request<Full<Bytes>>>, String> {
    let Some(target) = job.payload().and_then(|payload| payload.get("target")) else {
        return Ok(None);
    };
    let target = target.as_object().ok_or("the payload's target must be an object")?;
    let known = ["url", "method", "headers", "body"];
    if let Some(name) = target.keys().find(|name| !known.contains(&&***name)) {
        let name: String = name.escape_default().take(64).collect();
        return Err(format!("unknown field target.{name}; known are: {}", known.join(", ")));
    }
    let text = |name: &str| target.get(name).map(|value| value.as_str().ok_or(name.to_owned()));
    let no_text = |name| format!("target.{name} must be text");
    let url = text("url").ok_or("target.url is missing")?.map_err(no_text)?;
    let uri = url::uri(url).map_err(|error| error.to_string())?;
    let origin = Origin::of(&uri).map_err(|error| error.to_string())?;
    if !origins.contains(&origin) {
        return Err("the target's origin is not among those that the queue allows".to_owned());
    }
    let method = text("method").transpose().map_err(no_text)?.unwrap_or("POST");
    let method = target::method(method).map_err(|error| error.to_string())?;
    let body = target.get("body").map(sent).unwrap_or_default();
    let mut request = request(method, uri, body);
    if let Some(fields) = target.get("headers") {
        let fields = fields.as_object().ok_or("target.headers must be an object")?;
        add_own(fields, request.headers_mut())?;
    }
    Ok(Some(request))
}

fn add_own(given: &Map<String, Value>, fields: &mut HeaderMap) -> Result<(), String> {
    if given.len() > FIELDS_MAX {
        return Err(format!("target.headers has more than {FIELDS_MAX} fields"));
    }
    for (name, value) in given {
        let name = target::field_name(name).map_err(|error| error.to_string())?;
        let text = value.as_str().ok_or_else(|| format!("the header field {name} must be text"))?;
        fields.insert(name.clone(), value_of(&name, text)?);
    }
    Ok(())
}

/// A field of a payload as a body: text as it is, all else as JSON.
fn sent(value: &Value) -> Bytes {
    match value {
        Value::String(text) => text.clone().into(),
        value => value.to_string().into(),
    }
}
