//! Secrets that are given as files: by an option that names one, or as a credential of systemd.
//!
//! A secret comes from one place: two are an error, as nobody could say which one is in force. The value is in no message.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::error::{Problem, Source};
use super::table::{ETCD_PASSWORD, ETCD_PASSWORD_FILE, Key, ZK_PASSWORD, ZK_PASSWORD_FILE, find};
use super::value::{OptionValue as _, Secret};
use super::values::Values;

/// Where systemd puts a unit's credentials.
const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// A secret and its other forms.
struct Form {
    secret: &'static Key<Secret>,
    file: &'static Key<PathBuf>,
    /// The name of the credential.
    credential: &'static str,
}

const FORMS: [Form; 2] = [
    Form {
        secret: &ETCD_PASSWORD,
        file: &ETCD_PASSWORD_FILE,
        credential: "tanist.etcd-password",
    },
    Form {
        secret: &ZK_PASSWORD,
        file: &ZK_PASSWORD_FILE,
        credential: "tanist.zookeeper-password",
    },
];

/// Where this process finds credentials, if it was given any.
pub(super) fn credentials_directory(environment: &[(String, String)]) -> Option<PathBuf> {
    let found = environment
        .iter()
        .find(|(name, value)| name == DIRECTORY && !value.is_empty());
    found.map(|(_, value)| PathBuf::from(value))
}

/// What to write instead of a secret after `-D`.
pub(super) fn advice(secret: &str) -> String {
    match FORMS.iter().find(|form| form.secret.name == secret) {
        Some(form) => format!(
            "Write it into a file that only this user can read, and `-D {}=FILE`",
            form.file.name
        ),
        None => "Write it into the configuration file".to_owned(),
    }
}

/// Sets the secrets that are in files. The problems.
pub(super) fn read(values: &mut Values, credentials: Option<&Path>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for form in &FORMS {
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
                let closed = check_closed(&path).and_then(|()| content(&path));
                (path, closed.map_err(|wrong| format!("{named}, {wrong}"))?)
            }
            // systemd lets the unit's user read it, and nobody else into its directory.
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

/// The text of a file without the end of its last line.
fn content(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("which can't be read: {error}"))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

/// Whether other users can't read a file with a secret in it. One of root's may be read by a group: so a service is let read it. A file that
/// is not there is no problem of this.
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
