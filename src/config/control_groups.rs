//! The option value that names the control group below which a process makes others.

use std::path::PathBuf;

use super::value::OptionValue;

/// Where a process makes control groups for its child processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlGroupsOption {
    /// Nowhere.
    Off,
    /// Below its own group, if that is delegated to it.
    Auto,
    /// Below this group.
    At(PathBuf),
}

impl OptionValue for ControlGroupsOption {
    const KIND: &'static str = "`off`, `auto`, or absolute path";

    fn parse(text: &str) -> Result<ControlGroupsOption, String> {
        match text {
            "off" => Ok(ControlGroupsOption::Off),
            "auto" => Ok(ControlGroupsOption::Auto),
            path if path.starts_with('/') => Ok(ControlGroupsOption::At(PathBuf::from(path))),
            _ => Err(
                "is neither `off` nor `auto`, nor the path of a control group: write for example \
                 `/sys/fs/cgroup/system.slice/tanist.service`"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_word_or_a_path() {
        let parse = ControlGroupsOption::parse;
        assert_eq!(parse("off"), Ok(ControlGroupsOption::Off));
        assert_eq!(parse("auto"), Ok(ControlGroupsOption::Auto));
        let path = ControlGroupsOption::At(PathBuf::from("/sys/fs/cgroup/x"));
        assert_eq!(parse("/sys/fs/cgroup/x"), Ok(path));
        for wrong in ["", "on", "tanist.slice"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
