//! Batch queues and admission: which requests are computed together, when, and which are refused.

mod output;
mod places;
mod plan;
mod plans;
mod queue;
mod slots;
mod stats;

pub use plan::{Batching, Key, Plan};
pub use plans::{Missing, Plans};
pub use queue::{Computed, Outcome, Request};
pub use stats::{Api, Sample, Stats};
