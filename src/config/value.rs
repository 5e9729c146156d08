//! Parses the text of a value into a typed value: numbers, durations, sizes, choices.
//!
//! Parsing has no defaults and no relations between options; an error says what to write instead, and the
//! caller prefixes it with the key. Addresses, ports and storage locations are in [`super::address`].

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use tanist_ha::keys::Name;

/// A type of option values.
pub(super) trait OptionValue: Sized {
    /// The type's name in the reference.
    const KIND: &'static str;

    /// Whether values of this type must never be shown.
    const SECRET: bool = false;

    /// Reads `text`, which is trimmed. The error is the end of a sentence that starts with the value: "is no duration:
    /// write ...".
    fn parse(text: &str) -> Result<Self, String>;
}

/// A number of bytes, written `64 mb`: units are powers of 1024, a bare number is in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemorySize(u64);

impl MemorySize {
    /// A size in bytes.
    pub(crate) const fn of_bytes(bytes: u64) -> MemorySize {
        MemorySize(bytes)
    }

    /// A size in units of 1024 bytes.
    pub(crate) const fn of_kb(kb: u64) -> MemorySize {
        MemorySize(kb << 10)
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The size in bytes, for things in memory: the largest `usize` if it doesn't fit.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

const SIZE_UNITS: [(&str, u32); 5] = [("tb", 40), ("gb", 30), ("mb", 20), ("kb", 10), ("b", 0)];

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |shift: u32| self.0 != 0 && self.0.trailing_zeros() >= shift;
        let (unit, shift) = SIZE_UNITS
            .into_iter()
            .find(|(_, s)| fits(*s))
            .unwrap_or(("b", 0));
        write!(f, "{} {unit}", self.0 >> shift)
    }
}

impl OptionValue for MemorySize {
    const KIND: &'static str = "size";

    fn parse(text: &str) -> Result<MemorySize, String> {
        let wrong =
            || "is no size: write a number and b, kb, mb, gb or tb, as in `64 mb`".to_owned();
        let (number, unit) = split_unit(text).ok_or_else(wrong)?;
        let shift = match unit.as_str() {
            "" | "b" | "bytes" => 0,
            "k" | "kb" | "kibibytes" => 10,
            "m" | "mb" | "mebibytes" => 20,
            "g" | "gb" | "gibibytes" => 30,
            "t" | "tb" | "tebibytes" => 40,
            _ => return Err(wrong()),
        };
        let bytes = number
            .checked_mul(1 << shift)
            .ok_or("is larger than any memory".to_owned())?;
        Ok(MemorySize(bytes))
    }
}

impl OptionValue for Duration {
    const KIND: &'static str = "duration";

    fn parse(text: &str) -> Result<Duration, String> {
        let wrong = || {
            "is no duration: write a whole number and ms, s, min, h or d, as in `10 s`; a bare number is in ms".to_owned()
        };
        let (number, unit) = split_unit(text).ok_or_else(wrong)?;
        let seconds_each = match unit.as_str() {
            "ns" | "nano" | "nanos" | "nanosecond" | "nanoseconds" => {
                return Ok(Duration::from_nanos(number));
            }
            "us" | "µs" | "micro" | "micros" | "microsecond" | "microseconds" => {
                return Ok(Duration::from_micros(number));
            }
            "" | "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => {
                return Ok(Duration::from_millis(number));
            }
            "s" | "sec" | "secs" | "second" | "seconds" => 1,
            "m" | "min" | "mins" | "minute" | "minutes" => 60,
            "h" | "hour" | "hours" => 3_600,
            "d" | "day" | "days" => 86_400,
            _ => return Err(wrong()),
        };
        let seconds = number
            .checked_mul(seconds_each)
            .ok_or("is too long a time".to_owned())?;
        Ok(Duration::from_secs(seconds))
    }
}

/// Parses a duration in the form of options, as in `10 s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    Duration::parse(text)
}

/// Formats a duration as `10 s`: in the largest unit that needs no fraction.
pub(super) fn show_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let units: [(u128, &str); 7] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let fits = |(size, _): &(u128, &str)| nanos != 0 && nanos.is_multiple_of(*size);
    match units.into_iter().find(fits) {
        Some((size, unit)) => format!("{} {unit}", nanos / size),
        None => "0 ms".to_owned(),
    }
}

