//! The gRPC port: calls on HTTP/2 streams (gRPC over HTTP2, the protocol's own specification).

use std::io::Read;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use bytes::{Buf, Bytes, BytesMut};
use flate2::read::{GzDecoder, ZlibDecoder};
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::core::Core;
use crate::forms::{put_bytes, put_varint};
use crate::host::{self, CallEnd, OpenCall};
use crate::record::REQUEST_ID;
use crate::transport::http::{drain, error};
use crate::transport::limits::{Charge, Pace, RETRY, Refused};
use crate::transport::{Context, Reply};
use crate::usual;

pub const DEADLINE_EXCEEDED: u16 = 4;
pub const RESOURCE_EXHAUSTED: u16 = 8;
pub const UNIMPLEMENTED: u16 = 12;
pub const INTERNAL: u16 = 13;
pub const UNAVAILABLE: u16 = 14;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
const PREFIX: usize = 5;
const MAX_TIMEOUT_DIGITS: usize = 8;
/// Room for a message is taken as it comes, beyond so many bytes.
const MAX_ROOM: usize = 1 << 20;
/// A compressed message is inflated in pieces of so many bytes.
const PIECE: u64 = 1 << 20;

/// Why a call ends without an answer.
pub struct Refusal {
    pub code: u16,
    pub text: String,
    /// When there may be room, where there is none.
    pub retry_after: Option<Duration>,
}

/// Where a message that is not taken is counted.
fn counted<'a>(core: &'a Core, refusal: &Refusal) -> Option<&'a AtomicU64> {
    match refusal {
        // Both are RESOURCE_EXHAUSTED: only who finds no room may come again.
        Refusal { code: RESOURCE_EXHAUSTED, retry_after: None, .. } => Some(&core.refused.too_large),
        Refusal { code: RESOURCE_EXHAUSTED, .. } => Some(&core.refused.bytes),
        Refusal { code: DEADLINE_EXCEEDED, .. } => Some(&core.refused.slow),
        _ => None,
    }
}

impl Refusal {
    /// Trailing metadata: `grpc-retry-pushback-ms` is gRPC's own (proposal A6); `google.rpc.RetryInfo` in
    /// `grpc-status-details-bin` is what Google's client libraries look for.
    fn trailers(&self) -> HeaderMap {
        let mut fields = HeaderMap::new();
        let Some(pause) = self.retry_after else { return fields };
        fields.insert(PUSHBACK, HeaderValue::from(pause.as_millis() as u64));
        // The messages google.protobuf.Duration, Any and google.rpc.Status.
        let (mut duration, mut retry, mut detail, mut status) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        put_number(&mut duration, 1 << 3, pause.as_secs());
        put_number(&mut duration, 2 << 3, u64::from(pause.subsec_nanos()));
        put_bytes(&mut retry, 1 << 3 | 2, &duration);
        put_bytes(&mut detail, 1 << 3 | 2, RETRY_INFO.as_bytes());
        put_bytes(&mut detail, 2 << 3 | 2, &retry);
        put_number(&mut status, 1 << 3, u64::from(self.code));
        put_bytes(&mut status, 2 << 3 | 2, self.text.as_bytes());
        put_bytes(&mut status, 3 << 3 | 2, &detail);
        // Base64 is always a valid value.
        if let Ok(value) = HeaderValue::from_str(&BASE64.encode(status)) {
            fields.insert(DETAILS, value);
        }
        fields
    }

    fn for_now(text: String) -> Refusal {
        Refusal { code: RESOURCE_EXHAUSTED, text, retry_after: Some(RETRY) }
    }

    fn new(code: u16, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into(), retry_after: None }
    }
}

/// Whether a request is gRPC's.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(GRPC.as_bytes()))
}

/// Answers one call with something, whatever happens.
pub async fn serve_grpc(core: &Arc<Core>, request: Request<Incoming>, context: &mut Context) -> Response<Reply> {
    if request.version() < Version::HTTP_2 {
        let mut response = error(StatusCode::BAD_REQUEST, &core.options.wrong_grpc_port);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        drop(tokio::spawn(drain(request.into_body())));
        return response;
    }
    if !is_grpc(request.headers()) {
        let response = foreign(&request, &core.options.wrong_grpc_port);
        // What is wrong with the rest of a request is found before the answer ends it.
        drain(request.into_body()).await;
        return response;
    }
    let (parts, body) = request.into_parts();
    let timeout = match parts.headers.get(TIMEOUT).map(timeout_of) {
        None => None,
        Some(Some(timeout)) => Some(timeout),
        // Python says what is wrong with it.
        Some(None) => return hand_over(core, parts, None, None, context).await,
    };
    let method = core.methods.get().and_then(|methods| methods.get(parts.uri.path()).copied());
    let readable = parts.method == Method::POST && known_encoding(&parts.headers);
    match method {
        Some(true) if readable => stream(core, parts, body, timeout, context),
        Some(false) if readable => unary(core, parts, body, timeout, context).await,
        _ => hand_over(core, parts, None, timeout, context).await,
    }
}

