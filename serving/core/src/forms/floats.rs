//! Floats as JSON text, by upstream's rule: six digits where they suffice, else as many as a round trip always needs
//! (nine or seventeen), as printf's `%g` writes them.

use std::io::Write;
use std::sync::LazyLock;

/// Digits of which upstream hopes that they suffice.
const SHORT: i32 = 6;
/// Those that always do, for float32 and float64.
const SINGLE: i32 = 9;
const DOUBLE: i32 = 17;
/// Numbers of which the exact digits are found by one product, whose error is then known: 10 to these powers.
const LOWEST: i32 = -25;
const HIGHEST: i32 = 25;
/// So close to the middle between two decimal numbers, the rounding of that product may have decided.
const CLOSE: f64 = 1e-6;
/// So many units of a double's last place from the middle between two floats, too.
const CLOSE_BITS: u64 = 16;

/// 10 to the powers from -40 to 40, each the nearest double.
static POWERS: LazyLock<[f64; 81]> =
    LazyLock::new(|| std::array::from_fn(|index| format!("1e{}", index as i32 - 40).parse().unwrap_or(f64::NAN)));

/// The value of a float16.
pub(super) fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        0x1f if fraction == 0.0 => sign * f32::INFINITY,
        0x1f => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

/// Writes a float64.
pub(super) fn put_double(out: &mut Vec<u8>, value: f64) {
    put_sign_or_name(out, value);
    if value.is_finite() {
        put_exactly(out, value.abs(), DOUBLE, |read| read == value.abs());
    }
}

/// Writes a float32.
pub(super) fn put_single(out: &mut Vec<u8>, value: f32) {
    let size = f64::from(value.abs());
    put_sign_or_name(out, f64::from(value));
    if size < POWERS[(40 + LOWEST) as usize] || size >= POWERS[(40 + HIGHEST) as usize] || value.is_nan() {
        if value.is_finite() {
            put_exactly(out, size, SINGLE, |read| read as f32 == value.abs());
        }
        return;
    }
    // The decimal exponent by the binary one; it is at most one too small.
    let binary = (size.to_bits() >> 52) as i32 - 1023;
    let mut exponent = (binary * 1233) >> 12;
    exponent += i32::from(size >= power(exponent + 1));
    let chosen = rounded(size, exponent, SHORT).and_then(|short| {
        let again = short as f64 * power(exponent + 1 - SHORT);
        // How far the double is from the middle between two floats.
        let middle = (again.to_bits() & 0x1fff_ffff).abs_diff(0x1000_0000);
        let near = middle < CLOSE_BITS;
        match (near, again as f32 == value.abs()) {
            (true, _) => None,
            (false, true) => Some((short, SHORT)),
            (false, false) => Some((rounded(size, exponent, SINGLE)?, SINGLE)),
        }
    });
    let Some((mut number, count)) = chosen else {
        return put_exactly(out, size, SINGLE, |read| read as f32 == value.abs());
    };
    if number as f64 >= power(count) {
        // Rounded up to the next power of ten.
        number /= 10;
        exponent += 1;
    }
    put_digits(out, itoa::Buffer::new().format(number).as_bytes(), exponent, count);
}

fn power(exponent: i32) -> f64 {
    POWERS[(40 + exponent) as usize]
}

/// A number's digits, so many, as a whole number; `None` where they cannot be told by a product.
fn rounded(size: f64, exponent: i32, count: i32) -> Option<u64> {
    let scaled = size * power(count - 1 - exponent);
    let digits = scaled.round();
    let sure = ((scaled - digits).abs() - 0.5).abs() > CLOSE;
    sure.then_some(digits as u64)
}

fn put_sign_or_name(out: &mut Vec<u8>, value: f64) {
    if value.is_nan() {
        return out.extend_from_slice(b"NaN");
    }
    if value.is_sign_negative() {
        out.push(b'-');
    }
    if value.is_infinite() {
        out.extend_from_slice(b"Infinity");
    }
}

