//! Samples of one quantity, and their statistics.

use std::fmt;

/// The unit of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Milliseconds.
    Milliseconds,
    /// MiB of memory.
    Mebibytes,
    /// KiB of memory.
    Kibibytes,
    /// Events per second.
    PerSecond,
    /// Millions of events per second.
    MillionsPerSecond,
    /// Seconds of CPU time per million events.
    CpuSecondsPerMillion,
    /// Fraction of one core, in percent.
    PercentOfACore,
    /// A plain count.
    Count,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Milliseconds => "ms",
            Unit::Mebibytes => "MiB",
            Unit::Kibibytes => "KiB",
            Unit::PerSecond => "/s",
            Unit::MillionsPerSecond => "M/s",
            Unit::CpuSecondsPerMillion => "CPU s/M",
            Unit::PercentOfACore => "% of a core",
            Unit::Count => "",
        })
    }
}

/// Samples of one quantity, in the order in which they were taken.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a sample. Values that are not finite are ignored.
    pub fn push(&mut self, sample: f64) {
        if sample.is_finite() {
            self.0.push(sample);
        }
    }

    /// All samples.
    pub fn all(&self) -> &[f64] {
        &self.0
    }

    /// The smallest sample.
    pub fn min(&self) -> Option<f64> {
        self.quantile(0.0)
    }

    /// The sample in the middle; of an even number the mean of the two in the middle.
    pub fn median(&self) -> Option<f64> {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            return sorted.get(middle).copied();
        }
        let below = sorted.get(middle.checked_sub(1)?)?;
        Some((below + sorted.get(middle)?) / 2.0)
    }

    /// The largest sample.
    pub fn max(&self) -> Option<f64> {
        self.quantile(1.0)
    }

    /// The smallest sample that is not exceeded by at least this fraction of all samples.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let sorted = self.sorted();
        // Between 1 and the number of samples.
        let rank = (part * sorted.len() as f64).ceil().max(1.0) as usize;
        sorted.get(rank.min(sorted.len()).checked_sub(1)?).copied()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Samples {
        let mut collected = Samples::default();
        samples
            .into_iter()
            .for_each(|sample| collected.push(sample));
        collected
    }
}

/// Formats a number with three significant digits, or all digits before the point.
pub fn shown(value: f64) -> String {
    let size = value.abs();
    if size >= 1000.0 {
        grouped(value)
    } else if size >= 100.0 || size == 0.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 0.1 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// `12 345`
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", digits.as_str()),
    };
    let mut text = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let samples: Samples = [4.0, 1.0, 3.0, 100.0].into_iter().collect();
        assert_eq!(samples.min(), Some(1.0));
        assert_eq!(samples.median(), Some(3.5));
        assert_eq!(samples.max(), Some(100.0));
        let samples: Samples = [9.0, 1.0, 3.0].into_iter().collect();
        assert_eq!(samples.median(), Some(3.0));
    }

    #[test]
    fn nothing_measured_has_no_median() {
        let none = Samples::default();
        assert_eq!((none.min(), none.median(), none.max()), (None, None, None));
        let no_number: Samples = [f64::NAN].into_iter().collect();
        assert_eq!(no_number.median(), None);
    }

    #[test]
    fn a_quantile_is_a_sample_that_was_taken() {
        let samples: Samples = (1..=100).map(f64::from).collect();
        assert_eq!(samples.quantile(0.99), Some(99.0));
        assert_eq!(samples.quantile(0.5), Some(50.0));
        let one: Samples = [7.0].into_iter().collect();
        assert_eq!(one.quantile(0.99), Some(7.0));
    }

    #[test]
    fn numbers_are_shown_with_three_digits_or_grouped() {
        let texts = [
            0.0,
            0.012_34,
            0.1234,
            1.234,
            12.34,
            123.4,
            1234.5,
            -1_234_567.0,
        ]
        .map(shown);
        let expected = [
            "0",
            "0.012",
            "0.12",
            "1.23",
            "12.3",
            "123",
            "1 234",
            "-1 234 567",
        ];
        assert_eq!(texts, expected);
    }
}
