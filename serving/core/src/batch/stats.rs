//! What was measured, until Python fetches it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::histogram::{Histogram, Native, TraceId, microseconds};

/// Requests of any size are executions of as many sizes: strangers may not make the server remember them all.
const MAX_SIZES: usize = 256;

/// The API and the entry point of a request, such as `Predict` and `GRPC`.
pub type Api = (&'static str, &'static str);

/// One request that was answered.
pub struct Sample<'a> {
    pub api: Api,
    pub rows: usize,
    /// It is the first of its batch that is answered: the batch is counted with it, so that one that Python computes
    /// again, or whose client is gone, is not.
    pub first: bool,
    /// Of its batch, those that pad it included.
    pub batch_rows: usize,
    pub batch_padding: usize,
    pub batch_requests: usize,
    pub queue: Duration,
    pub input: Duration,
    pub infer: Duration,
    pub output: Duration,
    pub total: Duration,
    pub trace: Option<TraceId>,
    /// Whose request it was; empty for anybody's.
    pub client: &'a str,
}

/// What was measured of one plan since it was fetched.
#[derive(Default)]
pub struct Stats {
    pub requests: HashMap<Api, Histogram>,
    /// Requests that ended in another way, by the name of their status.
    pub failed: HashMap<(Api, &'static str), u64>,
    /// Requests of callers with names, by the name and the status.
    pub clients: HashMap<(String, &'static str), u64>,
    /// Requests that were not let in, by the reason.
    pub refused: HashMap<&'static str, u64>,
    pub succeeded: u64,
    pub rows: u64,
    pub total_ns: u64,
    pub queue_ns: u64,
    pub input_ns: u64,
    pub infer_ns: u64,
    pub output_ns: u64,
    pub runtime: Histogram,
    /// Microseconds of requests: waiting, decoding and encoding.
    pub queue: Native,
    pub input: Native,
    pub output: Native,
    /// Of batches.
    pub batch_rows: Native,
    pub batch_padding: Native,
    pub batch_requests: Native,
    /// When the last request was answered, in milliseconds since 1970; 0 for never.
    pub last_ms: u64,
    /// Batches by their rows: how many, and their nanoseconds for input, model and output.
    pub executions: HashMap<usize, (u64, u64, u64, u64)>,
}

impl Stats {
    /// A request was answered.
    pub fn answered(&mut self, sample: &Sample<'_>) {
        self.client(sample.client, "OK");
        if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
            self.last_ms = now.as_millis() as u64;
        }
        let trace = sample.trace.map(|id| (id, self.last_ms));
        self.requests.entry(sample.api).or_default().add(sample.total, trace);
        self.queue.add(microseconds(sample.queue));
        self.input.add(microseconds(sample.input));
        self.output.add(microseconds(sample.output));
        if sample.first {
            self.runtime.add(sample.infer, None);
            self.batch_rows.add(sample.batch_rows as f64);
            self.batch_padding.add(sample.batch_padding as f64);
            self.batch_requests.add(sample.batch_requests as f64);
        }
        if self.executions.len() < MAX_SIZES || self.executions.contains_key(&sample.batch_rows) {
            let entry = self.executions.entry(sample.batch_rows).or_default();
            if sample.first {
                entry.0 += 1;
                entry.2 += sample.infer.as_nanos() as u64;
            }
            entry.1 += sample.input.as_nanos() as u64;
            entry.3 += sample.output.as_nanos() as u64;
        }
        self.succeeded += 1;
        self.rows += sample.rows as u64;
        self.total_ns += sample.total.as_nanos() as u64;
        self.queue_ns += sample.queue.as_nanos() as u64;
        self.input_ns += sample.input.as_nanos() as u64;
        self.infer_ns += sample.infer.as_nanos() as u64;
        self.output_ns += sample.output.as_nanos() as u64;
    }

    /// A request ended with another status than success.
    pub fn failed(&mut self, api: Api, status: &'static str) {
        *self.failed.entry((api, status)).or_default() += 1;
    }

    /// A request was not let in, by a reason, or given up.
    pub fn refused(&mut self, api: Api, reason: Option<&'static str>, status: &'static str, client: &str) {
        self.client(client, status);
        if let Some(reason) = reason {
            *self.refused.entry(reason).or_default() += 1;
        }
        self.failed(api, status);
    }

    fn client(&mut self, name: &str, status: &'static str) {
        if !name.is_empty() {
            *self.clients.entry((name.to_owned(), status)).or_default() += 1;
        }
    }

    /// Whether there is nothing to fetch.
    pub fn is_empty(&self) -> bool {
        self.succeeded == 0 && self.failed.is_empty()
    }
}