async fn unary(
    core: &Arc<Core>,
    mut parts: http::request::Parts,
    mut body: Incoming,
    timeout: Option<Duration>,
    context: &mut Context,
) -> Response<Reply> {
    core.traffic.stamp(&mut parts.headers);
    let arrived = context.arrived;
    let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
    let work = async {
        let encoding = parts.headers.get(ENCODING).cloned();
        let mut room = Room { core, encoding, charge: core.budget.charge(), received: 0 };
        let message = match read_message(&mut body, &mut room).await {
            Ok(message) => message,
            Err(refusal) => {
                counted(core, &refusal).map(Refused::one);
                // Whoever is told to end before its message is sent may be in the middle of it.
                drop(tokio::spawn(drain(body)));
                return status_reply(refusal.code, &refusal.text, refusal.trailers());
            }
        };
        context.seen.received(room.received);
        let mut logged = false;
        match usual::grpc(core, &parts, &message, context, deadline, &mut logged).await {
            Some(Ok(answer)) => message_reply(answer),
            Some(Err(refusal)) => status_reply(refusal.code, &refusal.text, refusal.trailers()),
            None => {
                let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                hand_over(core, parts, Some((message, logged)), left, context).await
            }
        }
    };
    match deadline {
        None => work.await,
        Some(deadline) => match tokio::time::timeout_at(deadline.into(), work).await {
            Ok(response) => response,
            Err(_) => status_reply(DEADLINE_EXCEEDED, "Deadline Exceeded", HeaderMap::new()),
        },
    }
}

/// Has Python answer a call with one message, and perhaps log it; or with none where its head makes no sense.
async fn hand_over(
    core: &Arc<Core>,
    mut parts: http::request::Parts,
    message: Option<(Bytes, bool)>,
    timeout: Option<Duration>,
    context: &mut Context,
) -> Response<Reply> {
    parts.headers.insert(REQUEST_ID, context.id.clone());
    let Some(open) = host::call(core, parts.uri.path(), parts.headers, message, context.peer.clone(), timeout) else {
        return stopping();
    };
    let OpenCall { waiting, end, .. } = open;
    let Ok(end) = end.await else { return stopping() };
    waiting.done();
    if let Some(facts) = end.facts {
        context.seen.note(|| facts);
    }
    match end.message {
        Some(message) => message_reply(host::framed(&message)),
        None => status_reply(end.code, &end.text, end.trailers),
    }
}

