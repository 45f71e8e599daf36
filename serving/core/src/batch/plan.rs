//! Plans: what requests with one key ask for, and the Python function that computes their batches.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::batch::queue::{Computed, Queue};
use crate::batch::stats::Stats;
use crate::cost::Cost;
use crate::forms::{DType, InputSpec, Shape, Signature, Tensor};

/// Plans, and keys that have none, that are remembered.
const MAX_KEYS: usize = 1024;
/// A key that Python has no plan for is asked for again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(1);
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

/// One output of a computed batch.
#[derive(Clone, Debug)]
pub struct Output {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    pub data: Bytes,
    /// Where each string ends in the data; empty for numbers.
    pub ends: Vec<usize>,
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

/// Chooses a share of the requests for the log of predictions.
pub struct Sampler {
    /// Of all numbers of 64 bits, those below it; `None` for all.
    below: Option<u64>,
    state: AtomicU64,
}

impl Sampler {
    /// A sampler for a share between 0 and 1; `None` for no requests.
    pub fn new(rate: f64) -> Option<Sampler> {
        let below = (rate < 1.0).then_some((rate * u64::MAX as f64) as u64);
        (rate > 0.0).then(|| Sampler { below, state: AtomicU64::new(RandomState::new().build_hasher().finish()) })
    }

    /// Whether a request is chosen, by SplitMix64.
    pub fn takes(&self) -> bool {
        let Some(below) = self.below else { return true };
        let mut number = self.state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ number >> 31) < below
    }
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
    /// Batches that are computed at the same time.
    pub parallel: usize,
    /// Which of its requests Python answers, and logs.
    pub logged: Option<Sampler>,
    /// Requests for its model that were let in and are not answered yet.
    pub waiting: Arc<AtomicUsize>,
    /// Rows of requests that were let in and are not answered yet.
    pub outstanding: AtomicUsize,
    queues: Mutex<HashMap<Vec<Shape>, Arc<Queue>>>,
    stats: Mutex<Stats>,
    cost: Mutex<Cost>,
    /// Where short batches are computed at once.
    pub places: Places,
    stale: AtomicBool,
}

/// The threads of the transport, and how many of them compute. One must always be left that reads and answers, since a
/// batch may never end.
#[derive(Clone)]
pub struct Places {
    computing: Arc<AtomicUsize>,
    threads: usize,
}

impl Places {
    fn new(threads: usize) -> Places {
        Places { computing: Arc::default(), threads }
    }

    /// Whether all threads but one compute.
    pub fn is_scarce(&self) -> bool {
        self.computing.load(Ordering::Relaxed) + 1 >= self.threads
    }

    /// Computes on this thread. The last one hands what it has to serve to another thread, which costs some microseconds.
    pub fn compute(&self, work: impl FnOnce()) {
        let last = self.computing.fetch_add(1, Ordering::Relaxed) + 1 >= self.threads;
        let _end = End(&self.computing);
        if last {
            tokio::task::block_in_place(work);
        } else {
            work();
        }
    }
}

