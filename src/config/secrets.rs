//! Secrets in files: named by an option, or as a credential of systemd.
//!
//! A secret comes from one place: two are an error, because it would be unclear which one is used. No message
//! contains the value.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::build::stores::PASSWORDS;
use super::error::{Problem, Source};
use super::table::{Key, find};
use super::value::{OptionValue as _, Secret};
use super::values::Values;

/// The environment variable that names the directory of a unit's systemd credentials.
const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// A secret option and its alternatives.
pub(super) struct Form {
    pub(super) secret: &'static Key<Secret>,
    pub(super) file: &'static Key<PathBuf>,
    /// The name of its systemd credential.
    pub(super) credential: &'static str,
}

/// The directory of this process's credentials, if it has any.
pub(super) fn credentials_directory(environment: &[(String, String)]) -> Option<PathBuf> {
    let found = environment
        .iter()
        .find(|(name, value)| name == DIRECTORY && !value.is_empty());
    found.map(|(_, value)| PathBuf::from(value))
}

/// Advice on what to write instead of a secret after `-D`.
pub(super) fn advice(secret: &str) -> String {
    match PASSWORDS.iter().find(|form| form.secret.name == secret) {
        Some(form) => format!(
            "Write it into a file that only this user can read, and `-D {}=FILE`",
            form.file.name
        ),
        None => "Write it into the configuration file".to_owned(),
    }
}

/// Sets the secrets that are in files, and returns the problems.
pub(super) fn read(values: &mut Values, credentials: Option<&Path>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for form in &PASSWORDS {
        if let Err(message) = form.read(values, credentials) {
            let keys = [form.secret.name, form.file.name].map(str::to_owned);
            problems.push(Problem {
                keys: keys.to_vec(),
                message,
            });
        }
    }
    problems
}

impl Form {
    fn read(&self, values: &mut Values, credentials: Option<&Path>) -> Result<(), String> {
        let named = values.find(self.file);
        let credential = credentials
            .map(|directory| directory.join(self.credential))
            .filter(|path| path.exists());
        let mut places = Vec::new();
        if values.is_set(self.secret.name) {
            places.push(values.describe(self.secret.name));
        }
        if named.is_some() {
            places.push(values.describe(self.file.name));
        }
        if let Some(path) = &credential {
            places.push(format!("there is the credential {}", path.display()));
        }
        if places.len() > 1 {
            return Err(format!("{}: one secret, one place", places.join(", ")));
        }
        let (path, text) = match (named, credential) {
            (Some(path), _) => {
                let named = values.describe(self.file.name);
                let text = check_closed(&path).and_then(|()| content(&path));
                (path, text.map_err(|wrong| format!("{named}, {wrong}"))?)
            }
            // Not checked: systemd lets only the unit's user read it and enter its directory.
            (None, Some(path)) => {
                let text = content(&path);
                let text = text.map_err(|wrong| format!("{}, {wrong}", path.display()))?;
                (path, text)
            }
            (None, None) => return Ok(()),
        };
        if let Err(wrong) = Secret::parse(&text) {
            return Err(format!("the content of {} {wrong}", path.display()));
        }
        if let Some(spec) = find(self.secret.name) {
            values.set(spec, text, Source::SecretFile { path });
        }
        Ok(())
    }
}

/// The text of a file without the line break at its end.
fn content(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("which can't be read: {error}"))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

/// Checks that other users can't read a file with a secret. A file of root may be readable by a group: that
/// is how a service gets access to it. A missing file is not reported here.
pub(super) fn check_closed(path: &Path) -> Result<(), String> {
    let Ok(found) = fs::metadata(path) else {
        return Ok(());
    };
    let mode = found.mode() & 0o777;
    let others = if found.uid() == 0 { 0o027 } else { 0o077 };
    if !found.is_file() || mode & others == 0 {
        return Ok(());
    }
    Err(format!(
        "whose mode {mode:03o} lets other users read or change it: `chmod 600 {}`",
        path.display()
    ))
}
