//! What is known of each request, for logs and traces: kept until Python fetches it, and not kept where no log asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::transport::{Api, Peer};

/// Callers find their requests again by this header field, which answers repeat.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const MAX_REQUEST_ID: usize = 128;
/// What is kept of a path, and of a client's trace context.
const MAX_PATH: usize = 256;
const MAX_TRACEPARENT: usize = 64;
/// Status where the client disconnected before there was an answer: nginx's number in REST, gRPC's own.
const GONE: [u16; 2] = [499, 1];

/// Names for requests that have none: a random number of the process, and a counter.
pub struct Ids {
    process: u64,
    next: AtomicU64,
}

impl Ids {
    pub fn new() -> Ids {
        Ids { process: fastrand::u64(..), next: AtomicU64::new(0) }
    }

    /// The caller's id for a request, where it is one that can be repeated as it is; else a new one.
    pub fn of(&self, headers: &HeaderMap) -> HeaderValue {
        headers.get(REQUEST_ID).filter(|value| is_plain(value)).cloned().unwrap_or_else(|| self.make())
    }

    fn make(&self) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut text = [b'-'; 29];
        for (index, digit) in text[..16].iter_mut().enumerate() {
            *digit = DIGITS[(self.process >> (60 - 4 * index) & 15) as usize];
        }
        for (index, digit) in text[17..].iter_mut().enumerate() {
            *digit = DIGITS[(number >> (44 - 4 * index) & 15) as usize];
        }
        // Hexadecimal digits are always a valid value.
        let mut value = HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("-"));
        // It is different in every answer: HTTP/2's tables need not remember it.
        value.set_sensitive(true);
        value
    }
}

fn is_plain(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    !bytes.is_empty() && bytes.len() <= MAX_REQUEST_ID && bytes.iter().all(u8::is_ascii_graphic)
}

/// Which requests are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Share of requests for the access log, from 0 to 1.
    pub share: f64,
    /// All that take at least so long.
    pub slow: Option<Duration>,
    /// All that are to be traced: without those whose callers do not trace them, where `parents` decide.
    pub traced: bool,
    pub parents: bool,
}

/// Records that Python has not fetched yet.
pub struct Records {
    wanted: Wanted,
    limit: usize,
    /// The same moment by two clocks.
    epoch: (Instant, u64),
    kept: Mutex<Vec<Record>>,
    dropped: AtomicU64,
}

impl Records {
    pub fn new(wanted: Wanted, limit: usize) -> Records {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Records {
            wanted,
            limit,
            epoch: (Instant::now(), now.as_nanos() as u64),
            kept: Mutex::default(),
            dropped: AtomicU64::new(0),
        }
    }

    /// What was kept since the last time.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.kept.lock())
    }

    /// How many were lost since the last time, because they were not fetched in time.
    pub fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    /// Nanoseconds since 1970.
    pub fn unix_ns(&self, when: Instant) -> u64 {
        self.epoch.1 + when.saturating_duration_since(self.epoch.0).as_nanos() as u64
    }

    fn keep(&self, record: Record) {
        let slow = self.wanted.slow.is_some_and(|limit| record.ended - record.arrived >= limit);
        if !(record.logged || record.traced || slow) {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.len() < self.limit {
            kept.push(record);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What only those know who have answered a request.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub model: String,
    /// 0 for none.
    pub version: i64,
    pub signature: String,
    pub backend: String,
    pub principal: String,
    pub rows: usize,
    pub batch: Batch,
    pub times: Option<Times>,
}

/// The batch that a request was computed in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    /// 0 for none.
    pub id: u64,
    pub rows: usize,
    pub requests: usize,
}

/// When a request was computed.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub decoded: Instant,
    pub begun: Instant,
    pub called: Instant,
    pub returned: Instant,
    pub ended: Instant,
}

/// What Python knows: model, version, signature, backend, principal, rows, the batch's id, rows and requests, and
/// nanoseconds: in the queue, until the model was called, in the model, in the batch, and since its end.
type PythonFacts = (String, i64, String, String, String, usize, (u64, usize, usize), Option<(u64, u64, u64, u64, u64)>);

impl<'a, 'py> FromPyObject<'a, 'py> for Facts {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Facts> {
        let (model, version, signature, backend, principal, rows, (id, batch_rows, requests), times): PythonFacts =
            object.extract()?;
        let now = Instant::now();
        let before = |when: Instant, ns: u64| when.checked_sub(Duration::from_nanos(ns)).unwrap_or(when);
        let times = times.map(|(queue, stack, compute, batch, since)| {
            let ended = before(now, since);
            let begun = before(ended, batch);
            let called = begun + Duration::from_nanos(stack);
            let returned = called + Duration::from_nanos(compute);
            Times { decoded: before(begun, queue), begun, called, returned, ended }
        });
        let batch = Batch { id, rows: batch_rows, requests };
        Ok(Facts { model, version, signature, backend, principal, rows, batch, times })
    }
}

