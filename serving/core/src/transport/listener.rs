//! Listening, TLS handshakes, and the life of connections.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::core::{Core, Phase};
use crate::transport::{Peer, serve_grpc, serve_http};

const BACKLOG: i32 = 2048;
/// An accept that fails for want of descriptors or memory is tried again after so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// What a client may send of a body, or a server of an answer, before the other side has read it.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Which API a port has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Rest,
    Grpc,
}

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Calls of one HTTP/2 connection at the same time.
    pub max_streams: u32,
    /// Bytes of a request's header fields.
    pub max_header_bytes: u32,
    /// A request's header fields must be there after so long; also, how long a connection may be idle.
    pub header_timeout: Duration,
    /// Connections of the gRPC port end in an orderly way after so long.
    pub max_age: Option<Duration>,
}

/// A bound socket, its API, and how it speaks TLS.
pub struct Listener {
    socket: TcpListener,
    api: Api,
    tls: Option<TlsAcceptor>,
}

impl Listener {
    /// Binds a port on all addresses of both families; must be called inside of the runtime.
    pub fn bind(port: u16, reuse: bool, api: Api, tls: Option<Arc<ServerConfig>>) -> io::Result<Listener> {
        Ok(Listener { socket: bind_tcp(port, reuse)?, api, tls: tls.map(TlsAcceptor::from) })
    }

    /// Accepts connections until the server stops.
    pub async fn run(self, core: Arc<Core>) {
        let mut phase = core.phase.subscribe();
        loop {
            tokio::select! {
                () = reached(&mut phase, Phase::Closing) => break,
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

    fn spawn(&self, stream: TcpStream, peer: Peer, core: Arc<Core>) {
        let (api, tls) = (self.api, self.tls.clone());
        let counted = Counted::new(core.clone());
        tokio::spawn(async move {
            let _counted = counted;
            match tls {
                None => serve(stream, peer, api, core).await,
                Some(acceptor) => {
                    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
                    // A client that cannot agree on TLS was told so in an alert.
                    if let Ok(Ok(stream)) = handshake.await {
                        serve(stream, peer, api, core).await;
                    }
                }
            }
        });
    }
}

/// One open connection, as long as it lives.
struct Counted(Arc<Core>);

impl Counted {
    fn new(core: Arc<Core>) -> Counted {
        core.connections.fetch_add(1, Ordering::Relaxed);
        Counted(core)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, peer: Peer, api: Api, core: Arc<Core>) {
    let limits = core.options.connections;
    let mut phase = core.phase.subscribe();
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size((limits.max_header_bytes as usize).max(8192))
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(limits.max_header_bytes)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    if api == Api::Grpc {
        // gRPC's metadata has none.
        builder.http2().auto_date_header(false);
    }
    let handler = core.clone();
    let service = service_fn(move |request| {
        let core = handler.clone();
        async move {
            Ok::<_, Infallible>(match api {
                Api::Rest => serve_http(&core, request, peer).await,
                Api::Grpc => serve_grpc(&core, request, peer).await,
            })
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let leaving = leave(&mut phase, api, limits.max_age);
    tokio::select! {
        // A connection that ends with an error has nobody left to tell.
        _ = connection.as_mut() => return,
        () = leaving => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection.as_mut() => {}
        () = reached(&mut phase, Phase::Ended) => {}
    }
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
async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    // Without a sender the server is gone, which is beyond all phases.
    drop(phase.wait_for(|phase| *phase >= wanted).await);
}

fn bind_tcp(port: u16, reuse: bool) -> io::Result<TcpListener> {
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
    if reuse {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
