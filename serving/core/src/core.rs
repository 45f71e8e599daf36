//! What all connections share.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use crate::batch::Plans;
use crate::host::Host;
use crate::record::{Ids, Records};
use crate::traffic::Traffic;
use crate::transport::{Budget, ConnectionLimits, Refused};

/// The life of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// No new connections.
    Unlisted,
    /// Answers over HTTP/1.1 are the last of theirs, clients of HTTP/2 are told to go.
    Closing,
    /// Idle connections are closed.
    Draining,
    /// All are.
    Ended,
}

/// What may wait.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Requests; 0 for any number.
    pub max_waiting: usize,
    /// For so long; `None` for any time.
    pub max_delay: Option<Duration>,
}

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    pub connections: ConnectionLimits,
    pub admission: Admission,
    /// Largest body of a REST request.
    pub max_body_bytes: usize,
    /// Largest message of a gRPC call.
    pub max_message_bytes: usize,
    /// Time that a REST body, and an answer, may take.
    pub rest_timeout: Duration,
    /// What clients of gRPC are told on the REST port, and the other way round.
    pub wrong_rest_port: String,
    pub wrong_grpc_port: String,
    /// REST predictions of the usual form are answered here.
    pub usual_rest: bool,
    pub strict_json: bool,
    pub json_extensions: bool,
    pub max_json_depth: usize,
    /// Python is asked for permission before a prediction is computed.
    pub guarded: bool,
    /// Answers of gRPC's Predict carry `tensor_content` instead of typed fields.
    pub tensor_content: bool,
}

/// What all connections share.
pub struct Core {
    pub options: Options,
    pub host: Host,
    /// Paths of gRPC's methods; whether each takes or gives a stream.
    pub methods: OnceLock<HashMap<String, bool>>,
    pub phase: watch::Sender<Phase>,
    /// Ports that are open.
    pub listeners: AtomicUsize,
    pub connections: AtomicUsize,
    /// Streams of messages that may be opened.
    pub streams: Arc<Semaphore>,
    pub plans: Plans,
    pub traffic: Traffic,
    pub budget: Arc<Budget>,
    pub ids: Ids,
    /// `None` where no log wants any.
    pub records: Option<Arc<Records>>,
    pub refused: Refused,
}

impl Core {
    /// Whether answers over HTTP/1.1 must say that they are the last.
    pub fn closing(&self) -> bool {
        *self.phase.borrow() >= Phase::Closing
    }
}