/// Splits a text into leading digits and the rest in lower case.
fn split_unit(text: &str) -> Option<(u64, String)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, text[end..].trim().to_lowercase()))
}

impl OptionValue for bool {
    const KIND: &'static str = "true or false";

    fn parse(text: &str) -> Result<bool, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("is neither `true` nor `false`".to_owned()),
        }
    }
}

impl OptionValue for u32 {
    const KIND: &'static str = "number";

    fn parse(text: &str) -> Result<u32, String> {
        text.parse()
            .map_err(|_| "is no whole number from 0 to 4294967295".to_owned())
    }
}

impl OptionValue for NonZeroU32 {
    const KIND: &'static str = "number from 1";

    fn parse(text: &str) -> Result<NonZeroU32, String> {
        text.parse()
            .map_err(|_| "is no whole number from 1".to_owned())
    }
}

impl OptionValue for f64 {
    const KIND: &'static str = "decimal number";

    fn parse(text: &str) -> Result<f64, String> {
        let number: Option<f64> = text.parse().ok();
        number
            .filter(|n| n.is_finite())
            .ok_or("is no number such as `1.5`".to_owned())
    }
}

/// A limit for attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    /// At most this number.
    AtMost(u32),
    /// No limit.
    Infinite,
}

impl OptionValue for Attempts {
    const KIND: &'static str = "number or `infinite`";

    fn parse(text: &str) -> Result<Attempts, String> {
        if text.eq_ignore_ascii_case("infinite") {
            return Ok(Attempts::Infinite);
        }
        let number = text
            .parse()
            .map_err(|_| "is neither a whole number nor `infinite`".to_owned())?;
        Ok(Attempts::AtMost(number))
    }
}

/// Number of refused calls in a row after which a component counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureThreshold {
    /// This number, at least 1.
    After(NonZeroU32),
    /// Refused calls alone are not enough (written `-1`).
    Never,
}

impl OptionValue for FailureThreshold {
    const KIND: &'static str = "number from 1, or -1";

    fn parse(text: &str) -> Result<FailureThreshold, String> {
        if text == "-1" {
            return Ok(FailureThreshold::Never);
        }
        let number = text.parse().map_err(|_| {
            "is neither a whole number from 1 nor -1 (which switches it off)".to_owned()
        })?;
        Ok(FailureThreshold::After(number))
    }
}

impl OptionValue for String {
    const KIND: &'static str = "text";

    fn parse(text: &str) -> Result<String, String> {
        if text.is_empty() {
            Err("is empty".to_owned())
        } else {
            Ok(text.to_owned())
        }
    }
}

impl OptionValue for Name {
    const KIND: &'static str = "name";

    fn parse(text: &str) -> Result<Name, String> {
        Name::new(text).map_err(|_| {
            "is no name: use 1 to 200 of A-Z a-z 0-9 . _ - and no leading dot".to_owned()
        })
    }
}

impl OptionValue for PathBuf {
    const KIND: &'static str = "path";

    fn parse(text: &str) -> Result<PathBuf, String> {
        match text {
            "" => Err("is empty".to_owned()),
            url if url.contains("://") => Err("is a URL: this must be a local path".to_owned()),
            path => Ok(PathBuf::from(path)),
        }
    }
}

impl OptionValue for Vec<PathBuf> {
    const KIND: &'static str = "paths, separated by commas";

    fn parse(text: &str) -> Result<Vec<PathBuf>, String> {
        text.split(',')
            .map(|part| PathBuf::parse(part.trim()))
            .collect()
    }
}

/// A text that no log, error or `Debug` shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself. Use it only for the connection that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("******")
    }
}

impl OptionValue for Secret {
    const KIND: &'static str = "text";
    const SECRET: bool = true;

    fn parse(text: &str) -> Result<Secret, String> {
        String::parse(text).map(Secret)
    }
}

/// Declares an enum whose values are words in the configuration.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $kind:literal { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? } $(also { $($other_word:literal = $same:ident),+ $(,)? })? $(else $absent:path)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// All words that the configuration may use.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word that the configuration uses.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl $crate::value::OptionValue for $name {
            const KIND: &'static str = $kind;

            fn parse(text: &str) -> Result<Self, String> {
                match text.to_ascii_lowercase().as_str() {
                    $($word => Ok(Self::$variant),)+
                    $($($other_word => Ok(Self::$same),)+)?
                    other => {
                        $(if let Some(why) = $absent(other) {
                            return Err(why);
                        })?
                        Err($crate::value::not_one_of(other, &[$($word),+]))
                    }
                }
            }
        }
    };
}

