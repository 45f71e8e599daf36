//! Predictions of the usual form, answered here; everything else is `None`, and goes to Python whole.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ORIGIN, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use crate::batch::{Api, Computed, Key, Outcome, Plan, Request, Sample, Sampler};
use crate::core::Core;
use crate::forms::{AnswerSpec, OutputView, Tensor, json, predict_grpc, v2_grpc, v2_rest};
use crate::histogram::TraceId;
use crate::host::{Answer, Permit};
use crate::record::{Batch, Facts, Seen, Times};
use crate::traffic::Route;
use crate::transport::{Context, DEADLINE_EXCEEDED, Peer, RESOURCE_EXHAUSTED, Refusal, UNAVAILABLE};

const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
const PRIORITY: HeaderName = HeaderName::from_static("x-modelyard-priority");
const TRACE: HeaderName = HeaderName::from_static("traceparent");
/// Whoever is refused is asked to come back when there may be room, within these bounds.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// Who asks: by which API, when the request came, how long it may take, and what it shows of itself.
#[derive(Clone, Copy)]
struct Caller<'a> {
    api: Api,
    arrived: Instant,
    deadline: Option<Instant>,
    /// Others go first.
    low_priority: bool,
    trace: Option<TraceId>,
    headers: &'a HeaderMap,
    peer: &'a Peer,
}

impl<'a> Caller<'a> {
    fn new(
        api: Api,
        headers: &'a HeaderMap,
        peer: &'a Peer,
        arrived: Instant,
        deadline: Option<Instant>,
    ) -> Caller<'a> {
        let low_priority = headers.get(PRIORITY).is_some_and(|value| value == "low");
        let trace = headers.get(TRACE).and_then(trace_of);
        Caller { api, arrived, deadline, low_priority, trace, headers, peer }
    }
}

/// Why a request is not let in, or not waited for any more.
pub struct Overload {
    pub text: String,
    pub late: bool,
    /// When there may be room; `None` for a full batch queue, which upstream says is unavailable.
    pub retry_after: Option<Duration>,
    /// In the metrics.
    reason: &'static str,
}

/// A gRPC call: its answer with gRPC's prefix, or why it is refused. `logged` says that Python is to log it.
pub async fn grpc(
    core: &Arc<Core>,
    parts: &http::request::Parts,
    message: &Bytes,
    context: &mut Context,
    deadline: Option<Instant>,
    logged: &mut bool,
) -> Option<Result<Bytes, Refusal>> {
    let Context { peer, arrived, seen, .. } = context;
    let caller = |api| Caller::new(api, &parts.headers, peer, *arrived, deadline);
    let answered = match parts.uri.path() {
        PREDICT => predict(core, message, caller(("Predict", "GRPC")), seen, logged).await?,
        INFER => infer(core, message, caller(("ModelInfer", "GRPC")), seen, logged).await?,
        _ => return None,
    };
    Some(answered.map_err(refusal))
}

/// TensorFlow Serving's Predict.
async fn predict(
    core: &Arc<Core>,
    message: &Bytes,
    caller: Caller<'_>,
    seen: &mut Seen,
    logged: &mut bool,
) -> Option<Result<Bytes, Overload>> {
    let head = predict_grpc::head(message)?;
    let outputs = head.outputs.iter().copied();
    let key = Key::new(head.model, head.version, head.label, head.signature, outputs);
    let (plan, route) = find(core, key, caller.headers, logged)?;
    let tensors = head.read(&plan.signature)?;
    let answered = match compute(core, &plan, route, tensors, caller, seen).await? {
        Ok(answered) => answered,
        Err(overload) => return Some(Err(overload)),
    };
    let spec = AnswerSpec { model: &plan.key.model, version: plan.version, signature: &plan.signature.name };
    let frame = framed(|out| {
        predict_grpc::write(out, &spec, &answered.views(), answered.range.as_ref(), core.options.tensor_content)
    })?;
    answered.count(&plan, caller, seen);
    Some(Ok(frame))
}

