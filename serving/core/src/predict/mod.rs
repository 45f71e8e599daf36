//! Predictions of the usual form, answered here; Python answers everything else.

mod admission;
mod encoding;
mod grpc;
mod rest;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::{HeaderMap, HeaderName, HeaderValue};

use self::admission::{Counted, Overload, admit};
pub use self::grpc::grpc;
pub use self::rest::rest;
use crate::batch::{Api, Computed, Key, Missing, Outcome, Plan, Request, Sample};
use crate::core::Core;
use crate::forms::{OutputView, Tensor};
use crate::histogram::TraceId;
use crate::host::Permit;
use crate::record::{Batch, Facts, Seen, Times};
use crate::traffic::Route;
use crate::transport::{Context, Peer};

const PRIORITY: HeaderName = HeaderName::from_static("x-modelyard-priority");
const TRACE: HeaderName = HeaderName::from_static("traceparent");

/// A caller that goes after so much of the time that it gave did not wait for longer.
const NEARLY_ALL: f64 = 0.95;

/// Why a request is not answered with a prediction.
enum Declined {
    /// Python answers it.
    HandOver,
    Overload(Overload),
}

/// A prediction that a client asks for: by which API, when the request came, and how long it may take.
struct Prediction<'a> {
    core: &'a Arc<Core>,
    api: Api,
    arrived: Instant,
    deadline: Option<Instant>,
    /// Others go first.
    low_priority: bool,
    /// It waits for a plan.
    patient: bool,
    trace: Option<TraceId>,
    headers: &'a HeaderMap,
    peer: &'a Peer,
    seen: &'a mut Seen,
    /// Whether Python is to log it; `None` where that is not drawn.
    logged: &'a mut Option<bool>,
}

