//! Predictions of the usual form, answered here; everything else is `None`, and goes to Python whole.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ORIGIN, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use crate::batch::{Computed, Key, Outcome, Plan, Request, Sample};
use crate::core::Core;
use crate::forms::{AnswerSpec, OutputView, Tensor, json, predict_grpc, v2_grpc, v2_rest};
use crate::host::Answer;
use crate::transport::{DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, Refusal, UNAVAILABLE};

const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
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

/// Why a request is not let in, or not waited for any more.
pub struct Overload {
    pub text: String,
    pub late: bool,
    /// When there may be room; `None` for a full batch queue, which upstream says is unavailable.
    pub retry_after: Option<Duration>,
}

/// A gRPC call: its answer with gRPC's prefix, or why it is refused.
pub async fn grpc(
    core: &Arc<Core>,
    parts: &http::request::Parts,
    message: &Bytes,
    arrived: Instant,
    deadline: Option<Instant>,
) -> Option<Result<Bytes, Refusal>> {
    let urgency = Urgency { arrived, deadline, low_priority: is_low(&parts.headers) };
    let answered = match parts.uri.path() {
        PREDICT => predict(core, message, urgency).await?,
        INFER => infer(core, message, urgency).await?,
        _ => return None,
    };
    Some(answered.map_err(refusal))
}

/// TensorFlow Serving's Predict.
async fn predict(core: &Arc<Core>, message: &Bytes, urgency: Urgency) -> Option<Result<Bytes, Overload>> {
    let head = predict_grpc::head(message)?;
    let outputs = head.outputs.iter().copied();
    let plan = find(core, Key::new(head.model, head.version, head.label, head.signature, outputs))?;
    let tensors = head.read(&plan.signature)?;
    let answered = match compute(core, &plan, tensors, urgency).await? {
        Ok(answered) => answered,
        Err(overload) => return Some(Err(overload)),
    };
    let spec = AnswerSpec { model: &plan.key.model, version: plan.version, signature: &plan.signature.name };
    let frame = framed(|out| {
        predict_grpc::write(out, &spec, &answered.views(), answered.range.as_ref(), core.options.tensor_content)
    })?;
    answered.count(&plan, Some(("Predict", "GRPC")));
    Some(Ok(frame))
}

/// The Open Inference Protocol's ModelInfer.
async fn infer(core: &Arc<Core>, message: &Bytes, urgency: Urgency) -> Option<Result<Bytes, Overload>> {
    let head = v2_grpc::head(message)?;
    let signature = head.signature.unwrap_or_default();
    let plan = find(core, Key::new(head.model, head.version, None, signature, head.outputs.iter().copied()))?;
    let tensors = head.read(&plan.signature)?;
    let answered = match compute(core, &plan, tensors, urgency).await? {
        Ok(answered) => answered,
        Err(overload) => return Some(Err(overload)),
    };
    let answer = v2_rest::Answer { model: head.model, version: plan.version, id: head.id, signature: head.signature };
    let frame = framed(|out| v2_grpc::write(out, &answer, &answered.views(), answered.range.as_ref()))?;
    answered.count(&plan, None);
    Some(Ok(frame))
}

/// A message with gRPC's prefix; `None` where it cannot be written.
fn framed(write: impl FnOnce(&mut Vec<u8>) -> bool) -> Option<Bytes> {
    let mut frame = vec![0; 5];
    if !write(&mut frame) {
        return None;
    }
    let size = u32::try_from(frame.len() - 5).ok()?;
    frame[1..5].copy_from_slice(&size.to_be_bytes());
    Some(frame.into())
}

/// A REST request.
pub async fn rest(core: &Arc<Core>, parts: &http::request::Parts, body: &Bytes, arrived: Instant) -> Option<Answer> {
    let headers = &parts.headers;
    let plain = !headers.contains_key(CONTENT_ENCODING) && !headers.contains_key(ORIGIN);
    if !core.options.usual_rest || parts.method != Method::POST || parts.uri.query().is_some() || !plain {
        return None;
    }
    let deadline = arrived.checked_add(core.options.rest_timeout);
    let urgency = Urgency { arrived, deadline, low_priority: is_low(headers) };
    let target = Target::of(parts.uri.path())?;
    match target.api {
        Api::V1 => v1(core, &target, body, urgency).await,
        Api::V2 => v2(core, &target, headers, body, urgency).await,
    }
}

