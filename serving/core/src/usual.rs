//! Predictions of the usual form, answered here; everything else is `None`, and goes to Python whole.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, ORIGIN};
use http::{HeaderMap, HeaderName, Method};
use tokio::sync::oneshot;

use crate::batch::{Computed, Item, Key, Outcome, Plan, Sample};
use crate::core::Core;
use crate::forms::{AnswerSpec, OutputView, Tensor, predict_grpc};
use crate::host::Answer;
use crate::transport::{RESOURCE_EXHAUSTED, Refusal};

const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";
const PRIORITY: HeaderName = HeaderName::from_static("x-modelyard-priority");
/// Whoever is refused is asked to come back when there may be room, within these bounds.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// When a request came, how long it may take, and whether others go first.
#[derive(Clone, Copy)]
pub struct Urgency {
    pub arrived: Instant,
    pub deadline: Option<Instant>,
    pub low_priority: bool,
}

/// Why a request is not let in.
pub struct Overload {
    pub text: String,
    pub retry_after: Duration,
}

/// A gRPC call: its answer with gRPC's prefix, or why it is refused.
pub async fn grpc(
    core: &Arc<Core>,
    parts: &http::request::Parts,
    message: &Bytes,
    arrived: Instant,
    deadline: Option<Instant>,
) -> Option<Result<Bytes, Refusal>> {
    if parts.uri.path() != PREDICT {
        return None;
    }
    let head = predict_grpc::head(message)?;
    let key = Key {
        model: head.model.to_owned(),
        version: head.version,
        label: head.label.map(str::to_owned),
        signature: head.signature.to_owned(),
        outputs: head.outputs.iter().map(|&name| name.to_owned()).collect(),
    };
    let plan = find(core, &key)?;
    let tensors = head.read(&plan.signature)?;
    drop(head);
    let urgency = Urgency { arrived, deadline, low_priority: is_low(&parts.headers) };
    let answered = match compute(core, &plan, tensors, urgency).await? {
        Ok(answered) => answered,
        Err(overload) => return Some(Err(refusal(overload))),
    };
    let mut frame = vec![0; 5];
    let spec = AnswerSpec { model: &plan.key.model, version: plan.version, signature: &plan.signature.name };
    let rows = answered.range.as_ref();
    if !predict_grpc::write(&mut frame, &spec, &answered.views(), rows, core.options.tensor_content) {
        return None;
    }
    let size = u32::try_from(frame.len() - 5).ok()?;
    frame[1..5].copy_from_slice(&size.to_be_bytes());
    answered.count(&plan, Some(("Predict", "GRPC")));
    Some(Ok(frame.into()))
}

/// A REST request.
pub async fn rest(core: &Arc<Core>, parts: &http::request::Parts, _body: &Bytes, _arrived: Instant) -> Option<Answer> {
    let headers = &parts.headers;
    let plain = !headers.contains_key(CONTENT_ENCODING) && !headers.contains_key(ORIGIN);
    if !core.options.usual_rest || parts.method != Method::POST || parts.uri.query().is_some() || !plain {
        return None;
    }
    None
}

/// The plan for a key; where there is none, Python is asked for one, and answers the request itself.
fn find(core: &Core, key: &Key) -> Option<Arc<Plan>> {
    match core.plans.find(key) {
        Ok(plan) => Some(plan),
        Err(ask) => {
            if ask {
                core.host.learn(key);
            }
            None
        }
    }
}

/// A request's rows of a batch, and its times.
struct Answered {
    computed: Arc<Computed>,
    range: Option<Range<usize>>,
    rows: usize,
    arrived: Instant,
    decoded: Instant,
}

impl Answered {
    fn views(&self) -> Vec<OutputView<'_>> {
        self.computed
            .outputs
            .iter()
            .map(|output| OutputView {
                name: &output.name,
                dtype: output.dtype,
                shape: &output.shape,
                data: &output.data,
            })
            .collect()
    }

    fn count(&self, plan: &Plan, api: Option<(&'static str, &'static str)>) {
        let now = Instant::now();
        let batch = &self.computed;
        plan.stats.lock().unwrap_or_else(PoisonError::into_inner).answered(&Sample {
            api,
            rows: self.rows,
            batch_rows: batch.rows,
            queue: batch.begun.saturating_duration_since(self.decoded),
            input: self.decoded - self.arrived,
            infer: batch.ended - batch.begun,
            output: now - batch.ended,
            total: now - self.arrived,
        });
    }
}

/// Has a request computed; `None` where Python must answer it.
async fn compute(
    core: &Core,
    plan: &Arc<Plan>,
    tensors: Vec<Tensor>,
    urgency: Urgency,
) -> Option<Result<Answered, Overload>> {
    let decoded = Instant::now();
    let rows = plan.rows(&tensors)?;
    let queue = plan.queue(&tensors);
    if let Err(overload) = admit(core, plan, rows, urgency) {
        return Some(Err(overload));
    }
    let _requests = Counted::new(&core.plans.waiting, 1);
    let _rows = Counted::new(&plan.outstanding, rows);
    let (reply, receiver) = oneshot::channel();
    let Urgency { arrived, deadline, low_priority } = urgency;
    queue.push(Item { tensors, rows, low_priority, deadline, reply });
    match receiver.await {
        Ok(Outcome::Computed(computed, range)) => Some(Ok(Answered { computed, range, rows, arrived, decoded })),
        Ok(Outcome::HandOver) | Err(_) => None,
    }
}

/// Lets a request in, or says why not.
fn admit(core: &Core, plan: &Plan, rows: usize, urgency: Urgency) -> Result<(), Overload> {
    let limits = &core.options.admission;
    let waiting = core.plans.waiting.load(Ordering::Relaxed);
    if limits.max_waiting > 0 && waiting >= limits.max_waiting {
        let text = format!(
            "The server is overloaded: {waiting} requests wait, the most that --max_queued_requests allows. Try again \
             in a moment."
        );
        return Err(Overload { text, retry_after: RETRY.0 });
    }
    let left = urgency.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let Some(limit) = left.into_iter().chain(limits.max_delay).min() else { return Ok(()) };
    let ahead = plan.expected(plan.outstanding.load(Ordering::Relaxed)).unwrap_or_default() / plan.parallel as u32;
    let wait = ahead + plan.expected(rows).unwrap_or_default();
    if waiting == 0 || wait <= limit {
        return Ok(());
    }
    let text = format!(
        "The server is overloaded: an answer would take about {:.2} s, longer than the {:.2} s there are. Try again in \
         a moment.",
        wait.as_secs_f64(),
        limit.as_secs_f64()
    );
    Err(Overload { text, retry_after: (wait - limit).clamp(RETRY.0, RETRY.1) })
}

/// A request, or its rows, that was let in, as long as it is not answered.
struct Counted<'a>(&'a AtomicUsize, usize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize, by: usize) -> Counted<'a> {
        count.fetch_add(by, Ordering::Relaxed);
        Counted(count, by)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

fn is_low(headers: &HeaderMap) -> bool {
    headers.get(PRIORITY).is_some_and(|value| value == "low")
}

/// How gRPC's clients are told.
fn refusal(overload: Overload) -> Refusal {
    Refusal { code: RESOURCE_EXHAUSTED, text: overload.text, retry_after: Some(overload.retry_after) }
}
