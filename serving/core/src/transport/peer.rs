//! Who is at the other end of a connection.

use std::net::SocketAddr;

/// The address of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client; addresses of IPv4 are never written as those of IPv6.
    Tcp(SocketAddr),
    /// A process on this machine, by a UNIX socket.
    Unix,
}

impl Peer {
    /// The peer of a TCP connection.
    pub fn tcp(address: SocketAddr) -> Peer {
        Peer::Tcp(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// The IP address; `None` for a UNIX socket.
    pub fn host(self) -> Option<String> {
        match self {
            Peer::Tcp(address) => Some(address.ip().to_string()),
            Peer::Unix => None,
        }
    }

    /// gRPC's name for it, such as `ipv4:127.0.0.1:50000` or `unix:`.
    pub fn name(self) -> String {
        match self {
            Peer::Tcp(address @ SocketAddr::V4(_)) => format!("ipv4:{address}"),
            Peer::Tcp(address @ SocketAddr::V6(_)) => format!("ipv6:{address}"),
            Peer::Unix => "unix:".to_owned(),
        }
    }
}
