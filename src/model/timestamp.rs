//! Timestamps as texts. A timestamp is milliseconds since 1970-01-01T00:00:00Z; finer parts of a text are
//! dropped.

use std::fmt::Write as _;

use chrono::format::{self, Fixed, Item, Parsed, StrftimeItems};
use chrono::{DateTime, NaiveDateTime, NaiveTime, SecondsFormat};

/// Timestamps farther from 1970 than this are considered errors: 100 million days, about 270,000 years.
pub const FARTHEST: i64 = 8_640_000_000_000_000;

/// From the year 1 to the end of 9999.
const WITH_TEXT: std::ops::Range<i64> = -62_135_596_800_000..253_402_300_800_000;

/// Formats without a time zone: UTC.
const WITHOUT_ZONE: [&str; 2] = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"];

/// A Wednesday in summer, with which formats are tested.
const EXAMPLE: i64 = 1_784_118_896_789;

/// Parses RFC 3339 (with a space instead of the `T`, or without a time zone, if need be) or an integer number
/// of milliseconds; or, if `format` is given, a text of that format. A date without a time of day is its
/// midnight.
pub fn parse(text: &str, format: Option<&str>) -> Option<i64> {
    let text = text.trim();
    let millis = match format {
        Some(format) => by_format(text, format)?,
        None => {
            if let Ok(millis) = text.parse::<i64>() {
                return in_range(millis);
            }
            DateTime::parse_from_rfc3339(text)
                .map(|time| time.timestamp_millis())
                .or_else(|_| naive(text, WITHOUT_ZONE[0]))
                .or_else(|_| naive(text, WITHOUT_ZONE[1]))
                .ok()?
        }
    };
    in_range(millis)
}

fn by_format(text: &str, format: &str) -> Option<i64> {
    let mut parsed = Parsed::new();
    format::parse(&mut parsed, text, StrftimeItems::new(format)).ok()?;
    if let Ok(time) = parsed.to_datetime() {
        return Some(time.timestamp_millis());
    }
    if let Ok(time) = parsed.to_naive_datetime_with_offset(0) {
        return Some(time.and_utc().timestamp_millis());
    }
    let has_time_of_day = parsed.hour_div_12().is_some()
        || parsed.hour_mod_12().is_some()
        || parsed.minute().is_some()
        || parsed.second().is_some()
        || parsed.nanosecond().is_some();
    if has_time_of_day {
        return None;
    }
    let midnight = parsed.to_naive_date().ok()?.and_time(NaiveTime::MIN);
    let offset = i64::from(parsed.offset().unwrap_or(0));
    Some(midnight.and_utc().timestamp_millis() - offset * 1_000)
}

fn naive(text: &str, format: &str) -> Result<i64, chrono::ParseError> {
    NaiveDateTime::parse_from_str(text, format).map(|time| time.and_utc().timestamp_millis())
}

/// Returns the timestamp if it is in the valid range.
pub fn in_range(millis: i64) -> Option<i64> {
    (-FARTHEST..=FARTHEST).contains(&millis).then_some(millis)
}

/// Formats a timestamp as RFC 3339 in UTC; one whose year does not have four digits as its milliseconds.
pub fn format(millis: i64) -> String {
    match DateTime::from_timestamp_millis(millis) {
        Some(time) if WITH_TEXT.contains(&millis) => {
            time.to_rfc3339_opts(SecondsFormat::Millis, true)
        }
        Some(_) | None => millis.to_string(),
    }
}

/// Whether a format is valid.
pub fn is_format(format: &str) -> bool {
    !format.is_empty() && StrftimeItems::new(format).all(|item| !matches!(item, Item::Error))
}

/// Whether a text of this format determines a point in time. One with only the hour, or only the year, does
/// not.
pub(crate) fn says_a_time(format: &str) -> bool {
    let Some(example) = DateTime::from_timestamp_millis(EXAMPLE) else {
        return false;
    };
    // `%#z` exists only for parsing and can't be formatted.
    let only_read = StrftimeItems::new("%#z").next();
    let items = StrftimeItems::new(format).map(|item| match Some(&item) == only_read.as_ref() {
        true => Item::Fixed(Fixed::TimezoneOffset),
        false => item,
    });
    let items: Vec<Item<'_>> = items.collect();
    let mut text = String::new();
    is_format(format)
        && write!(text, "{}", example.format_with_items(items.iter())).is_ok()
        && parse(&text, Some(format)).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_with_and_without_a_zone() {
        let expected = Some(1_767_323_045_678);
        for text in [
            "2026-01-02T03:04:05.678Z",
            "2026-01-02 04:04:05.678999+01:00",
            "2026-01-02T03:04:05.678",
            " 2026-01-02 03:04:05.678 ",
            "1767323045678",
        ] {
            assert_eq!(parse(text, None), expected, "{text}");
        }
        for text in ["", "yesterday", "2026-01-02", "9223372036854775807"] {
            assert_eq!(parse(text, None), None, "{text}");
        }
    }

    #[test]
    fn a_format_is_followed() {
        let format = Some("%d/%b/%Y:%H:%M:%S %z");
        assert_eq!(
            parse("02/Jan/2026:04:04:05 +0100", format),
            Some(1_767_323_045_000)
        );
        assert_eq!(
            parse("2026 01 02 03 04 05", Some("%Y %m %d %H %M %S")),
            Some(1_767_323_045_000)
        );
        assert!(is_format("%Y") && !is_format("%!") && !is_format(""));
    }

    #[test]
    fn a_date_is_its_midnight_and_a_part_of_a_time_is_none() {
        let midnight = Some(1_767_312_000_000);
        for (text, format) in [
            ("2026-01-02", "%Y-%m-%d"),
            ("02.01.26", "%d.%m.%y"),
            ("2026-002", "%Y-%j"),
            ("2026-01-02 00:00", "%Y-%m-%d %H:%M"),
        ] {
            assert_eq!(parse(text, Some(format)), midnight, "{format}");
            assert!(says_a_time(format), "{format}");
        }
        assert_eq!(
            parse("2026-01-02 +0100", Some("%Y-%m-%d %z")),
            midnight.map(|midnight| midnight - 3_600_000)
        );
        for format in [
            "%s",
            "%+",
            "%c",
            "%d/%b/%Y:%H:%M:%S %#z",
            "%FT%T%.f%Z",
            "%F %I:%M %p",
        ] {
            assert!(says_a_time(format), "{format}");
        }
        for format in [
            "%H",
            "%H:%M:%S",
            "%Y",
            "%Y-%m",
            "%Y-%m-%d %H",
            "at",
            "",
            "%!",
        ] {
            assert!(!says_a_time(format), "{format}");
        }
        assert_eq!(parse("2026-01-02 03", Some("%Y-%m-%d %H")), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            millis in prop_oneof![-FARTHEST..=FARTHEST, -100_000_000_000_000_i64..300_000_000_000_000],
        ) {
            prop_assert_eq!(parse(&format(millis), None), Some(millis));
        }

        #[test]
        fn no_text_and_no_format_panic(text in ".{0,30}", pattern in "(%[-#:.0-9]{0,3}[a-zA-Z+]|.){0,6}") {
            let _ = parse(&text, None);
            let _ = says_a_time(&pattern);
            if is_format(&pattern) {
                let _ = parse(&text, Some(&pattern));
            }
        }
    }
}
