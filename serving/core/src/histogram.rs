//! Values in buckets: TensorFlow Serving's, and those of Prometheus' native histograms.

use std::collections::HashMap;
use std::time::Duration;

/// TensorFlow Serving's buckets for microseconds: 10 * 1.8^i, 33 of them, and one for what is above.
const BOUNDS: [f64; 33] = {
    let mut bounds = [10.0; 33];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] * 1.8;
        index += 1;
    }
    bounds
};
/// Prometheus' native histograms of schema 3 have eight buckets for each factor of two: 0.5 * 2^(i/8).
const FRACTIONS: [f64; 8] = [
    0.5,
    0.545_253_866_332_628_8,
    0.594_603_557_501_360_5,
    0.648_419_777_325_504_8,
    0.707_106_781_186_547_5,
    0.771_105_412_703_970_4,
    0.840_896_415_253_714_4,
    0.917_004_043_204_671_1,
];
/// The buckets that are kept: from 2^-10 (a nanosecond, in microseconds) to 2^36 (19 hours).
const FIRST: i32 = -80;
const LAST: i32 = 288;
/// A trace that is recorded, by the 32 hexadecimal digits of its id.
pub type TraceId = [u8; 32];

/// Values in the buckets of a native histogram.
#[derive(Clone, Debug, Default)]
pub struct Native {
    buckets: Vec<u64>,
    pub zeros: u64,
    pub sum: f64,
}

impl Native {
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        if value <= 0.0 {
            self.zeros += 1;
            return;
        }
        if self.buckets.is_empty() {
            self.buckets.resize((LAST - FIRST + 1) as usize, 0);
        }
        self.buckets[(bucket(value).clamp(FIRST, LAST) - FIRST) as usize] += 1;
    }

    /// The numbers of buckets that hold values, and how many.
    pub fn filled(&self) -> Vec<(i32, u64)> {
        let numbered = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        numbered.map(|(index, count)| (index as i32 + FIRST, *count)).collect()
    }
}

/// The number of a native bucket: its upper bound is 2^(number/8).
fn bucket(value: f64) -> i32 {
    // No value here is so small that it is not normalized.
    let bits = value.to_bits();
    let exponent = (bits >> 52) as i32 - 1022;
    let fraction = f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52);
    FRACTIONS.partition_point(|bound| *bound < fraction) as i32 + (exponent - 1) * FRACTIONS.len() as i32
}

/// Times in TensorFlow Serving's buckets, and in native ones; in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    pub counts: Vec<u64>,
    pub native: Native,
    /// By bucket the newest request whose trace is recorded: its id, its time, and when it was, in milliseconds.
    pub exemplars: HashMap<usize, (TraceId, f64, u64)>,
}

impl Histogram {
    pub fn add(&mut self, time: Duration, trace: Option<(TraceId, u64)>) {
        let value = microseconds(time);
        let index = BOUNDS.partition_point(|bound| *bound < value);
        self.counts.resize(BOUNDS.len() + 1, 0);
        self.counts[index] += 1;
        self.native.add(value);
        if let Some((id, when)) = trace {
            self.exemplars.insert(index, (id, value, when));
        }
    }
}

pub fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_buckets_are_bounded_by_powers_of_the_eighth_root_of_two() {
        for number in -80..=288 {
            let bound = 2f64.powf(f64::from(number) / 8.0);
            assert!(bucket(bound * 0.999_999) <= number && bucket(bound * 1.000_001) == number + 1, "{number}");
        }
        assert_eq!([0.5, 1.0, 2.0, 1024.0].map(bucket), [-8, 0, 8, 80]);
    }

    #[test]
    fn values_outside_of_all_buckets_are_in_the_nearest() {
        let mut native = Native::default();
        for value in [0.0, 1e-9, 1.0, 1.0, 1e30] {
            native.add(value);
        }
        assert_eq!((native.zeros, native.filled()), (1, vec![(FIRST, 1), (0, 2), (LAST, 1)]));
    }

    #[test]
    fn upstream_s_buckets_hold_their_upper_bounds() {
        let mut histogram = Histogram::default();
        for nanoseconds in [10_000, 10_001, 18_000] {
            histogram.add(Duration::from_nanos(nanoseconds), None);
        }
        histogram.add(Duration::from_secs(1 << 20), Some(([b'a'; 32], 7)));
        assert_eq!((histogram.counts[0], histogram.counts[1], histogram.counts[33]), (1, 2, 1));
        assert_eq!(histogram.exemplars[&33].2, 7);
    }
}
