//! Tests of [`super`]: each form of a value, and the error for each form that is refused.

use super::*;
use crate::HighAvailabilityType;

#[test]
fn durations_are_read_in_all_of_flinks_forms() {
    let cases = [
        ("10 s", Duration::from_secs(10)),
        ("500 ms", Duration::from_millis(500)),
        ("1 min", Duration::from_secs(60)),
        ("2h", Duration::from_secs(7200)),
        ("1 Day", Duration::from_secs(86_400)),
        ("250", Duration::from_millis(250)),
        ("5 us", Duration::from_micros(5)),
        ("0", Duration::ZERO),
    ];
    for (text, expected) in cases {
        assert_eq!(Duration::parse(text), Ok(expected), "{text}");
    }
}

#[test]
fn a_wrong_duration_is_answered_with_the_form_to_write() {
    for text in ["", "s", "1.5 s", "-1 s", "10 parsecs", "ten s"] {
        let message = Duration::parse(text).expect_err(text);
        assert!(message.contains("`10 s`"), "{text}: {message}");
    }
    let message = Duration::parse("18446744073709551615 d").expect_err("overflow");
    assert!(message.contains("too long"), "{message}");
}

#[test]
fn a_shown_duration_reads_back_as_itself() {
    for text in [
        "0 ms", "10 s", "500 ms", "1 min", "2 h", "1 d", "90 s", "1500 ms", "7 ns",
    ] {
        let duration = Duration::parse(text).expect(text);
        assert_eq!(show_duration(duration), text);
    }
}

#[test]
fn sizes_are_powers_of_1024_and_show_as_written() {
    let cases = [
        ("64 mb", 64 << 20, "64 mb"),
        ("1gb", 1 << 30, "1 gb"),
        ("512", 512, "512 b"),
        ("1536 kb", 1536 << 10, "1536 kb"),
        ("0", 0, "0 b"),
        ("3k", 3072, "3 kb"),
    ];
    for (text, bytes, shown) in cases {
        let size = MemorySize::parse(text).expect(text);
        assert_eq!(
            (size.bytes(), size.to_string().as_str()),
            (bytes, shown),
            "{text}"
        );
    }
    assert!(MemorySize::parse("64 megs").is_err());
    assert!(
        MemorySize::parse("99999999999 tb")
            .expect_err("overflow")
            .contains("larger")
    );
}

#[test]
fn a_misspelled_choice_is_answered_with_the_nearest_word() {
    let message = HighAvailabilityType::parse("zookeper").expect_err("misspelled");
    assert_eq!(
        message,
        "is none of etcd, zookeeper, embedded: did you mean `zookeeper`?"
    );
    assert_eq!(
        HighAvailabilityType::parse("ETCD"),
        Ok(HighAvailabilityType::Etcd)
    );
    let message = LogFormat::parse("xml").expect_err("unknown");
    assert_eq!(message, "is none of text, json");
}

#[test]
fn numbers_attempts_and_thresholds_refuse_what_they_can_not_hold() {
    assert_eq!(Attempts::parse("infinite"), Ok(Attempts::Infinite));
    assert_eq!(Attempts::parse("3"), Ok(Attempts::AtMost(3)));
    assert!(Attempts::parse("-3").is_err());
    assert_eq!(FailureThreshold::parse("-1"), Ok(FailureThreshold::Never));
    assert!(FailureThreshold::parse("0").is_err());
    assert!(NonZeroU32::parse("0").is_err());
    assert!(f64::parse("NaN").is_err());
    assert!(bool::parse("yes").is_err());
    assert!(PathBuf::parse("s3://bucket").is_err());
}

#[test]
fn a_secret_does_not_show() {
    let secret = Secret::parse("hunter2").expect("a text");
    assert!(!format!("{secret:?}").contains("hunter2"));
    assert_eq!(secret.reveal(), "hunter2");
}
