//! Arrays of numbers as JSON text, and their values with the general path's rules: numbers are read as double or as
//! whole numbers in a range, and then cast as numpy casts.

use super::lists::nested;
use super::tensor::{DType, Shape};

/// Powers of ten that a double holds exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];
/// Whole numbers up to here are doubles, all of them.
const EXACT: u64 = 1 << 53;
/// A larger one, rounded and then divided, is so many units of a double's last place from the nearest double at most.
const CLOSE: u64 = 4;

/// Which JSON values a dtype takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// Any number.
    Float,
    /// Whole numbers from the first to the last.
    Whole(i128, i128),
    /// `true` and `false`.
    Bool,
}

/// Reads an array, or a single value, and appends its values to `data`.
///
/// # Returns
/// Its shape, which is that of the lists; `None` for ragged and empty ones, and values that the rule does not take.
pub(crate) fn read_array(text: &[u8], dtype: DType, rule: Rule, data: &mut Vec<u8>) -> Option<Shape> {
    match (rule, dtype) {
        (Rule::Float, DType::F32) => nested(text, |at| {
            let (value, end) = float::<true>(text, at)?;
            data.extend_from_slice(&(value as f32).to_le_bytes());
            Some(end)
        }),
        (Rule::Float, DType::F64) => nested(text, |at| {
            let (value, end) = float::<false>(text, at)?;
            data.extend_from_slice(&value.to_le_bytes());
            Some(end)
        }),
        (Rule::Whole(low, high), dtype) => nested(text, |at| {
            let (value, end) = whole(text, at)?;
            if value < low || value > high {
                return None;
            }
            // Narrower integers wrap.
            data.extend_from_slice(&value.to_le_bytes()[..dtype.size()]);
            Some(end)
        }),
        (Rule::Bool, DType::Bool) => nested(text, |at| {
            let (value, end) = boolean(text, at)?;
            data.push(value);
            Some(end)
        }),
        _ => None,
    }
}

/// The value of a digit; more than 9 for another character, or none.
#[inline]
fn digit(text: &[u8], at: usize) -> u8 {
    text.get(at).map_or(255, |byte| byte.wrapping_sub(b'0'))
}

/// Digits from a place on: what they add to the number before them, and where they end.
#[inline]
fn digits(text: &[u8], mut at: usize, mut number: u64) -> (u64, usize) {
    while let Some(eight) = text.get(at..).and_then(|rest| rest.first_chunk()).and_then(eight_digits) {
        number = number.wrapping_mul(100_000_000).wrapping_add(eight);
        at += 8;
    }
    loop {
        match digit(text, at) {
            value @ 0..=9 => {
                number = number.wrapping_mul(10).wrapping_add(u64::from(value));
                at += 1;
            }
            _ => return (number, at),
        }
    }
}

/// The value of eight digits; `None` where not all are (Lemire, "Number parsing at a gigabyte per second", 2021).
#[inline]
fn eight_digits(text: &[u8; 8]) -> Option<u64> {
    let word = u64::from_le_bytes(*text);
    let value = word.wrapping_sub(0x3030_3030_3030_3030);
    // A byte below '0' borrows, one above '9' carries, into its highest bit.
    if (value | word.wrapping_add(0x4646_4646_4646_4646)) & 0x8080_8080_8080_8080 != 0 {
        return None;
    }
    let pairs = value.wrapping_mul(10).wrapping_add(value >> 8);
    let high = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let low = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    Some(high.wrapping_add(low) >> 32)
}

/// The whole part of a number: whether it is negative, its digits' value, and where they begin and end.
#[inline]
fn whole_part(text: &[u8], at: usize) -> Option<(bool, u64, usize, usize)> {
    let negative = matches!(text.get(at), Some(b'-'));
    let begin = at + usize::from(negative);
    match digit(text, begin) {
        // No digit follows a zero at the beginning.
        0 => Some((negative, 0, begin, begin + 1)),
        1..=9 => {
            let (number, end) = digits(text, begin, 0);
            Some((negative, number, begin, end))
        }
        _ => None,
    }
}

