//! HTTP/2's small frames: each costs its sender nothing, and the server time, or memory that no window bounds.

use std::time::Instant;

/// What a frame costs the server, in bytes: what h2 keeps of it, or the time to handle it.
const FRAME: u64 = 64;
/// What a client may owe: some 16,000 frames at once.
const CREDIT: u64 = 1 << 20;
/// A client that owes more waits for its turn after every few frames: with many streams open, each takes 10 µs.
const DEBT: u64 = CREDIT / 16;
/// What is forgiven in a millisecond: 1,000 frames a second.
const FORGIVEN: u64 = FRAME;
const HEAD: usize = 9;
const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// One that the protocol does not define, and that h2 ignores for that.
const IGNORED: u8 = 0xff;
const ACK: u8 = 1;
/// Where a head has its type.
const TYPE: usize = 3;
/// A change of settings is one of every stream; clients make a few, of a few settings each.
const CHANGE: u64 = FRAME * 64;
const SETTING: usize = 6;
/// Settings in one frame, as nghttp2 has it (CVE-2020-11080); the protocols define ten.
const MAX_SETTINGS: usize = 32;

/// What a client's frames have cost, beyond the bytes that it sent and was answered.
pub struct FrameBudget {
    owed: u64,
    since: Instant,
    /// Bytes that are no head of a frame.
    skip: usize,
    head: [u8; HEAD],
    known: usize,
    /// The last stream that the client opened before it was told to open no more.
    last_stream: u32,
    /// It has acknowledged h2's ping, the only one that is sent: h2 ignores streams that it opens from now on.
    leaving: bool,
}

impl Default for FrameBudget {
    fn default() -> FrameBudget {
        FrameBudget {
            owed: 0,
            since: Instant::now(),
            skip: PREFACE,
            head: [0; HEAD],
            known: 0,
            last_stream: 0,
            leaving: false,
        }
    }
}