/// TensorFlow Serving's `:predict`.
async fn v1(core: &Arc<Core>, target: &Target<'_>, body: &Bytes, urgency: Urgency) -> Option<Answer> {
    let options = json::Options {
        strict: core.options.strict_json,
        extensions: core.options.json_extensions,
        max_depth: core.options.max_json_depth,
    };
    let head = json::head(body)?;
    let key = Key::new(target.model, target.version, target.label, head.signature, std::iter::empty());
    let plan = find(core, key)?;
    let tensors = head.read(&plan.signature, &options)?;
    let answered = match compute(core, &plan, tensors, urgency).await? {
        Ok(answered) => answered,
        Err(overload) => return Some(too_many(&overload, "\n    ", "\n")),
    };
    let mut out = Vec::new();
    if !json::write(&mut out, head.form, &answered.views(), answered.range.as_ref(), &options) {
        return None;
    }
    answered.count(&plan, Some(("predict", "REST")));
    Some(Answer { status: StatusCode::OK, headers: content(JSON), body: out.into() })
}

/// The Open Inference Protocol's `/infer`.
async fn v2(
    core: &Arc<Core>,
    target: &Target<'_>,
    headers: &HeaderMap,
    body: &Bytes,
    urgency: Urgency,
) -> Option<Answer> {
    if headers.get(ACCEPT_ENCODING).is_some_and(|accepted| accepted != "identity") {
        // Python compresses.
        return None;
    }
    let max_depth = core.options.max_json_depth;
    let head = v2_rest::head(body, headers.get(JSON_LENGTH).map(HeaderValue::as_bytes), max_depth)?;
    let signature = head.signature.unwrap_or_default();
    let wanted = head.outputs.iter().map(|output| output.name);
    let plan = find(core, Key::new(target.model, target.version, None, signature, wanted))?;
    let tensors = head.read(&plan.signature, max_depth)?;
    let answered = match compute(core, &plan, tensors, urgency).await? {
        Ok(answered) => answered,
        Err(overload) => return Some(too_many(&overload, "", "")),
    };
    let answer = v2_rest::Answer { model: target.model, version: plan.version, id: head.id, signature: head.signature };
    let binary = |index: usize| head.outputs.get(index).map_or(head.binary, |output| output.binary);
    let views: Vec<_> = answered.views().into_iter().enumerate().map(|(index, view)| (view, binary(index))).collect();
    let mut out = Vec::new();
    let fields = match v2_rest::write(&mut out, &answer, &views, answered.range.as_ref(), core.options.strict_json)? {
        v2_rest::Body::Json => content(JSON),
        v2_rest::Body::Binary(length) => {
            let mut fields = content(BINARY);
            fields.insert(JSON_LENGTH, HeaderValue::from(length));
            fields
        }
    };
    answered.count(&plan, None);
    Some(Answer { status: StatusCode::OK, headers: fields, body: out.into() })
}

#[derive(Clone, Copy)]
enum Api {
    V1,
    V2,
}

/// What the URL of a prediction says.
struct Target<'a> {
    api: Api,
    model: &'a str,
    version: Option<i64>,
    label: Option<&'a str>,
}

impl<'a> Target<'a> {
    /// Reads a path; `None` for anything but a prediction, and for names with escapes.
    fn of(path: &'a str) -> Option<Target<'a>> {
        if path.contains('%') {
            return None;
        }
        let (api, rest) = match path.strip_prefix("/v1/models/") {
            Some(rest) => (Api::V1, rest.strip_suffix(":predict")?),
            None => (Api::V2, path.strip_prefix("/v2/models/")?.strip_suffix("/infer")?),
        };
        let mut parts = rest.split('/');
        let model = parts.next().filter(|name| !name.is_empty() && !name.contains(':'))?;
        let (mut version, mut label) = (None, None);
        match (parts.next(), parts.next(), api) {
            (None, _, _) => {}
            (Some("versions"), Some(number), _) => {
                let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
                version = Some(number.parse().ok().filter(|_| digits)?);
            }
            (Some("labels"), Some(name), Api::V1) if !name.is_empty() && !name.contains(':') => label = Some(name),
            _ => return None,
        }
        parts.next().is_none().then_some(Target { api, model, version, label })
    }
}

fn content(kind: HeaderValue) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert(CONTENT_TYPE, kind);
    fields
}

