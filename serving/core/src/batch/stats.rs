//! What was measured, until Python fetches it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// TensorFlow Serving's buckets for microseconds: 10 * 1.8^i, 33 of them, and one for what is above.
pub const BUCKETS: usize = 34;
/// Requests of any size are executions of as many sizes: strangers may not make the server remember them all.
const MAX_SIZES: usize = 256;

/// Times that were spread over buckets.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    pub counts: Vec<u64>,
    pub sum_us: f64,
}

impl Histogram {
    pub fn add(&mut self, time: Duration) {
        let microseconds = time.as_secs_f64() * 1e6;
        self.counts.resize(BUCKETS, 0);
        let mut bound = 10.0;
        let mut index = 0;
        while index < BUCKETS - 1 && microseconds > bound {
            bound *= 1.8;
            index += 1;
        }
        self.counts[index] += 1;
        self.sum_us += microseconds;
    }
}

/// One request that was answered.
pub struct Sample {
    /// The API and the entry point, such as `Predict` and `GRPC`; `None` where upstream does not count it.
    pub api: Option<(&'static str, &'static str)>,
    pub rows: usize,
    /// It is the first of its batch that is answered: the batch is counted with it, so that one that Python computes
    /// again, or that nobody waits for any more, is not.
    pub first: bool,
    /// Of its batch.
    pub batch_rows: usize,
    pub queue: Duration,
    pub input: Duration,
    pub infer: Duration,
    pub output: Duration,
    pub total: Duration,
}

/// What was measured of one plan since it was fetched.
#[derive(Default)]
pub struct Stats {
    pub requests: HashMap<(&'static str, &'static str), Histogram>,
    pub succeeded: u64,
    pub rows: u64,
    pub total_ns: u64,
    pub queue_ns: u64,
    pub input_ns: u64,
    pub infer_ns: u64,
    pub output_ns: u64,
    pub runtime: Histogram,
    /// When the last request was answered, in milliseconds since 1970; 0 for never.
    pub last_ms: u64,
    /// Batches by their rows: how many, and their nanoseconds for input, model and output.
    pub executions: HashMap<usize, (u64, u64, u64, u64)>,
}

impl Stats {
    /// A request was answered.
    pub fn answered(&mut self, sample: &Sample) {
        if let Some(api) = sample.api {
            self.requests.entry(api).or_default().add(sample.total);
        }
        if sample.first {
            self.runtime.add(sample.infer);
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
        if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
            self.last_ms = now.as_millis() as u64;
        }
        self.succeeded += 1;
        self.rows += sample.rows as u64;
        self.total_ns += sample.total.as_nanos() as u64;
        self.queue_ns += sample.queue.as_nanos() as u64;
        self.input_ns += sample.input.as_nanos() as u64;
        self.infer_ns += sample.infer.as_nanos() as u64;
        self.output_ns += sample.output.as_nanos() as u64;
    }
}
