//! The REST port: requests of HTTP/1.1 and HTTP/2, whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::core::Core;
use crate::host::{self, Answer, Problem, RestRequest};
use crate::transport::grpc;
use crate::transport::{Peer, Reply};
use crate::usual;

/// Callers find their requests again by this header field, which answers repeat.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID: usize = 128;
/// Room for a body is taken as it comes, beyond so many bytes.
const MAX_ROOM: usize = 1 << 20;
/// After an answer that ends a connection early, its client gets so long to read it.
const LINGER: Duration = Duration::from_secs(5);
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Answers one request with something, whatever happens.
pub async fn serve_http(core: &Arc<Core>, request: Request<Incoming>, peer: Peer) -> Response<Reply> {
    let arrived = Instant::now();
    if grpc::is_grpc(request.headers()) {
        return grpc::refuse(grpc::UNIMPLEMENTED, &core.options.wrong_rest_port, request.headers());
    }
    let version = request.version();
    let request_id = request_id(request.headers());
    let (parts, mut incoming) = request.into_parts();
    let (body, mut problem) =
        match tokio::time::timeout(core.options.rest_timeout, read(core, &parts.headers, &mut incoming)).await {
            Ok(Some(Ok(body))) => (body, None),
            Ok(Some(Err(problem))) => (Bytes::new(), Some(problem)),
            // The client has gone: nobody reads this.
            Ok(None) => return response(StatusCode::BAD_REQUEST, HeaderMap::new(), Bytes::new()),
            Err(_) => (Bytes::new(), Some(Problem::Late)),
        };
    if problem.is_some() {
        drain(incoming);
    }
    let usual = match problem {
        None => {
            let left = core.options.rest_timeout.saturating_sub(arrived.elapsed());
            match tokio::time::timeout(left, usual::rest(core, &parts, &body, arrived)).await {
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
            let request_id = request_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
            host::rest(core, RestRequest { parts, body, peer, request_id, problem }).await
        }
    };
    let mut response = match answer {
        Some(Answer { status, headers, body }) => response(status, headers, body),
        None => error(StatusCode::SERVICE_UNAVAILABLE, "The server is stopping; ask another one."),
    };
    if let Some(id) = request_id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    if version < Version::HTTP_2 && (core.closing() || problem.is_some()) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The whole body, or why it is not read to its end; `None` where the client has gone.
async fn read(core: &Core, headers: &HeaderMap, body: &mut Incoming) -> Option<Result<Bytes, Problem>> {
    let limit = core.options.max_body_bytes;
    let claimed: Option<u64> = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if claimed.is_some_and(|size| size > limit as u64) {
        return Some(Err(Problem::TooLarge));
    }
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if first.len() + whole.len() + data.len() > limit {
            return Some(Err(Problem::TooLarge));
        }
        if first.is_empty() && whole.is_empty() {
            first = data;
            if body.is_end_stream() {
                break;
            }
            continue;
        }
        if whole.is_empty() {
            whole.reserve(claimed.map_or(0, |size| size as usize).min(MAX_ROOM).max(first.len() + data.len()));
            whole.extend_from_slice(&first);
            first = Bytes::new();
        }
        whole.extend_from_slice(&data);
    }
    Some(Ok(if whole.is_empty() { first } else { whole.freeze() }))
}

/// Reads what is left of a body, for a while: a connection that is closed while more comes is reset, and its answer may
/// be lost.
pub fn drain(mut body: Incoming) {
    tokio::spawn(tokio::time::timeout(LINGER, async move { while let Some(Ok(_)) = body.frame().await {} }));
}

/// The caller's id for a request, where it is one that can be repeated as it is.
pub fn request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(REQUEST_ID)?;
    let bytes = value.as_bytes();
    let plain = !bytes.is_empty() && bytes.len() <= MAX_REQUEST_ID && bytes.iter().all(u8::is_ascii_graphic);
    plain.then(|| value.clone())
}

fn response(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::of(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// An error in the words of the REST API.
pub fn error(status: StatusCode, text: &str) -> Response<Reply> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, JSON);
    // The texts come from here, and hold nothing that JSON would escape.
    response(status, headers, Bytes::from(format!("{{\"error\": \"{text}\"}}")))
}
