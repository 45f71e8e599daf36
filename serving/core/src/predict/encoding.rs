//! Compression of the answers of the Open Inference Protocol, for callers that accept it.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue};

/// Shorter answers fit into one packet as they are. Python has the same number.
pub const LEAST: usize = 1400;
/// Others have their turn after so many bytes.
const PIECE: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Gzip,
    Deflate,
}

impl Encoding {
    /// What a caller likes best, gzip where it has no preference; `None` for none of ours.
    pub fn preferred(headers: &HeaderMap) -> Option<Encoding> {
        let (mut gzip, mut deflate) = (0.0, 0.0);
        let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        for item in values.flat_map(|value| value.split(',')) {
            let (name, rest) = item.split_once(';').unwrap_or((item, ""));
            match name.trim().to_ascii_lowercase().as_str() {
                "gzip" => gzip = weight(rest),
                "deflate" => deflate = weight(rest),
                _ => {}
            }
        }
        let (best, most) = if deflate > gzip { (Encoding::Deflate, deflate) } else { (Encoding::Gzip, gzip) };
        (most > 0.0).then_some(best)
    }

    pub fn name(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Encoding::Gzip => "gzip",
            Encoding::Deflate => "deflate",
        })
    }

    /// Compresses a body piece by piece.
    pub async fn compress(self, body: &[u8]) -> io::Result<Vec<u8>> {
        // Tensors compress little, and the caller waits.
        let level = Compression::fast();
        match self {
            Encoding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), level);
                write(&mut encoder, body).await?;
                encoder.finish()
            }
            // HTTP's deflate is zlib's format.
            Encoding::Deflate => {
                let mut encoder = ZlibEncoder::new(Vec::new(), level);
                write(&mut encoder, body).await?;
                encoder.finish()
            }
        }
    }
}

async fn write(encoder: &mut impl Write, body: &[u8]) -> io::Result<()> {
    for piece in body.chunks(PIECE) {
        encoder.write_all(piece)?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// How much an encoding is wanted; one with a malformed weight is not.
fn weight(text: &str) -> f64 {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    if key.trim().eq_ignore_ascii_case("q") { value.trim().parse().unwrap_or(0.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_that_a_caller_likes_best() {
        for (accepted, expected) in [
            ("", None),
            ("identity", None),
            ("br, zstd", None),
            ("gzip;q=0", None),
            ("gzip;q=x", None),
            ("gzip, deflate, br", Some(Encoding::Gzip)),
            ("deflate", Some(Encoding::Deflate)),
            ("deflate, gzip;q=0.5", Some(Encoding::Deflate)),
            ("GZIP ; Q=0.2", Some(Encoding::Gzip)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accepted));
            assert_eq!(Encoding::preferred(&headers), expected, "{accepted}");
        }
    }
}
