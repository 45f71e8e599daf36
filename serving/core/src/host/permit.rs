//! Leave to compute a prediction, where access is controlled.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::latin1;
use crate::core::Core;
use crate::transport::Peer;

/// The other header field that may hold credentials.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

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