/// How REST's clients are told.
fn too_many(overload: &Overload, before: &str, after: &str) -> Answer {
    let mut fields = content(JSON);
    let mut status = if overload.late { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::SERVICE_UNAVAILABLE };
    if let Some(time) = overload.retry_after {
        // The smallest number that the header can say is one second.
        fields.insert(RETRY_AFTER, HeaderValue::from(time.as_secs_f64().ceil().max(1.0) as u64));
        status = StatusCode::TOO_MANY_REQUESTS;
    }
    let body = format!("{{{before}\"error\": \"{}\"{after}}}", overload.text);
    Answer { status, headers: fields, body: body.into() }
}

/// The plan for a key; where there is none, Python is asked for one, and answers the request itself.
fn find(core: &Core, key: Key) -> Option<Arc<Plan>> {
    match core.plans.find(&key) {
        Ok(plan) => Some(plan),
        Err(ask) => {
            if ask {
                core.host.learn(&key);
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
                ends: &output.ends,
            })
            .collect()
    }

    fn count(&self, plan: &Plan, api: Option<(&'static str, &'static str)>) {
        let now = Instant::now();
        let batch = &self.computed;
        plan.stats.lock().unwrap_or_else(PoisonError::into_inner).answered(&Sample {
            api,
            rows: self.rows,
            first: !batch.counted.swap(true, Ordering::Relaxed),
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
    let _requests = Counted::new(&plan.waiting, 1);
    let _rows = Counted::new(&plan.outstanding, rows);
    let Urgency { arrived, deadline, low_priority } = urgency;
    match queue.answer(Request { tensors, rows, low_priority, deadline }).await {
        Outcome::Computed(computed, range) => Some(Ok(Answered { computed, range, rows, arrived, decoded })),
        Outcome::HandOver => None,
        Outcome::Full => {
            let text = "The batch scheduling queue to which this task was submitted is full. Try again in a moment.";
            Some(Err(Overload { text: text.to_owned(), late: false, retry_after: None }))
        }
        Outcome::GivenUp(text) => Some(Err(Overload { text: text.to_string(), late: true, retry_after: None })),
    }
}

/// Lets a request in, or says why not.
fn admit(core: &Core, plan: &Plan, rows: usize, urgency: Urgency) -> Result<(), Overload> {
    let limits = &core.options.admission;
    let waiting = plan.waiting.load(Ordering::Relaxed);
    if limits.max_waiting > 0 && waiting >= limits.max_waiting {
        let text = format!(
            "The server is overloaded: {waiting} requests wait, the most that --max_queued_requests allows. Try again \
             in a moment."
        );
        return Err(Overload { text, late: false, retry_after: Some(RETRY.0) });
    }
    let left = urgency.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let Some(limit) = left.into_iter().chain(limits.max_delay).min() else { return Ok(()) };
    let cost = plan.cost();
    let all = plan.outstanding.load(Ordering::Relaxed).saturating_add(rows);
    let wait = cost.least().max(cost.of(all).unwrap_or_default() / plan.parallel as u32);
    if waiting == 0 || wait <= limit {
        return Ok(());
    }
    let text = format!(
        "The server is overloaded: an answer would take about {:.2} s, longer than the {:.2} s there are. Try again in \
         a moment.",
        wait.as_secs_f64(),
        limit.as_secs_f64()
    );
    Err(Overload { text, late: false, retry_after: Some((wait - limit).clamp(RETRY.0, RETRY.1)) })
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
    let code = match overload.retry_after {
        _ if overload.late => DEADLINE_EXCEEDED,
        Some(_) => RESOURCE_EXHAUSTED,
        None => UNAVAILABLE,
    };
    Refusal { code, text: overload.text, retry_after: overload.retry_after }
}
