//! The gRPC port: calls on HTTP/2 streams (gRPC over HTTP2, the protocol's own specification).

use std::io::Read;
use std::sync::Arc;
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
use crate::host::{self, CallEnd, OpenCall};
use crate::transport::http::{REQUEST_ID, drain, error, request_id};
use crate::transport::{Peer, Reply};
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

/// Why a call ends without an answer.
pub struct Refusal {
    pub code: u16,
    pub text: String,
    /// When there may be room, where there is none.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// Trailing metadata: `grpc-retry-pushback-ms` is gRPC's own (proposal A6); `google.rpc.RetryInfo` in
    /// `grpc-status-details-bin` is what Google's client libraries look for.
    fn trailers(&self) -> HeaderMap {
        let mut fields = HeaderMap::new();
        let Some(pause) = self.retry_after else { return fields };
        fields.insert(PUSHBACK, HeaderValue::from(pause.as_millis() as u64));
        let duration = [number(1, pause.as_secs()), number(2, u64::from(pause.subsec_nanos()))].concat();
        let detail = [bytes(1, RETRY_INFO.as_bytes()), bytes(2, &bytes(1, &duration))].concat();
        let status = [number(1, u64::from(self.code)), bytes(2, self.text.as_bytes()), bytes(3, &detail)].concat();
        // Base64 is always a valid value.
        if let Ok(value) = HeaderValue::from_str(&BASE64.encode(status)) {
            fields.insert(DETAILS, value);
        }
        fields
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
pub async fn serve_grpc(core: &Arc<Core>, request: Request<Incoming>, peer: Peer) -> Response<Reply> {
    let arrived = Instant::now();
    if request.version() < Version::HTTP_2 {
        let mut response = error(StatusCode::BAD_REQUEST, &core.options.wrong_grpc_port);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        drain(request.into_body());
        return response;
    }
    if !is_grpc(request.headers()) {
        return foreign(&request, &core.options.wrong_grpc_port);
    }
    let (parts, body) = request.into_parts();
    let request_id = request_id(&parts.headers);
    let timeout = match parts.headers.get(TIMEOUT).map(timeout_of) {
        None => None,
        Some(Some(timeout)) => Some(timeout),
        // Python says what is wrong with it.
        Some(None) => return hand_over(core, parts, None, peer, None, request_id).await,
    };
    let method = core.methods.get().and_then(|methods| methods.get(parts.uri.path()).copied());
    let readable = parts.method == Method::POST && known_encoding(&parts.headers);
    match method {
        Some(true) if readable => stream(core, parts, body, peer, timeout, request_id),
        Some(false) if readable => unary(core, parts, body, peer, timeout, request_id, arrived).await,
        _ => hand_over(core, parts, None, peer, timeout, request_id).await,
    }
}

async fn unary(
    core: &Arc<Core>,
    parts: http::request::Parts,
    mut body: Incoming,
    peer: Peer,
    timeout: Option<Duration>,
    request_id: Option<HeaderValue>,
    arrived: Instant,
) -> Response<Reply> {
    let id = request_id.clone();
    let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
    let work = async {
        let encoding = parts.headers.get(ENCODING).cloned();
        let message = match read_message(&mut body, encoding.as_ref(), core.options.max_message_bytes).await {
            Ok(message) => message,
            Err(refusal) => return status_reply(refusal.code, &refusal.text, refusal.trailers(), id),
        };
        match usual::grpc(core, &parts, &message, arrived, deadline).await {
            Some(Ok(answer)) => message_reply(answer, id),
            Some(Err(refusal)) => status_reply(refusal.code, &refusal.text, refusal.trailers(), id),
            None => {
                let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                hand_over(core, parts, Some(message), peer, left, id).await
            }
        }
    };
    match deadline {
        None => work.await,
        Some(deadline) => match tokio::time::timeout_at(deadline.into(), work).await {
            Ok(response) => response,
            Err(_) => status_reply(DEADLINE_EXCEEDED, "Deadline Exceeded", HeaderMap::new(), request_id),
        },
    }
}

/// Has Python answer a call with one message, or with none where its head makes no sense.
async fn hand_over(
    core: &Arc<Core>,
    parts: http::request::Parts,
    message: Option<Bytes>,
    peer: Peer,
    timeout: Option<Duration>,
    request_id: Option<HeaderValue>,
) -> Response<Reply> {
    let Some(open) = host::call(core, parts.uri.path(), parts.headers, message, peer, timeout) else {
        return stopping(request_id);
    };
    let OpenCall { waiting, end, .. } = open;
    let Ok(end) = end.await else { return stopping(request_id) };
    waiting.done();
    match end.message {
        Some(message) => message_reply(host::framed(&message), request_id),
        None => status_reply(end.code, &end.text, end.trailers, request_id),
    }
}

/// Has Python answer a call that takes or gives a stream of messages.
fn stream(
    core: &Arc<Core>,
    parts: http::request::Parts,
    body: Incoming,
    peer: Peer,
    timeout: Option<Duration>,
    request_id: Option<HeaderValue>,
) -> Response<Reply> {
    let encoding = parts.headers.get(ENCODING).cloned();
    let Some(open) = host::call(core, parts.uri.path(), parts.headers, None, peer, timeout) else {
        return stopping(request_id);
    };
    let OpenCall { waiting, end, sender, frames, unsent, room } = open;
    let max_bytes = core.options.max_message_bytes;
    tokio::spawn(async move {
        let mut end = end;
        let deadline = tokio::time::sleep(timeout.unwrap_or(Duration::MAX));
        let mut feeding = std::pin::pin!(feed(&waiting, body, &room, encoding.as_ref(), max_bytes));
        let mut deadline = std::pin::pin!(deadline);
        let mut fed = false;
        let trailers = loop {
            tokio::select! {
                refused = &mut feeding, if !fed => {
                    fed = true;
                    if let Err(refusal) = refused {
                        break Some(status_fields(refusal.code, &refusal.text, refusal.trailers()));
                    }
                }
                ended = &mut end => break ended.ok().map(|CallEnd { code, text, trailers, .. }| {
                    status_fields(code, &text, trailers)
                }),
                () = &mut deadline, if timeout.is_some() => {
                    break Some(status_fields(DEADLINE_EXCEEDED, "Deadline Exceeded", HeaderMap::new()));
                }
                // The client has gone.
                () = sender.closed() => break None,
            }
        };
        if let Some(mut trailers) = trailers {
            if let Some(id) = request_id {
                trailers.insert(REQUEST_ID, id);
            }
            // A client that goes just now needs no status.
            let _ = sender.send(Frame::trailers(trailers));
        }
    });
    let mut response = Response::new(Reply::Stream { frames, unsent });
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

fn stopping(request_id: Option<HeaderValue>) -> Response<Reply> {
    status_reply(UNAVAILABLE, "The server is stopping; ask another one.", HeaderMap::new(), request_id)
}

/// Gives Python the messages of a stream as there is room for them.
async fn feed(
    waiting: &host::Waiting,
    mut body: Incoming,
    room: &tokio::sync::Semaphore,
    encoding: Option<&HeaderValue>,
    max_bytes: usize,
) -> Result<(), Refusal> {
    let mut data = BytesMut::new();
    loop {
        while let Some(message) = split_message(&mut data, encoding, max_bytes)? {
            if let Ok(permit) = room.acquire().await {
                permit.forget();
            }
            waiting.feed(Some(&message));
        }
        match body.frame().await {
            // A client that has gone is seen by its answer's stream.
            Some(Err(_)) => return Ok(()),
            Some(Ok(frame)) => {
                if let Ok(more) = frame.into_data() {
                    data.extend_from_slice(&more);
                }
            }
            None => {
                waiting.feed(None);
                return Ok(());
            }
        }
    }
}

/// Takes the first message off a stream's bytes, where it is whole.
fn split_message(
    data: &mut BytesMut,
    encoding: Option<&HeaderValue>,
    max_bytes: usize,
) -> Result<Option<Bytes>, Refusal> {
    let Some((flag, size)) = prefix(data) else { return Ok(None) };
    if size > max_bytes {
        return Err(too_large(size, max_bytes));
    }
    if data.len() < PREFIX + size {
        return Ok(None);
    }
    data.advance(PREFIX);
    plain(flag, data.split_to(size).freeze(), encoding, max_bytes).map(Some)
}

/// The message of a unary call.
async fn read_message(body: &mut Incoming, encoding: Option<&HeaderValue>, max_bytes: usize) -> Result<Bytes, Refusal> {
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // A client that has gone reads no answer.
        let Ok(data) = frame.map_err(|_| Refusal::new(INTERNAL, "The request was reset."))?.into_data() else {
            continue;
        };
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
        let size = prefix(known).map_or(0, |(_, size)| size).max(known.len().saturating_sub(PREFIX));
        if size > max_bytes {
            return Err(too_large(size, max_bytes));
        }
        if body.is_end_stream() {
            break;
        }
    }
    let mut message = if whole.is_empty() { first } else { whole.freeze() };
    match prefix(&message) {
        Some((flag, size)) if size == message.len() - PREFIX => {
            message.advance(PREFIX);
            plain(flag, message, encoding, max_bytes)
        }
        _ => Err(Refusal::new(INTERNAL, "A unary call must have exactly one whole message.")),
    }
}

/// Whether a message is compressed, and its size.
fn prefix(data: &[u8]) -> Option<(u8, usize)> {
    let (head, _) = data.split_at_checked(PREFIX)?;
    Some((head[0], u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize))
}

fn plain(flag: u8, data: Bytes, encoding: Option<&HeaderValue>, max_bytes: usize) -> Result<Bytes, Refusal> {
    if flag == 0 {
        return Ok(data);
    }
    let name = encoding.map_or("identity", |value| value.to_str().unwrap_or_default());
    let mut inflated = Vec::new();
    let limit = max_bytes as u64 + 1;
    let read = match name {
        "gzip" if flag == 1 => GzDecoder::new(&*data).take(limit).read_to_end(&mut inflated),
        "deflate" if flag == 1 => ZlibDecoder::new(&*data).take(limit).read_to_end(&mut inflated),
        _ => {
            let text = "A message says that it is compressed, but the call's headers do not say how.";
            return Err(Refusal::new(INTERNAL, text));
        }
    };
    match read {
        Ok(_) if inflated.len() > max_bytes => Err(Refusal::new(
            RESOURCE_EXHAUSTED,
            format!("Received message larger than max (more than {max_bytes} after decompression)"),
        )),
        Ok(_) => Ok(inflated.into()),
        Err(error) => Err(Refusal::new(INTERNAL, format!("A message is no {name}: {error}"))),
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
pub fn message_reply(frame: Bytes, request_id: Option<HeaderValue>) -> Response<Reply> {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    if let Some(id) = request_id {
        trailers.insert(REQUEST_ID, id);
    }
    let mut response = Response::new(Reply::Whole { data: Some(frame), trailers: Some(trailers) });
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The answer of a call that ends with a status and no message: all of it is in the header fields.
pub fn status_reply(code: u16, text: &str, trailers: HeaderMap, request_id: Option<HeaderValue>) -> Response<Reply> {
    let mut response = Response::new(Reply::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.extend(status_fields(code, text, trailers));
    if let Some(id) = request_id {
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// Refuses a call at the wrong port.
pub fn refuse(code: u16, text: &str, headers: &HeaderMap) -> Response<Reply> {
    status_reply(code, text, HeaderMap::new(), request_id(headers))
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

/// A varint field of a protobuf message; nothing for 0, as proto3 has it.
fn number(field: u8, mut value: u64) -> Vec<u8> {
    let mut data = Vec::new();
    if value > 0 {
        data.push(field << 3);
        while value >= 0x80 {
            data.push(value as u8 | 0x80);
            value >>= 7;
        }
        data.push(value as u8);
    }
    data
}

/// A field of bytes.
fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let mut data = vec![field << 3 | 2];
    let mut size = value.len();
    while size >= 0x80 {
        data.push(size as u8 | 0x80);
        size >>= 7;
    }
    data.push(size as u8);
    data.extend_from_slice(value);
    data
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