/// A number as the nearest double, and where it ends; for a `SINGLE`, a double that is cast to the same float32.
#[inline]
fn float<const SINGLE: bool>(text: &[u8], at: usize) -> Option<(f64, usize)> {
    let (negative, number, begin, mut end) = whole_part(text, at)?;
    let mut mantissa = number;
    let mut places = 0;
    let mut count = end - begin;
    let mut plain = true;
    if matches!(text.get(end), Some(b'.')) {
        let (all, stop) = digits(text, end + 1, mantissa);
        places = stop - end - 1;
        if places == 0 {
            return None;
        }
        (mantissa, end, count) = (all, stop, count + places);
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let (_, stop) = digits(text, end + 1 + sign, 0);
        if stop == end + 1 + sign {
            return None;
        }
        (plain, end) = (false, stop);
    }
    // One division of two exact doubles is rounded once, as reading the text is. Clients often write a float32 with all
    // the digits of a double, which are too many for that: what is rounded twice may be another double then, but is the
    // same float32 unless it is close to the middle between two.
    if plain && count <= 19 && places < POWERS.len() && (SINGLE || mantissa <= EXACT) {
        let size = mantissa as f64 / POWERS[places];
        if mantissa <= EXACT || (size.to_bits() & 0x1fff_ffff).abs_diff(0x1000_0000) > CLOSE {
            // Written without a point, a zero has no sign.
            return Some((if negative && (mantissa != 0 || places != 0) { -size } else { size }, end));
        }
    }
    let value: f64 = std::str::from_utf8(&text[at..end]).ok()?.parse().ok()?;
    value.is_finite().then_some((value, end))
}

/// A whole number, and where it ends.
#[inline]
fn whole(text: &[u8], at: usize) -> Option<(i128, usize)> {
    let (negative, number, begin, end) = whole_part(text, at)?;
    let size = match end - begin {
        0..=19 => i128::from(number),
        20 => std::str::from_utf8(&text[begin..end]).ok()?.parse().ok()?,
        _ => return None,
    };
    Some((if negative { -size } else { size }, end))
}

