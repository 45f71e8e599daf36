//! Protobuf's wire format, as far as the usual forms need it ("Encoding" in its documentation).

use bytes::Bytes;

use super::tensor::DType;

/// The value of a field; no usual field has another wire type than these.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

/// Reads a message field by field.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next field's number and value; `None` for groups, fixed sizes, field numbers that need three bytes, and
    /// whatever is cut off.
    pub(crate) fn next(&mut self) -> Option<(u32, Value<'a>)> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        let tag = if first < 0x80 {
            u32::from(first)
        } else {
            let (&second, rest) = self.0.split_first()?;
            self.0 = rest;
            if second >= 0x80 {
                return None;
            }
            u32::from(first & 0x7f) | u32::from(second) << 7
        };
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            2 => {
                let before = self.0.len();
                let size = usize::try_from(self.varint()?).ok()?;
                // Protobuf's own parser takes sizes of 31 bits in at most five bytes.
                if before - self.0.len() > 5 || size >= 1 << 31 {
                    return None;
                }
                let (value, rest) = self.0.split_at_checked(size)?;
                self.0 = rest;
                Value::Bytes(value)
            }
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    /// The next number; one of more than 64 bits is none.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for (index, &byte) in self.0.iter().take(10).enumerate() {
            if index == 9 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.0 = &self.0[index + 1..];
                return Some(value);
            }
        }
        None
    }
}

/// Text of a string field.
pub(crate) fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok()
}

/// The elements of a packed field of varints, each narrowed as its parser and numpy do: by cutting bits off.
pub(crate) fn varints(packed: &[u8], dtype: DType) -> Option<Bytes> {
    let mut data = Vec::with_capacity(packed.len().min(1 << 12) * dtype.size());
    let mut fields = Fields(packed);
    while !fields.is_empty() {
        let value = fields.varint()?;
        let value = if dtype == DType::Bool { u64::from(value != 0) } else { value };
        data.extend_from_slice(&value.to_le_bytes()[..dtype.size()]);
    }
    Some(data.into())
}

/// Whether a float32 is a signaling NaN, which the general path makes a quiet one.
pub(crate) fn is_signaling(element: &[u8]) -> bool {
    let bits = element.iter().rev().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
    matches!(bits & 0x7fff_ffff, 0x7f80_0001..0x7fc0_0000)
}

/// The packed field of varints that holds an array; booleans and half floats are their bits.
pub(crate) fn put_varints(out: &mut Vec<u8>, tag: u64, data: &[u8], dtype: DType) {
    let size = wide(data, dtype).map(varint_size).sum::<usize>();
    put_varint(out, tag);
    put_varint(out, size as u64);
    out.reserve(size);
    for value in wide(data, dtype) {
        put_varint(out, value);
    }
}

/// Bytes that [`put_varints`] writes behind its tag.
pub(crate) fn varints_size(data: &[u8], dtype: DType) -> usize {
    let size = wide(data, dtype).map(varint_size).sum::<usize>();
    varint_size(size as u64) + size
}

/// Elements as protobuf widens them; negative ones have all the upper bits.
fn wide(data: &[u8], dtype: DType) -> impl Iterator<Item = u64> {
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    data.chunks_exact(dtype.size()).map(move |element| {
        let negative = signed && element.last().is_some_and(|&byte| byte >= 0x80);
        let mut bytes = if negative { [0xff; 8] } else { [0; 8] };
        bytes[..element.len()].copy_from_slice(element);
        u64::from_le_bytes(bytes)
    })
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) const fn varint_size(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// A field of bytes; its tag has one byte.
pub(crate) fn put_bytes(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// A field of text, which is left out where it is empty.
pub(crate) fn put_text(out: &mut Vec<u8>, tag: u8, value: &str) {
    if !value.is_empty() {
        put_bytes(out, tag, value.as_bytes());
    }
}

/// Bytes of a field of bytes whose tag has one byte.
pub(crate) const fn bytes_size(size: usize) -> usize {
    1 + varint_size(size as u64) + size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_the_size_that_is_written() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_size(value), "{value}");
                let mut fields = Fields(&out);
                assert_eq!(fields.varint(), Some(value));
                assert!(fields.is_empty());
                for end in 0..out.len() {
                    assert_eq!(Fields(&out[..end]).varint(), None);
                }
            }
        }
        assert_eq!(Fields(&[0xff; 10]).varint(), None);
    }
}
