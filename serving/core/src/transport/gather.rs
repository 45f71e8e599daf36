//! Answers of one connection that go out together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::transport::activity::Activity;

/// A connection that writes only after other tasks have had their turn, while it has more requests to answer: those of
/// a batch are answered one after the other, and go out by one call of the system instead of one each.
pub struct Gathered<S> {
    stream: S,
    /// Of HTTP/2, where answers follow each other.
    activity: Option<Arc<Activity>>,
    /// The others have had their turn.
    waited: bool,
}

impl<S> Gathered<S> {
    pub fn new(stream: S, activity: Option<Arc<Activity>>) -> Gathered<S> {
        Gathered { stream, activity, waited: false }
    }

    fn write<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T>
    where
        S: Unpin,
    {
        if !self.waited && self.activity.as_ref().is_some_and(|activity| activity.is_answering()) {
            self.waited = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = write(Pin::new(&mut self.stream), context);
        self.waited &= polled.is_pending();
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write(context, data))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
