//! gRPC calls that Python answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use tokio::sync::{Semaphore, oneshot};

use super::{Outlet, framed, header_map};
use crate::record::Facts;
use crate::transport::Charge;

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

/// One gRPC call that Python answers.
#[pyclass(frozen, module = "modelyard_core")]
pub struct Call {
    #[pyo3(get)]
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) message: Option<Bytes>,
    /// Whether it was chosen for the log of predictions; `None` where that was not drawn.
    #[pyo3(get)]
    pub(super) logged: Option<bool>,
    #[pyo3(get)]
    pub(super) peer: String,
    pub(super) certificate: Option<Bytes>,
    #[pyo3(get)]
    pub(super) timeout_s: Option<f64>,
    pub(super) gone: AtomicBool,
    pub(super) end: Mutex<Option<oneshot::Sender<CallEnd>>>,
    pub(super) outlet: Outlet,
    pub(super) room: Arc<Semaphore>,
    /// What messages of a stream take that its handler has not answered, in their order.
    pub(super) held: Mutex<VecDeque<Charge>>,
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

    /// Sends one message of a stream, as the answer to the client's first that has none.
    fn send(&self, data: &[u8]) {
        let frame = framed(data);
        self.outlet.unsent.fetch_add(frame.len(), Ordering::Relaxed);
        // A client that has disconnected needs no message.
        let _ = self.outlet.frames.send(Frame::data(frame));
        self.held.lock().pop_front();
    }

    /// Bytes of messages that were not sent yet.
    #[getter]
    fn unsent(&self) -> usize {
        if self.outlet.frames.is_closed() { 0 } else { self.outlet.unsent.load(Ordering::Relaxed) }
    }

    /// A message of the client was taken: there is room for another.
    fn took(&self) {
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
        if let Some(sender) = self.end.lock().take() {
            // As for an answer.
            let _ = sender.send(end);
        }
    }
}
