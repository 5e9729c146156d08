//! The format of an event's fields in a text log: the message, then `name=value`, all on one line.
//!
//! Control characters are escaped here for all events: any value may come from outside. Only multi-line texts
//! of this program itself are exempt.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use super::printable::Escaping;

const MESSAGE: &str = "message";
/// The fields whose line breaks are kept: the settings of a starting process, and the backtrace of a panic. A field
/// with values from other processes or users must not be here: a line break could forge an event.
const OF_LINES: [&str; 2] = ["configuration", "backtrace"];
/// Prefix of the extra fields that the crate `log` adds.
const OF_LOG: &str = "log.";

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = Line {
            writer,
            is_empty: true,
            written: Ok(()),
        };
        fields.record(&mut line);
        line.written
    }
}

struct Line<'writer> {
    writer: Writer<'writer>,
    is_empty: bool,
    written: fmt::Result,
}

impl Line<'_> {
    fn write(&mut self, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
        if !self.is_empty {
            self.writer.write_char(' ')?;
        }
        self.is_empty = false;
        let name = field.name();
        let name = name.strip_prefix("r#").unwrap_or(name);
        if name != MESSAGE {
            match self.writer.has_ansi_escapes() {
                true => write!(self.writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?,
                false => write!(self.writer, "{name}=")?,
            }
        }
        match OF_LINES.contains(&name) {
            true => write!(Escaping::lines(&mut self.writer), "{value:?}"),
            false => write!(Escaping::whole(&mut self.writer), "{value:?}"),
        }
    }
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.written.is_ok() && !field.name().starts_with(OF_LOG) {
            self.written = self.write(field, value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            // In quotes it would not look like a message.
            MESSAGE => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock();
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The log text of an event of the crate `log`.
    fn logged(log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .fmt_fields(Fields)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let bytes = lines.0.lock();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn whatever_a_stranger_sends_an_event_is_one_line_of_text_that_is_seen() {
        let incarnation = "x\n2026-01-01T00:00:00Z  INFO tanist: job ended job=forged\u{1b}[1A";
        let error = io::Error::other(incarnation);
        let text = logged(|| {
            tracing::warn!(%incarnation, %error, said = incarnation, "refused: {incarnation}");
        });
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(text.matches(r"job=forged\u{1b}[1A").count(), 4, "{text}");
    }

    #[test]
    fn spans_are_no_way_around_it() {
        let text = logged(|| {
            let span = tracing::info_span!("job", name = %"a\nb");
            span.in_scope(|| tracing::info!("runs"));
        });
        assert_eq!(text, " INFO job{name=a\\nb}: runs\n");
    }

    #[test]
    fn fields_follow_the_message_and_what_we_say_in_lines_has_them() {
        let text = logged(|| {
            tracing::info!(pid = 7, name = "a b", configuration = %"x\n  y", "starting {}", "jm");
        });
        assert_eq!(
            text,
            " INFO starting jm pid=7 name=\"a b\" configuration=x\n  y\n"
        );
    }
}