/// Has Python answer a call that takes or gives a stream of messages.
fn stream(
    core: &Arc<Core>,
    mut parts: http::request::Parts,
    body: Incoming,
    timeout: Option<Duration>,
    context: &mut Context,
) -> Response<Reply> {
    parts.headers.insert(REQUEST_ID, context.id.clone());
    let encoding = parts.headers.get(ENCODING).cloned();
    let Some(open) = host::call(core, parts.uri.path(), parts.headers, None, context.peer.clone(), timeout) else {
        return stopping();
    };
    let OpenCall { waiting, end, sender, frames, unsent, room } = open;
    let core = core.clone();
    let facts = Arc::new(OnceLock::new());
    let told = facts.clone();
    tokio::spawn(async move {
        let mut end = end;
        let deadline = tokio::time::sleep(timeout.unwrap_or(Duration::MAX));
        let mut feeding = std::pin::pin!(feed(&core, &waiting, body, &room, encoding));
        let mut deadline = std::pin::pin!(deadline);
        let mut fed = false;
        let trailers = loop {
            tokio::select! {
                refused = &mut feeding, if !fed => {
                    fed = true;
                    if let Err(refusal) = refused {
                        counted(&core, &refusal).map(Refused::one);
                        break Some(status_fields(refusal.code, &refusal.text, refusal.trailers()));
                    }
                }
                ended = &mut end => break ended.ok().map(|CallEnd { code, text, trailers, facts, .. }| {
                    if let Some(facts) = facts {
                        // It ends once.
                        let _ = told.set(facts);
                    }
                    status_fields(code, &text, trailers)
                }),
                () = &mut deadline, if timeout.is_some() => {
                    break Some(status_fields(DEADLINE_EXCEEDED, "Deadline Exceeded", HeaderMap::new()));
                }
                // The client has gone.
                () = sender.closed() => break None,
            }
        };
        if let Some(trailers) = trailers {
            // A client that goes just now needs no status.
            let _ = sender.send(Frame::trailers(trailers));
        }
    });
    let mut response = Response::new(Reply::Stream { frames, unsent, facts });
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

fn stopping() -> Response<Reply> {
    status_reply(UNAVAILABLE, "The server is stopping; ask another one.", HeaderMap::new())
}

/// Gives Python the messages of a stream as there is room for them.
async fn feed(
    core: &Core,
    waiting: &host::Waiting,
    mut body: Incoming,
    free: &tokio::sync::Semaphore,
    encoding: Option<HeaderValue>,
) -> Result<(), Refusal> {
    let mut data = BytesMut::new();
    let mut room = Room { core, encoding, charge: core.budget.charge(), received: 0 };
    let mut pace = None;
    loop {
        while let Some(message) = split_message(&mut data, &mut room)? {
            if let Ok(permit) = free.acquire().await {
                permit.forget();
            }
            waiting.feed(Some(&message), std::mem::replace(&mut room.charge, core.budget.charge()));
            pace = None;
        }
        let received = data.len();
        let next = match (received > 0).then(|| pace.get_or_insert_with(|| room.pace())) {
            // Between two messages a stream may be silent.
            None => body.frame().await,
            Some(pace) => match pace.next(received, body.frame()).await {
                Some(next) => next,
                None => return Err(Refusal::new(DEADLINE_EXCEEDED, pace.refusal(received))),
            },
        };
        match next {
            // A client that has gone is seen by its answer's stream.
            Some(Err(_)) => return Ok(()),
            Some(Ok(frame)) => {
                if let Ok(more) = frame.into_data() {
                    data.extend_from_slice(&more);
                }
            }
            None => {
                waiting.feed(None, room.charge);
                return Ok(());
            }
        }
    }
}

/// Takes the first message off a stream's bytes, where it is whole.
fn split_message(data: &mut BytesMut, room: &mut Room<'_>) -> Result<Option<Bytes>, Refusal> {
    let Some((flag, size)) = prefix(data) else { return Ok(None) };
    room.take(size)?;
    if data.len() < PREFIX + size {
        return Ok(None);
    }
    data.advance(PREFIX);
    room.plain(flag, data.split_to(size).freeze()).map(Some)
}

/// The message of a unary call.
async fn read_message(body: &mut Incoming, room: &mut Room<'_>) -> Result<Bytes, Refusal> {
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    let pace = room.pace();
    loop {
        let received = first.len() + whole.len();
        let frame = match pace.next(received, body.frame()).await {
            None => return Err(Refusal::new(DEADLINE_EXCEEDED, pace.refusal(received))),
            Some(None) => break,
            // A client that has gone reads no answer.
            Some(Some(frame)) => frame.map_err(|_| Refusal::new(INTERNAL, "The request was reset."))?,
        };
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() && whole.is_empty() {
            first = data;
        } else {
            if whole.is_empty() {
                let claimed = prefix(&first).map_or(0, |(_, size)| PREFIX + size);
                whole.reserve(claimed.min(MAX_ROOM).max(first.len() + data.len()));
                whole.extend_from_slice(&std::mem::take(&mut first));
            }
            whole.extend_from_slice(&data);
        }
        let known: &[u8] = if whole.is_empty() { &first } else { &whole };
        room.take(prefix(known).map_or(0, |(_, size)| size).max(known.len().saturating_sub(PREFIX)))?;
        if body.is_end_stream() {
            break;
        }
    }
    let mut message = if whole.is_empty() { first } else { whole.freeze() };
    room.received = message.len();
    match prefix(&message) {
        Some((flag, size)) if size == message.len() - PREFIX => {
            message.advance(PREFIX);
            room.plain(flag, message)
        }
        _ => Err(Refusal::new(INTERNAL, "A unary call must have exactly one whole message.")),
    }
}

/// Whether a message is compressed, and its size.
fn prefix(data: &[u8]) -> Option<(u8, usize)> {
    let (head, _) = data.split_at_checked(PREFIX)?;
    Some((head[0], u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize))
}

/// What a message may take.
struct Room<'a> {
    core: &'a Core,
    /// How messages are compressed.
    encoding: Option<HeaderValue>,
    charge: Charge,
    /// Bytes of a unary call's message as it came.
    received: usize,
}

