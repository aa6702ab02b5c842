//! The body of a response that passed a layer: the inner one, or that of a refusal.
//!
//! It is also what holds a permit or an unsettled cost until the last byte is out: a handler has
//! long returned when a stream is still running.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::settle::Open;

pin_project! {
    /// The inner body, or that of a refusal. It holds a permit or an unsettled cost until its end.
    pub struct Body<R> {
        #[pin]
        kind: Kind<R>,
    }
}

pin_project! {
    #[project = KindProj]
    enum Kind<R> {
        Plain { #[pin] inner: R },
        Held { #[pin] inner: R, open: Option<Box<Open>> },
        Refusal { bytes: Option<Bytes> },
    }
}

/// Turns the body of a limited response into the type that the service answers with.
pub trait Bodies<R> {
    /// That type.
    type Limited;

    /// The body as that type.
    fn limited(body: Body<R>) -> Self::Limited;

    /// The answer to a request that passed without a word.
    #[inline]
    fn passed<E>(answer: Poll<Result<Response<R>, E>>) -> Poll<Result<Response<Self::Limited>, E>> {
        answer.map_ok(|response| response.map(|body| Self::limited(Body::plain(body))))
    }
}

/// Answers with [`Body`], whatever the inner service answers with.
#[derive(Debug, Clone, Copy)]
pub struct AnyBody;

impl<R> Bodies<R> for AnyBody {
    type Limited = Body<R>;

    #[inline]
    fn limited(body: Body<R>) -> Body<R> {
        body
    }
}

/// Answers with axum's own body, which saves axum from boxing ours on every request.
#[cfg(feature = "axum")]
#[derive(Debug, Clone, Copy)]
pub struct AxumBody;

#[cfg(feature = "axum")]
impl Bodies<axum::body::Body> for AxumBody {
    type Limited = axum::body::Body;

    #[inline]
    fn limited(body: Body<axum::body::Body>) -> axum::body::Body {
        match body.kind {
            Kind::Plain { inner } => inner,
            Kind::Refusal { bytes } => bytes.unwrap_or_default().into(),
            held @ Kind::Held { .. } => axum::body::Body::new(Body { kind: held }),
        }
    }

    #[inline]
    fn passed<E>(
        answer: Poll<Result<Response<axum::body::Body>, E>>,
    ) -> Poll<Result<Response<axum::body::Body>, E>> {
        answer
    }
}

impl<R> Body<R> {
    #[inline]
    pub(crate) fn plain(inner: R) -> Self {
        Self { kind: Kind::Plain { inner } }
    }

    pub(crate) fn held(inner: R, open: Box<Open>) -> Self {
        Self { kind: Kind::Held { inner, open: Some(open) } }
    }

    pub(crate) fn refusal(bytes: Bytes) -> Self {
        Self { kind: Kind::Refusal { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }
}

impl<R> http_body::Body for Body<R>
where
    R: http_body::Body<Data = Bytes>,
{
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        match self.project().kind.project() {
            KindProj::Plain { inner } => inner.poll_frame(context),
            KindProj::Refusal { bytes } => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            KindProj::Held { inner, open } => {
                let frame = ready!(inner.poll_frame(context));
                match &frame {
                    Some(Ok(frame)) => count(frame, open),
                    // Dropping it settles it.
                    Some(Err(_)) | None => *open = None,
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Plain { inner } | Kind::Held { inner, .. } => inner.is_end_stream(),
            Kind::Refusal { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Plain { inner } | Kind::Held { inner, .. } => inner.size_hint(),
            Kind::Refusal { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

fn count(frame: &Frame<Bytes>, open: &mut Option<Box<Open>>) {
    if let (Some(data), Some(open)) = (frame.data_ref(), open) {
        open.count_bytes(data.remaining());
    }
}

impl<R> std::fmt::Debug for Body<R> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self.kind {
            Kind::Plain { .. } => "Body::Plain",
            Kind::Held { .. } => "Body::Held",
            Kind::Refusal { .. } => "Body::Refusal",
        })
    }
}
