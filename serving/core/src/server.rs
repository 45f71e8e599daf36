//! The server as Python sees it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::batch::{Batching, Key, Plan, Plans};
use crate::core::{Admission, Core, Options, Phase};
use crate::forms::{DType, InputSpec, Signature};
use crate::host::Host;
use crate::threads;
use crate::transport::{Api, Budget, ConnectionLimits, Listener, TlsFiles, server_config};

/// Clients of HTTP/1.1 get so long to send what they were about to send, and are told with the answer that it was the
/// last.
const LAST_CALL: Duration = Duration::from_millis(300);
const TICK: Duration = Duration::from_millis(5);
/// Threads that compute what takes too long for the transport's threads.
const MAX_COMPUTING: usize = 64;

/// Serves gRPC and REST on threads of its own.
#[pyclass(frozen, module = "modelyard_core")]
pub struct Server {
    core: Arc<Core>,
    runtime: Mutex<Option<Runtime>>,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (
        handlers, *, threads, max_body_bytes, max_message_bytes, rest_timeout_s, wrong_rest_port,
        wrong_grpc_port, max_connections=0, max_streams=1024, max_header_bytes=32768, header_timeout_s=20.0,
        body_timeout_s=20.0, idle_timeout_s=75.0, max_inflight_bytes=0, max_age_s=0.0, max_waiting=0, max_delay_s=0.0, usual_rest=true, strict_json=false, json_extensions=false,
        max_json_depth=100, tensor_content=false, spare_thread=true,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    fn new(
        handlers: Py<PyAny>,
        threads: usize,
        max_body_bytes: usize,
        max_message_bytes: usize,
        rest_timeout_s: f64,
        wrong_rest_port: String,
        wrong_grpc_port: String,
        max_connections: usize,
        max_streams: u32,
        max_header_bytes: u32,
        header_timeout_s: f64,
        body_timeout_s: f64,
        idle_timeout_s: f64,
        max_inflight_bytes: usize,
        max_age_s: f64,
        max_waiting: usize,
        max_delay_s: f64,
        usual_rest: bool,
        strict_json: bool,
        json_extensions: bool,
        max_json_depth: usize,
        tensor_content: bool,
        spare_thread: bool,
    ) -> PyResult<Server> {
        let connections = ConnectionLimits {
            max_connections,
            max_streams,
            max_header_bytes,
            header_timeout: seconds(header_timeout_s)?,
            body_timeout: seconds(body_timeout_s)?,
            idle_timeout: seconds(idle_timeout_s)?,
            max_age: if max_age_s > 0.0 { Some(seconds(max_age_s)?) } else { None },
        };
        let options = Options {
            connections,
            admission: Admission {
                max_waiting,
                max_delay: if max_delay_s > 0.0 { Some(seconds(max_delay_s)?) } else { None },
            },
            max_body_bytes,
            max_message_bytes,
            rest_timeout: seconds(rest_timeout_s)?,
            wrong_rest_port,
            wrong_grpc_port,
            usual_rest,
            strict_json,
            json_extensions,
            max_json_depth,
            tensor_content,
        };
        let threads = threads.max(1);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .max_blocking_threads(MAX_COMPUTING)
            .thread_name("modelyard-core")
            .on_thread_start(threads::join_python)
            .on_thread_stop(threads::leave_python)
            .enable_all()
            .build()
            .map_err(|error| PyRuntimeError::new_err(format!("the core's threads cannot be started: {error}")))?;
        let core = Core {
            options,
            host: Host::new(handlers),
            methods: OnceLock::new(),
            phase: watch::Sender::new(Phase::Serving),
            listeners: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            plans: Plans::new(if spare_thread { threads } else { usize::MAX }),
            budget: Budget::new(max_inflight_bytes),
        };
        Ok(Server { core: Arc::new(core), runtime: Mutex::new(Some(runtime)) })
    }

    /// The paths of gRPC's methods, and whether each takes or gives a stream.
    fn set_methods(&self, methods: HashMap<String, bool>) -> PyResult<()> {
        self.core.methods.set(methods).map_err(|_| PyValueError::new_err("the methods are known already"))
    }

    /// Listens and serves. Raises OSError where the address cannot be had, ValueError where the certificates are bad.
    #[pyo3(signature = (*, grpc, port, tls=None))]
    fn listen(
        &self,
        py: Python<'_>,
        grpc: bool,
        port: u16,
        tls: Option<(String, String, Option<String>)>,
    ) -> PyResult<()> {
        let (api, protocols): (Api, &[&str]) =
            if grpc { (Api::Grpc, &["h2"]) } else { (Api::Rest, &["h2", "http/1.1"]) };
        let tls = tls
            .map(|(key, certificate, client_authority)| {
                server_config(&TlsFiles { key, certificate, client_authority }, protocols)
            })
            .transpose()
            .map_err(PyValueError::new_err)?;
        py.detach(|| {
            let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(runtime) = runtime.as_ref() else {
                return Err(PyRuntimeError::new_err("the server has ended"));
            };
            let _entered = runtime.enter();
            let listener = Listener::bind(port, api, tls).map_err(|error| match error.raw_os_error() {
                Some(number) => PyOSError::new_err((number, error.to_string())),
                None => PyOSError::new_err(error.to_string()),
            })?;
            self.core.listeners.fetch_add(1, Ordering::Relaxed);
            runtime.spawn(listener.run(self.core.clone()));
            Ok(())
        })
    }

    /// Has requests with a key answered here, in batches that `run` computes.
    ///
    /// `inputs` are names, dtypes and shapes (None for any rank), `outputs` names and dtypes. Returns False where a
    /// dtype is none that can be.
    #[pyo3(signature = (*, model, version, label, signature, wanted, answers, name, inputs, outputs, run, max_rows,
        shared, parallel, batching=None))]
    #[expect(clippy::too_many_arguments, reason = "they are named in Python")]
    fn add_plan(
        &self,
        model: String,
        version: Option<i64>,
        label: Option<String>,
        signature: String,
        wanted: Vec<String>,
        answers: i64,
        name: String,
        inputs: Vec<(String, String, Option<Vec<i64>>)>,
        outputs: Vec<(String, String)>,
        run: Py<PyAny>,
        max_rows: usize,
        shared: bool,
        parallel: usize,
        batching: Option<(f64, usize, Vec<usize>)>,
    ) -> PyResult<bool> {
        let inputs: Option<Vec<InputSpec>> = inputs
            .into_iter()
            .map(|(name, dtype, shape)| Some(InputSpec { name, dtype: DType::by_name(&dtype)?, shape }))
            .collect();
        let outputs: Option<Vec<(String, DType)>> =
            outputs.into_iter().map(|(name, dtype)| Some((name, DType::of_output(&dtype)?))).collect();
        let (Some(inputs), Some(outputs)) = (inputs, outputs) else { return Ok(false) };
        let batching = match batching {
            None => None,
            Some((timeout_s, max_queued_rows, sizes)) => {
                Some(Batching { timeout: seconds(timeout_s)?, max_queued_rows, sizes })
            }
        };
        let key = Key { model, version, label, signature, outputs: wanted };
        let signature = Signature { name, inputs };
        self.core.plans.add(Plan::new(key, answers, signature, outputs, run, batching, max_rows, shared, parallel));
        Ok(true)
    }

    /// Answers the requests of a version's batches that have been computed for so many seconds: see the stub.
    fn give_up(&self, py: Python<'_>, model: &str, version: i64, longer_s: f64, text: &str) -> PyResult<()> {
        let longer = seconds(longer_s)?;
        py.detach(|| self.core.plans.give_up(model, version, longer, &text.into()));
        Ok(())
    }

    /// What was measured since the last time, by plan: see the stub.
    fn take_statistics<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.core.plans.all().iter().map(|plan| statistics(py, plan)).collect()
    }

    /// Requests that wait for a batch or are computed.
    #[getter]
    fn waiting(&self) -> usize {
        self.core.plans.waiting()
    }

    /// Bytes of requests that are read or answered.
    #[getter]
    fn inflight_bytes(&self) -> usize {
        self.core.budget.used()
    }

    /// Connections that are open.
    #[getter]
    fn connections(&self) -> usize {
        self.core.connections.load(Ordering::Relaxed)
    }

    /// Takes no new connections, answers what was sent, and ends; blocks for as long as that takes.
    fn stop(&self, py: Python<'_>, grace_s: f64) -> PyResult<()> {
        let grace = seconds(grace_s)?;
        py.detach(|| {
            let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
            let end = Instant::now() + grace;
            // Clients that are told to go come back at once: a port that closes just then would reset them.
            self.core.phase.send_replace(Phase::Unlisted);
            wait(&self.core.listeners, end);
            self.core.phase.send_replace(Phase::Closing);
            wait(&self.core.connections, end.min(Instant::now() + LAST_CALL));
            self.core.phase.send_replace(Phase::Draining);
            wait(&self.core.connections, end);
            self.core.phase.send_replace(Phase::Ended);
            runtime.shutdown_background();
        });
        Ok(())
    }
}

