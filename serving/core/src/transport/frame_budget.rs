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
}

impl FrameBudget {
    pub fn new() -> FrameBudget {
        FrameBudget { owed: 0, since: Instant::now(), skip: PREFACE, head: [0; HEAD], known: 0 }
    }

    /// Takes in what a client sends; false where it is too much.
    pub fn read(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let more = (HEAD - self.known).min(bytes.len());
            self.head[self.known..self.known + more].copy_from_slice(&bytes[..more]);
            self.known += more;
            bytes = &bytes[more..];
            if self.known == HEAD {
                self.known = 0;
                self.skip = u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]) as usize;
                if self.head[3] == SETTINGS && self.skip > MAX_SETTINGS * SETTING {
                    return false;
                }
                self.owed += match self.head[3] {
                    DATA => FRAME.saturating_sub(self.skip as u64),
                    // h2 limits streams and resets, and calls are limited elsewhere.
                    HEADERS | RST_STREAM => 0,
                    SETTINGS => CHANGE + FRAME * (self.skip / SETTING) as u64,
                    _ => FRAME,
                };
            }
        }
        if self.in_debt() {
            let now = Instant::now();
            let forgiven = now.duration_since(self.since).as_millis() as u64 * FORGIVEN;
            self.owed = self.owed.saturating_sub(forgiven);
            self.since = now;
        }
        self.owed <= CREDIT
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
        let mut frames = FrameBudget::new();
        assert!(frames.read(&[0; PREFACE]));
        (0..100_000)
            .find(|_| {
                frames.wrote(answered);
                !frame.chunks(piece).all(|bytes| frames.read(bytes))
            })
            .unwrap_or(100_000)
    }

    #[test]
    fn floods_end() {
        for (kind, size) in [(DATA, 0), (DATA, 1), (6, 8), (8, 4), (2, 5), (0x5a, 0), (9, 100)] {
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
        for (kind, size, answered) in [(DATA, 64, 0), (DATA, 5, 60), (HEADERS, 20, 0), (8, 4, 64)] {
            assert_eq!(taken(&frame(kind, size), 7, answered), 100_000, "type {kind} with {size} bytes");
        }
    }
}