/// One request that was answered, or whose client is gone.
pub struct Record {
    arrived: Instant,
    received: Option<Instant>,
    ended: Instant,
    api: Api,
    method: String,
    path: String,
    status: Option<u16>,
    id: String,
    traceparent: String,
    peer: Peer,
    bytes_in: usize,
    bytes_out: usize,
    facts: Facts,
    logged: bool,
    traced: bool,
}

impl Record {
    /// The fields of `RequestRecord`, in its order.
    pub fn to_python<'py>(&self, py: Python<'py>, records: &Records) -> PyResult<Bound<'py, PyAny>> {
        let ns = |from: Instant, to: Instant| to.saturating_duration_since(from).as_nanos() as u64;
        let facts = &self.facts;
        let status = self.status.unwrap_or(GONE[usize::from(self.api == Api::Grpc)]);
        let (receive, queue, stack, compute, batch, write) = match facts.times {
            Some(times) => (
                ns(self.arrived, times.decoded),
                ns(times.decoded, times.begun),
                ns(times.begun, times.called),
                ns(times.called, times.returned),
                ns(times.begun, times.ended),
                ns(times.ended, self.ended),
            ),
            None => (ns(self.arrived, self.received.unwrap_or(self.ended)), 0, 0, 0, 0, 0),
        };
        let who = (
            records.unix_ns(self.arrived),
            if self.api == Api::Grpc { "grpc" } else { "rest" },
            &self.method,
            &self.path,
            status,
            &self.id,
            &self.traceparent,
            self.peer.host(),
        );
        let what = (
            &facts.principal,
            &facts.model,
            facts.version,
            &facts.signature,
            &facts.backend,
            facts.rows,
            self.bytes_in,
            self.bytes_out,
        );
        let times = (ns(self.arrived, self.ended), receive, queue, stack, compute, batch, write);
        let rest = (facts.batch.id, facts.batch.rows, facts.batch.requests, self.logged, self.traced);
        // Tuples of any length are not converted.
        let fields = who.into_pyobject(py)?.add(what)?.add(times)?.add(rest)?;
        Ok(fields)
    }
}

/// A request as it is answered; its record is made where this is dropped. Empty where no log wants one.
#[derive(Default)]
pub struct Seen(Option<Box<Open>>);

struct Open {
    records: Arc<Records>,
    record: Record,
}

impl Seen {
    pub fn begin<B>(
        records: Option<&Arc<Records>>,
        api: Api,
        request: &Request<B>,
        peer: &Peer,
        id: &HeaderValue,
        arrived: Instant,
    ) -> Seen {
        let Some(records) = records else { return Seen(None) };
        let traceparent = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let wanted = &records.wanted;
        let logged = wanted.share > 0.0 && fastrand::f64() < wanted.share;
        let traced = wanted.traced && !(wanted.parents && is_untraced(traceparent));
        if !(logged || traced || wanted.slow.is_some()) {
            return Seen(None);
        }
        let record = Record {
            arrived,
            received: None,
            ended: arrived,
            api,
            method: request.method().as_str().to_owned(),
            path: cut(request.uri().path(), MAX_PATH).to_owned(),
            status: None,
            id: id.to_str().unwrap_or_default().to_owned(),
            traceparent: cut(traceparent, MAX_TRACEPARENT).to_owned(),
            peer: peer.clone(),
            bytes_in: 0,
            bytes_out: 0,
            facts: Facts::default(),
            logged,
            traced,
        };
        Seen(Some(Box::new(Open { records: records.clone(), record })))
    }

    /// The body is whole, or as much of it as is read.
    pub fn received(&mut self, bytes: usize) {
        if let Some(open) = &mut self.0 {
            open.record.bytes_in = bytes;
            open.record.received = Some(Instant::now());
        }
    }

    /// Notes what is worked out only where a log wants it.
    pub fn note(&mut self, facts: impl FnOnce() -> Facts) {
        if let Some(open) = &mut self.0 {
            open.record.facts = facts();
        }
    }

    pub fn answered(&mut self, status: u16) {
        if let Some(open) = &mut self.0 {
            open.record.status = Some(status);
        }
    }

    pub fn wrote(&mut self, bytes: usize) {
        if let Some(open) = &mut self.0 {
            open.record.bytes_out += bytes;
        }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            let Open { records, mut record } = *open;
            record.ended = Instant::now();
            records.keep(record);
        }
    }
}

/// Whether a caller traces, and not this request: the last bit of the flags (W3C Trace Context).
fn is_untraced(traceparent: &str) -> bool {
    let flags = traceparent.split('-').nth(3).and_then(|flags| u8::from_str_radix(flags, 16).ok());
    flags.is_some_and(|flags| flags & 1 == 0)
}

fn cut(text: &str, most: usize) -> &str {
    // Both are ASCII: paths are escaped, and of the other a header field's text is only that.
    text.get(..most).unwrap_or(text)
}
