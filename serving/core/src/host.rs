//! Python's side: requests that are handed over whole, and who waits for them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body::Frame;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::core::Core;
use crate::record::Facts;
use crate::transport::{Charge, Peer};

/// The other header field that may hold credentials.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Messages of a stream that its handler has not taken: a client that sends faster waits for its window.
const MAX_WAITING_MESSAGES: usize = 16;

/// The Python object that answers what is not answered here. Its methods return at once and may be called on any thread.
pub struct Host(Py<PyAny>);

/// An answer to a REST request.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// What Python knows of the request, where anybody wants to.
    pub facts: Option<Facts>,
}

/// What a gRPC call ends with.
pub struct CallEnd {
    /// The message of a unary call that succeeded.
    pub message: Option<Bytes>,
    pub code: u16,
    pub text: String,
    pub trailers: HeaderMap,
    /// As of an answer.
    pub facts: Option<Facts>,
}

/// Why a body did not come whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    Late,
    TooLarge,
}

/// One REST request that Python answers.
#[pyclass(frozen, module = "modelyard_core")]
pub struct Exchange {
    #[pyo3(get)]
    method: String,
    #[pyo3(get)]
    path: String,
    #[pyo3(get)]
    query: String,
    headers: HeaderMap,
    body: Bytes,
    #[pyo3(get)]
    request_id: String,
    #[pyo3(get)]
    client: String,
    certificate: Option<Bytes>,
    problem: Option<Problem>,
    /// It was chosen for the log of predictions.
    #[pyo3(get)]
    logged: bool,
    gone: AtomicBool,
    reply: Mutex<Option<oneshot::Sender<Answer>>>,
}

#[pymethods]
impl Exchange {
    /// Header fields by lower-case name; several of one name are joined by commas.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for name in self.headers.keys() {
            let values: Vec<String> = self.headers.get_all(name).iter().map(latin1).collect();
            fields.set_item(name.as_str(), values.join(","))?;
        }
        Ok(fields)
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.body)
    }

    /// The client's certificate in DER, or None.
    #[getter]
    fn certificate<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.certificate.as_ref().map(|der| PyBytes::new(py, der))
    }

    /// `late`, `too_large` or None.
    #[getter]
    fn problem(&self) -> Option<&'static str> {
        self.problem.map(|problem| match problem {
            Problem::Late => "late",
            Problem::TooLarge => "too_large",
        })
    }

    /// Whether the client has hung up.
    fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Sends the answer; only the first counts.
    #[pyo3(signature = (status, headers, body, facts=None))]
    fn respond(
        &self,
        status: u16,
        headers: Vec<(Vec<u8>, Vec<u8>)>,
        body: &[u8],
        facts: Option<Facts>,
    ) -> PyResult<()> {
        let status = StatusCode::from_u16(status).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let headers = header_map(headers)?;
        if let Some(reply) = self.reply.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Whoever has hung up needs no answer.
            let _ = reply.send(Answer { status, headers, body: Bytes::copy_from_slice(body), facts });
        }
        Ok(())
    }
}

/// One gRPC call that Python answers.
#[pyclass(frozen, module = "modelyard_core")]
pub struct Call {
    #[pyo3(get)]
    path: String,
    headers: HeaderMap,
    message: Option<Bytes>,
    /// It was chosen for the log of predictions.
    #[pyo3(get)]
    logged: bool,
    #[pyo3(get)]
    peer: String,
    certificate: Option<Bytes>,
    #[pyo3(get)]
    timeout_s: Option<f64>,
    gone: AtomicBool,
    end: Mutex<Option<oneshot::Sender<CallEnd>>>,
    frames: mpsc::UnboundedSender<Frame<Bytes>>,
    unsent: Arc<AtomicUsize>,
    room: Arc<Semaphore>,
    /// What messages of a stream take that its handler has not answered: the last that it took, and those that wait.
    held: Mutex<VecDeque<Charge>>,
    taken: AtomicBool,
}

