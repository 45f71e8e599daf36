//! How gRPC's calls end: status, text and trailing metadata.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use crate::forms::{put_bytes, put_varint};
use crate::transport::Reply;
use crate::transport::limits::RETRY;

pub const INVALID_ARGUMENT: u16 = 3;
pub const DEADLINE_EXCEEDED: u16 = 4;
pub const RESOURCE_EXHAUSTED: u16 = 8;
pub const UNIMPLEMENTED: u16 = 12;
pub const INTERNAL: u16 = 13;
pub const UNAVAILABLE: u16 = 14;

pub const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

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
    pub fn trailers(&self) -> HeaderMap {
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

    pub fn for_now(text: String) -> Refusal {
        Refusal { code: RESOURCE_EXHAUSTED, text, retry_after: Some(RETRY) }
    }

    pub fn new(code: u16, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into(), retry_after: None }
    }
}

pub fn status_fields(code: u16, text: &str, mut fields: HeaderMap) -> HeaderMap {
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
/// A varint field, which proto3 leaves out where it is 0.
fn put_number(out: &mut Vec<u8>, tag: u8, value: u64) {
    if value > 0 {
        out.push(tag);
        put_varint(out, value);
    }
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
