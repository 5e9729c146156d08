//! One CSV record as in RFC 4180: values between separators, in double quotes if they contain a separator, a
//! quote or a line break; a quote within quotes is doubled. A quote anywhere else is an error: otherwise the
//! rest of a record that was split at a line break would pass for a record.

use std::borrow::Cow;

use super::parse::BYTE_ORDER_MARK;

/// A value, and whether it was quoted.
pub(super) type Field<'a> = (Cow<'a, str>, bool);

/// Splits a record into its values.
pub(super) fn split(text: &str, separator: char) -> Result<Vec<Field<'_>>, String> {
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (value, after) = unquote(quoted, fields.len() + 1)?;
                ((value, true), after)
            }
            None => {
                let end = rest.find(separator).unwrap_or(rest.len());
                if rest[..end].contains('"') {
                    let number = fields.len() + 1;
                    return Err(format!(
                        "no CSV record: value {number} has a quote and does not begin with one"
                    ));
                }
                ((Cow::Borrowed(&rest[..end]), false), &rest[end..])
            }
        };
        fields.push(field);
        if after.is_empty() {
            return Ok(fields);
        }
        rest = after.strip_prefix(separator).ok_or_else(|| {
            format!(
                "no CSV record: value {} goes on after its closing quote",
                fields.len()
            )
        })?;
    }
}

/// Returns the value up to the closing quote, and the text after it.
fn unquote(text: &str, number: usize) -> Result<(Cow<'_, str>, &str), String> {
    let mut value = Cow::Borrowed("");
    let mut rest = text;
    loop {
        let Some(quote) = rest.find('"') else {
            return Err(format!(
                "no CSV record: value {number} has no closing quote"
            ));
        };
        let (before, after) = (&rest[..quote], &rest[quote + 1..]);
        match after.strip_prefix('"') {
            Some(after) => {
                let value = value.to_mut();
                value.push_str(before);
                value.push('"');
                rest = after;
            }
            None if value.is_empty() => return Ok((Cow::Borrowed(before), after)),
            None => {
                value.to_mut().push_str(before);
                return Ok((value, after));
            }
        }
    }
}

/// Appends a value, quoted if necessary. An empty text is quoted, to distinguish it from a missing value.
pub(super) fn write(text: &str, separator: char, line: &mut String) {
    let special = |c: char| c == separator || matches!(c, '"' | '\n' | '\r');
    let is_plain = !text.is_empty() && !text.starts_with(BYTE_ORDER_MARK);
    if is_plain && !text.contains(special) {
        line.push_str(text);
        return;
    }
    line.push('"');
    for (index, part) in text.split('"').enumerate() {
        if index > 0 {
            line.push_str("\"\"");
        }
        line.push_str(part);
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(text: &str) -> Vec<String> {
        let fields = split(text, ',').expect("a record");
        fields
            .into_iter()
            .map(|(text, _)| text.into_owned())
            .collect()
    }

    #[test]
    fn quotes_protect_and_are_doubled() {
        assert_eq!(values("a,b c,,"), ["a", "b c", "", ""]);
        assert_eq!(values(""), [""]);
        assert_eq!(
            values(r#""a,b","say ""hi""","",d'e"#),
            ["a,b", "say \"hi\"", "", "d'e"]
        );
        assert_eq!(values(r#""""""#), ["\""]);
        for wrong in [
            r#""a"#,
            r#""a"b,c"#,
            r#"a,""""#,
            r#"y","",0.1"#,
            r#"a, "b""#,
        ] {
            assert!(split(wrong, ',').is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            texts in prop::collection::vec("[a\",;\n ß]{0,6}", 1..5), separator in "[,;\t|]",
        ) {
            let separator = separator.chars().next().expect("one");
            let mut line = String::new();
            for (index, text) in texts.iter().enumerate() {
                if index > 0 {
                    line.push(separator);
                }
                write(text, separator, &mut line);
            }
            let read = split(&line, separator).expect("a record");
            prop_assert_eq!(read.into_iter().map(|(text, _)| text.into_owned()).collect::<Vec<_>>(), texts);
        }

        #[test]
        fn no_text_panics(text in "[a\",\n]{0,12}") {
            let _ = split(&text, ',');
        }
    }
}
