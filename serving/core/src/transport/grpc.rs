//! The gRPC port: calls on HTTP/2 streams (gRPC over HTTP2, the protocol's own specification).

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Frame;
use hyper::body::Incoming;

use crate::core::{Core, Phase};
use crate::host::{self, OpenCall, Outlet};
use crate::predict;
use crate::record::{Facts, REQUEST_ID};
use crate::traffic;
use crate::transport::http::{drain, error};
use crate::transport::limits::Refused;
use crate::transport::listener::reached;
use crate::transport::message::{Messages, Room, read_message};
use crate::transport::status::{
    DEADLINE_EXCEEDED, GRPC, INTERNAL, RESOURCE_EXHAUSTED, Refusal, UNAVAILABLE, message_reply, status_fields,
    status_reply,
};
use crate::transport::{Context, Peer, Reply};

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const MAX_TIMEOUT_DIGITS: usize = 8;
/// Streams of messages that are open: each costs Python 25 kB, and time to begin and to end.
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
    if request.method() != Method::POST {
        let text = format!("Received the HTTP method {}; gRPC calls are POST.", request.method());
        drop(tokio::spawn(drain(request.into_body())));
        return status_reply(INTERNAL, &text, HeaderMap::new());
    }
    let (parts, body) = request.into_parts();
    let timeout = match parts.headers.get(TIMEOUT).map(timeout_of) {
        None => None,
        Some(Some(timeout)) => Some(timeout),
        // Python says what is wrong with it.
        Some(None) => return hand_over(core, parts, None, None, context).await,
    };
    let method = core.methods.get().and_then(|methods| methods.get(parts.uri.path()).copied());
    let readable = known_encoding(&parts.headers);
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
                return refused(&refusal);
            }
        };
        context.seen.received(room.received);
        let mut logged = None;
        match predict::grpc(core, &parts, &message, context, deadline, &mut logged).await {
            Some(Ok(answer)) => message_reply(answer),
            Some(Err(refusal)) => refused(&refusal),
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

fn refused(refusal: &Refusal) -> Response<Reply> {
    status_reply(refusal.code, &refusal.text, refusal.trailers())
}

/// Has Python answer a call with one message, and perhaps log it; or with none where its head makes no sense.
async fn hand_over(
    core: &Arc<Core>,
    mut parts: http::request::Parts,
    message: Option<(Bytes, Option<bool>)>,
    timeout: Option<Duration>,
    context: &mut Context,
) -> Response<Reply> {
    parts.headers.insert(REQUEST_ID, context.id.clone());
    let (path, peer) = (parts.uri.path(), context.peer.clone());
    let open = host::call(core, path, parts.headers, message, peer, timeout, Outlet::new().0);
    let Some(OpenCall { waiting, end, .. }) = open else { return refused(&stopping()) };
    let Ok(end) = end.await else { return refused(&stopping()) };
    waiting.done();
    if let Some(facts) = end.facts {
        context.seen.note(|| facts);
    }
    match end.message {
        Some(message) => message_reply(host::framed(&message)),
        None => status_reply(end.code, &end.text, end.trailers),
    }
}

/// Has Python answer a call that takes or gives a stream of messages, once the first of them has come: a head alone,
/// which costs its sender little, costs Python nothing.
fn stream(
    core: &Arc<Core>,
    mut parts: http::request::Parts,
    body: Incoming,
    timeout: Option<Duration>,
    context: &mut Context,
) -> Response<Reply> {
    let Ok(opened) = core.streams.clone().try_acquire_owned() else {
        let refusal = Refusal::for_now(format!("The server has {MAX_OPEN_STREAMS} streams already; ask again later."));
        return refused(&refusal);
    };
    parts.headers.insert(REQUEST_ID, context.id.clone());
    // Each of its messages is drawn anew.
    traffic::unstamp(&mut parts.headers);
    let (outlet, frames) = Outlet::new();
    let Outlet { frames: sender, unsent } = outlet.clone();
    let facts = Arc::new(OnceLock::new());
    let call = StreamCall {
        core: core.clone(),
        peer: context.peer.clone(),
        deadline: timeout.and_then(|timeout| context.arrived.checked_add(timeout)),
        outlet,
        facts: facts.clone(),
    };
    tokio::spawn(async move {
        let _opened = opened;
        // Dropped last: its client is told before Python is.
        let mut answered = std::pin::pin!(call.answer(parts, body));
        tokio::select! {
            () = &mut answered => {}
            () = passed(call.deadline) => {
                call.end(status_fields(DEADLINE_EXCEEDED, "Deadline Exceeded", HeaderMap::new()));
            }
            // The client has gone.
            () = sender.closed() => {}
        }
    });
    let mut response = Response::new(Reply::Stream { frames, unsent, facts });
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// What a stream's task keeps.
struct StreamCall {
    core: Arc<Core>,
    peer: Peer,
    deadline: Option<Instant>,
    outlet: Outlet,
    /// What Python knows of it in the end.
    facts: Arc<OnceLock<Facts>>,
}

impl StreamCall {
    /// Waits for the first message, and has Python answer.
    async fn answer(&self, parts: http::request::Parts, body: Incoming) {
        let messages = Messages::new(&self.core, body, parts.headers.get(ENCODING).cloned());
        if let Err(refusal) = self.answer_messages(messages, parts).await {
            counted(&self.core, &refusal).map(Refused::one);
            self.end(status_fields(refusal.code, &refusal.text, refusal.trailers()));
        }
    }

    async fn answer_messages(&self, mut messages: Messages<'_>, parts: http::request::Parts) -> Result<(), Refusal> {
        let mut phase = self.core.phase.subscribe();
        tokio::select! {
            () = messages.begin() => {}
            // It has asked nothing, as an idle connection.
            () = reached(&mut phase, Phase::Draining) => return Err(stopping()),
        }
        let first = messages.next().await?;
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let (path, peer, outlet) = (parts.uri.path(), self.peer.clone(), self.outlet.clone());
        let open = host::call(&self.core, path, parts.headers, None, peer, left, outlet);
        let OpenCall { waiting, end, room } = open.ok_or_else(stopping)?;
        let end = tokio::select! {
            refusal = feed(&waiting, first, messages, &room) => return Err(refusal),
            end = end => end.map_err(|_| stopping())?,
        };
        if let Some(facts) = end.facts {
            // It ends once.
            let _ = self.facts.set(facts);
        }
        self.end(status_fields(end.code, &end.text, end.trailers));
        Ok(())
    }

    fn end(&self, trailers: HeaderMap) {
        // A client that goes just now needs no status.
        let _ = self.outlet.frames.send(Frame::trailers(trailers));
    }
}

/// Waits until a deadline has passed; for ever where there is none.
async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

fn stopping() -> Refusal {
    Refusal::new(UNAVAILABLE, "The server is stopping; ask another one.")
}

/// Gives Python the messages of a stream as there is room for them, and their end; returns where one is refused.
async fn feed(
    waiting: &host::Waiting,
    first: Option<Bytes>,
    mut messages: Messages<'_>,
    free: &tokio::sync::Semaphore,
) -> Refusal {
    let mut next = first;
    loop {
        let Some(message) = next else {
            waiting.feed(None, messages.take_charge());
            return std::future::pending().await;
        };
        if let Ok(permit) = free.acquire().await {
            permit.forget();
        }
        waiting.feed(Some(&message), messages.take_charge());
        next = match messages.next().await {
            Ok(next) => next,
            Err(refusal) => return refusal,
        };
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
