//! Bodies of answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::record::{Facts, REQUEST_ID, Seen};
use crate::transport::activity::Request;
use crate::transport::limits::Charge;

/// What follows the head of an answer.
pub enum Reply {
    /// The whole body, and the trailers after it.
    Whole { data: Option<Bytes>, trailers: Option<HeaderMap> },
    /// Messages as they are made, with the number of bytes that are not sent yet.
    Stream { frames: UnboundedReceiver<Frame<Bytes>>, unsent: Arc<AtomicUsize>, facts: Arc<OnceLock<Facts>> },
}

impl Reply {
    /// A body with nothing after it.
    pub fn of(data: impl Into<Bytes>) -> Reply {
        let data = data.into();
        Reply::Whole { data: (!data.is_empty()).then_some(data), trailers: None }
    }

    /// No body: the head says everything.
    pub fn empty() -> Reply {
        Reply::Whole { data: None, trailers: None }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Reply::Whole { data, trailers } => {
                let frame = data.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
            Reply::Stream { frames, unsent, .. } => frames.poll_recv(context).map(|frame| {
                if let Some(data) = frame.as_ref().and_then(Frame::data_ref) {
                    unsent.fetch_sub(data.len(), Ordering::Relaxed);
                }
                frame.map(Ok)
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Reply::Whole { data: None, trailers: None })
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Whole { data, trailers: None } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
            _ => SizeHint::default(),
        }
    }
}

/// An answer, and the request that it ends where it is sent.
pub struct Answering {
    reply: Reply,
    /// What a stream's trailers are to have.
    id: Option<HeaderValue>,
    seen: Seen,
    /// The request, and what its head takes.
    _held: (Request, Charge),
}

impl Answering {
    /// Gives an answer the request's id: in its trailers where it has some, else in its header fields.
    pub fn response(
        response: Response<Reply>,
        id: HeaderValue,
        held: (Request, Charge),
        mut seen: Seen,
    ) -> Response<Answering> {
        let (mut head, mut reply) = response.into_parts();
        let mut late = None;
        match &mut reply {
            Reply::Whole { trailers: Some(trailers), .. } => {
                seen.answered(grpc_status(trailers).unwrap_or(head.status.as_u16()));
                trailers.insert(REQUEST_ID, id);
            }
            Reply::Whole { .. } => {
                seen.answered(grpc_status(&head.headers).unwrap_or(head.status.as_u16()));
                head.headers.insert(REQUEST_ID, id);
            }
            Reply::Stream { .. } => late = Some(id),
        }
        Response::from_parts(head, Answering { reply, id: late, seen, _held: held })
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let Reply::Stream { facts, .. } = &self.reply else { return };
        if let Some(facts) = facts.get() {
            self.seen.note(|| facts.clone());
        }
    }
}

fn grpc_status(fields: &HeaderMap) -> Option<u16> {
    fields.get("grpc-status")?.to_str().ok()?.parse().ok()
}

impl Body for Answering {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Answering { reply, id, seen, .. } = self.get_mut();
        let mut polled = Pin::new(reply).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled {
            if let Some(data) = frame.data_ref() {
                seen.wrote(data.len());
            } else if let Some(trailers) = frame.trailers_mut() {
                if let Some(id) = id.take() {
                    seen.answered(grpc_status(trailers).unwrap_or_default());
                    trailers.insert(REQUEST_ID, id);
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.reply.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.reply.size_hint()
    }
}
