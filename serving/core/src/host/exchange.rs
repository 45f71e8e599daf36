//! REST requests that Python answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tokio::sync::oneshot;

use super::{header_map, latin1};
use crate::record::Facts;

/// An answer to a REST request.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// What Python knows of the request, where anybody wants to.
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
    pub(super) method: String,
    #[pyo3(get)]
    pub(super) path: String,
    #[pyo3(get)]
    pub(super) query: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    #[pyo3(get)]
    pub(super) request_id: String,
    pub(super) arrived: Instant,
    #[pyo3(get)]
    pub(super) client: String,
    pub(super) certificate: Option<Bytes>,
    pub(super) problem: Option<Problem>,
    /// Whether it was chosen for the log of predictions; `None` where that was not drawn.
    #[pyo3(get)]
    pub(super) logged: Option<bool>,
    pub(super) gone: AtomicBool,
    pub(super) reply: Mutex<Option<oneshot::Sender<Answer>>>,
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

    /// Seconds since the request came.
    #[getter]
    fn age_s(&self) -> f64 {
        self.arrived.elapsed().as_secs_f64()
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
        if let Some(reply) = self.reply.lock().take() {
            // A client that has disconnected needs no answer.
            let _ = reply.send(Answer { status, headers, body: Bytes::copy_from_slice(body), facts });
        }
        Ok(())
    }
}
