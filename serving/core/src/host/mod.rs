//! Python's side: requests that are handed over whole, and who waits for them.

mod call;
mod exchange;
mod permit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::{Semaphore, mpsc, oneshot};

pub use self::call::{Call, CallEnd};
pub use self::exchange::{Answer, Exchange, Problem};
pub use self::permit::Permit;
use crate::core::Core;
use crate::transport::{Charge, Peer};

/// Messages of a stream that its handler has not taken: a client that sends faster waits for its window.
const MAX_WAITING_MESSAGES: usize = 16;

/// The Python object that answers what is not answered here. Its methods return at once and may be called on any thread.
pub struct Host(Py<PyAny>);

/// What a call's transport keeps.
pub struct OpenCall {
    pub waiting: Waiting,
    pub end: oneshot::Receiver<CallEnd>,
    pub room: Arc<Semaphore>,
}

/// Where the messages of a stream's answer go.
#[derive(Clone)]
pub struct Outlet {
    pub frames: mpsc::UnboundedSender<Frame<Bytes>>,
    /// Bytes that were not sent yet.
    pub unsent: Arc<AtomicUsize>,
}

impl Outlet {
    pub fn new() -> (Outlet, mpsc::UnboundedReceiver<Frame<Bytes>>) {
        let (frames, receiver) = mpsc::unbounded_channel();
        (Outlet { frames, unsent: Arc::default() }, receiver)
    }
}

/// What a REST request says.
pub struct RestRequest {
    pub parts: http::request::Parts,
    pub body: Bytes,
    pub peer: Peer,
    pub request_id: String,
    pub arrived: Instant,
    pub problem: Option<Problem>,
    pub logged: Option<bool>,
}

impl Host {
    pub fn new(handlers: Py<PyAny>) -> Host {
        Host(handlers)
    }

    /// Calls a method; `None` where Python has ended, or where the method failed, which it reports itself.
    fn tell<T>(&self, work: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<T>) -> Option<T> {
        Python::try_attach(|py| work(py, &self.0).map_err(|error| error.write_unraisable(py, None)).ok())?
    }

    /// Has Python find out whether requests with this key can be answered here.
    pub fn learn(&self, key: &crate::batch::Key) {
        self.tell(|py, host| {
            let (model, signature) = (key.model.as_str(), key.signature.as_str());
            host.call_method1(py, "learn", (model, key.version, key.label.as_deref(), signature, key.outputs.clone()))
        });
    }
}

/// Has Python answer a REST request; `None` where it cannot any more.
pub async fn rest(core: &Arc<Core>, request: RestRequest) -> Option<Answer> {
    let (sender, receiver) = oneshot::channel();
    let exchange = Exchange {
        method: request.parts.method.as_str().to_owned(),
        path: request.parts.uri.path().to_owned(),
        query: request.parts.uri.query().unwrap_or_default().to_owned(),
        headers: request.parts.headers,
        body: request.body,
        request_id: request.request_id,
        arrived: request.arrived,
        client: request.peer.host(),
        certificate: request.peer.certificate,
        problem: request.problem,
        logged: request.logged,
        gone: AtomicBool::new(false),
        reply: Mutex::new(Some(sender)),
    };
    let exchange = core.host.tell(|py, host| {
        let exchange = Py::new(py, exchange)?;
        host.call_method1(py, "rest", (exchange.clone_ref(py),))?;
        Ok(exchange)
    })?;
    let waiting = Waiting::new(core, Pending::Rest(exchange));
    let answer = receiver.await.ok();
    waiting.done();
    answer
}

/// Has Python answer a gRPC call; `None` where it cannot any more.
pub fn call(
    core: &Arc<Core>,
    path: &str,
    headers: HeaderMap,
    message: Option<(Bytes, Option<bool>)>,
    peer: Peer,
    timeout: Option<Duration>,
    outlet: Outlet,
) -> Option<OpenCall> {
    let (message, logged) = message.map_or((None, None), |(message, logged)| (Some(message), logged));
    let (end_sender, end) = oneshot::channel();
    let room = Arc::new(Semaphore::new(MAX_WAITING_MESSAGES));
    let call = Call {
        path: path.to_owned(),
        headers,
        message,
        logged,
        peer: peer.name(),
        certificate: peer.certificate,
        timeout_s: timeout.map(|timeout| timeout.as_secs_f64()),
        gone: AtomicBool::new(false),
        end: Mutex::new(Some(end_sender)),
        outlet,
        room: room.clone(),
        held: Mutex::default(),
    };
    let call = core.host.tell(|py, host| {
        let call = Py::new(py, call)?;
        host.call_method1(py, "call", (call.clone_ref(py),))?;
        Ok(call)
    })?;
    let waiting = Waiting::new(core, Pending::Call(call));
    Some(OpenCall { waiting, end, room })
}

enum Pending {
    Rest(Py<Exchange>),
    Call(Py<Call>),
}

/// A client waits for what Python works on; dropped when it no longer does.
pub struct Waiting {
    core: Arc<Core>,
    pending: Option<Pending>,
}

impl Waiting {
    fn new(core: &Arc<Core>, pending: Pending) -> Waiting {
        Waiting { core: core.clone(), pending: Some(pending) }
    }

    /// Gives Python a message of a stream, and what it takes, or its end.
    pub fn feed(&self, message: Option<&[u8]>, charge: Charge) {
        if let Some(Pending::Call(call)) = &self.pending {
            call.get().held.lock().push_back(charge);
            self.core.host.tell(|py, host| {
                let message = message.map(|message| PyBytes::new(py, message));
                host.call_method1(py, "feed", (call.clone_ref(py), message))
            });
        }
    }

    /// It is answered.
    pub fn done(mut self) {
        self.pending = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        match &pending {
            Pending::Rest(exchange) => exchange.get().gone.store(true, Ordering::Relaxed),
            Pending::Call(call) => {
                let call = call.get();
                call.gone.store(true, Ordering::Relaxed);
                // Python may keep the call for a while.
                call.held.lock().clear();
            }
        }
        self.core.host.tell(|py, host| match pending {
            Pending::Rest(exchange) => host.call_method1(py, "gone", (exchange,)),
            Pending::Call(call) => host.call_method1(py, "gone", (call,)),
        });
    }
}

/// A message with gRPC's prefix.
pub fn framed(data: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(5 + data.len());
    frame.push(0);
    frame.extend_from_slice(&(data.len() as u32).to_be_bytes());
    frame.extend_from_slice(data);
    frame.into()
}

fn latin1(value: &HeaderValue) -> String {
    value.as_bytes().iter().map(|&byte| byte as char).collect()
}

fn header_map(fields: Vec<(Vec<u8>, Vec<u8>)>) -> PyResult<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        let name = HeaderName::from_bytes(&name).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let value = HeaderValue::from_bytes(&value).map_err(|error| PyValueError::new_err(error.to_string()))?;
        headers.append(name, value);
    }
    Ok(headers)
}
