//! The REST port: requests of HTTP/1.1 and HTTP/2, whole.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::core::Core;
use crate::forms::json_string;
use crate::host::{self, Answer, Problem, RestRequest};
use crate::predict;
use crate::transport::grpc;
use crate::transport::limits::{Charge, Pace, RETRY, Refused};
use crate::transport::status::{self, INVALID_ARGUMENT, UNIMPLEMENTED, status_reply};
use crate::transport::{Context, Reply};

/// Room for a body is taken as it comes, beyond so many bytes.
const MAX_ROOM: usize = 1 << 20;
/// After an answer that ends a connection early, its client gets so long to read it.
const LINGER: Duration = Duration::from_secs(5);
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Answers one request with something, whatever happens.
pub async fn serve_http(core: &Arc<Core>, request: Request<Incoming>, context: &mut Context) -> Response<Reply> {
    if grpc::is_grpc(request.headers()) {
        return status_reply(UNIMPLEMENTED, &core.options.wrong_rest_port, HeaderMap::new());
    }
    let version = request.version();
    if request.headers().get_all(HOST).iter().nth(1).is_some() {
        drop(tokio::spawn(drain(request.into_body())));
        let text = "The request has several Host fields; expected one.";
        return finish(core, error(StatusCode::BAD_REQUEST, text), version, true);
    }
    let (mut parts, mut incoming) = request.into_parts();
    // HTTP/2 says it as a part of the target. What is there goes before a Host field (RFC 9112, section 3.2.2).
    let host = parts.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        parts.headers.insert(HOST, host);
    }
    core.traffic.stamp(&mut parts.headers);
    let mut charge = core.budget.charge();
    let reading = read(core, &parts.headers, &mut incoming, &mut charge);
    let (body, mut problem) = match tokio::time::timeout(core.options.rest_timeout, reading).await {
        Ok(Ok(body)) => (body, None),
        Ok(Err(Unread::Problem(problem))) => (Bytes::new(), Some(problem)),
        Ok(Err(Unread::Slow(text))) => {
            Refused::one(&core.refused.slow);
            drop(tokio::spawn(drain(incoming)));
            return finish(core, error(StatusCode::REQUEST_TIMEOUT, &text), version, true);
        }
        Ok(Err(Unread::Full(text))) => {
            Refused::one(&core.refused.bytes);
            drop(tokio::spawn(drain(incoming)));
            return finish(core, busy(&text), version, true);
        }
        Ok(Err(Unread::Broken)) => {
            let text = "The request's body is not in chunks as HTTP has them.";
            return finish(core, error(StatusCode::BAD_REQUEST, text), version, true);
        }
        // Only logs read this, which have nginx's number for it.
        Ok(Err(Unread::Gone)) => {
            let gone = StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST);
            return response(gone, HeaderMap::new(), Bytes::new());
        }
        Err(_) => (Bytes::new(), Some(Problem::Late)),
    };
    context.seen.received(body.len());
    if problem.is_some() {
        drop(tokio::spawn(drain(incoming)));
    }
    let mut logged = None;
    let usual = match problem {
        None => {
            let left = core.options.rest_timeout.saturating_sub(context.arrived.elapsed());
            let answering = predict::rest(core, &parts, &body, context, &mut logged);
            match tokio::time::timeout(left, answering).await {
                Ok(usual) => usual,
                Err(_) => {
                    problem = Some(Problem::Late);
                    None
                }
            }
        }
        Some(_) => None,
    };
    let answer = match usual {
        Some(answer) => Some(answer),
        None => {
            let request_id = context.id.to_str().unwrap_or_default().to_owned();
            let peer = context.peer.clone();
            let arrived = context.arrived;
            let request = RestRequest { parts, body, peer, request_id, arrived, problem, logged };
            let mut answer = host::rest(core, request).await;
            if let Some(facts) = answer.as_mut().and_then(|answer| answer.facts.take()) {
                context.seen.note(|| facts);
            }
            answer
        }
    };
    let response = match answer {
        Some(Answer { status, headers, body, .. }) => response(status, headers, body),
        None => error(StatusCode::SERVICE_UNAVAILABLE, "The server is stopping; ask another one."),
    };
    finish(core, response, version, problem.is_some())
}

