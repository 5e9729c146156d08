//! The file mode creation mask as an option value.

use std::fmt;

use super::value::OptionValue;

/// A file mode creation mask, as the shell's `umask` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Umask(u32);

impl Umask {
    /// Its nine bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Takes the lowest nine bits and ignores the others.
    pub fn of(bits: u32) -> Umask {
        Umask(bits & 0o777)
    }
}

impl fmt::Display for Umask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03o}", self.0)
    }
}

impl OptionValue for Umask {
    const KIND: &'static str = "octal number";

    fn parse(text: &str) -> Result<Umask, String> {
        match u32::from_str_radix(text, 8) {
            Ok(bits) if bits <= 0o777 => Ok(Umask(bits)),
            Ok(_) | Err(_) => {
                Err("is no mask: write up to three octal digits, as in `022`".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_and_shown_in_octal() {
        let mask = Umask::parse("027").expect("a mask");
        assert_eq!((mask.bits(), mask.to_string().as_str()), (0o027, "027"));
        for wrong in ["", "8", "1000", "u=rwx", "-1"] {
            assert!(Umask::parse(wrong).is_err(), "{wrong}");
        }
    }
}
