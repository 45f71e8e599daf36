//! The server as Python sees it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::HeaderName;
use parking_lot::{Mutex, RwLock};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::batch::{Batching, Key, Plan, Plans};
use crate::core::{Admission, Core, Options, Phase};
use crate::forms::{DType, InputSpec, Signature};
use crate::host::Host;
use crate::record::{Ids, Records, Wanted};
use crate::statistics::statistics;
use crate::threads;
use crate::traffic::{Ended, Rule, Target, Traffic};
use crate::transport::{
    Api, Budget, ConnectionLimits, Listener, LiveTls, MAX_OPEN_STREAMS, Refused, TlsFiles, server_config,
};

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
    /// Of the ports that speak TLS.
    tls: Mutex<Vec<(Api, LiveTls)>>,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (
        handlers, *, threads, max_body_bytes, max_message_bytes, rest_timeout_s, wrong_rest_port,
        wrong_grpc_port, max_connections=0, max_streams=256, max_header_bytes=32768, header_timeout_s=20.0,
        body_timeout_s=20.0, idle_timeout_s=75.0, max_inflight_bytes=0, max_age_s=0.0, max_waiting=0, max_delay_s=0.0, usual_rest=true, strict_json=false, json_extensions=false,
        max_json_depth=100, tensor_content=false, guarded=false, records=None, spare_thread=true,
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
        guarded: bool,
        records: Option<(usize, f64, f64, bool, bool)>,
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
            guarded,
        };
        let records = match records {
            None => None,
            Some((limit, share, slow_s, traced, parents)) => {
                let slow = if slow_s > 0.0 { Some(seconds(slow_s)?) } else { None };
                Some(Arc::new(Records::new(Wanted { share, slow, traced, parents }, limit)))
            }
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
            streams: Arc::new(Semaphore::new(MAX_OPEN_STREAMS)),
            plans: Plans::new(if spare_thread { threads } else { usize::MAX }),
            traffic: Traffic::default(),
            budget: Budget::new(max_inflight_bytes),
            ids: Ids::new(),
            records,
            refused: Refused::default(),
        };
        if spare_thread {
            core.plans.watch(runtime.handle().clone())?;
        }
        Ok(Server { core: Arc::new(core), runtime: Mutex::new(Some(runtime)), tls: Mutex::default() })
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
        let api = if grpc { Api::Grpc } else { Api::Rest };
        let tls: Option<LiveTls> = match tls {
            None => None,
            Some((key, certificate, client_authority)) => {
                let files = TlsFiles { key, certificate, client_authority };
                Some(Arc::new(RwLock::new(acceptor(api, &files)?)))
            }
        };
        py.detach(|| {
            let runtime = self.runtime.lock();
            let Some(runtime) = runtime.as_ref() else {
                return Err(PyRuntimeError::new_err("the server has ended"));
            };
            let _entered = runtime.enter();
            let listener = Listener::bind(port, api, tls.clone()).map_err(|error| match error.raw_os_error() {
                Some(number) => PyOSError::new_err((number, error.to_string())),
                None => PyOSError::new_err(error.to_string()),
            })?;
            self.core.listeners.fetch_add(1, Ordering::Relaxed);
            runtime.spawn(listener.run(self.core.clone()));
            self.tls.lock().extend(tls.map(|tls| (api, tls)));
            Ok(())
        })
    }

    /// Has all ports that speak TLS use other files from the next connection on. Raises ValueError where they are bad.
    fn set_tls(&self, key: String, certificate: String, client_authority: Option<String>) -> PyResult<()> {
        let files = TlsFiles { key, certificate, client_authority };
        let ports = self.tls.lock();
        let fresh: Vec<_> = ports.iter().map(|(api, _)| acceptor(*api, &files)).collect::<PyResult<_>>()?;
        for ((_, live), fresh) in ports.iter().zip(fresh) {
            *live.write() = fresh;
        }
        Ok(())
    }

    /// Has requests with a key answered here, in batches that `run` computes.
    ///
    /// `inputs` are names, dtypes and shapes (None for any rank), `outputs` names and dtypes. Returns False where a
    /// dtype is none that can be.
    #[pyo3(signature = (*, model, version, label, signature, wanted, answers, name, backend, inputs, outputs,
        run, max_rows, shared, parallel, elsewhere=false, batching=None, logged=0.0))]
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
        backend: String,
        inputs: Vec<(String, String, Option<Vec<i64>>)>,
        outputs: Vec<(String, String)>,
        run: Py<PyAny>,
        max_rows: usize,
        shared: bool,
        parallel: usize,
        elsewhere: bool,
        batching: Option<(f64, usize, Vec<usize>)>,
        logged: f64,
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
        let plan = Plan::new(
            key, answers, signature, backend, outputs, run, batching, max_rows, shared, parallel, elsewhere, logged,
        );
        self.core.plans.add(plan);
        Ok(true)
    }

    /// Python has done what `learn` asked for, whether there is a plan or none.
    fn learned(
        &self,
        model: String,
        version: Option<i64>,
        label: Option<String>,
        signature: String,
        outputs: Vec<String>,
    ) {
        self.core.plans.learned(&Key { model, version, label, signature, outputs });
    }

    /// Has `learn` called again for the plans of a model, but for those of some versions.
    #[pyo3(signature = (model, keep = Vec::new()))]
    fn forget(&self, model: &str, keep: Vec<i64>) {
        self.core.plans.forget(model, &keep);
    }

    /// Answers the requests of a version's batches that have been computed for so many seconds: see the stub.
    fn give_up(&self, py: Python<'_>, model: &str, version: i64, longer_s: f64, text: Option<&str>) -> PyResult<()> {
        let longer = seconds(longer_s)?;
        py.detach(|| self.core.plans.give_up(model, version, longer, text.map(Into::into).as_ref()));
        Ok(())
    }

    /// What was measured since the last time, by plan: see the stub.
    fn take_statistics<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let mut all = Vec::new();
        for plan in self.core.plans.take_all() {
            let stats = std::mem::take(&mut *plan.stats());
            if !stats.is_empty() {
                all.push(statistics(py, &plan, stats)?);
            }
        }
        Ok(all)
    }

    /// Requests that were refused before a model heard of them, by the reason, since the server started.
    #[getter]
    fn refused(&self) -> HashMap<&'static str, u64> {
        let refused = &self.core.refused;
        let reasons = [
            ("connections", &refused.connections),
            ("bytes", &refused.bytes),
            ("too_large", &refused.too_large),
            ("slow_body", &refused.slow),
        ];
        reasons.into_iter().map(|(reason, number)| (reason, number.load(Ordering::Relaxed))).collect()
    }

    /// Has requests that name no version go to those of rules: see the stub.
    fn set_traffic(&self, rules: Vec<(String, String, String, f64, Vec<TargetTuple>)>) -> PyResult<()> {
        let rules = rules.into_iter().map(|(model, version_header, sticky_header, shadow, targets)| {
            let targets = targets.into_iter().map(|(name, version, label, serving, share, out)| Target {
                name,
                version,
                label,
                serving,
                share,
                out,
                ended: Arc::default(),
            });
            let (version_header, sticky_header) = (header(&version_header)?, header(&sticky_header)?);
            Ok(Rule { model, version_header, sticky_header, shadow, targets: targets.collect() })
        });
        self.core.traffic.set(rules.collect::<PyResult<_>>()?);
        Ok(())
    }

    /// How such requests ended since the last time: see the stub.
    fn take_traffic(&self) -> Vec<TakenTraffic> {
        let found = self.core.traffic.take().into_iter();
        found
            .map(|(model, target, Ended { statuses, times })| (model, target, statuses, times.counts, times.native.sum))
            .collect()
    }

    /// Requests that were answered since the last time, each as a tuple, and how many more were lost.
    fn take_records<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Bound<'py, PyAny>>, u64)> {
        let Some(records) = &self.core.records else { return Ok((Vec::new(), 0)) };
        let taken = py.detach(|| records.take());
        let found = taken.iter().map(|record| record.to_python(py, records)).collect::<PyResult<_>>()?;
        Ok((found, records.take_dropped()))
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
            let Some(runtime) = self.runtime.lock().take() else { return };
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

