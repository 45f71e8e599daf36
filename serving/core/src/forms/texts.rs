//! Values as JSON text.

use std::io::Write;
use std::ops::Range;

use super::floats::{half, put_double, put_single};
use super::tensor::{DType, Part, Strings};

/// What becomes of an output's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    Bool,
    Signed,
    Unsigned,
    Half,
    Brain,
    Single,
    Double,
    Text,
}

impl Values {
    pub(crate) const fn of(dtype: DType) -> Values {
        match dtype {
            DType::Bool => Values::Bool,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => Values::Signed,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => Values::Unsigned,
            DType::F16 => Values::Half,
            DType::BF16 => Values::Brain,
            DType::F32 => Values::Single,
            DType::F64 => Values::Double,
            DType::String => Values::Text,
        }
    }

    /// Writes an element.
    #[inline]
    fn put(self, out: &mut Vec<u8>, element: &[u8]) {
        match self {
            Values::Bool => out.extend_from_slice(if bits(element) != 0 { b"true" } else { b"false" }),
            Values::Signed => {
                let unused = 64 - 8 * element.len();
                let value = (bits(element) << unused) as i64 >> unused;
                out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
            }
            Values::Unsigned => out.extend_from_slice(itoa::Buffer::new().format(bits(element)).as_bytes()),
            Values::Text => put_text(out, element),
            Values::Double => put_double(out, f64::from_bits(bits(element))),
            Values::Half | Values::Brain | Values::Single => put_single(out, self.single(element)),
        }
    }

    fn single(self, element: &[u8]) -> f32 {
        match self {
            Values::Half => half(bits(element) as u16),
            Values::Brain => f32::from_bits((bits(element) as u32) << 16),
            _ => f32::from_bits(bits(element) as u32),
        }
    }

    fn is_finite(self, element: &[u8]) -> bool {
        match self {
            Values::Bool | Values::Signed | Values::Unsigned | Values::Text => true,
            Values::Double => f64::from_bits(bits(element)).is_finite(),
            Values::Half | Values::Brain | Values::Single => self.single(element).is_finite(),
        }
    }
}

/// Whether there is neither NaN nor an infinity.
pub(crate) fn all_finite(dtype: DType, data: &[u8]) -> bool {
    let values = Values::of(dtype);
    data.chunks_exact(dtype.size()).all(|element| values.is_finite(element))
}

/// Writes elements with a separator between them.
pub(crate) fn put_values(out: &mut Vec<u8>, part: &Part<'_>, elements: Range<usize>, separator: &str) {
    let values = Values::of(part.dtype);
    let data = part.bytes(elements);
    if part.dtype == DType::String {
        put_all(out, Strings(data), separator, |out, text| values.put(out, text));
    } else {
        put_all(out, data.chunks_exact(part.dtype.size()), separator, |out, element| values.put(out, element));
    }
}

#[inline]
fn put_all<'a>(
    out: &mut Vec<u8>,
    elements: impl Iterator<Item = &'a [u8]>,
    separator: &str,
    put: impl Fn(&mut Vec<u8>, &'a [u8]),
) {
    for (index, element) in elements.enumerate() {
        if index > 0 {
            out.extend_from_slice(separator.as_bytes());
        }
        put(out, element);
    }
}

/// Writes an array as nested lists; a single value as such.
pub(crate) fn put_array(out: &mut Vec<u8>, part: &Part<'_>) {
    put_nested(out, part, &part.shape, 0);
}

/// Writes one row of an array.
pub(crate) fn put_row(out: &mut Vec<u8>, part: &Part<'_>, row: usize) {
    let inner = &part.shape[1..];
    put_nested(out, part, inner, row * inner.iter().product::<usize>());
}

/// Writes the elements from one on as nested lists of these sizes.
fn put_nested(out: &mut Vec<u8>, part: &Part<'_>, shape: &[usize], from: usize) {
    let Some((&last, outer)) = shape.split_last() else {
        return put_values(out, part, from..from + 1, ", ");
    };
    let Some((&first, inner)) = outer.split_first() else {
        out.push(b'[');
        put_values(out, part, from..from + last, ", ");
        return out.push(b']');
    };
    // One level for each size: a request cannot make it deep.
    let step = inner.iter().product::<usize>() * last;
    out.push(b'[');
    for index in 0..first {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        put_nested(out, part, &shape[1..], from + index * step);
    }
    out.push(b']');
}

/// Writes UTF-8 as Python's `json.dumps(ensure_ascii=False)` does.
fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &byte in text {
        if !put_escape(out, byte) {
            match byte {
                0..0x20 => put_format(out, format_args!("\\u{byte:04x}")),
                _ => out.push(byte),
            }
        }
    }
    out.push(b'"');
}

/// Writes the escape of a character that has one of two characters; whether it has.
fn put_escape(out: &mut Vec<u8>, byte: u8) -> bool {
    let escaped = match byte {
        b'"' => b'"',
        b'\\' => b'\\',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x8 => b'b',
        0xc => b'f',
        _ => return false,
    };
    out.extend_from_slice(&[b'\\', escaped]);
    true
}

/// Text as Python's `json.dumps` writes it.
pub fn json_string(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() + 2);
    put_string(&mut out, text);
    String::from_utf8(out).unwrap_or_default()
}

/// Writes text as Python's `json.dumps` does: in ASCII.
pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for character in text.chars() {
        match character {
            _ if u8::try_from(character).is_ok_and(|byte| put_escape(out, byte)) => {}
            ' '..='~' => out.push(character as u8),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    put_format(out, format_args!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push(b'"');
}

/// Writes to memory, which cannot fail.
fn put_format(out: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(arguments);
}

/// The bits of an element.
#[inline]
fn bits(element: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_ascii() {
        let mut out = Vec::new();
        put_string(&mut out, "a\"\\\n\u{1}\u{7f}é😀/");
        assert_eq!(out, br#""a\"\\\n\u0001\u007f\u00e9\ud83d\ude00/""#);
    }
}