impl Room<'_> {
    fn pace(&self) -> Pace {
        Pace::new(self.core.options.connections.body_timeout)
    }

    /// Takes room for a message of so many bytes in all.
    fn take(&mut self, size: usize) -> Result<(), Refusal> {
        let max_bytes = self.core.options.max_message_bytes;
        if size > max_bytes {
            return Err(too_large(size, max_bytes));
        }
        if self.charge.reach(size) { Ok(()) } else { Err(Refusal::for_now(self.core.budget.refusal())) }
    }

    /// The message itself.
    fn plain(&mut self, flag: u8, data: Bytes) -> Result<Bytes, Refusal> {
        if flag == 0 {
            return Ok(data);
        }
        let name = self.encoding.as_ref().map_or("identity", |value| value.to_str().unwrap_or_default()).to_owned();
        match &*name {
            "gzip" if flag == 1 => self.inflate(&name, data.len(), GzDecoder::new(&*data)),
            "deflate" if flag == 1 => self.inflate(&name, data.len(), ZlibDecoder::new(&*data)),
            _ => {
                let text = "A message says that it is compressed, but the call's headers do not say how.";
                Err(Refusal::new(INTERNAL, text))
            }
        }
    }

    /// Inflates a message piece by piece, as there is room.
    fn inflate(&mut self, name: &str, packed: usize, mut decoder: impl Read) -> Result<Bytes, Refusal> {
        let max_bytes = self.core.options.max_message_bytes;
        let mut inflated = Vec::new();
        loop {
            let before = inflated.len();
            let read = decoder.by_ref().take(PIECE).read_to_end(&mut inflated);
            read.map_err(|error| Refusal::new(INTERNAL, format!("A message is no {name}: {error}")))?;
            if inflated.len() > max_bytes {
                let text = format!("Received message larger than max (more than {max_bytes} after decompression)");
                return Err(Refusal::new(RESOURCE_EXHAUSTED, text));
            }
            if inflated.len() == before {
                return Ok(inflated.into());
            }
            if !self.charge.reach(packed + inflated.len()) {
                return Err(Refusal::for_now(self.core.budget.refusal()));
            }
        }
    }
}

fn too_large(size: usize, max_bytes: usize) -> Refusal {
    Refusal::new(RESOURCE_EXHAUSTED, format!("Received message larger than max ({size} vs. {max_bytes})"))
}

fn known_encoding(headers: &HeaderMap) -> bool {
    headers.get(ENCODING).is_none_or(|value| matches!(value.as_bytes(), b"identity" | b"gzip" | b"deflate"))
}

fn timeout_of(value: &HeaderValue) -> Option<Duration> {
    let (unit, digits) = value.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > MAX_TIMEOUT_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The answer of a unary call that succeeded: a message with its prefix.
pub fn message_reply(frame: Bytes) -> Response<Reply> {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    let mut response = Response::new(Reply::Whole { data: Some(frame), trailers: Some(trailers) });
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The answer of a call that ends with a status and no message: all of it is in the header fields.
pub fn status_reply(code: u16, text: &str, trailers: HeaderMap) -> Response<Reply> {
    let mut response = Response::new(Reply::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.extend(status_fields(code, text, trailers));
    response
}

/// Refuses a call for want of room.
pub fn refuse_for_now(text: &str) -> Response<Reply> {
    let refusal = Refusal::for_now(text.to_owned());
    status_reply(refusal.code, text, refusal.trailers())
}

/// Refuses a call at the wrong port.
pub fn refuse(code: u16, text: &str) -> Response<Reply> {
    status_reply(code, text, HeaderMap::new())
}

/// Answers a client of HTTP/2 that does not speak gRPC, as gRPC asks for: it would take a 200 for success.
fn foreign(request: &Request<Incoming>, text: &str) -> Response<Reply> {
    let mut response = error(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    if request.method() == Method::HEAD {
        *response.body_mut() = Reply::empty();
    }
    if let Reply::Whole { trailers, .. } = response.body_mut() {
        *trailers = Some(status_fields(INTERNAL, text, HeaderMap::new()));
    }
    response
}

fn status_fields(code: u16, text: &str, mut fields: HeaderMap) -> HeaderMap {
    fields.insert(STATUS, HeaderValue::from(code));
    if !text.is_empty() {
        // Percent-encoded: always a valid value.
        if let Ok(value) = HeaderValue::from_str(&percent_encoded(text)) {
            fields.insert(MESSAGE, value);
        }
    }
    if code == UNIMPLEMENTED {
        fields
            .insert(HeaderName::from_static("grpc-accept-encoding"), HeaderValue::from_static("identity,deflate,gzip"));
    }
    fields
}

/// A varint field, which proto3 leaves out where it is 0.
fn put_number(out: &mut Vec<u8>, tag: u8, value: u64) {
    if value > 0 {
        out.push(tag);
        put_varint(out, value);
    }
}

/// A status message as header fields have it (gRPC over HTTP2, "Status-Message").
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        match byte {
            b'%' | 0..0x20 | 0x7f.. => encoded.push_str(&format!("%{byte:02X}")),
            _ => encoded.push(byte as char),
        }
    }
    encoded
}
