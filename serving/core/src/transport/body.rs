//! Bodies of answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::transport::activity::Request;

/// What follows the head of an answer.
pub enum Reply {
    /// The whole body, and the trailers after it.
    Whole { data: Option<Bytes>, trailers: Option<HeaderMap> },
    /// Messages as they are made, with the number of bytes that are not sent yet.
    Stream { frames: UnboundedReceiver<Frame<Bytes>>, unsent: Arc<AtomicUsize> },
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
            Reply::Stream { frames, unsent } => frames.poll_recv(context).map(|frame| {
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
    _request: Request,
}

impl Answering {
    pub fn new(reply: Reply, request: Request) -> Answering {
        Answering { reply, _request: request }
    }
}

impl Body for Answering {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.get_mut().reply).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.reply.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.reply.size_hint()
    }
}