impl<'a> Prediction<'a> {
    fn new(
        core: &'a Arc<Core>,
        api: Api,
        headers: &'a HeaderMap,
        context: &'a mut Context,
        deadline: Option<Instant>,
        logged: &'a mut Option<bool>,
    ) -> Prediction<'a> {
        let Context { peer, arrived, seen, .. } = context;
        let low_priority = headers.get(PRIORITY).is_some_and(|value| value == "low");
        let trace = headers.get(TRACE).and_then(trace_of);
        let patient = false;
        Prediction { core, api, arrived: *arrived, deadline, low_priority, patient, trace, headers, peer, seen, logged }
    }

    /// Finds the plan for a key, reads the inputs by its signature, and has them computed.
    async fn compute(
        &mut self,
        key: Key,
        read: impl FnOnce(&Plan) -> Option<Vec<Tensor>>,
    ) -> Result<Answered, Declined> {
        let (plan, route) = self.find(key).await.ok_or(Declined::HandOver)?;
        let tensors = read(&plan).ok_or(Declined::HandOver)?;
        let decoded = Instant::now();
        let rows = plan.rows(&tensors).ok_or(Declined::HandOver)?;
        let permit =
            Permit::ask(self.core, self.headers, self.peer, &plan.key.model, rows).ok_or(Declined::HandOver)?;
        let queue = plan.queue(&tensors);
        if let Err(overload) = admit(self.core, &plan, rows, self.deadline) {
            return Err(self.refuse(&plan, route.as_ref(), rows, &permit, overload));
        }
        let copy = route.as_ref().filter(|route| route.shadow).map(|_| tensors.clone());
        let outcome = {
            let _requests = Counted::new(&plan.waiting, 1);
            let _rows = Counted::new(&plan.outstanding, rows);
            let mut open = Open {
                plan: &plan,
                route: route.as_ref(),
                api: self.api,
                arrived: self.arrived,
                deadline: self.deadline,
                answered: false,
            };
            let request = Request { tensors, rows, low_priority: self.low_priority, deadline: self.deadline };
            let outcome = queue.answer(request).await;
            open.answered = true;
            outcome
        };
        let (computed, range) = match outcome {
            Outcome::Computed(computed, range) => (computed, range),
            Outcome::HandOver => {
                permit.hand_over();
                return Err(Declined::HandOver);
            }
            Outcome::Full => {
                return Err(self.refuse(&plan, route.as_ref(), rows, &permit, Overload::batch_queue_full()));
            }
            Outcome::GivenUp(text) => {
                return Err(self.refuse(&plan, route.as_ref(), rows, &permit, Overload::hanging(&text)));
            }
        };
        Ok(Answered { plan, computed, range, rows, decoded, route, copy, permit })
    }

    /// The plan for a key, and where a traffic rule has the request go. Where there is no plan, Python is asked for one;
    /// it answers this request itself, unless that is patient, as it does those that it is to log.
    async fn find(&mut self, mut key: Key) -> Option<(Arc<Plan>, Option<Route>)> {
        let plans = &self.core.plans;
        let route = self.core.traffic.route(&mut key, self.headers)?;
        let plan = match plans.find(&key) {
            Ok(plan) => plan,
            Err(missing) => {
                if missing == Missing::Ask {
                    self.core.host.learn(&key);
                }
                if !self.patient {
                    return None;
                }
                plans.wait(&key).await?
            }
        };
        let logged = plan.logged > 0.0 && fastrand::f64() < plan.logged;
        *self.logged = Some(logged);
        (!logged).then_some((plan, route))
    }

    fn refuse(
        &mut self,
        plan: &Plan,
        route: Option<&Route>,
        rows: usize,
        permit: &Permit,
        overload: Overload,
    ) -> Declined {
        let cause = overload.cause;
        if let Some(route) = route {
            route.ended(cause.status_name(), self.arrived.elapsed());
        }
        plan.stats().refused(self.api, cause.refusal(), cause.status_name(), &permit.principal);
        self.seen.note(|| facts(plan, rows, permit));
        Declined::Overload(overload)
    }

    /// Counts and records a prediction whose answer is written.
    fn count(&mut self, answered: Answered) {
        let now = Instant::now();
        let Answered { plan, computed: batch, range, rows, decoded, route, copy, permit } = answered;
        if let Some(route) = route {
            route.ended("OK", now - self.arrived);
        }
        self.seen.note(|| Facts {
            batch: Batch { id: batch.id, rows: batch.rows, requests: batch.requests },
            times: Some(Times {
                decoded,
                begun: batch.begun,
                called: batch.ran.called,
                returned: batch.ran.returned,
                ended: batch.ran.ended,
            }),
            ..facts(&plan, rows, &permit)
        });
        plan.stats().answered(&Sample {
            api: self.api,
            trace: self.trace,
            client: &permit.principal,
            rows,
            first: !batch.counted.swap(true, Ordering::Relaxed),
            batch_rows: batch.rows,
            batch_padding: batch.padding,
            batch_requests: batch.requests,
            queue: batch.begun.saturating_duration_since(decoded),
            input: decoded - self.arrived,
            infer: batch.ran.ended - batch.begun,
            output: now - batch.ran.ended,
            total: now - self.arrived,
        });
        if let Some(inputs) = copy {
            // The client gets its answer meanwhile.
            tokio::task::spawn_blocking(move || plan.shadow(&inputs, &batch, range));
        }
    }
}

/// A request's rows of a batch.
struct Answered {
    plan: Arc<Plan>,
    computed: Arc<Computed>,
    range: Option<Range<usize>>,
    rows: usize,
    decoded: Instant,
    route: Option<Route>,
    /// The inputs, where a shadow computes them, too.
    copy: Option<Vec<Tensor>>,
    /// Ends when the answer is written.
    permit: Permit,
}

impl Answered {
    /// Has Python answer after all: the protocol cannot carry this answer.
    fn decline(self) -> Declined {
        self.permit.hand_over();
        Declined::HandOver
    }

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

/// A request that is computed: counted where its client goes, or its deadline passes. Python answers REST's late ones,
/// and counts them, but for those of a rule's target.
struct Open<'a> {
    plan: &'a Plan,
    route: Option<&'a Route>,
    api: Api,
    arrived: Instant,
    deadline: Option<Instant>,
    answered: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // gRPC's client has the same deadline, and resets its call by its own clock: that may come a moment before.
        let part = if self.api.1 == "GRPC" { NEARLY_ALL } else { 1.0 };
        let time = self.arrived.elapsed();
        let given = self.deadline.map(|deadline| deadline.saturating_duration_since(self.arrived));
        let late = given.is_some_and(|given| time >= given.mul_f64(part));
        let status = if late { "DEADLINE_EXCEEDED" } else { "CANCELLED" };
        if !late || self.api.1 == "GRPC" {
            self.plan.stats().failed(self.api, status);
        }
        if let Some(route) = self.route {
            route.ended(status, time);
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
