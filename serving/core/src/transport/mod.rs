//! Sockets, TLS, HTTP/1.1, HTTP/2 and gRPC framing, on hyper and rustls. No models in here.

mod activity;
mod body;
mod grpc;
mod http;
mod limits;
mod listener;
mod message;
mod peer;
mod status;
mod tls;

pub use self::body::{Answering, Reply};
pub use self::grpc::{MAX_OPEN_STREAMS, serve_grpc};
pub use self::http::serve_http;
pub use self::limits::{Budget, Charge, ConnectionLimits, Refused};
pub use self::listener::{Api, Listener, LiveTls};
pub use self::peer::{Context, Peer};
pub use self::status::{DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, Refusal, UNAVAILABLE};
pub use self::tls::{TlsFiles, server_config};