/// An answer that ends its connection says so.
fn finish(core: &Core, response: Response<Reply>, version: Version, ends: bool) -> Response<Reply> {
    if ends || core.closing() { last(response, version) } else { response }
}

/// Tells a client of HTTP/1.1 that this is the connection's last answer.
fn last(mut response: Response<Reply>, version: Version) -> Response<Reply> {
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Why a body is not read to its end.
enum Unread {
    /// Python says so.
    Problem(Problem),
    Slow(String),
    Full(String),
    Broken,
    Gone,
}

impl From<hyper::Error> for Unread {
    fn from(error: hyper::Error) -> Unread {
        // So says hyper of a chunk; a connection that ends has other kinds.
        match error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind) {
            Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => Unread::Broken,
            _ => Unread::Gone,
        }
    }
}

/// The whole body, for which there is room.
async fn read(core: &Core, headers: &HeaderMap, body: &mut Incoming, charge: &mut Charge) -> Result<Bytes, Unread> {
    let claimed: Option<u64> = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let claimed = claimed.map_or(0, |size| usize::try_from(size).unwrap_or(usize::MAX));
    let pace = Pace::new(core.options.connections.body_timeout);
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    let mut size = 0;
    take(core, claimed, charge)?;
    loop {
        let frame = match pace.next(size, body.frame()).await {
            None => return Err(Unread::Slow(pace.refusal(size))),
            Some(None) => break,
            Some(Some(frame)) => frame?,
        };
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        take(core, size, charge)?;
        if first.is_empty() && whole.is_empty() {
            first = data;
            if body.is_end_stream() {
                break;
            }
            continue;
        }
        if whole.is_empty() {
            whole.reserve(claimed.min(MAX_ROOM).max(size));
            whole.extend_from_slice(&first);
            first = Bytes::new();
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

/// Takes room for a body of so many bytes.
fn take(core: &Core, size: usize, charge: &mut Charge) -> Result<(), Unread> {
    if size > core.options.max_body_bytes {
        return Err(Unread::Problem(Problem::TooLarge));
    }
    if charge.reach(size) { Ok(()) } else { Err(Unread::Full(core.budget.refusal())) }
}

/// Reads what is left of a body, for a while: a connection that is closed while more comes is reset, and its answer may
/// be lost.
pub async fn drain(mut body: Incoming) {
    // Whatever comes later is not waited for.
    drop(tokio::time::timeout(LINGER, async { while let Some(Ok(_)) = body.frame().await {} }).await);
}

fn response(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::of(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Asks a client to come back later.
fn busy(text: &str) -> Response<Reply> {
    let mut response = error(StatusCode::SERVICE_UNAVAILABLE, text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY.as_secs()));
    response
}

/// Refuses a request of either API for want of room, and ends its connection.
pub fn refuse_for_now(request: Request<Incoming>, text: &str) -> Response<Reply> {
    refuse_with(request, || status::refuse_for_now(text), || busy(text))
}

/// Refuses a request of either API, which no other server would answer, and ends its connection.
pub fn refuse(request: Request<Incoming>, text: &str) -> Response<Reply> {
    let by_grpc = || status_reply(INVALID_ARGUMENT, text, HeaderMap::new());
    refuse_with(request, by_grpc, || error(StatusCode::BAD_REQUEST, text))
}

fn refuse_with(
    request: Request<Incoming>,
    by_grpc: impl FnOnce() -> Response<Reply>,
    by_rest: impl FnOnce() -> Response<Reply>,
) -> Response<Reply> {
    let is_grpc = grpc::is_grpc(request.headers());
    let response = if is_grpc { by_grpc() } else { last(by_rest(), request.version()) };
    drop(tokio::spawn(drain(request.into_body())));
    response
}

/// An error in the words of the REST API.
pub fn error(status: StatusCode, text: &str) -> Response<Reply> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, JSON);
    response(status, headers, Bytes::from(format!("{{\"error\": {}}}", json_string(text))))
}
