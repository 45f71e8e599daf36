//! How many batches of a plan are computed at the same time, whatever the shapes of their inputs.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::batch::plan::Plan;
use crate::batch::queue::Queue;

/// The slots of a plan, which its queues share; the queue that found none first is called first.
pub struct Slots {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    taken: usize,
    /// A queue holds its plan, so the plan does not hold it here.
    line: VecDeque<Weak<Queue>>,
}

impl Slots {
    /// So many batches at the same time.
    pub fn new(most: usize) -> Slots {
        Slots { most: most.max(1), state: Mutex::default() }
    }

    /// Batches that are computed at the same time at most.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A slot for the next batch of a queue; where there is none, the queue is called when one is free.
    pub fn take(plan: &Arc<Plan>, queue: &Arc<Queue>) -> Option<Slot> {
        let mut state = plan.slots.state.lock();
        if state.taken >= plan.slots.most {
            state.join(queue);
            return None;
        }
        state.taken += 1;
        Some(Slot(plan.clone()))
    }

    /// Has a queue called when a slot is free.
    pub fn join(&self, queue: &Arc<Queue>) {
        self.state.lock().join(queue);
    }

    /// Who comes next, where there is a slot.
    fn next(&self) -> Option<Arc<Queue>> {
        let mut state = self.state.lock();
        if state.taken >= self.most {
            return None;
        }
        while let Some(queue) = state.line.pop_front() {
            // What only its requests held is gone with them.
            if let Some(queue) = queue.upgrade() {
                queue.in_line.store(false, Ordering::Relaxed);
                return Some(queue);
            }
        }
        None
    }
}

impl State {
    fn join(&mut self, queue: &Arc<Queue>) {
        if !queue.in_line.swap(true, Ordering::Relaxed) {
            self.line.push_back(Arc::downgrade(queue));
        }
    }
}

/// A batch of a plan may be computed. When this is dropped, the queues that wait for a slot are called.
pub struct Slot(Arc<Plan>);

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.0.slots.state.lock();
        state.taken -= 1;
        if state.line.is_empty() {
            return;
        }
        drop(state);
        // When the process ends, nothing computes any more.
        if let Ok(runtime) = Handle::try_current() {
            let plan = self.0.clone();
            runtime.spawn(async move {
                tokio::task::yield_now().await;
                while let Some(queue) = plan.slots.next() {
                    queue.work();
                }
            });
        }
    }
}