/// The Open Inference Protocol's ModelInfer.
async fn infer(
    core: &Arc<Core>,
    message: &Bytes,
    caller: Caller<'_>,
    seen: &mut Seen,
    logged: &mut bool,
) -> Option<Result<Bytes, Overload>> {
    let head = v2_grpc::head(message)?;
    let signature = head.signature.unwrap_or_default();
    let key = Key::new(head.model, head.version, None, signature, head.outputs.iter().copied());
    let (plan, route) = find(core, key, caller.headers, logged)?;
    let tensors = head.read(&plan.signature)?;
    let answered = match compute(core, &plan, route, tensors, caller, seen).await? {
        Ok(answered) => answered,
        Err(overload) => return Some(Err(overload)),
    };
    let answer = v2_rest::Answer { model: head.model, version: plan.version, id: head.id, signature: head.signature };
    let frame = framed(|out| v2_grpc::write(out, &answer, &answered.views(), answered.range.as_ref()))?;
    answered.count(&plan, caller, seen);
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
pub async fn rest(
    core: &Arc<Core>,
    parts: &http::request::Parts,
    body: &Bytes,
    context: &mut Context,
    logged: &mut bool,
) -> Option<Answer> {
    let headers = &parts.headers;
    let plain = !headers.contains_key(CONTENT_ENCODING) && !headers.contains_key(ORIGIN);
    if !core.options.usual_rest || parts.method != Method::POST || parts.uri.query().is_some() || !plain {
        return None;
    }
    let Context { peer, arrived, seen, .. } = context;
    let deadline = arrived.checked_add(core.options.rest_timeout);
    let target = Target::of(parts.uri.path())?;
    let caller = |api| Caller::new(api, headers, peer, *arrived, deadline);
    match target.version_of_api {
        Version::V1 => v1(core, &target, body, caller(("predict", "REST")), seen, logged).await,
        Version::V2 => v2(core, &target, body, caller(("infer", "REST")), seen, logged).await,
    }
}

/// TensorFlow Serving's `:predict`.
async fn v1(
    core: &Arc<Core>,
    target: &Target<'_>,
    body: &Bytes,
    caller: Caller<'_>,
    seen: &mut Seen,
    logged: &mut bool,
) -> Option<Answer> {
    let options = json::Options {
        strict: core.options.strict_json,
        extensions: core.options.json_extensions,
        max_depth: core.options.max_json_depth,
    };
    let head = json::head(body)?;
    let key = Key::new(target.model, target.version, target.label, head.signature, std::iter::empty());
    let (plan, route) = find(core, key, caller.headers, logged)?;
    let tensors = head.read(&plan.signature, &options)?;
    let answered = match compute(core, &plan, route, tensors, caller, seen).await? {
        Ok(answered) => answered,
        Err(overload) => return Some(too_many(&overload, "\n    ", "\n")),
    };
    let mut out = Vec::new();
    if !json::write(&mut out, head.form, &answered.views(), answered.range.as_ref(), &options) {
        return None;
    }
    answered.count(&plan, caller, seen);
    Some(Answer { status: StatusCode::OK, headers: content(JSON), body: out.into(), facts: None })
}

/// The Open Inference Protocol's `/infer`.
async fn v2(
    core: &Arc<Core>,
    target: &Target<'_>,
    body: &Bytes,
    caller: Caller<'_>,
    seen: &mut Seen,
    logged: &mut bool,
) -> Option<Answer> {
    let headers = caller.headers;
    if headers.get(ACCEPT_ENCODING).is_some_and(|accepted| accepted != "identity") {
        // Python compresses.
        return None;
    }
    let max_depth = core.options.max_json_depth;
    let head = v2_rest::head(body, headers.get(JSON_LENGTH).map(HeaderValue::as_bytes), max_depth)?;
    let signature = head.signature.unwrap_or_default();
    let wanted = head.outputs.iter().map(|output| output.name);
    let key = Key::new(target.model, target.version, None, signature, wanted);
    let (plan, route) = find(core, key, caller.headers, logged)?;
    let tensors = head.read(&plan.signature, max_depth)?;
    let answered = match compute(core, &plan, route, tensors, caller, seen).await? {
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
    answered.count(&plan, caller, seen);
    Some(Answer { status: StatusCode::OK, headers: fields, body: out.into(), facts: None })
}

#[derive(Clone, Copy)]
enum Version {
    V1,
    V2,
}

/// What the URL of a prediction says.
struct Target<'a> {
    version_of_api: Version,
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
        let (version_of_api, rest) = match path.strip_prefix("/v1/models/") {
            Some(rest) => (Version::V1, rest.strip_suffix(":predict")?),
            None => (Version::V2, path.strip_prefix("/v2/models/")?.strip_suffix("/infer")?),
        };
        let mut parts = rest.split('/');
        let model = parts.next().filter(|name| !name.is_empty() && !name.contains(':'))?;
        let (mut version, mut label) = (None, None);
        match (parts.next(), parts.next(), version_of_api) {
            (None, _, _) => {}
            (Some("versions"), Some(number), _) => {
                let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
                version = Some(number.parse().ok().filter(|_| digits)?);
            }
            (Some("labels"), Some(name), Version::V1) if !name.is_empty() && !name.contains(':') => label = Some(name),
            _ => return None,
        }
        parts.next().is_none().then_some(Target { version_of_api, model, version, label })
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
    Answer { status, headers: fields, body: body.into(), facts: None }
}

/// The plan for a key, and where a traffic rule has the request go; where there is none, Python is asked for one, and
/// answers the request itself, as it does where the request is to be logged.
fn find(core: &Core, mut key: Key, headers: &HeaderMap, logged: &mut bool) -> Option<(Arc<Plan>, Option<Route>)> {
    let route = core.traffic.route(&mut key, headers)?;
    match core.plans.find(&key) {
        Ok(plan) => {
            *logged = plan.logged.as_ref().is_some_and(Sampler::takes);
            (!*logged).then_some((plan, route))
        }
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
    /// Ends when the answer is written.
    permit: Permit,
}

impl Answered {
    fn views(&self) -> Vec<OutputView<'_>> {
        self.computed
            .ran
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

    fn count(&self, plan: &Plan, caller: Caller<'_>, seen: &mut Seen) {
        let now = Instant::now();
        let batch = &self.computed;
        seen.note(|| Facts {
            batch: Batch { id: batch.id, rows: batch.rows, requests: batch.requests },
            times: Some(Times {
                decoded: self.decoded,
                begun: batch.begun,
                called: batch.ran.called,
                returned: batch.ran.returned,
                ended: batch.ran.ended,
            }),
            ..facts(plan, self.rows, &self.permit)
        });
        plan.stats().answered(&Sample {
            api: caller.api,
            trace: caller.trace,
            client: &self.permit.principal,
            rows: self.rows,
            first: !batch.counted.swap(true, Ordering::Relaxed),
            batch_rows: batch.rows,
            batch_padding: batch.padding,
            batch_requests: batch.requests,
            queue: batch.begun.saturating_duration_since(self.decoded),
            input: self.decoded - self.arrived,
            infer: batch.ran.ended - batch.begun,
            output: now - batch.ran.ended,
            total: now - self.arrived,
        });
    }
}

/// Has a request computed; `None` where Python must answer it.
async fn compute(
    core: &Arc<Core>,
    plan: &Arc<Plan>,
    route: Option<Route>,
    tensors: Vec<Tensor>,
    caller: Caller<'_>,
    seen: &mut Seen,
) -> Option<Result<Answered, Overload>> {
    let decoded = Instant::now();
    let rows = plan.rows(&tensors)?;
    let permit = Permit::ask(core, caller.headers, caller.peer, &plan.key.model, rows)?;
    let queue = plan.queue(&tensors);
    if let Err(overload) = admit(core, plan, rows, caller.deadline) {
        plan.stats().refused(caller.api, overload.reason, "RESOURCE_EXHAUSTED", &permit.principal);
        seen.note(|| facts(plan, rows, &permit));
        return Some(Err(overload));
    }
    let _requests = Counted::new(&plan.waiting, 1);
    let _rows = Counted::new(&plan.outstanding, rows);
    let Caller { api, arrived, deadline, low_priority, .. } = caller;
    let copy = route.as_ref().filter(|route| route.shadow).map(|_| tensors.clone());
    let mut open = Open { plan, api, deadline, answered: false };
    let outcome = queue.answer(Request { tensors, rows, low_priority, deadline }).await;
    open.answered = true;
    match outcome {
        Outcome::Computed(computed, range) => {
            if let Some(route) = route {
                route.answered(arrived.elapsed());
            }
            if let Some(inputs) = copy {
                // The caller's answer is written meanwhile.
                let (plan, computed, range) = (plan.clone(), computed.clone(), range.clone());
                tokio::task::spawn_blocking(move || plan.shadow(&inputs, &computed, range));
            }
            Some(Ok(Answered { computed, range, rows, arrived, decoded, permit }))
        }
        Outcome::HandOver => {
            permit.hand_over();
            None
        }
        Outcome::Full => {
            seen.note(|| facts(plan, rows, &permit));
            let text = "The batch scheduling queue to which this task was submitted is full. Try again in a moment.";
            let overload =
                Overload { text: text.to_owned(), late: false, retry_after: None, reason: "batch_queue_full" };
            plan.stats().refused(api, overload.reason, "UNAVAILABLE", &permit.principal);
            Some(Err(overload))
        }
        Outcome::GivenUp(text) => {
            seen.note(|| facts(plan, rows, &permit));
            let overload = Overload { text: text.to_string(), late: true, retry_after: None, reason: "hanging" };
            plan.stats().refused(api, overload.reason, "DEADLINE_EXCEEDED", &permit.principal);
            Some(Err(overload))
        }
    }
}

/// What a plan says of its requests.
fn facts(plan: &Plan, rows: usize, permit: &Permit) -> Facts {
    Facts {
        model: plan.key.model.clone(),
        version: plan.version,
        signature: plan.signature.name.clone(),
        backend: plan.backend.clone(),
        principal: permit.principal.clone(),
        rows,
        ..Facts::default()
    }
}

/// Lets a request in, or says why not.
fn admit(core: &Core, plan: &Plan, rows: usize, deadline: Option<Instant>) -> Result<(), Overload> {
    let limits = &core.options.admission;
    let waiting = plan.waiting.load(Ordering::Relaxed);
    if limits.max_waiting > 0 && waiting >= limits.max_waiting {
        let text = format!(
            "The server is overloaded: {waiting} requests wait, the most that --max_queued_requests allows. Try again \
             in a moment."
        );
        return Err(Overload { text, late: false, retry_after: Some(RETRY.0), reason: "queue_full" });
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
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
    Err(Overload { text, late: false, retry_after: Some((wait - limit).clamp(RETRY.0, RETRY.1)), reason: "too_late" })
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

/// A gRPC call whose caller went away, or whose time was over, while it was computed. Of REST, Python is told.
struct Open<'a> {
    plan: &'a Plan,
    api: Api,
    deadline: Option<Instant>,
    answered: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.answered && self.api.1 == "GRPC" {
            let late = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
            self.plan.stats().failed(self.api, if late { "DEADLINE_EXCEEDED" } else { "CANCELLED" });
        }
    }
}

/// The trace that a request belongs to, where it is recorded (W3C Trace Context: version, trace, span, flags).
fn trace_of(value: &HeaderValue) -> Option<TraceId> {
    let (id, rest) = value.as_bytes().strip_prefix(b"00-")?.split_first_chunk::<32>()?;
    let (separator, rest) = rest.split_first_chunk::<18>()?;
    let plain = id.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let [_, flags] = rest else { return None };
    let recorded = matches!(flags, b'1' | b'3' | b'5' | b'7' | b'9' | b'b' | b'd' | b'f');
    (plain && separator[0] == b'-' && separator[17] == b'-' && recorded).then_some(*id)
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
