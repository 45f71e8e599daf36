//! A plan: what requests with one key ask for, and the Python function that computes their batches.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::batch::output::{Output, numbers, strings};
use crate::batch::places::Places;
use crate::batch::queue::{Computed, Queue};
use crate::batch::slots::Slots;
use crate::batch::stats::Stats;
use crate::cost::Cost;
use crate::forms::{DType, InputSpec, Shape, Signature, Tensor};

/// Clients may send any inner shape where a model takes any: so many queues are kept for each plan.
const MAX_QUEUES: usize = 64;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub model: String,
    pub version: Option<i64>,
    pub label: Option<String>,
    /// As sent: empty for the default.
    pub signature: String,
    /// The outputs asked for; empty for all.
    pub outputs: Vec<String>,
}

impl Key {
    /// What it takes in memory, nearly.
    pub fn bytes(&self) -> usize {
        let label = self.label.as_ref().map_or(0, String::len);
        let outputs: usize = self.outputs.iter().map(|name| size_of::<String>() + name.len()).sum();
        self.model.len() + label + self.signature.len() + outputs
    }

    pub fn new<'a>(
        model: &str,
        version: Option<i64>,
        label: Option<&str>,
        signature: &str,
        outputs: impl Iterator<Item = &'a str>,
    ) -> Key {
        Key {
            model: model.to_owned(),
            version,
            label: label.map(str::to_owned),
            signature: signature.to_owned(),
            outputs: outputs.map(str::to_owned).collect(),
        }
    }
}

/// TensorFlow Serving's batching parameters.
pub struct Batching {
    /// How long the first request of a batch waits for others.
    pub timeout: Duration,
    /// Rows that may wait, beyond one request.
    pub max_queued_rows: usize,
    /// Batches are padded to one of these sizes; empty for any.
    pub sizes: Vec<usize>,
}

/// A batch that was computed: when the model was called, when it returned, and when its outputs were there.
pub struct Ran {
    pub outputs: Vec<Output>,
    pub called: Instant,
    pub returned: Instant,
    pub ended: Instant,
}

/// A request of a batch, for the metrics of TensorFlow Serving's batching.
pub struct Waited {
    pub rows: usize,
    pub time: Duration,
}

/// A queue holds its plan. So a plan holds its queues only as long as requests come to it: else both would stay for ever.
#[derive(Default)]
struct Queues {
    by_shape: HashMap<Vec<Shape>, Arc<Queue>>,
    /// Those that only their last requests hold.
    left: Vec<Weak<Queue>>,
}

/// What the requests with one key ask for.
pub struct Plan {
    pub key: Key,
    /// The version that answers.
    pub version: i64,
    pub signature: Signature,
    /// What computes it.
    pub backend: String,
    outputs: Vec<(String, DType)>,
    /// Called with the inputs' bytes and shapes; returns the outputs' shapes and bytes, or None where the version has
    /// changed meanwhile.
    run: Py<PyAny>,
    /// Where a version has parameters for it; else what is there is computed, and nothing waits for others.
    pub batching: Option<Batching>,
    /// Rows that are computed together at most.
    pub max_rows: usize,
    /// Requests may share a batch.
    pub shared: bool,
    /// For batches that are computed at the same time.
    pub slots: Slots,
    /// An accelerator computes them: no batch is small or short for the sake of this processor.
    pub elsewhere: bool,
    /// Share of its requests that Python answers, and logs: from 0 to 1.
    pub logged: f64,
    /// Requests for its model that were let in and are not answered yet.
    pub waiting: Arc<AtomicUsize>,
    /// Rows of requests that were let in and are not answered yet.
    pub outstanding: AtomicUsize,
    queues: Mutex<Queues>,
    stats: Mutex<Stats>,
    cost: Mutex<Cost>,
    /// Where short batches are computed at once.
    pub places: Places,
    stale: AtomicBool,
    /// A request came since it was last asked.
    used: AtomicBool,
}

