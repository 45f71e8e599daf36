//! The requests that wait for one plan, and for inputs of one inner shape.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::batch::plan::{Output, Plan};
use crate::forms::Tensor;

/// What takes longer is computed on a thread of its own: it would hold up the connections of this one.
const IN_PLACE: Duration = Duration::from_millis(2);
/// While a batch is computed in place, clients wait that could read the answers of the one before: it is cut after so
/// long, but not below so many rows.
const PIECE: Duration = Duration::from_micros(500);
const MIN_PIECE_ROWS: usize = 8;

/// A batch that was computed, as all its requests share it.
pub struct Computed {
    pub outputs: Vec<Output>,
    pub begun: Instant,
    pub ended: Instant,
    /// Its rows.
    pub rows: usize,
    /// One of its requests was answered.
    pub counted: AtomicBool,
}

/// What becomes of a request.
pub enum Outcome {
    /// It is in these rows of a batch; all of it where there was no other.
    Computed(Arc<Computed>, Option<Range<usize>>),
    /// Python must say what is wrong with it.
    HandOver,
}

/// A request that waits.
pub struct Item {
    pub tensors: Vec<Tensor>,
    pub rows: usize,
    pub low_priority: bool,
    pub deadline: Option<Instant>,
    pub reply: oneshot::Sender<Outcome>,
}

#[derive(Default)]
struct State {
    urgent: VecDeque<Item>,
    patient: VecDeque<Item>,
    /// Tasks that compute, or are about to.
    running: usize,
}

/// The requests that wait for one plan, and for inputs of one inner shape.
pub struct Queue {
    plan: Arc<Plan>,
    state: Mutex<State>,
}

impl Queue {
    pub fn new(plan: Arc<Plan>) -> Queue {
        Queue { plan, state: Mutex::default() }
    }

    /// Adds a request; must be called inside of the runtime.
    pub fn push(self: &Arc<Self>, item: Item) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if item.low_priority {
            state.patient.push_back(item)
        } else {
            state.urgent.push_back(item)
        }
        if state.running < self.plan.parallel {
            state.running += 1;
            drop(state);
            tokio::spawn(self.clone().work());
        }
    }

    /// Computes batches until nothing waits.
    async fn work(self: Arc<Self>) {
        loop {
            // What else arrived at the same time comes along, and what was answered is sent.
            tokio::task::yield_now().await;
            let row = self.plan.expected(1);
            let most = match row {
                Some(row) if row < IN_PLACE => {
                    let piece = (PIECE.as_nanos() / row.as_nanos().max(1)) as usize;
                    piece.max(MIN_PIECE_ROWS).min(self.plan.max_rows)
                }
                _ => self.plan.max_rows,
            };
            let Some(batch) = self.take(most) else { return };
            let rows = batch.iter().map(|item| item.rows).sum();
            if self.plan.expected(rows).is_some_and(|time| time <= IN_PLACE) {
                self.compute(batch, rows);
            } else {
                let queue = self.clone();
                // A task that panics has dropped its requests, which Python answers then.
                let _ = tokio::task::spawn_blocking(move || queue.compute(batch, rows)).await;
            }
        }
    }

    /// The next batch, without those that nobody waits for any more; `None`, and one task fewer, where nothing waits.
    fn take(&self, most: usize) -> Option<Vec<Item>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let mut batch: Vec<Item> = Vec::new();
        let mut rows = 0;
        for queue in [&mut state.urgent, &mut state.patient] {
            while let Some(item) = queue.front() {
                if !batch.is_empty() && (!self.plan.shared || rows + item.rows > most) {
                    return Some(batch);
                }
                let Some(item) = queue.pop_front() else { break };
                if item.reply.is_closed() || item.deadline.is_some_and(|deadline| deadline < Instant::now()) {
                    continue;
                }
                rows += item.rows;
                batch.push(item);
            }
        }
        if batch.is_empty() {
            state.running -= 1;
            return None;
        }
        Some(batch)
    }

    fn compute(&self, batch: Vec<Item>, rows: usize) {
        let inputs: Vec<&[Tensor]> = batch.iter().map(|item| item.tensors.as_slice()).collect();
        let begun = Instant::now();
        let Some(outputs) = self.plan.compute(&inputs, rows) else {
            for item in batch {
                // Whoever has gone needs no answer; so below.
                let _ = item.reply.send(Outcome::HandOver);
            }
            return;
        };
        let computed =
            Arc::new(Computed { outputs, begun, ended: Instant::now(), rows, counted: AtomicBool::new(false) });
        let alone = batch.len() == 1;
        let mut at = 0;
        for item in batch {
            let range = at..at + item.rows;
            at += item.rows;
            let _ = item.reply.send(Outcome::Computed(computed.clone(), (!alone).then_some(range)));
        }
    }
}
