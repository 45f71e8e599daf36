//! Which requests are admitted, and how those that are not are answered.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;

use crate::batch::Plan;
use crate::core::Core;
use crate::transport::{DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE};

/// A refused client is told to come back when there may be room, within these bounds.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// Why a request is not admitted, or not waited for any longer.
#[derive(Clone, Copy)]
pub enum Cause {
    /// `--max_queued_requests` wait.
    QueueFull,
    /// Its answer would come after its deadline, or after `--max_queue_delay_ms`.
    TooLate,
    /// TensorFlow Serving's `max_enqueued_batches`.
    BatchQueueFull,
    /// `--max_batch_seconds` are over.
    Hanging,
}

impl Cause {
    /// Its name among the refusals in the metrics; a request that is given up was let in.
    pub fn refusal(self) -> Option<&'static str> {
        match self {
            Cause::QueueFull => Some("queue_full"),
            Cause::TooLate => Some("too_late"),
            Cause::BatchQueueFull => Some("batch_queue_full"),
            Cause::Hanging => None,
        }
    }

    /// The status of gRPC and of REST.
    pub fn status(self) -> (u16, StatusCode) {
        match self {
            Cause::QueueFull | Cause::TooLate => (RESOURCE_EXHAUSTED, StatusCode::TOO_MANY_REQUESTS),
            Cause::BatchQueueFull => (UNAVAILABLE, StatusCode::SERVICE_UNAVAILABLE),
            Cause::Hanging => (DEADLINE_EXCEEDED, StatusCode::GATEWAY_TIMEOUT),
        }
    }

    /// The name of gRPC's status.
    pub fn status_name(self) -> &'static str {
        match self {
            Cause::QueueFull | Cause::TooLate => "RESOURCE_EXHAUSTED",
            Cause::BatchQueueFull => "UNAVAILABLE",
            Cause::Hanging => "DEADLINE_EXCEEDED",
        }
    }
}

/// A request that is refused.
pub struct Overload {
    pub cause: Cause,
    pub text: String,
    /// When there may be room.
    pub retry_after: Option<Duration>,
}

impl Overload {
    pub fn batch_queue_full() -> Overload {
        let text = "The batch scheduling queue to which this task was submitted is full. Try again in a moment.";
        Overload { cause: Cause::BatchQueueFull, text: text.to_owned(), retry_after: None }
    }

    pub fn hanging(text: &str) -> Overload {
        Overload { cause: Cause::Hanging, text: text.to_owned(), retry_after: None }
    }
}

/// Admits a request of so many rows, or says why not.
pub fn admit(core: &Core, plan: &Plan, rows: usize, deadline: Option<Instant>) -> Result<(), Overload> {
    let limits = &core.options.admission;
    let waiting = plan.waiting.load(Ordering::Relaxed);
    if limits.max_waiting > 0 && waiting >= limits.max_waiting {
        let text = format!(
            "The server is overloaded: {waiting} requests wait, the most that --max_queued_requests allows. Try again \
             in a moment."
        );
        return Err(Overload { cause: Cause::QueueFull, text, retry_after: Some(RETRY.0) });
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let Some(limit) = left.into_iter().chain(limits.max_delay).min() else { return Ok(()) };
    let cost = plan.cost();
    let all = plan.outstanding.load(Ordering::Relaxed).saturating_add(rows);
    let wait = cost.least().max(cost.of(all).unwrap_or_default() / plan.slots.most() as u32);
    if waiting == 0 || wait <= limit {
        return Ok(());
    }
    let text = format!(
        "The server is overloaded: an answer would take about {:.2} s, longer than the {:.2} s there are. Try again in \
         a moment.",
        wait.as_secs_f64(),
        limit.as_secs_f64()
    );
    Err(Overload { cause: Cause::TooLate, text, retry_after: Some((wait - limit).clamp(RETRY.0, RETRY.1)) })
}

/// Counts a request, or its rows, until it is answered.
pub struct Counted<'a>(&'a AtomicUsize, usize);

impl<'a> Counted<'a> {
    pub fn new(count: &'a AtomicUsize, by: usize) -> Counted<'a> {
        count.fetch_add(by, Ordering::Relaxed);
        Counted(count, by)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}
