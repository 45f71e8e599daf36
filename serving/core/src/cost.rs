//! What batches of one plan take, by those before.

use std::time::Duration;

/// How much the newest batch counts in the running means: some five batches after a change they have followed it, so
/// that a rush for a model that takes as long for many rows as for one is soon answered in large batches.
const NEWEST: f64 = 0.2;
/// One pause of the machine must not make a model look slow: a batch counts for so many times what was expected at most.
const OUTLIER: f64 = 4.0;

/// Running means of what batches took, and of their rows. The guess for other rows is their ratio, so that the sum over
/// a queue is right even where few rows cost more, each, than many.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    /// Of a batch, in seconds; 0 for not known.
    seconds: f64,
    rows: f64,
}

impl Cost {
    /// What rows take; `None` for not known.
    pub fn of(&self, rows: usize) -> Option<Duration> {
        (self.seconds > 0.0).then(|| Duration::from_secs_f64(self.seconds * rows as f64 / self.rows))
    }

    /// What a batch takes, however many share it.
    pub fn least(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Follows what a batch took.
    pub fn learn(&mut self, took: Duration, rows: usize) {
        let (took, rows) = (took.as_secs_f64().max(1e-9), rows.max(1) as f64);
        let usual = self.of(rows as usize).map_or(took, |time| time.as_secs_f64().max(self.seconds));
        if self.seconds == 0.0 {
            *self = Cost { seconds: took, rows };
        } else {
            self.seconds += NEWEST * (took.min(OUTLIER * usual) - self.seconds);
            self.rows += NEWEST * (rows - self.rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_takes_as_long_for_many_rows_soon_gets_many() {
        let (mut cost, batch) = (Cost::default(), Duration::from_millis(80));
        assert!(cost.of(1).is_none());
        cost.learn(batch, 1);
        assert_eq!(cost.of(3), Some(Duration::from_millis(240)));
        for _ in 0..6 {
            // What may wait 200 ms is let in.
            let rows = (1..=64).rev().find(|rows| cost.of(*rows).is_some_and(|time| time.as_millis() <= 200));
            cost.learn(batch, rows.unwrap_or(1));
        }
        assert!(cost.of(8).is_some_and(|time| time.as_millis() <= 200));
        assert_eq!(cost.least().as_millis(), 80);
    }

    #[test]
    fn one_pause_counts_for_little() {
        let mut cost = Cost::default();
        cost.learn(Duration::from_millis(1), 10);
        cost.learn(Duration::from_secs(60), 10);
        assert!(cost.least() < Duration::from_millis(2));
    }
}
