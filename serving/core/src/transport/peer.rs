//! Who is at the other end of a connection.

use std::net::SocketAddr;
use std::time::Instant;

use http::HeaderValue;

use crate::record::Seen;

use bytes::Bytes;

/// The address of a client, and the certificate that it has shown; addresses of IPv4 are never written as of IPv6.
#[derive(Clone, Debug)]
pub struct Peer {
    address: SocketAddr,
    /// In DER, and verified; `None` without client certificates.
    pub certificate: Option<Bytes>,
}

impl Peer {
    /// The peer of a TCP connection.
    pub fn tcp(address: SocketAddr) -> Peer {
        Peer { address: SocketAddr::new(address.ip().to_canonical(), address.port()), certificate: None }
    }

    /// The IP address.
    pub fn host(&self) -> String {
        self.address.ip().to_string()
    }

    /// gRPC's name for it, such as `ipv4:127.0.0.1:50000`.
    pub fn name(&self) -> String {
        let family = if self.address.is_ipv4() { "ipv4" } else { "ipv6" };
        format!("{family}:{}", self.address)
    }
}

/// One request, whatever it asks for.
pub struct Context {
    pub peer: Peer,
    pub arrived: Instant,
    /// Its caller's name for it, or one that was made here.
    pub id: HeaderValue,
    pub seen: Seen,
}
