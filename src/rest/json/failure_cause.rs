//! A failure in the form that Flink's classes read: `failure-cause` of a job's result and of an asynchronous
//! operation.
//!
//! Flink's clients do not read its text but `serialized-throwable`, an
//! `org.apache.flink.util.SerializedThrowable` in Java's serialization format, and refuse the whole answer
//! without it. This module writes one for any text: an object with the text as message and as stack trace, and
//! without a further cause. The format is that of the chapter "Object Serialization Stream Protocol" of Java's
//! specification; numbers are big-endian.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tanist_rest_model::FailureCause;

/// A failure of this class.
pub(crate) fn failure_cause(class: &'static str, text: &str) -> FailureCause {
    FailureCause {
        class: class.into(),
        stack_trace: text.to_owned(),
        serialized_throwable: STANDARD.encode(serialized_throwable(class, text)),
    }
}

const STREAM_MAGIC_AND_VERSION: [u8; 4] = [0xAC, 0xED, 0x00, 0x05];
const TC_NULL: u8 = 0x70;
const TC_CLASSDESC: u8 = 0x72;
const TC_OBJECT: u8 = 0x73;
const TC_STRING: u8 = 0x74;
const TC_ENDBLOCKDATA: u8 = 0x78;
const TC_LONGSTRING: u8 = 0x7C;
const SC_WRITE_METHOD: u8 = 0x01;
const SC_SERIALIZABLE: u8 = 0x02;

/// A field whose value is an object: its name, and the type in Java's signature.
type Field = (&'static str, &'static str);

const TEXT: &str = "Ljava/lang/String;";

fn serialized_throwable(class: &str, text: &str) -> Vec<u8> {
    let mut stream = Stream(STREAM_MAGIC_AND_VERSION.to_vec());
    stream.byte(TC_OBJECT);
    stream.class(
        "org.apache.flink.util.SerializedThrowable",
        7_284_183_123_441_947_635,
        SC_SERIALIZABLE,
        &[
            ("fullStringifiedStackTrace", TEXT),
            ("originalErrorClassName", TEXT),
            ("serializedException", "[B"),
        ],
    );
    stream.class(
        "java.lang.Exception",
        -3_387_516_993_124_229_948,
        SC_SERIALIZABLE,
        &[],
    );
    stream.class(
        "java.lang.Throwable",
        -3_042_686_055_658_047_285,
        SC_SERIALIZABLE | SC_WRITE_METHOD,
        &[
            ("cause", "Ljava/lang/Throwable;"),
            ("detailMessage", TEXT),
            ("stackTrace", "[Ljava/lang/StackTraceElement;"),
            ("suppressedExceptions", "Ljava/util/List;"),
        ],
    );
    // The class has no serializable superclass. The values follow, those of Throwable first.
    stream.byte(TC_NULL);
    stream.byte(TC_NULL);
    stream.text(text);
    stream.byte(TC_NULL);
    stream.byte(TC_NULL);
    stream.byte(TC_ENDBLOCKDATA);
    stream.text(text);
    stream.text(class);
    stream.byte(TC_NULL);
    stream.0
}

struct Stream(Vec<u8>);

impl Stream {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// The description of a class, except for that of its superclass.
    fn class(&mut self, name: &str, version: i64, flags: u8, fields: &[Field]) {
        self.byte(TC_CLASSDESC);
        self.name(name);
        self.0.extend(version.to_be_bytes());
        self.byte(flags);
        let count = u16::try_from(fields.len()).expect("a class has few fields");
        self.0.extend(count.to_be_bytes());
        for (name, signature) in fields {
            self.0.extend(signature.bytes().take(1));
            self.name(name);
            self.text(signature);
        }
        self.byte(TC_ENDBLOCKDATA);
    }

    fn name(&mut self, name: &str) {
        let length = u16::try_from(name.len()).expect("names are short");
        self.0.extend(length.to_be_bytes());
        self.0.extend(name.bytes());
    }

    fn text(&mut self, text: &str) {
        let bytes = modified_utf8(text);
        match u16::try_from(bytes.len()) {
            Ok(length) => {
                self.byte(TC_STRING);
                self.0.extend(length.to_be_bytes());
            }
            Err(_) => {
                self.byte(TC_LONGSTRING);
                self.0.extend((bytes.len() as u64).to_be_bytes());
            }
        }
        self.0.extend(bytes);
    }
}

/// Java's modified UTF-8: each UTF-16 unit is encoded separately, and 0 in two bytes.
fn modified_utf8(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for unit in text.encode_utf16() {
        let low = |shift: u16| 0x80 | ((unit >> shift) & 0x3F) as u8;
        match unit {
            1..0x80 => bytes.push(unit as u8),
            0 | 0x80..0x800 => bytes.extend([0xC0 | (unit >> 6) as u8, low(0)]),
            _ => bytes.extend([0xE0 | (unit >> 12) as u8, low(6), low(0)]),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_encoded_as_java_does_it() {
        assert_eq!(modified_utf8("a\0ä€"), b"a\xC0\x80\xC3\xA4\xE2\x82\xAC");
        assert_eq!(modified_utf8("😀"), b"\xED\xA0\xBD\xED\xB8\x80");
    }

    /// `cargo xtask flink` makes Java itself read it.
    #[test]
    fn an_object_has_its_text_and_any_length_of_it() {
        let short = serialized_throwable("tanist.JobFailed", "it broke");
        assert!(short.starts_with(b"\xAC\xED\x00\x05sr\x00\x29org.apache.flink.util"));
        assert!(
            short.ends_with(b"pt\x00\x08it brokeppxt\x00\x08it broket\x00\x10tanist.JobFailedp")
        );
        let long = serialized_throwable("c", &"x".repeat(70_000));
        let announced = [&[TC_LONGSTRING][..], &70_000_u64.to_be_bytes()].concat();
        assert!(long.windows(9).any(|window| window == announced));
    }
}