pub(super) use choice;

choice! {
    /// What starts TaskManagers.
    WorkerDriver, "`standalone` or `local-process`" {
        /// The operator by hand, or another system.
        Standalone = "standalone",
        /// The leading JobManager, as processes of its host.
        LocalProcess = "local-process",
    }
}

choice! {
    /// Where a job goes.
    ExecutionTarget, "`remote`, `local`, `per-job` or `application`" {
        /// A running cluster.
        Remote = "remote",
        /// A cluster within the command, which ends with it.
        Local = "local",
        /// A cluster of its own that ends with the job. Other processes can join it.
        PerJob = "per-job",
        /// The cluster of a program that brings its own jobs.
        Application = "application",
    } else absent_target
}

impl std::str::FromStr for ExecutionTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<ExecutionTarget, String> {
        ExecutionTarget::parse(text)
    }
}

/// Explains why a target of Flink is not available here.
fn absent_target(text: &str) -> Option<String> {
    let system = match text.split('-').next() {
        Some("kubernetes") => "Kubernetes",
        Some("yarn") => "YARN",
        Some(_) | None => return None,
    };
    Some(format!(
        "`{text}` needs a driver for {system}, which this program does not have: start JobManagers and TaskManagers \
         there by other means and write `remote`, or have a cluster on this host with `local`, `per-job` or `application`"
    ))
}

choice! {
    /// Which users of this host may connect over loopback.
    LocalUsers, "`same` or `any`" {
        /// The process's own user, and root.
        Same = "same",
        /// Every user of the host.
        Any = "any",
    }
}

choice! {
    /// Which TaskManagers slots are taken from.
    LoadBalanceMode, "`none` or `slots`" {
        /// From as few TaskManagers as possible.
        None = "none",
        /// From those with the smallest fraction of slots in use.
        Slots = "slots",
    }
}

choice! {
    /// What happens to a job's tasks after a failure.
    RestartStrategyType, "`none`, `fixed-delay`, `failure-rate` or `exponential-delay`" {
        /// The job fails.
        None = "none",
        /// A limited number of restarts, each after the same delay.
        FixedDelay = "fixed-delay",
        /// Restarts until there are too many failures in one interval.
        FailureRate = "failure-rate",
        /// Restarts after delays that grow while failures go on.
        ExponentialDelay = "exponential-delay",
    } also {
        // Flink accepts these too.
        "off" = None,
        "disable" = None,
        "fixeddelay" = FixedDelay,
        "failurerate" = FailureRate,
        "exponentialdelay" = ExponentialDelay,
    }
}

choice! {
    /// Which tasks of a job restart after a failure.
    FailoverStrategyType, "`region` or `full`" {
        /// The tasks of the region of the failed task.
        Region = "region",
        /// All tasks that have not finished permanently.
        Full = "full",
    }
}

choice! {
    /// Which log events are shown: this level and all above it.
    LogLevel, "`error`, `warn`, `info`, `debug` or `trace`" {
        /// Failures.
        Error = "error",
        /// Possible problems.
        Warn = "warn",
        /// Events of normal operation.
        Info = "info",
        /// Decisions and their reasons.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

choice! {
    /// The format of log events.
    LogFormat, "`text` or `json`" {
        /// One line of text per event.
        Text = "text",
        /// One JSON object per event.
        Json = "json",
    }
}

pub(super) fn not_one_of(text: &str, words: &[&str]) -> String {
    match nearest(text, words.iter().copied()) {
        Some(word) => format!("is none of {}: did you mean `{word}`?", words.join(", ")),
        None => format!("is none of {}", words.join(", ")),
    }
}

/// The candidate with the most similar spelling, if one is similar enough.
pub(super) fn nearest<'a>(
    text: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let score = |candidate: &str| {
        strsim::normalized_damerau_levenshtein(&text.to_lowercase(), &candidate.to_lowercase())
    };
    candidates
        .map(|candidate| (score(candidate), candidate))
        .filter(|(score, _)| *score >= 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
