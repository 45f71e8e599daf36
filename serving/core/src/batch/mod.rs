//! Batch queues and admission: which requests are computed together, when, and which are refused.

mod plan;
mod queue;
mod stats;

pub use plan::{Batching, Key, Plan, Plans, Sampler};
pub use queue::{Computed, Outcome, Request};
pub use stats::{Api, Sample, Stats};
