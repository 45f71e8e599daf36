//! Bounds of what clients may have the server hold: connections, time, and bytes of requests.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A body that comes no slower than this may take as long as it has bytes for.
const MIN_BYTES_PER_MS: u64 = 16;
/// A client that is refused for want of room is asked to come back after so long.
pub const RETRY: Duration = Duration::from_secs(1);

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections that are open; those beyond are told to come back. 0 for any number.
    pub max_connections: usize,
    /// Calls of one HTTP/2 connection at the same time.
    pub max_streams: u32,
    /// Bytes of a request's line and header fields.
    pub max_header_bytes: u32,
    /// A request's header fields that have begun to come must be there after so long.
    pub header_timeout: Duration,
    /// So must its body, beyond the time that its bytes are worth.
    pub body_timeout: Duration,
    /// How long a connection may be without a request.
    pub idle_timeout: Duration,
    /// Connections of the gRPC port end in an orderly way after so long.
    pub max_age: Option<Duration>,
}

/// Bytes of requests that are read or answered, of all connections together.
#[derive(Debug)]
pub struct Budget {
    /// 0 for any number.
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget { limit, used: AtomicUsize::new(0) })
    }

    /// Bytes that are taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The account of a request, with nothing taken yet.
    pub fn charge(self: &Arc<Budget>) -> Charge {
        Charge { budget: self.clone(), bytes: 0 }
    }

    /// What a request is told for which there is no room.
    pub fn refusal(&self) -> String {
        format!(
            "The server holds {} bytes of requests already, of --max_inflight_bytes={}; ask again later.",
            self.used(),
            self.limit
        )
    }
}

/// What a request has of the budget, until it is answered.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    /// Has so many bytes in all, before memory for them is taken; false where there is no room.
    pub fn reach(&mut self, bytes: usize) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|&more| more > 0) else { return true };
        let Budget { limit, used } = &*self.budget;
        let room = |used: usize| used.checked_add(more).filter(|&sum| *limit == 0 || sum <= *limit);
        let fits = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok();
        if fits {
            self.bytes = bytes;
        }
        fits
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Requests that no model has heard of, by why they were refused.
#[derive(Debug, Default)]
pub struct Refused {
    /// There were too many connections.
    pub connections: AtomicU64,
    /// There was no room for their bytes.
    pub bytes: AtomicU64,
    /// Their messages were larger than allowed.
    pub too_large: AtomicU64,
    /// Their bodies came too slowly.
    pub slow: AtomicU64,
}

impl Refused {
    pub fn one(reason: &AtomicU64) {
        reason.fetch_add(1, Ordering::Relaxed);
    }
}

/// How fast a body has to come: at once, or at a rate that people's connections have.
pub struct Pace {
    started: Instant,
    timeout: Duration,
}

impl Pace {
    pub fn new(timeout: Duration) -> Pace {
        Pace { started: Instant::now(), timeout }
    }

    /// Waits for the next part of a body of which so many bytes are there; `None` where it comes too late.
    pub async fn next<T>(&self, received: usize, part: impl Future<Output = T>) -> Option<T> {
        let worth = Duration::from_millis(received as u64 / MIN_BYTES_PER_MS);
        match self.started.checked_add(self.timeout.saturating_add(worth)) {
            None => Some(part.await),
            Some(end) => tokio::time::timeout_at(end.into(), part).await.ok(),
        }
    }

    /// What a client is told whose body comes too slowly.
    pub fn refusal(&self, received: usize) -> String {
        format!(
            "{received} bytes of the request's body came in {:.1} s; expected them all after {:.1} s \
             (--body_timeout_seconds), or {MIN_BYTES_PER_MS} kB/s.",
            self.started.elapsed().as_secs_f64(),
            self.timeout.as_secs_f64(),
        )
    }
}