#[pymethods]
impl Call {
    /// Names and values of the header fields, as bytes.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let fields = self.headers.iter().map(|(name, value)| {
            PyTuple::new(py, [PyBytes::new(py, name.as_str().as_bytes()), PyBytes::new(py, value.as_bytes())])
        });
        PyList::new(py, fields.collect::<PyResult<Vec<_>>>()?)
    }

    /// The client's certificate in DER, or None.
    #[getter]
    fn certificate<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.certificate.as_ref().map(|der| PyBytes::new(py, der))
    }

    /// The message of a unary call; None for a stream, and where the method is unknown.
    #[getter]
    fn message<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.message.as_ref().map(|message| PyBytes::new(py, message))
    }

    /// Whether the client has hung up, or its time is over.
    fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Sends one message of a stream.
    fn send(&self, data: &[u8]) {
        let frame = framed(data);
        self.unsent.fetch_add(frame.len(), Ordering::Relaxed);
        // Whoever has hung up needs no message.
        let _ = self.frames.send(Frame::data(frame));
    }

    /// Bytes of messages that were not sent yet.
    #[getter]
    fn unsent(&self) -> usize {
        if self.frames.is_closed() { 0 } else { self.unsent.load(Ordering::Relaxed) }
    }

    /// A message of the client was taken: there is room for another.
    fn took(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if self.taken.swap(true, Ordering::Relaxed) {
            held.pop_front();
        }
        self.room.add_permits(1);
    }

    /// Answers a unary call that succeeded.
    #[pyo3(signature = (data, facts=None))]
    fn respond(&self, data: &[u8], facts: Option<Facts>) {
        let message = Some(Bytes::copy_from_slice(data));
        self.finish_with(CallEnd { message, code: 0, text: String::new(), trailers: HeaderMap::new(), facts });
    }

    /// Ends the call with a status and trailing metadata.
    #[pyo3(signature = (code, text, trailers, facts=None))]
    fn finish(&self, code: u16, text: String, trailers: Vec<(Vec<u8>, Vec<u8>)>, facts: Option<Facts>) -> PyResult<()> {
        self.finish_with(CallEnd { message: None, code, text, trailers: header_map(trailers)?, facts });
        Ok(())
    }
}

impl Call {
    fn finish_with(&self, end: CallEnd) {
        if let Some(sender) = self.end.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // As for an answer.
            let _ = sender.send(end);
        }
    }
}

/// What a call's transport keeps.
pub struct OpenCall {
    pub waiting: Waiting,
    pub end: oneshot::Receiver<CallEnd>,
    pub sender: mpsc::UnboundedSender<Frame<Bytes>>,
    pub frames: mpsc::UnboundedReceiver<Frame<Bytes>>,
    pub unsent: Arc<AtomicUsize>,
    pub room: Arc<Semaphore>,
}

/// What a REST request says.
pub struct RestRequest {
    pub parts: http::request::Parts,
    pub body: Bytes,
    pub peer: Peer,
    pub request_id: String,
    pub problem: Option<Problem>,
    pub logged: bool,
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

/// Leave to compute a prediction, as long as it is not answered.
#[derive(Default)]
pub struct Permit {
    /// Whose prediction it is; empty for anybody's.
    pub principal: String,
    /// What Python counts it by, where it counts.
    ticket: Option<(Arc<Core>, Py<PyAny>)>,
}

impl Permit {
    /// Asks for leave; `None` where Python must say why there is none.
    pub fn ask(core: &Arc<Core>, headers: &HeaderMap, peer: &Peer, model: &str, rows: usize) -> Option<Permit> {
        if !core.options.guarded {
            return Some(Permit::default());
        }
        let shown = [AUTHORIZATION, API_KEY].map(|name| {
            let mut values = headers.get_all(name).iter();
            (values.next().map(latin1), values.next().is_none())
        });
        let [(authorization, true), (key, true)] = shown else { return None };
        core.host.tell(|py, host| {
            let certificate = peer.certificate.as_ref().map(|der| PyBytes::new(py, der));
            let shown = (authorization, key, certificate, peer.host(), model, rows);
            let ticket = host.call_method1(py, "permit", shown)?;
            if ticket.is_none(py) {
                return Ok(None);
            }
            let principal = ticket.getattr(py, "principal")?.extract(py)?;
            let counts: bool = ticket.getattr(py, "counts")?.extract(py)?;
            Ok(Some(Permit { principal, ticket: counts.then(|| (core.clone(), ticket)) }))
        })?
    }

    /// Python answers the request after all, and counts it itself.
    pub fn hand_over(mut self) {
        self.end("undo");
    }

    fn end(&mut self, method: &str) {
        if let Some((core, ticket)) = self.ticket.take() {
            core.host.tell(|py, _| ticket.call_method0(py, method));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.end("release");
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
    message: Option<(Bytes, bool)>,
    peer: Peer,
    timeout: Option<Duration>,
) -> Option<OpenCall> {
    let (message, logged) = message.map_or((None, false), |(message, logged)| (Some(message), logged));
    let (end_sender, end) = oneshot::channel();
    let (frame_sender, frames) = mpsc::unbounded_channel();
    let unsent = Arc::new(AtomicUsize::new(0));
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
        frames: frame_sender.clone(),
        unsent: unsent.clone(),
        room: room.clone(),
        held: Mutex::default(),
        taken: AtomicBool::new(false),
    };
    let call = core.host.tell(|py, host| {
        let call = Py::new(py, call)?;
        host.call_method1(py, "call", (call.clone_ref(py),))?;
        Ok(call)
    })?;
    let waiting = Waiting::new(core, Pending::Call(call));
    Some(OpenCall { waiting, end, sender: frame_sender, frames, unsent, room })
}

enum Pending {
    Rest(Py<Exchange>),
    Call(Py<Call>),
}

/// Somebody waits for what Python works on; where this is dropped, nobody does any more.
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
            call.get().held.lock().unwrap_or_else(PoisonError::into_inner).push_back(charge);
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
                call.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
