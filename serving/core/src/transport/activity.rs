//! What happens on a connection, as its time limits need to know it.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

use crate::frame_budget::FrameBudget;
use crate::transport::ConnectionLimits;

/// Others have their turn after so many bytes of a connection: small frames of many streams take milliseconds.
const TURN: usize = 16 << 10;
/// The same for a connection that has sent many small frames for nothing.
const SHORT_TURN: usize = 1 << 10;

/// Which of its time limits a connection has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// A head has begun to come, and is not whole.
    Head,
    /// There was no request for long.
    Idle,
}

/// Requests that are answered on a connection, and since when there is none. Times are in milliseconds, from 1.
pub struct Activity {
    opened: Instant,
    /// Heads of HTTP/2 are mixed with other frames: there, a connection without a request is idle, whatever comes.
    heads: bool,
    requests: AtomicUsize,
    quiet_since: AtomicU64,
    /// 0 where no head has begun.
    head_since: AtomicU64,
}

impl Activity {
    pub fn new(heads: bool) -> Arc<Activity> {
        Arc::new(Activity {
            opened: Instant::now(),
            heads,
            requests: AtomicUsize::new(0),
            quiet_since: AtomicU64::new(1),
            head_since: AtomicU64::new(0),
        })
    }

    fn now(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64 + 1
    }

    /// A request's head is whole; it is answered where what this returns is dropped.
    pub fn request(self: &Arc<Activity>) -> Request {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        Request(self.clone())
    }

    /// Whether there is a request that is not answered.
    pub fn is_answering(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    fn has_read(&self) {
        if self.heads && !self.is_answering() {
            // It fails where the head has begun before.
            let _ = self.head_since.compare_exchange(0, self.now(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn has_written(&self) {
        self.quiet_since.store(self.now(), Ordering::Relaxed);
    }

    /// Waits until the connection has passed one of its time limits.
    pub async fn overdue(&self, limits: &ConnectionLimits) -> Overdue {
        loop {
            let (head, quiet) = (self.head_since.load(Ordering::Relaxed), self.quiet_since.load(Ordering::Relaxed));
            let (since, limit, what) = if self.is_answering() {
                // Soon enough for what begins after that.
                (self.now(), limits.header_timeout.min(limits.idle_timeout), None)
            } else if head > 0 {
                (head, limits.header_timeout, Some(Overdue::Head))
            } else {
                // A head may begin meanwhile.
                (quiet, limits.idle_timeout, Some(Overdue::Idle))
            };
            let end = since.saturating_add(limit.as_millis() as u64);
            let now = self.now();
            match what {
                Some(what) if end <= now => return what,
                Some(Overdue::Idle) => pause((end - now).min(limits.header_timeout.as_millis() as u64)).await,
                _ => pause(end.saturating_sub(now)).await,
            }
        }
    }
}

async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds.max(1))).await;
}

/// A request that is being answered.
pub struct Request(Arc<Activity>);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.has_written();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection's bytes, seen as they go by.
pub struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
    /// Of HTTP/2.
    frames: Option<FrameBudget>,
    /// Bytes since others had their turn.
    turn: usize,
}

impl<S> Watched<S> {
    pub fn new(stream: S, activity: Arc<Activity>) -> Watched<S> {
        let frames = (!activity.heads).then(FrameBudget::default);
        Watched { stream, activity, frames, turn: 0 }
    }

    fn has_written(&mut self, bytes: usize) {
        match &mut self.frames {
            None => self.activity.has_written(),
            Some(frames) => frames.wrote(bytes),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let in_debt = self.frames.as_ref().is_some_and(FrameBudget::in_debt);
        if self.turn >= if in_debt { SHORT_TURN } else { TURN } {
            self.turn = 0;
            // Not the waker: tokio looks at the sockets before it wakes what has yielded.
            let _ = pin!(yield_now()).poll(context);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = if in_debt {
            // What is read at once is handled at once.
            let mut short = [0; SHORT_TURN];
            let mut short = ReadBuf::new(&mut short[..SHORT_TURN.min(buffer.remaining())]);
            let polled = Pin::new(&mut self.stream).poll_read(context, &mut short);
            buffer.put_slice(short.filled());
            polled
        } else {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        };
        let bytes = &mut buffer.filled_mut()[before..];
        self.turn += bytes.len();
        if !bytes.is_empty() {
            self.activity.has_read();
        }
        if self.frames.as_mut().is_some_and(|frames| !frames.read(bytes)) {
            return Poll::Ready(Err(io::Error::other("too many small frames")));
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, data);
        if let Poll::Ready(Ok(bytes)) = &polled {
            self.has_written(*bytes);
        }
        polled
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
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(bytes)) = &polled {
            self.has_written(*bytes);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