impl Plan {
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    pub fn new(
        key: Key,
        version: i64,
        signature: Signature,
        backend: String,
        outputs: Vec<(String, DType)>,
        run: Py<PyAny>,
        batching: Option<Batching>,
        max_rows: usize,
        shared: bool,
        parallel: usize,
        elsewhere: bool,
        logged: f64,
    ) -> Plan {
        Plan {
            key,
            version,
            signature,
            backend,
            outputs,
            run,
            batching,
            max_rows: max_rows.max(1),
            shared,
            slots: Slots::new(parallel),
            elsewhere,
            logged,
            waiting: Arc::default(),
            outstanding: AtomicUsize::new(0),
            queues: Mutex::default(),
            stats: Mutex::default(),
            cost: Mutex::default(),
            places: Places::new(1),
            stale: false.into(),
            used: true.into(),
        }
    }

    /// Names and dtypes of what it answers.
    pub fn outputs(&self) -> &[(String, DType)] {
        &self.outputs
    }

    /// Whether another plan is to answer, or none.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// A request comes.
    pub fn touch(&self) {
        // Threads that only read do not wait for each other.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a request came since this was last asked.
    pub fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Has another plan answer, or none.
    pub fn retire(&self) {
        self.stale.store(true, Ordering::Relaxed);
        let Queues { by_shape, left } = &mut *self.queues.lock();
        left.extend(by_shape.drain().map(|(_, queue)| Arc::downgrade(&queue)));
    }

    /// Answers the requests of batches that have been computed for so long, and has Python answer those that wait.
    pub fn give_up(&self, longer: Duration, text: Option<&Arc<str>>) {
        self.retire();
        let queues: Vec<_> = self.queues.lock().left.iter().filter_map(Weak::upgrade).collect();
        for queue in queues {
            queue.give_up(longer, text);
        }
    }

    /// The queue for inputs of these shapes: only those of one inner shape can be stacked.
    pub fn queue(self: &Arc<Self>, tensors: &[Tensor]) -> Arc<Queue> {
        let inner: Vec<Shape> = tensors.iter().map(|tensor| tensor.shape.iter().skip(1).copied().collect()).collect();
        let Queues { by_shape, left } = &mut *self.queues.lock();
        if let Some(queue) = by_shape.get(&inner) {
            return queue.clone();
        }
        let queue = Arc::new(Queue::new(self.clone()));
        // Looked at with the lock held: what retires the plan takes the lock after that.
        if by_shape.len() < MAX_QUEUES && !self.is_stale() {
            by_shape.insert(inner, queue.clone());
        } else {
            left.retain(|queue| queue.strong_count() > 0);
            left.push(Arc::downgrade(&queue));
        }
        queue
    }

    /// Rows of a request: the size of the batch dimension, where there is one; `None` where it cannot share a batch
    /// though others can.
    pub fn rows(&self, tensors: &[Tensor]) -> Option<usize> {
        if self.shared {
            let rows = *tensors.first()?.shape.first()?;
            // Python refuses what is larger than a batch of the parameters, or splits it.
            let fits = self.batching.is_none() || rows <= self.max_rows;
            return (fits && tensors.iter().all(|tensor| tensor.shape.first() == Some(&rows))).then_some(rows);
        }
        let free = |spec: &InputSpec| spec.shape.as_ref().is_none_or(|shape| shape.first() == Some(&-1));
        let index = self.signature.inputs.iter().position(free);
        Some(index.and_then(|index| tensors[index].shape.first().copied()).unwrap_or(1))
    }

    /// What was measured of its requests.
    pub fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock()
    }

    /// What batches take, by those before.
    pub fn cost(&self) -> Cost {
        *self.cost.lock()
    }

    /// The parameters by which requests wait for each other and are padded; `None` where they do neither.
    pub fn together(&self) -> Option<&Batching> {
        self.batching.as_ref().filter(|_| self.shared)
    }

    /// The size that a batch of so many rows is computed with.
    pub fn padded(&self, rows: usize) -> usize {
        let sizes = self.together().map_or(&[][..], |batching| &batching.sizes);
        sizes.iter().copied().find(|size| *size >= rows).unwrap_or(rows)
    }

