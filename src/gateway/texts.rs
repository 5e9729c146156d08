//! Texts for people that are kept in records.

/// Cuts a text to about `bytes`, in its middle: mostly the place of a failure is at its beginning, and the cause at its
/// end.
pub fn shorten(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let beginning = text.floor_char_boundary(bytes / 2);
        let end = text.ceil_char_boundary(text.len() - bytes / 2);
        text.replace_range(beginning..end, " ... ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        let mut text = "short".to_owned();
        shorten(&mut text, 5);
        assert_eq!(text, "short");
        let middle = "ä".repeat(200);
        let mut text = format!("restoring counts (1/2): {middle}: no space left");
        shorten(&mut text, 80);
        assert!(text.len() <= 85, "{text}");
        assert!(text.starts_with("restoring counts (1/2): "), "{text}");
        assert!(text.ends_with(": no space left"), "{text}");
    }
}
