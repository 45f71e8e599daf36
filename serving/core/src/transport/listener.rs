//! Listening, TLS handshakes, and the life of connections.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::RwLock;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::core::{Core, Phase};
use crate::record::Seen;
use crate::transport::activity::{Activity, Overdue, Watched};
use crate::transport::http::{refuse, refuse_for_now};
use crate::transport::{Answering, ConnectionLimits, Context, Peer, Refused, Reply, serve_grpc, serve_http};

const BACKLOG: i32 = 2048;
/// An accept that fails for want of descriptors or memory is tried again after so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections beyond the limit that are told so; more are closed without a word.
const MAX_REFUSING: usize = 64;
/// How long they get to send a request that can be refused.
const REFUSING: Duration = Duration::from_secs(1);
/// How HTTP/2 begins, and how HTTP/1.1's usual methods do.
const HTTP2: &[u8; 3] = b"PRI";
const METHODS: [&[u8; 3]; 9] = [b"GET", b"HEA", b"POS", b"PUT", b"DEL", b"CON", b"OPT", b"TRA", b"PAT"];
const PEEK_PAUSE: Duration = Duration::from_millis(20);
/// Header fields of so many bytes take no room of --max_inflight_bytes.
const USUAL_HEAD: usize = 2048;
/// hyper's own.
const MIN_BUFFER: usize = 8192;
/// What a client may send of a body, or a server of an answer, before the other side has read it.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Which API a port has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Rest,
    Grpc,
}

/// How a port speaks TLS from the next connection on.
pub type LiveTls = Arc<RwLock<TlsAcceptor>>;

/// A bound socket, its API, and how it speaks TLS.
pub struct Listener {
    socket: TcpListener,
    api: Api,
    tls: Option<LiveTls>,
}

impl Listener {
    /// Binds a port on all addresses of both families; must be called inside of the runtime.
    pub fn bind(port: u16, api: Api, tls: Option<LiveTls>) -> io::Result<Listener> {
        Ok(Listener { socket: bind_tcp(port)?, api, tls })
    }

    /// Accepts connections until the server stops.
    pub async fn run(self, core: Arc<Core>) {
        self.accept(&core).await;
        drop(self);
        core.listeners.fetch_sub(1, Ordering::Relaxed);
    }