fn boolean(text: &[u8], at: usize) -> Option<(u8, usize)> {
    match text.get(at..)? {
        [b't', b'r', b'u', b'e', ..] => Some((1, at + 4)),
        [b'f', b'a', b'l', b's', b'e', ..] => Some((0, at + 5)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forms::tensor::MAX_RANK;

    fn floats(text: &str) -> Option<(Shape, Vec<f64>)> {
        let mut data = Vec::new();
        let shape = read_array(text.as_bytes(), DType::F64, Rule::Float, &mut data)?;
        let values = data.chunks_exact(8).map(|value| f64::from_le_bytes(value.try_into().unwrap())).collect();
        Some((shape, values))
    }

    fn ints(text: &str, dtype: DType, low: i128, high: i128) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        read_array(text.as_bytes(), dtype, Rule::Whole(low, high), &mut data).map(|_| data)
    }

    #[test]
    fn arrays_have_the_shape_of_their_lists() {
        let shape = |text: &str| floats(text).map(|(shape, _)| shape.to_vec());
        assert_eq!(shape("1"), Some(vec![]));
        assert_eq!(shape(" [1 , 2,\n3 ] "), Some(vec![3]));
        assert_eq!(shape("[[1,2,3],[4,5,6]]"), Some(vec![2, 3]));
        assert_eq!(shape("[[[1],[2]],[[3],[4]],[[5],[6]]]"), Some(vec![3, 2, 1]));
        for text in [
            "",
            " ",
            "[",
            "]",
            "[]",
            "[[]]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1]]",
            "[[1]",
            "[1],",
            "[1,[2]]",
            "[[1],2]",
            "[[1],[2,3]]",
            "[[1,2],[3]]",
            "[[[1]],[[2],[3]]]",
            "[[1],[[2]]]",
            "[[1],[]]",
            "[\"1\"]",
            "[null]",
            "[true]",
            "[1]x",
            "1 2",
            "[{}]",
        ] {
            assert_eq!(shape(text), None, "{text}");
        }
        let deep = |rank: usize| "[".repeat(rank) + "1" + &"]".repeat(rank);
        assert_eq!(shape(&deep(MAX_RANK)), Some(vec![1; MAX_RANK]));
        assert_eq!(shape(&deep(MAX_RANK + 1)), None);
        assert_eq!(shape(&"[".repeat(1 << 20)), None);
    }

    #[test]
    fn numbers_are_read_as_the_nearest_double() {
        for text in [
            "0",
            "0.0",
            "-0.0",
            "1",
            "-1",
            "10",
            "0.1",
            "0.1234567",
            "0.12345678901234568",
            "123456789012345678",
            "9007199254740993",
            "9007199254740992",
            "1e22",
            "1E+22",
            "1e-7",
            "0.3e1",
            "1.7976931348623157e308",
            "5e-324",
            "1e-400",
            "123456789012345678901234567890",
            "0.00000000000000000000000000001",
            "1.00000000000000000000000001",
            "0.000000000000000000000012345",
        ] {
            let expected: f64 = text.parse().unwrap();
            let (_, values) = floats(text).unwrap();
            assert_eq!(values[0].to_bits(), expected.to_bits(), "{text}");
        }
        assert_eq!(floats("-0").unwrap().1[0].to_bits(), 0);
        for text in [
            "01", "-", "+1", ".5", "1.", "1.e5", "1e", "1e+", "- 1", "1e400", "-1e400", "NaN", "Infinity", "0x1",
            "1_0", "--1", "1.2.3", "1e5.5", "00", "-01", "1f",
        ] {
            assert_eq!(floats(text), None, "{text}");
        }
    }

    /// The quick way is as the nearest double cast, also for texts beside the middle between two floats.
    #[test]
    fn singles_are_doubles_that_are_cast() {
        let check = |text: &str| {
            let mut data = Vec::new();
            read_array(text.as_bytes(), DType::F32, Rule::Float, &mut data).unwrap();
            let nearest: f64 = text.parse().unwrap();
            assert_eq!(data, (nearest as f32).to_le_bytes(), "{text}");
        };
        let mut state = 7u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let below = f32::from_bits(0x3000_0000 + (state >> 34) as u32 % 0x2f00_0000);
            let middle = f64::midpoint(f64::from(below), f64::from(f32::from_bits(below.to_bits() + 1)));
            check(&format!("{below}"));
            check(&format!("{}", f64::from(below)));
            // Doubles beside the middle, and texts of up to 19 digits beside those.
            for units in -6..=6i64 {
                let double = f64::from_bits(middle.to_bits().wrapping_add_signed(units));
                check(&format!("{double}"));
                for places in 15..=19usize {
                    let text = format!("{double:.places$}");
                    check(&text);
                }
            }
        }
    }

    #[test]
    fn whole_numbers_have_their_range_and_then_wrap() {
        let int32 = (i128::from(i32::MIN), i128::from(i32::MAX));
        assert_eq!(ints("[1,-1,300,-0]", DType::U8, int32.0, int32.1), Some(vec![1, 255, 44, 0]));
        assert_eq!(ints("2147483648", DType::I32, int32.0, int32.1), None);
        assert_eq!(ints("-2147483648", DType::I32, int32.0, int32.1), Some(vec![0, 0, 0, 128]));
        let uint64 = i128::from(u64::MAX);
        assert_eq!(ints("18446744073709551615", DType::U64, 0, uint64), Some(vec![255; 8]));
        for text in [
            "18446744073709551616",
            "99999999999999999999",
            "100000000000000000000",
            "-1",
            "1.0",
            "1e3",
            "01",
            "true",
            "-",
        ] {
            assert_eq!(ints(text, DType::U64, 0, uint64), None, "{text}");
        }
    }

    #[test]
    fn booleans_are_words() {
        let mut data = Vec::new();
        let shape = read_array(b"[true, false]", DType::Bool, Rule::Bool, &mut data).unwrap();
        assert_eq!((&shape[..], &data[..]), (&[2][..], &[1, 0][..]));
        for text in ["tru", "truex", "[true false]", "1", "False"] {
            assert!(read_array(text.as_bytes(), DType::Bool, Rule::Bool, &mut Vec::new()).is_none(), "{text}");
        }
    }
}
