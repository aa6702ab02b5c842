//! The answer to a call on its way to the client: what it brings is paid before it is delivered.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::Frame;
use tokio::runtime::Handle;

use crate::body::{Body, BoxError};
use crate::models::events::{Reader, Splitter};
use crate::models::hold::Hold;
use crate::models::spending::Outcome;
use crate::models::usage::Usage;
use crate::usage::UsageBody;

/// The body of an answer, paid as it comes: event by event, or at its end.
pub(crate) fn metered(hold: Hold, head: &Parts, body: Body) -> Body {
    if !head.status.is_success() {
        // Providers charge nothing for what they refuse, but the request was made.
        tokio::spawn(hold.settle(Usage::default(), Outcome::Failed));
        return body;
    }
    let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if kind.is_some_and(|kind| kind.trim_start().starts_with("text/event-stream")) {
        let metered = Metered {
            reader: Reader::new(&hold.call, hold.expected.input),
            body,
            splitter: Splitter::default(),
            out: VecDeque::new(),
            hold: Some(hold),
        };
        return StreamBody::new(unfold(metered, Metered::next)).boxed_unsync();
    }
    let tell = move |end: &[u8]| {
        let told = Usage::of_end(hold.call.form, end);
        let usage = told.unwrap_or_else(|| hold.reserved());
        tokio::spawn(
            hold.settle(usage, if told.is_some() { Outcome::Served } else { Outcome::Failed }),
        );
    };
    UsageBody::new(body, tell).boxed_unsync()
}

/// A stream of events between the provider and the client.
struct Metered {
    body: Body,
    splitter: Splitter,
    reader: Reader,
    /// What may be delivered.
    out: VecDeque<Bytes>,
    /// None once it is settled: then nothing follows.
    hold: Option<Hold>,
}

impl Metered {
    async fn next(mut self) -> Option<(Result<Frame<Bytes>, BoxError>, Self)> {
        loop {
            if let Some(bytes) = self.out.pop_front() {
                return Some((Ok(Frame::data(bytes)), self));
            }
            self.hold.as_ref()?;
            match self.body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.pay(&data).await,
                    Err(trailers) => return Some((Ok(trailers), self)),
                },
                Some(Err(error)) => {
                    self.settle(Outcome::Failed);
                    return Some((Err(error), self));
                }
                None => {
                    let rest = self.splitter.rest();
                    self.out.extend((!rest.is_empty()).then_some(rest));
                    let is_whole = self.reader.is_ended() || self.reader.is_told();
                    self.settle(if is_whole { Outcome::Served } else { Outcome::Failed });
                }
            }
        }
    }

    /// Delivers the events of `data` that are paid; ends the stream at the first that is not.
    async fn pay(&mut self, data: &[u8]) {
        self.splitter.push(data);
        while let Some(event) = self.splitter.next() {
            let before = self.reader.usage();
            let brings_text = self.reader.read(&event);
            let Some(hold) = &mut self.hold else { return };
            // What tells only what was used has been used already.
            if !brings_text || hold.cover(self.reader.usage()).await {
                self.out.push_back(event);
                continue;
            }
            self.reader.take_back(before);
            self.out.push_back(self.reader.ending());
            self.settle(Outcome::Cut);
            // The provider is told that nobody listens.
            self.body = Empty::new().map_err(|never| match never {}).boxed_unsync();
            return;
        }
    }

    /// The client does not wait for the store.
    fn settle(&mut self, outcome: Outcome) {
        if let (Some(hold), Ok(runtime)) = (self.hold.take(), Handle::try_current()) {
            runtime.spawn(hold.settle(self.reader.usage(), outcome));
        }
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.settle(Outcome::Abandoned);
    }
}