/// Writes a finite number by its exact decimal value; `suffices` says whether what a text is read as is the number.
fn put_exactly(out: &mut Vec<u8>, size: f64, long: i32, suffices: impl Fn(f64) -> bool) {
    // One digit, a point, sixteen digits, "e-324".
    let mut buffer = [0u8; 32];
    let mut written = exact_digits(&mut buffer, size, SHORT);
    let short = std::str::from_utf8(&buffer[..written]).ok().and_then(|text| text.parse().ok());
    let mut count = SHORT;
    if !short.is_some_and(suffices) {
        written = exact_digits(&mut buffer, size, long);
        count = long;
    }
    let text = &buffer[..written];
    let mark = text.iter().position(|&byte| matches!(byte, b'e')).unwrap_or(written);
    let exponent = std::str::from_utf8(&text[(mark + 1).min(written)..]).ok().and_then(|text| text.parse().ok());
    // The point stands behind the first digit.
    let mut digits = [0u8; DOUBLE as usize];
    let digits = &mut digits[..count as usize];
    digits[0] = text[0];
    digits[1..].copy_from_slice(&text[2..mark]);
    put_digits(out, digits, exponent.unwrap_or(0), count);
}

/// Writes `d.ddde<exponent>`; returns how long it is.
fn exact_digits(buffer: &mut [u8; 32], size: f64, count: i32) -> usize {
    let mut rest = &mut buffer[..];
    // Far less than the buffer has room for.
    let _ = write!(rest, "{size:.*e}", count as usize - 1);
    32 - rest.len()
}

/// Writes digits of a number with its decimal exponent as `%g` does, with a point where there is no exponent.
fn put_digits(out: &mut Vec<u8>, digits: &[u8], exponent: i32, count: i32) {
    let zeros = digits.iter().rev().take_while(|&&byte| matches!(byte, b'0')).count();
    let digits = &digits[..(digits.len() - zeros).max(1)];
    if exponent < -4 || exponent >= count {
        out.push(digits[0]);
        if digits.len() > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..]);
        }
        out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
        let size = exponent.unsigned_abs();
        if size < 10 {
            out.push(b'0');
        }
        out.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
    } else if exponent < 0 {
        out.extend_from_slice(&b"0.0000"[..1 + exponent.unsigned_abs() as usize]);
        out.extend_from_slice(digits);
    } else {
        let whole = exponent as usize + 1;
        if digits.len() > whole {
            out.extend_from_slice(&digits[..whole]);
            out.push(b'.');
            out.extend_from_slice(&digits[whole..]);
        } else {
            out.extend_from_slice(digits);
            out.resize(out.len() + whole - digits.len(), b'0');
            out.extend_from_slice(b".0");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(value: f32) -> String {
        let mut out = Vec::new();
        put_single(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    fn double(value: f64) -> String {
        let mut out = Vec::new();
        put_double(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn floats_have_six_digits_where_they_suffice() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (0.123_456_7, "0.123456702"),
            (1.0 / 3.0, "0.333333343"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (9.9999e-5, "9.9999e-05"),
            (999_999.0, "999999.0"),
            (999_999.5, "999999.5"),
            (1e6, "1e+06"),
            (1_234_567.0, "1234567.0"),
            (16_777_216.0, "16777216.0"),
            (1e9, "1e+09"),
            (1e30, "1e+30"),
            (f32::MAX, "3.40282347e+38"),
            (f32::MIN_POSITIVE, "1.17549435e-38"),
            (1e-45, "1.4013e-45"),
            (f32::NAN, "NaN"),
            (f32::INFINITY, "Infinity"),
            (f32::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(single(value), text);
        }
        for (value, text) in [
            (0.1, "0.1"),
            (1.0 / 3.0, "0.33333333333333331"),
            (1e300, "1e+300"),
            (5e-324, "4.94066e-324"),
            (1e16, "1e+16"),
            (1e22, "1e+22"),
            (12_345_678.0, "12345678.0"),
            (-f64::NAN, "NaN"),
        ] {
            assert_eq!(double(value), text);
        }
    }

    /// The quick way says what the exact one does, for floats of every size and for all beside short decimal numbers.
    #[test]
    fn products_and_exact_values_have_the_same_digits() {
        let check = |value: f32| {
            let mut exact = Vec::new();
            put_exactly(&mut exact, f64::from(value), SINGLE, |read| read as f32 == value);
            assert_eq!(single(value).as_bytes(), exact, "{value:e}");
        };
        let mut state = 7u32;
        for _ in 0..200_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f32::from_bits(state & 0x7fff_ffff);
            if value.is_finite() && value > 0.0 {
                check(value);
            }
        }
        for digits in (100_000..1_000_000u32).step_by(97) {
            for exponent in -33..22 {
                let value: f32 = format!("{digits}e{exponent}").parse().unwrap();
                for bits in [value.to_bits() - 1, value.to_bits(), value.to_bits() + 1] {
                    check(f32::from_bits(bits));
                }
            }
        }
    }
}
