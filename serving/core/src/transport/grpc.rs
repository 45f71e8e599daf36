//! The gRPC port: calls on HTTP/2 streams (gRPC over HTTP2, the protocol's own specification).

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::core::Core;
use crate::host::{self, CallEnd, OpenCall};
use crate::predict;
use crate::record::REQUEST_ID;
use crate::transport::http::{drain, error};
use crate::transport::limits::Refused;
use crate::transport::message::{Room, read_message, split_message};
use crate::transport::status::{
    DEADLINE_EXCEEDED, GRPC, INTERNAL, RESOURCE_EXHAUSTED, Refusal, UNAVAILABLE, message_reply, status_fields,
    status_reply,
};
use crate::transport::{Context, Reply};

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const MAX_TIMEOUT_DIGITS: usize = 8;
/// Streams of messages that Python has open: each costs it 25 kB, and time to begin and to end.
pub const MAX_OPEN_STREAMS: usize = 4096;

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
                // A client that is told to end before its message is sent may be in the middle of it.
                drop(tokio::spawn(drain(body)));
                return status_reply(refusal.code, &refusal.text, refusal.trailers());
            }
        };
        context.seen.received(room.received);
        let mut logged = false;
        match predict::grpc(core, &parts, &message, context, deadline, &mut logged).await {
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
    let Ok(opened) = core.streams.clone().try_acquire_owned() else {
        let refusal = Refusal::for_now(format!("The server has {MAX_OPEN_STREAMS} streams already; ask again later."));
        return status_reply(refusal.code, &refusal.text, refusal.trailers());
    };
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
        let _opened = opened;
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
        while let Some(message) = split_message(&mut data, &mut room).await? {
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