/// Model, target, counts by status and by bucket of latency, and the sum in microseconds.
type TakenTraffic = (String, String, HashMap<&'static str, u64>, Vec<u64>, f64);
/// Name, version, label, the version that it is now, share, and whether it is rolled back.
type TargetTuple = (String, Option<i64>, Option<String>, Option<i64>, f64, bool);

/// A header's name; `None` for an empty one.
fn header(name: &str) -> PyResult<Option<HeaderName>> {
    if name.is_empty() {
        return Ok(None);
    }
    name.parse().map(Some).map_err(|_| PyValueError::new_err(format!("{name:?} is no header's name")))
}

/// How a port speaks TLS.
fn acceptor(api: Api, files: &TlsFiles) -> PyResult<TlsAcceptor> {
    let protocols: &[&str] = if api == Api::Grpc { &["h2"] } else { &["h2", "http/1.1"] };
    server_config(files, protocols).map(TlsAcceptor::from).map_err(PyValueError::new_err)
}

/// Waits until there is none.
fn wait(number: &AtomicUsize, end: Instant) {
    while number.load(Ordering::Relaxed) > 0 && Instant::now() < end {
        std::thread::sleep(TICK);
    }
}

fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| PyValueError::new_err(format!("{value} is no number of seconds: {error}")))
}
