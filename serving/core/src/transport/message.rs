//! gRPC's messages: framing, compression, and the room that they take.

use std::io::Read;

use bytes::{Buf, Bytes, BytesMut};
use flate2::bufread::{GzDecoder, ZlibDecoder};
use http::HeaderValue;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::core::Core;
use crate::transport::limits::{Charge, Pace};
use crate::transport::status::{DEADLINE_EXCEEDED, INTERNAL, RESOURCE_EXHAUSTED, Refusal};

const PREFIX: usize = 5;
/// Room for a message is taken as it comes, beyond so many bytes.
const MAX_ROOM: usize = 1 << 20;
/// A compressed message is inflated in pieces of so many bytes.
const PIECE: u64 = 1 << 20;

/// The messages of a stream.
pub struct Messages<'a> {
    body: Incoming,
    data: BytesMut,
    room: Room<'a>,
    /// Of the message that has begun.
    pace: Option<Pace>,
}

impl<'a> Messages<'a> {
    pub fn new(core: &'a Core, body: Incoming, encoding: Option<HeaderValue>) -> Messages<'a> {
        let room = Room { core, encoding, charge: core.budget.charge(), received: 0 };
        Messages { body, data: BytesMut::new(), room, pace: None }
    }

    /// What the last message takes.
    pub fn take_charge(&mut self) -> Charge {
        std::mem::replace(&mut self.room.charge, self.room.core.budget.charge())
    }

    /// Waits until the first byte has come, or nothing more will.
    pub async fn begin(&mut self) {
        while self.data.is_empty() {
            match self.body.frame().await {
                Some(Ok(frame)) => self.keep(frame),
                Some(Err(_)) => gone().await,
                None => return,
            }
        }
    }

    /// The next message; `None` when its client sends no more.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            if let Some(message) = self.split().await? {
                self.pace = None;
                return Ok(Some(message));
            }
            let received = self.data.len();
            // Before a message a stream may be silent.
            let next = if received == 0 {
                self.body.frame().await
            } else {
                let pace = self.pace.get_or_insert_with(|| self.room.pace());
                match pace.next(received, self.body.frame()).await {
                    Some(next) => next,
                    None => return Err(Refusal::new(DEADLINE_EXCEEDED, pace.refusal(received))),
                }
            };
            match next {
                Some(Ok(frame)) => self.keep(frame),
                Some(Err(_)) => gone().await,
                None if received == 0 => return Ok(None),
                None => return Err(Refusal::new(INTERNAL, "The stream ended within a message.")),
            }
        }
    }

    fn keep(&mut self, frame: Frame<Bytes>) {
        if let Ok(more) = frame.into_data() {
            self.data.extend_from_slice(&more);
        }
    }

    /// Takes the first message off what has come, where it is whole.
    async fn split(&mut self) -> Result<Option<Bytes>, Refusal> {
        let Some((flag, size)) = prefix(&self.data) else { return Ok(None) };
        self.room.take(size)?;
        if self.data.len() < PREFIX + size {
            return Ok(None);
        }
        self.data.advance(PREFIX);
        self.room.plain(flag, self.data.split_to(size).freeze()).await.map(Some)
    }
}

/// A client that has gone is seen by its answer's stream.
async fn gone() -> ! {
    std::future::pending().await
}

/// The message of a unary call.
pub async fn read_message(body: &mut Incoming, room: &mut Room<'_>) -> Result<Bytes, Refusal> {
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    let pace = room.pace();
    loop {
        let received = first.len() + whole.len();
        let frame = match pace.next(received, body.frame()).await {
            None => return Err(Refusal::new(DEADLINE_EXCEEDED, pace.refusal(received))),
            Some(None) => break,
            // A client that has gone reads no answer.
            Some(Some(frame)) => frame.map_err(|_| Refusal::new(INTERNAL, "The request was reset."))?,
        };
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() && whole.is_empty() {
            first = data;
        } else {
            if whole.is_empty() {
                let claimed = prefix(&first).map_or(0, |(_, size)| PREFIX + size);
                whole.reserve(claimed.min(MAX_ROOM).max(first.len() + data.len()));
                whole.extend_from_slice(&std::mem::take(&mut first));
            }
            whole.extend_from_slice(&data);
        }
        let known: &[u8] = if whole.is_empty() { &first } else { &whole };
        room.take(prefix(known).map_or(0, |(_, size)| size).max(known.len().saturating_sub(PREFIX)))?;
        if body.is_end_stream() {
            break;
        }
    }
    let mut message = if whole.is_empty() { first } else { whole.freeze() };
    room.received = message.len();
    match prefix(&message) {
        Some((flag, size)) if size == message.len() - PREFIX => {
            message.advance(PREFIX);
            room.plain(flag, message).await
        }
        _ => Err(Refusal::new(INTERNAL, "A unary call must have exactly one whole message.")),
    }
}

