//! The requests that wait for one plan, and for inputs of one inner shape.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::batch::plan::{Plan, Ran, Waited};
use crate::batch::slots::{Slot, Slots};
use crate::forms::Tensor;

/// What takes longer is computed on a thread of its own: it would hold up the connections of this one.
const IN_PLACE: Duration = Duration::from_millis(2);
/// A batch that takes no longer waits for another rather than to take the transport's last thread, which is to be handed
/// over then.
const SOON: Duration = Duration::from_micros(100);
/// While a batch is computed in place, clients wait that could read the answers of the one before: it is cut after so
/// long, but not below so many rows.
const MOST_IN_PLACE: Duration = Duration::from_millis(1);
const MIN_IN_PLACE_ROWS: usize = 8;

static BATCHES: AtomicU64 = AtomicU64::new(1);

/// A batch that was computed, as all its requests share it.
pub struct Computed {
    /// Of its process, from 1.
    pub id: u64,
    pub begun: Instant,
    pub ran: Ran,
    pub requests: usize,
    /// Its rows, those that pad it included.
    pub rows: usize,
    pub padding: usize,
    /// One of its requests was answered.
    pub counted: AtomicBool,
}

/// What becomes of a request.
pub enum Outcome {
    /// It is in these rows of a batch; all of it where there was no other.
    Computed(Arc<Computed>, Option<Range<usize>>),
    /// Python must say what is wrong with it.
    HandOver,
    /// More may not wait.
    Full,
    /// Its batch takes too long; why it is given up.
    GivenUp(Arc<str>),
}

/// A request for a batch.
pub struct Request {
    pub tensors: Vec<Tensor>,
    pub rows: usize,
    pub low_priority: bool,
    pub deadline: Option<Instant>,
}

/// A request that waits.
struct Item {
    request: Request,
    since: Instant,
    reply: oneshot::Sender<Outcome>,
}

/// A batch that is computed. What takes the replies answers its requests.
struct Running {
    begun: Instant,
    replies: Mutex<Vec<oneshot::Sender<Outcome>>>,
}

impl Running {
    fn take(&self) -> Vec<oneshot::Sender<Outcome>> {
        std::mem::take(&mut *self.replies.lock())
    }
}

#[derive(Default)]
struct State {
    urgent: VecDeque<Item>,
    patient: VecDeque<Item>,
    /// Rows of both.
    rows: usize,
    /// Batches that are computed.
    running: Vec<Arc<Running>>,
    /// A timer task is scheduled, for when the first batch has waited long enough.
    timer: bool,
}

impl State {
    /// Whether a request waits.
    fn waits(&self) -> bool {
        !self.urgent.is_empty() || !self.patient.is_empty()
    }
}

/// What may be done now.
enum Next {
    Nothing,
    /// A batch: its requests, when they came, and their rows.
    Batch(Turn, Vec<(Request, Instant)>, usize),
    /// The requests wait for others until then.
    At(Instant),
}

/// The requests that wait for one plan, and for inputs of one inner shape.
pub struct Queue {
    plan: Arc<Plan>,
    state: Mutex<State>,
    /// It waits for a slot; changed with the slots locked.
    pub in_line: AtomicBool,
}