/// Waits until there is none.
fn wait(number: &AtomicUsize, end: Instant) {
    while number.load(Ordering::Relaxed) > 0 && Instant::now() < end {
        std::thread::sleep(TICK);
    }
}

fn statistics<'py>(py: Python<'py>, plan: &Plan) -> PyResult<Bound<'py, PyDict>> {
    let stats = std::mem::take(&mut *plan.stats.lock().unwrap_or_else(PoisonError::into_inner));
    let found = PyDict::new(py);
    found.set_item("model", &plan.key.model)?;
    found.set_item("version", plan.version)?;
    found.set_item("succeeded", stats.succeeded)?;
    found.set_item("rows", stats.rows)?;
    found.set_item("last_ms", stats.last_ms)?;
    found.set_item("total_ns", stats.total_ns)?;
    found.set_item("queue_ns", stats.queue_ns)?;
    found.set_item("input_ns", stats.input_ns)?;
    found.set_item("infer_ns", stats.infer_ns)?;
    found.set_item("output_ns", stats.output_ns)?;
    found.set_item("runtime", (stats.runtime.counts, stats.runtime.sum_us))?;
    let requests: Vec<_> = stats
        .requests
        .into_iter()
        .map(|((api, entrypoint), times)| (api, entrypoint, times.counts, times.sum_us))
        .collect();
    found.set_item("requests", requests)?;
    found.set_item("executions", stats.executions)?;
    Ok(found)
}

fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| PyValueError::new_err(format!("{value} is no number of seconds: {error}")))
}
