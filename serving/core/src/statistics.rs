//! What was measured of a plan, as Python fetches it.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::{Plan, Stats};
use crate::histogram::Native;

/// The fields that the stub names.
pub fn statistics<'py>(py: Python<'py>, plan: &Plan, stats: Stats) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("model", &plan.key.model)?;
    found.set_item("version", plan.version)?;
    found.set_item("signature", &plan.signature.name)?;
    found.set_item("backend", &plan.backend)?;
    found.set_item("succeeded", stats.succeeded)?;
    found.set_item("rows", stats.rows)?;
    found.set_item("last_ms", stats.last_ms)?;
    found.set_item("total_ns", stats.total_ns)?;
    found.set_item("queue_ns", stats.queue_ns)?;
    found.set_item("input_ns", stats.input_ns)?;
    found.set_item("infer_ns", stats.infer_ns)?;
    found.set_item("output_ns", stats.output_ns)?;
    found.set_item("runtime", (stats.runtime.counts, native(&stats.runtime.native)))?;
    for (name, values) in [
        ("queue", &stats.queue),
        ("input", &stats.input),
        ("output", &stats.output),
        ("batch_rows", &stats.batch_rows),
        ("batch_padding", &stats.batch_padding),
        ("batch_requests", &stats.batch_requests),
    ] {
        found.set_item(name, native(values))?;
    }
    let requests: Vec<_> = stats
        .requests
        .into_iter()
        .map(|((api, entrypoint), times)| {
            let exemplars = times.exemplars.into_iter().map(|(index, (trace, value, when))| {
                (index, String::from_utf8_lossy(&trace).into_owned(), value, when)
            });
            (api, entrypoint, times.counts, native(&times.native), exemplars.collect::<Vec<_>>())
        })
        .collect();
    found.set_item("requests", requests)?;
    let failed: Vec<_> =
        stats.failed.into_iter().map(|(((api, entrypoint), status), count)| (api, entrypoint, status, count)).collect();
    found.set_item("failed", failed)?;
    found.set_item("refused", stats.refused)?;
    let clients: Vec<_> = stats.clients.into_iter().map(|((name, status), count)| (name, status, count)).collect();
    found.set_item("clients", clients)?;
    found.set_item("executions", stats.executions)?;
    Ok(found)
}

/// Buckets by their numbers, zeros, and the sum.
fn native(values: &Native) -> (Vec<(i32, u64)>, u64, f64) {
    (values.filled(), values.zeros, values.sum)
}
