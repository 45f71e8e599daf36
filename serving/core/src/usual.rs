//! Predictions of the usual form, answered here; everything else is `None`, and goes to Python whole.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::core::Core;
use crate::host::Answer;
use crate::transport::Refusal;

/// A REST request.
pub async fn rest(
    _core: &Arc<Core>,
    _parts: &http::request::Parts,
    _body: &Bytes,
    _arrived: Instant,
) -> Option<Answer> {
    None
}

/// A gRPC call: its answer with gRPC's prefix, or why it is refused.
pub async fn grpc(
    _core: &Arc<Core>,
    _parts: &http::request::Parts,
    _message: &Bytes,
    _arrived: Instant,
    _deadline: Option<Instant>,
) -> Option<Result<Bytes, Refusal>> {
    None
}