/// A thread computes no more.
struct End<'a>(&'a AtomicUsize);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
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
        logged: Option<Sampler>,
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
            parallel: parallel.max(1),
            logged,
            waiting: Arc::default(),
            outstanding: AtomicUsize::new(0),
            queues: Mutex::default(),
            stats: Mutex::default(),
            cost: Mutex::default(),
            places: Places::new(1),
            stale: false.into(),
        }
    }

    /// Whether another plan is to answer, or none.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// The queue for inputs of these shapes: only those of one inner shape can be stacked.
    pub fn queue(self: &Arc<Self>, tensors: &[Tensor]) -> Arc<Queue> {
        let inner: Vec<Shape> = tensors.iter().map(|tensor| tensor.shape.iter().skip(1).copied().collect()).collect();
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&inner) {
            return queue.clone();
        }
        let queue = Arc::new(Queue::new(self.clone()));
        if queues.len() < MAX_QUEUES {
            queues.insert(inner, queue.clone());
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
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What batches take, by those before.
    pub fn cost(&self) -> Cost {
        *self.cost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parameters by which requests wait for each other and are padded; `None` where they do neither.
    pub fn together(&self) -> Option<&Batching> {
        self.batching.as_ref().filter(|_| self.shared)
    }

    /// The size that a batch of so many rows is computed with.
    pub fn padded(&self, rows: usize) -> usize {
        let sizes = self.together().filter(|_| rows > 0).map_or(&[][..], |batching| &batching.sizes);
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
        self.cost.lock().unwrap_or_else(PoisonError::into_inner).learn(ended - begun, size);
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
            self.stale.store(true, Ordering::Relaxed);
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

impl Output {
    /// Shape and values of some rows, or of all, as `run` returns them.
    fn rows<'py>(
        &self,
        py: Python<'py>,
        range: Option<Range<usize>>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyAny>)> {
        let mut shape = self.shape.clone();
        let whole = shape.first().copied().unwrap_or(1).max(1);
        let range = range.unwrap_or(0..whole);
        if let Some(first) = shape.first_mut().filter(|first| **first > 0) {
            *first = range.len();
        }
        let values = if self.dtype == DType::String {
            let inner = self.ends.len() / whole;
            let ends = &self.ends[range.start * inner..range.end * inner];
            let begins = std::iter::once(range.start * inner).filter(|at| *at > 0).map(|at| self.ends[at - 1]);
            let begins = begins.chain((range.start == 0).then_some(0)).chain(ends.iter().copied());
            let texts = begins.zip(ends).map(|(begin, end)| PyBytes::new(py, &self.data[begin + 4..*end]));
            PyList::new(py, texts.collect::<Vec<_>>())?.into_any()
        } else {
            let row = self.data.len() / whole;
            PyBytes::new(py, &self.data[range.start * row..range.end * row]).into_any()
        };
        Ok((PyTuple::new(py, shape)?, values))
    }
}

/// An output's bytes, which stay where Python has put them.
fn numbers(value: &Bound<'_, PyAny>) -> PyResult<(Bytes, Vec<usize>)> {
    Ok((Bytes::from_owner(value.extract::<PyBackedBytes>()?), Vec::new()))
}

/// Strings one after the other, each behind its length, and where each ends.
fn strings(value: &Bound<'_, PyAny>) -> PyResult<(Bytes, Vec<usize>)> {
    let (mut data, mut ends) = (Vec::new(), Vec::new());
    for item in value.try_iter()? {
        let item = item?;
        let text = match item.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes(),
            Err(_) => item.cast::<PyString>()?.to_str()?.as_bytes(),
        };
        data.extend_from_slice(&u32::try_from(text.len())?.to_le_bytes());
        data.extend_from_slice(text);
        ends.push(data.len());
    }
    Ok((data.into(), ends))
}

enum Known {
    Plan(Arc<Plan>),
    /// Python was asked, and has said nothing so far.
    Asked(Instant),
}

/// Plans by key, found out as requests come.
pub struct Plans {
    known: RwLock<HashMap<Key, Known>>,
    /// Plans that were replaced, as long as requests hold them: they count, too.
    retired: Mutex<Vec<Arc<Plan>>>,
    /// By model, requests that were let in and are not answered yet.
    waiting: Mutex<HashMap<String, Arc<AtomicUsize>>>,
    places: Places,
}

impl Plans {
    /// None; there are so many threads of the transport, or as many as need no care.
    pub fn new(threads: usize) -> Plans {
        Plans {
            known: RwLock::default(),
            retired: Mutex::default(),
            waiting: Mutex::default(),
            places: Places::new(threads),
        }
    }

    /// Answers the requests of a version's batches that have been computed for so long. Those that wait and those that
    /// come are handed over, until there is a new plan.
    pub fn give_up(&self, model: &str, version: i64, longer: Duration, text: &Arc<str>) {
        for plan in self.all().into_iter().filter(|plan| plan.version == version && plan.key.model == model) {
            plan.stale.store(true, Ordering::Relaxed);
            let queues: Vec<_> = plan.queues.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
            for queue in queues {
                queue.give_up(longer, text);
            }
        }
    }

    /// The plan for a key; where there is none, whether Python should be asked.
    pub fn find(&self, key: &Key) -> Result<Arc<Plan>, bool> {
        match self.known.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            Some(Known::Plan(plan)) if !plan.is_stale() => return Ok(plan.clone()),
            Some(Known::Asked(when)) if when.elapsed() < ASK_AGAIN => return Err(false),
            _ => {}
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KEYS && !known.contains_key(key) {
            // Strangers may make up names.
            known.retain(|_, known| matches!(known, Known::Plan(_)));
            if known.len() >= MAX_KEYS {
                return Err(false);
            }
        }
        self.retire(known.insert(key.clone(), Known::Asked(Instant::now())));
        Err(true)
    }

    /// Adds a plan.
    pub fn add(&self, mut plan: Plan) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        plan.waiting = waiting.entry(plan.key.model.clone()).or_default().clone();
        plan.places = self.places.clone();
        drop(waiting);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        self.retire(known.insert(plan.key.clone(), Known::Plan(Arc::new(plan))));
    }

    /// Has Python asked again for the plans of a model.
    pub fn forget(&self, model: &str) {
        for known in self.known.read().unwrap_or_else(PoisonError::into_inner).values() {
            match known {
                Known::Plan(plan) if plan.key.model == model => plan.stale.store(true, Ordering::Relaxed),
                _ => {}
            }
        }
    }

    /// Requests that were let in and are not answered yet.
    pub fn waiting(&self) -> usize {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.values().map(|number| number.load(Ordering::Relaxed)).sum()
    }

    fn retire(&self, old: Option<Known>) {
        if let Some(Known::Plan(plan)) = old {
            self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(plan);
        }
    }

    /// All plans that may hold statistics.
    pub fn all(&self) -> Vec<Arc<Plan>> {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = retired.clone();
        retired.retain(|plan| Arc::strong_count(plan) > 2);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        all.extend(known.values().filter_map(|known| match known {
            Known::Plan(plan) => Some(plan.clone()),
            Known::Asked(_) => None,
        }));
        all
    }
}