    /// Computes a batch of `size` rows, whose inputs have the same inner shapes; `None` where Python must find out why
    /// it cannot be.
    ///
    /// The inputs are copied once, into the memory that the runtime reads. What is missing is, as upstream, the first
    /// row of the last request again.
    pub fn compute(&self, batch: &[&[Tensor]], waited: &[Waited], size: usize, begun: Instant) -> Option<Ran> {
        // Where it fails, the requests go to Python one by one, which says what is wrong with whichever of them it is.
        let (outputs, called, returned) =
            Python::try_attach(|py| self.call(py, batch, waited, size).unwrap_or_default()).flatten()?;
        let ended = Instant::now();
        self.cost.lock().learn(ended - begun, size);
        Some(Ran { outputs, called, returned, ended })
    }

    fn call(
        &self,
        py: Python<'_>,
        batch: &[&[Tensor]],
        waited: &[Waited],
        size: usize,
    ) -> PyResult<Option<(Vec<Output>, Instant, Instant)>> {
        let rows = waited.iter().map(|request| request.rows).sum::<usize>();
        let last = waited.last().map_or(1, |request| request.rows.max(1));
        let mut inputs = Vec::with_capacity(self.signature.inputs.len());
        for index in 0..self.signature.inputs.len() {
            let padding = batch.last().filter(|_| size > rows).map(|tensors| &tensors[index].data);
            let padding = padding.map_or(&[][..], |data| &data[..data.len() / last]);
            let bytes = batch.iter().map(|tensors| tensors[index].data.len()).sum::<usize>();
            let data = PyBytes::new_with(py, bytes + padding.len() * (size - rows), |room| {
                let mut at = 0;
                for tensors in batch {
                    let part = &tensors[index].data;
                    room[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                for _ in rows..size {
                    room[at..at + padding.len()].copy_from_slice(padding);
                    at += padding.len();
                }
                Ok(())
            })?;
            let mut shape = batch[0][index].shape.clone();
            if batch.len() > 1 || size > rows {
                shape[0] = size;
            }
            inputs.push((data, PyTuple::new(py, shape)?));
        }
        let counted = |request: &Waited| (request.rows, request.time.as_secs_f64() * 1e6);
        let waited: Option<Vec<_>> = self.together().map(|_| waited.iter().map(counted).collect());
        let arguments = (PyList::new(py, inputs)?, waited);
        let called = Instant::now();
        let answer = self.run.bind(py).call1(arguments)?;
        let returned = Instant::now();
        if answer.is_none() {
            self.retire();
            return Ok(None);
        }
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (index, item) in answer.try_iter()?.enumerate() {
            let (shape, value): (Vec<usize>, Bound<'_, PyAny>) = item?.extract()?;
            let Some((name, dtype)) = self.outputs.get(index) else { return Ok(None) };
            let (data, ends) = if *dtype == DType::String { strings(&value)? } else { numbers(&value)? };
            let count = shape.iter().product::<usize>();
            let fits = if *dtype == DType::String { ends.len() == count } else { data.len() == count * dtype.size() };
            // The outputs of several requests must be told apart by their rows.
            let together = batch.len() > 1 || self.together().is_some();
            if !fits || (together && shape.first() != Some(&size)) {
                return Ok(None);
            }
            outputs.push(Output { name: name.clone(), dtype: *dtype, shape: shape.into(), data, ends });
        }
        Ok((outputs.len() == self.outputs.len()).then_some((outputs, called, returned)))
    }

    /// Has Python compute a request that was answered once more, by a shadow.
    pub fn shadow(&self, inputs: &[Tensor], computed: &Computed, range: Option<Range<usize>>) {
        let tell = |py: Python<'_>| -> PyResult<()> {
            let inputs = inputs.iter().map(|each| Ok((PyBytes::new(py, &each.data), PyTuple::new(py, &each.shape)?)));
            let outputs = computed.ran.outputs.iter().map(|output| output.rows(py, range.clone()));
            let (inputs, outputs) = (inputs.collect::<PyResult<Vec<_>>>()?, outputs.collect::<PyResult<Vec<_>>>()?);
            self.run.bind(py).call_method1("shadow", (inputs, outputs))?;
            Ok(())
        };
        Python::try_attach(|py| tell(py).unwrap_or_else(|error| error.write_unraisable(py, None)));
    }
}