impl Queue {
    pub fn new(plan: Arc<Plan>) -> Queue {
        Queue { plan, state: Mutex::default(), in_line: false.into() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Has a request computed; must be called inside of the runtime.
    pub async fn answer(self: &Arc<Self>, request: Request) -> Outcome {
        let (reply, outcome) = oneshot::channel();
        let deadline = request.deadline;
        {
            let mut state = self.lock();
            if self.plan.is_stale() {
                return Outcome::HandOver;
            }
            let most = self.plan.batching.as_ref().map_or(usize::MAX, |batching| batching.max_queued_rows);
            if state.rows > 0 && state.rows.saturating_add(request.rows) > most {
                return Outcome::Full;
            }
            state.rows += request.rows;
            let waiting = if request.low_priority { &mut state.patient } else { &mut state.urgent };
            waiting.push_back(Item { request, since: Instant::now(), reply });
        }
        let mut place = Place { queue: self, outcome, answered: false };
        // What was answered is sent, and what else has come is read and, the second time, in the queue.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        self.work();
        let outcome = (&mut place.outcome).await;
        if outcome.is_err() && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            // It was taken out of the queue for being late: its transport, which has the same deadline, ends it now.
            std::future::pending::<()>().await;
        }
        place.answered = true;
        // A computation that panics drops its requests, which Python answers then.
        outcome.unwrap_or(Outcome::HandOver)
    }

    /// Drops what waits for clients that have gone.
    fn clear(&self) {
        let State { urgent, patient, rows, .. } = &mut *self.lock();
        for queue in [urgent, patient] {
            queue.retain(|item| {
                let wanted = !item.reply.is_closed();
                *rows -= if wanted { 0 } else { item.request.rows };
                wanted
            });
        }
    }

    /// Computes a batch of what waits, where that is allowed now.
    pub fn work(self: &Arc<Self>) {
        match self.begin() {
            Next::Nothing => {}
            Next::Batch(turn, batch, rows) => {
                if !self.plan.elsewhere && self.plan.cost().of(rows).is_some_and(|time| time <= IN_PLACE) {
                    // A task of its own: a request that computed its batch itself could not be answered before its end.
                    let places = self.plan.places.clone();
                    tokio::spawn(async move { places.compute(|| turn.compute(batch, rows)) });
                } else {
                    tokio::task::spawn_blocking(move || turn.compute(batch, rows));
                }
            }
            Next::At(when) => {
                let queue = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep_until(when.into()).await;
                    queue.lock().timer = false;
                    queue.work();
                });
            }
        }
    }

    /// The next batch, without requests whose clients are gone; nothing where nothing waits, or as many batches
    /// as allowed are computed already.
    fn begin(self: &Arc<Self>) -> Next {
        let mut state = self.lock();
        if !state.running.is_empty() && self.is_worth_waiting(&state) {
            return Next::Nothing;
        }
        let most = self.most_rows();
        if let Some(when) = self.waits_until(&state, most) {
            let set = std::mem::replace(&mut state.timer, true);
            return if set { Next::Nothing } else { Next::At(when) };
        }
        let Some(slot) = state.waits().then(|| Slots::take(&self.plan, self)).flatten() else { return Next::Nothing };
        let State { urgent, patient, rows: waiting, .. } = &mut *state;
        let (mut batch, mut replies) = (Vec::new(), Vec::new());
        let mut rows = 0;
        'full: for queue in [urgent, patient] {
            while let Some(item) = queue.front() {
                if !batch.is_empty() && (!self.plan.shared || rows + item.request.rows > most) {
                    break 'full;
                }
                let Some(item) = queue.pop_front() else { break };
                *waiting -= item.request.rows;
                if item.reply.is_closed() || item.request.deadline.is_some_and(|deadline| deadline < Instant::now()) {
                    continue;
                }
                rows += item.request.rows;
                batch.push((item.request, item.since));
                replies.push(item.reply);
            }
        }
        if batch.is_empty() {
            return Next::Nothing;
        }
        let running = Arc::new(Running { begun: Instant::now(), replies: replies.into() });
        state.running.push(running.clone());
        if state.waits() {
            self.plan.slots.join(self);
        }
        Next::Batch(Turn { queue: self.clone(), running, _slot: slot }, batch, rows)
    }

    /// Answers the requests of batches that have been computed for so long, and hands over those that wait; the plan
    /// must be stale.
    pub fn give_up(&self, longer: Duration, text: Option<&Arc<str>>) {
        let mut state = self.lock();
        let State { urgent, patient, rows, running, .. } = &mut *state;
        *rows = 0;
        let waiting: Vec<_> = urgent.drain(..).chain(patient.drain(..)).collect();
        let late: Vec<_> = running.iter().filter(|batch| batch.begun.elapsed() >= longer).cloned().collect();
        drop(state);
        for reply in late.iter().flat_map(|batch| batch.take()) {
            let _ = reply.send(text.map_or(Outcome::HandOver, |text| Outcome::GivenUp(text.clone())));
        }
        for item in waiting {
            let _ = item.reply.send(Outcome::HandOver);
        }
    }

    /// Until when what waits may wait for others; `None` where it may be computed.
    fn waits_until(&self, state: &State, most: usize) -> Option<Instant> {
        let timeout = self.plan.together()?.timeout;
        if timeout.is_zero() || state.rows >= most {
            return None;
        }
        let first = [state.urgent.front(), state.patient.front()].into_iter().flatten().map(|item| item.since).min()?;
        Some(first + timeout).filter(|when| *when > Instant::now())
    }

    /// Whether what waits is computed sooner, and together, after the batch that is computed now.
    fn is_worth_waiting(&self, state: &State) -> bool {
        let short = self.plan.cost().of(state.rows).is_some_and(|time| time <= SOON);
        short && self.plan.shared && !self.plan.elsewhere && self.plan.places.is_scarce()
    }

    /// Rows of a batch.
    fn most_rows(&self) -> usize {
        match self.plan.cost().of(1) {
            Some(row) if row < IN_PLACE && self.plan.batching.is_none() && !self.plan.elsewhere => {
                let rows = (MOST_IN_PLACE.as_nanos() / row.as_nanos().max(1)) as usize;
                rows.max(MIN_IN_PLACE_ROWS).min(self.plan.max_rows)
            }
            _ => self.plan.max_rows,
        }
    }
}

/// A request's place in a queue. Where its client goes before it is answered, so does what waits for it: nobody else may
/// come to look for that.
struct Place<'a> {
    queue: &'a Queue,
    outcome: oneshot::Receiver<Outcome>,
    answered: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.outcome.close();
            self.queue.clear();
        }
    }
}

/// A batch may be computed. When this is dropped, the next batch is scheduled.
struct Turn {
    queue: Arc<Queue>,
    running: Arc<Running>,
    _slot: Slot,
}

impl Turn {
    fn compute(self, batch: Vec<(Request, Instant)>, rows: usize) {
        let plan = &self.queue.plan;
        let inputs: Vec<&[Tensor]> = batch.iter().map(|(request, _)| request.tensors.as_slice()).collect();
        let begun = Instant::now();
        let waited: Vec<_> =
            batch.iter().map(|(request, since)| Waited { rows: request.rows, time: begun - *since }).collect();
        let size = plan.padded(rows);
        let Some(ran) = plan.compute(&inputs, &waited, size, begun) else {
            for reply in self.running.take() {
                // A client that is gone needs no answer; so below.
                let _ = reply.send(Outcome::HandOver);
            }
            return;
        };
        let computed = Arc::new(Computed {
            id: BATCHES.fetch_add(1, Ordering::Relaxed),
            begun,
            ran,
            requests: batch.len(),
            rows: size,
            padding: size - rows,
            counted: AtomicBool::new(false),
        });
        let alone = batch.len() == 1 && size == rows;
        let mut at = 0;
        for ((request, _), reply) in batch.iter().zip(self.running.take()) {
            let range = at..at + request.rows;
            at += request.rows;
            let _ = reply.send(Outcome::Computed(computed.clone(), (!alone).then_some(range)));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.running.retain(|batch| !Arc::ptr_eq(batch, &self.running));
        // Those who wait have looked already whether they may compute. The slot is freed after this.
        if state.waits() {
            self.queue.plan.slots.join(&self.queue);
        }
    }
}