    async fn accept(&self, core: &Arc<Core>) {
        let mut phase = core.phase.subscribe();
        loop {
            tokio::select! {
                () = reached(&mut phase, Phase::Unlisted) => break,
                accepted = self.socket.accept() => match accepted {
                    Ok((stream, address)) => {
                        // It costs time alone where that fails.
                        let _ = stream.set_nodelay(true);
                        self.spawn(stream, Peer::tcp(address), core.clone());
                    }
                    // The client has gone already, or there are no descriptors left: connections end, and free some.
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
            }
        }
    }

    fn spawn(&self, stream: TcpStream, mut peer: Peer, core: Arc<Core>) {
        let api = self.api;
        let tls = self.tls.as_ref().map(|tls| tls.read().clone());
        let counted = Counted::new(core.clone());
        let full = match core.options.connections.max_connections {
            0 => false,
            limit if counted.number > limit + MAX_REFUSING => {
                Refused::one(&core.refused.connections);
                return;
            }
            limit => counted.number > limit,
        };
        tokio::spawn(async move {
            let _counted = counted;
            let limits = &core.options.connections;
            match tls {
                None => match start(&stream, &core).await {
                    None => {}
                    Some(start) if api == Api::Grpc && !METHODS.contains(&&start) && &start != HTTP2 => {
                        turn_away(stream).await;
                    }
                    Some(start) => {
                        let (http2, refusing) = (&start == HTTP2, full.then_some(Refusing::Full));
                        serve(stream, Connection { peer, api, http2, refusing, core }).await;
                    }
                },
                Some(acceptor) => {
                    let Some(start) = start(&stream, &core).await else { return };
                    let http2 = &start == HTTP2;
                    if http2 || METHODS.contains(&&start) {
                        let refusing = Some(Refusing::Plain);
                        return serve(stream, Connection { peer, api, http2, refusing, core }).await;
                    }
                    let handshake = tokio::time::timeout(limits.header_timeout, acceptor.accept(stream));
                    let mut phase = core.phase.subscribe();
                    let agreed = tokio::select! {
                        agreed = handshake => agreed,
                        // It has no request.
                        () = reached(&mut phase, Phase::Draining) => return,
                    };
                    // A client that cannot agree on TLS was told so in an alert.
                    if let Ok(Ok(stream)) = agreed {
                        let session = stream.get_ref().1;
                        let http2 = session.alpn_protocol() == Some(b"h2");
                        let shown = session.peer_certificates().and_then(<[_]>::first);
                        peer.certificate = shown.map(|certificate| Bytes::copy_from_slice(certificate));
                        let refusing = full.then_some(Refusing::Full);
                        serve(stream, Connection { peer, api, http2, refusing, core }).await;
                    }
                }
            }
        });
    }
}

/// One open connection, as long as it lives.
struct Counted {
    core: Arc<Core>,
    /// How many there are with it.
    number: usize,
}

impl Counted {
    fn new(core: Arc<Core>) -> Counted {
        let number = core.connections.fetch_add(1, Ordering::Relaxed) + 1;
        Counted { core, number }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.core.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a client begins; `None` where it does not in time.
async fn start(stream: &TcpStream, core: &Core) -> Option<[u8; 3]> {
    let limits = &core.options.connections;
    let mut start = [0; 3];
    let begin = async {
        let first = tokio::time::timeout(limits.idle_timeout, stream.peek(&mut start)).await.ok()?.ok()?;
        if first < start.len() {
            tokio::time::timeout(limits.header_timeout, async {
                // There is no event for more bytes than there are: this is for clients that send letter by letter.
                while stream.peek(&mut start).await.is_ok_and(|size| size > 0 && size < start.len()) {
                    tokio::time::sleep(PEEK_PAUSE).await;
                }
            })
            .await
            .ok()?;
        }
        Some(start)
    };
    let mut phase = core.phase.subscribe();
    tokio::select! {
        start = begin => start,
        // It has no request.
        () = reached(&mut phase, Phase::Draining) => None,
    }
}

/// Ends a connection that speaks neither HTTP/2 nor HTTP/1.1 on the gRPC port, without a reset.
async fn turn_away(mut stream: TcpStream) {
    // Both fail where the client has gone, too.
    drop(stream.shutdown().await);
    drop(tokio::time::timeout(REFUSING, tokio::io::copy(&mut stream, &mut tokio::io::sink())).await);
}

/// Why all requests of a connection are refused.
#[derive(Clone, Copy)]
enum Refusing {
    /// There are too many connections.
    Full,
    /// The port speaks TLS, and the client does not.
    Plain,
}

/// What is known of a connection.
struct Connection {
    peer: Peer,
    api: Api,
    http2: bool,
    refusing: Option<Refusing>,
    core: Arc<Core>,
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, connection: Connection) {
    let Connection { peer, api, http2, refusing, core } = connection;
    let mut limits = core.options.connections;
    if refusing.is_some() {
        limits.idle_timeout = limits.idle_timeout.min(REFUSING);
        limits.max_age = None;
    }
    let activity = Activity::new(!http2);
    let io = TokioIo::new(Watched::new(stream, activity.clone()));
    let (handler, requests) = (core.clone(), activity.clone());
    let service = service_fn(move |request| {
        let (core, peer, answered) = (handler.clone(), peer.clone(), requests.request());
        async move {
            let (arrived, id) = (Instant::now(), core.ids.of(request.headers()));
            let seen = Seen::begin(core.records.as_ref(), api, &request, &peer, &id, arrived);
            let mut context = Context { peer, arrived, id, seen };
            let mut charge = core.budget.charge();
            let fits = charge.reach(kept(request.headers()).saturating_sub(USUAL_HEAD));
            let response = match (refusing, api) {
                (Some(Refusing::Full), _) => too_many(&core, request),
                (Some(Refusing::Plain), _) => wants_tls(request),
                _ if !fits => no_room(&core, request),
                (None, Api::Rest) => serve_http(&core, request, &mut context).await,
                (None, Api::Grpc) => serve_grpc(&core, request, &mut context).await,
            };
            Ok::<_, Infallible>(Answering::response(response, context.id, (answered, charge), context.seen))
        }
    });
    let mut phase = core.phase.subscribe();
    let leaving = leave(&mut phase, api, limits.max_age);
    if http2 {
        let mut connection = pin!(http2_builder(api, &limits).serve_connection(io, service));
        tokio::select! {
            // A connection that ends with an error cannot be answered.
            _ = connection.as_mut() => return,
            _ = activity.overdue(&limits) => {}
            () = leaving => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = connection.as_mut() => {}
            () = left(&activity) => {}
            () = reached(&mut phase, Phase::Ended) => {}
        }
        return;
    }
    let mut connection = http1_builder(&limits).serve_connection(io, service);
    let overdue = tokio::select! {
        _ = &mut connection => return,
        overdue = activity.overdue(&limits) => Some(overdue),
        () = leaving => None,
    };
    if overdue == Some(Overdue::Head) {
        // hyper would close the connection without a word.
        let mut stream = connection.into_parts().io.into_inner();
        let said = tokio::time::timeout(REFUSING, async {
            stream.write_all(too_slow(&limits).as_bytes()).await?;
            stream.shutdown().await
        });
        // A client that has gone needs no answer.
        drop(said.await);
        return;
    }
    Pin::new(&mut connection).graceful_shutdown();
    tokio::select! {
        _ = &mut connection => {}
        () = left(&activity) => {}
        () = reached(&mut phase, Phase::Ended) => {}
    }
}

/// Returns when a client that was told to go has had the time for it, and has waited for no answer meanwhile: the last
/// one may still be on its way to the socket.
async fn left(activity: &Activity) {
    let mut answering = true;
    while answering {
        answering = activity.is_answering();
        tokio::time::sleep(REFUSING).await;
        answering |= activity.is_answering();
    }
}

fn http1_builder(limits: &ConnectionLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    let head = limits.max_header_bytes as usize;
    // Time limits are watched here, so that a late head is answered.
    builder.timer(TokioTimer::new()).header_read_timeout(None).max_header_size(head).max_buf_size(head.max(MIN_BUFFER));
    builder
}

fn http2_builder(api: Api, limits: &ConnectionLimits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(limits.max_header_bytes)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    if api == Api::Grpc {
        // gRPC's metadata has none.
        builder.auto_date_header(false);
    }
    builder
}

/// Refuses a request on a connection that is one too many.
fn too_many(core: &Core, request: http::Request<hyper::body::Incoming>) -> http::Response<Reply> {
    Refused::one(&core.refused.connections);
    let text = format!(
        "The server has {} connections already (--max_connections); try again later.",
        core.options.connections.max_connections
    );
    refuse_for_now(request, &text)
}

/// Refuses a request that came without TLS, where nothing is answered without.
fn wants_tls(request: http::Request<hyper::body::Incoming>) -> http::Response<Reply> {
    refuse(request, "This port speaks TLS, and the request came without it; use https://, or grpcs:// for gRPC.")
}

/// Refuses a request for whose head there is no room.
fn no_room(core: &Core, request: http::Request<hyper::body::Incoming>) -> http::Response<Reply> {
    Refused::one(&core.refused.bytes);
    refuse_for_now(request, &core.budget.refusal())
}

/// Bytes of header fields, as HTTP/2 counts them.
fn kept(headers: &http::HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// The answer to a head that does not come.
fn too_slow(limits: &ConnectionLimits) -> String {
    let seconds = limits.header_timeout.as_secs_f64();
    let body = format!(
        "{{\"error\": \"The request's header fields were not there after {seconds} s (--header_timeout_seconds).\"}}"
    );
    format!(
        "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns when a connection should end: HTTP/1.1 clients are told by an answer first.
async fn leave(phase: &mut watch::Receiver<Phase>, api: Api, max_age: Option<Duration>) {
    let stopping = reached(phase, if api == Api::Grpc { Phase::Closing } else { Phase::Draining });
    match max_age.filter(|_| api == Api::Grpc) {
        None => stopping.await,
        // Either way it is time.
        Some(age) => drop(tokio::time::timeout(age, stopping).await),
    }
}

/// Returns when the server is in a phase, or beyond.
pub async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    // Without a sender the server is gone, which is beyond all phases.
    drop(phase.wait_for(|phase| *phase >= wanted).await);
}

fn bind_tcp(port: u16) -> io::Result<TcpListener> {
    // Kernels with IPv6 switched off have no such sockets.
    let (socket, address) = match Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)) {
        Ok(socket) => {
            socket.set_only_v6(false)?;
            (socket, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
        }
        Err(_) => (
            Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?,
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        ),
    };
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