/// Whether a message is compressed, and its size.
fn prefix(data: &[u8]) -> Option<(u8, usize)> {
    let (head, _) = data.split_at_checked(PREFIX)?;
    Some((head[0], u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize))
}

/// What a message may take.
pub struct Room<'a> {
    pub core: &'a Core,
    /// How messages are compressed.
    pub encoding: Option<HeaderValue>,
    pub charge: Charge,
    /// Bytes of a unary call's message as it came.
    pub received: usize,
}

impl Room<'_> {
    pub fn pace(&self) -> Pace {
        Pace::new(self.core.options.connections.body_timeout)
    }

    /// Takes room for a message of so many bytes in all.
    fn take(&mut self, size: usize) -> Result<(), Refusal> {
        let max_bytes = self.core.options.max_message_bytes;
        if size > max_bytes {
            return Err(too_large(size, max_bytes));
        }
        if self.charge.reach(size) { Ok(()) } else { Err(Refusal::for_now(self.core.budget.refusal())) }
    }

    /// The message itself.
    async fn plain(&mut self, flag: u8, data: Bytes) -> Result<Bytes, Refusal> {
        if flag == 0 {
            return Ok(data);
        }
        let name = self.encoding.as_ref().map_or("identity", |value| value.to_str().unwrap_or_default()).to_owned();
        match &*name {
            "gzip" if flag == 1 => {
                let mut decoder = GzDecoder::new(&*data);
                let message = self.inflate(&name, data.len(), &mut decoder).await?;
                whole(&name, decoder.into_inner(), message)
            }
            "deflate" if flag == 1 => {
                let mut decoder = ZlibDecoder::new(&*data);
                let message = self.inflate(&name, data.len(), &mut decoder).await?;
                whole(&name, decoder.into_inner(), message)
            }
            _ => {
                let text = "A message says that it is compressed, but the call's headers do not say how.";
                Err(Refusal::new(INTERNAL, text))
            }
        }
    }

    /// Inflates a message piece by piece, as there is room; others have their turn after each.
    async fn inflate(&mut self, name: &str, packed: usize, decoder: &mut (impl Read + Send)) -> Result<Bytes, Refusal> {
        let max_bytes = self.core.options.max_message_bytes;
        let mut inflated = Vec::new();
        loop {
            let before = inflated.len();
            let read = Read::take(&mut *decoder, PIECE).read_to_end(&mut inflated);
            read.map_err(|error| Refusal::new(INTERNAL, format!("A message is no {name}: {error}")))?;
            if inflated.len() > max_bytes {
                let text = format!("Received message larger than max (more than {max_bytes} after decompression)");
                return Err(Refusal::new(RESOURCE_EXHAUSTED, text));
            }
            if inflated.len() == before {
                return Ok(inflated.into());
            }
            if !self.charge.reach(packed + inflated.len()) {
                return Err(Refusal::for_now(self.core.budget.refusal()));
            }
            tokio::task::yield_now().await;
        }
    }
}

/// An inflated message that nothing follows: what stands behind it would be lost without a word.
fn whole(name: &str, rest: &[u8], message: Bytes) -> Result<Bytes, Refusal> {
    if rest.is_empty() {
        return Ok(message);
    }
    Err(Refusal::new(INTERNAL, format!("A message is no {name}: {} bytes follow its end.", rest.len())))
}

fn too_large(size: usize, max_bytes: usize) -> Refusal {
    Refusal::new(RESOURCE_EXHAUSTED, format!("Received message larger than max ({size} vs. {max_bytes})"))
}