impl FrameBudget {
    /// Takes in what a client sends, and hides from h2 what it takes amiss; false where it is too much.
    pub fn read(&mut self, mut bytes: &mut [u8]) -> bool {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &mut bytes[skipped..];
            let before = self.known;
            let more = (HEAD - before).min(bytes.len());
            self.head[before..before + more].copy_from_slice(&bytes[..more]);
            self.known += more;
            if self.known == HEAD {
                self.known = 0;
                self.skip = u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]) as usize;
                if self.head[TYPE] == SETTINGS && self.skip > MAX_SETTINGS * SETTING {
                    return false;
                }
                self.follow();
                // What has gone by in an earlier read is too late to change.
                if self.is_window_of_ignored_stream() && before <= TYPE {
                    bytes[TYPE - before] = IGNORED;
                }
                self.owed += match self.head[TYPE] {
                    DATA => FRAME.saturating_sub(self.skip as u64),
                    // h2 limits streams and resets, and calls are limited elsewhere.
                    HEADERS | RST_STREAM => 0,
                    SETTINGS => CHANGE + FRAME * (self.skip / SETTING) as u64,
                    _ => FRAME,
                };
            }
            bytes = &mut bytes[more..];
        }
        if self.in_debt() {
            let now = Instant::now();
            let forgiven = now.duration_since(self.since).as_millis() as u64 * FORGIVEN;
            self.owed = self.owed.saturating_sub(forgiven);
            self.since = now;
        }
        self.owed <= CREDIT
    }

    fn stream(&self) -> u32 {
        u32::from_be_bytes([self.head[5], self.head[6], self.head[7], self.head[8]])
    }

    /// Remembers which stream is the last that h2 answers.
    fn follow(&mut self) {
        match self.head[TYPE] {
            HEADERS if !self.leaving => self.last_stream = self.last_stream.max(self.stream()),
            PING if self.head[TYPE + 1] & ACK != 0 => self.leaving = true,
            _ => {}
        }
    }

    /// Whether the frame is a window of a stream that h2 ignores, opened after its last GOAWAY and before that arrived.
    ///
    /// h2 0.4.20 ignores the stream's other frames, and ends the connection with all that is being answered for this one
    /// (PROTOCOL_ERROR: an idle stream). gRPC's C core sends it.
    fn is_window_of_ignored_stream(&self) -> bool {
        self.leaving && self.head[TYPE] == WINDOW_UPDATE && self.stream() > self.last_stream
    }

    /// Whether others are to have their turn more often.
    pub fn in_debt(&self) -> bool {
        self.owed > DEBT
    }

    /// It is answered with so many bytes.
    pub fn wrote(&mut self, bytes: usize) {
        self.owed = self.owed.saturating_sub(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, size: usize) -> Vec<u8> {
        let length = (size as u32).to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 1];
        frame.resize(HEAD + size, 0);
        frame
    }

    /// How many of these frames are taken, of 100,000, in pieces of so many bytes.
    fn taken(frame: &[u8], piece: usize, answered: usize) -> usize {
        let mut frames = FrameBudget::default();
        assert!(frames.read(&mut [0; PREFACE]));
        (0..100_000)
            .find(|_| {
                frames.wrote(answered);
                !frame.to_vec().chunks_mut(piece).all(|bytes| frames.read(bytes))
            })
            .unwrap_or(100_000)
    }

    #[test]
    fn floods_end() {
        for (kind, size) in [(DATA, 0), (DATA, 1), (PING, 8), (WINDOW_UPDATE, 4), (2, 5), (0x5a, 0), (9, 100)] {
            for piece in [3, 1000] {
                let taken = taken(&frame(kind, size), piece, 0);
                assert!((16_000..60_000).contains(&taken), "{taken} of type {kind} with {size} bytes");
            }
        }
        assert!((250..1000).contains(&taken(&frame(SETTINGS, SETTING), 1000, 9)));
        assert!((100..600).contains(&taken(&frame(SETTINGS, MAX_SETTINGS * SETTING), 1000, 9)));
        assert_eq!(taken(&frame(SETTINGS, (MAX_SETTINGS + 1) * SETTING), 1000, 9), 0);
    }

    #[test]
    fn work_goes_on() {
        for (kind, size, answered) in [(DATA, 64, 0), (DATA, 5, 60), (HEADERS, 20, 0), (WINDOW_UPDATE, 4, 64)] {
            assert_eq!(taken(&frame(kind, size), 7, answered), 100_000, "type {kind} with {size} bytes");
        }
    }

    #[test]
    fn windows_of_ignored_streams_are_hidden() {
        let of = |kind, flags, stream: u32, size| {
            let mut bytes = frame(kind, size);
            bytes[4] = flags;
            bytes[5..HEAD].copy_from_slice(&stream.to_be_bytes());
            bytes
        };
        let window = |stream| of(WINDOW_UPDATE, 0, stream, 4);
        let ping = |flags| of(PING, flags, 0, 8);
        let before = [vec![0; PREFACE], ping(0), of(HEADERS, 4, 5, 10), window(5), window(7)];
        let after = [ping(ACK), of(HEADERS, 4, 7, 10), window(0), window(5), window(7), of(DATA, 1, 7, 9)];
        let mut expected = [before.concat(), after.concat()].concat();
        let mut sent = expected.clone();
        // Where the last window has its type.
        let place = expected.len() - (HEAD + 9) - (HEAD + 4) + TYPE;
        expected[place] = IGNORED;
        let mut frames = FrameBudget::default();
        assert!(sent.chunks_mut(100).all(|bytes| frames.read(bytes)));
        assert_eq!(sent, expected);
        // In every two reads: what a read ends with is not changed later.
        for cut in 0..expected.len() {
            let mut sent = [before.concat(), after.concat()].concat();
            let mut frames = FrameBudget::default();
            let (first, second) = sent.split_at_mut(cut);
            assert!(frames.read(first) && frames.read(second));
            let hidden = !(place + 1..place + HEAD - TYPE).contains(&cut);
            assert_eq!(sent == expected, hidden, "cut at {cut}, of {place}");
        }
    }
}
