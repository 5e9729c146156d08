//! Collects values from the file, the environment and the flags, and refuses keys that no option has.
//!
//! Later sources override earlier ones key by key; within one source a key may be set once (of flags the last
//! one wins). Only the winning value's type is checked, but an unknown key is refused in any source.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::{Problem, Source};
use super::file;
use super::secrets;
use super::table::{ELSEWHERE, ELSEWHERE_BELOW, ENVIRONMENT_PREFIX, OptionSpec, find, options};
use super::value::nearest;
use super::values::Values;
use super::{LoadOptions, MASK, is_secret};

/// The environment variable that names the directory of `tanist.yaml`.
const CONF_DIR: &str = "TANIST_CONF_DIR";

/// Variables with our prefix that set no option: those of failpoints, this module, the log and tests, and
/// those that cargo sets for the processes that it runs.
const RESERVED: [&str; 4] = [
    "TANIST_FAILPOINTS",
    CONF_DIR,
    "TANIST_LOG",
    "TANIST_BUILD_REVISION",
];
const RESERVED_PREFIX: &str = "TANIST_TEST_";

/// The result of loading.
pub(super) struct Loaded {
    pub(super) file: Option<PathBuf>,
    pub(super) values: Values,
    /// Environment variables with our prefix that belong to a service: see [`is_of_a_service`].
    pub(super) passed_over: Vec<String>,
    pub(super) problems: Vec<Problem>,
}

/// Reads all sources.
pub(super) fn load(load: LoadOptions) -> Loaded {
    let mut gathered = Gathered::default();
    let conf_dir = load.environment.iter().find(|(name, _)| name == CONF_DIR);
    let file = load
        .file
        .or_else(|| conf_dir.map(|(_, dir)| Path::new(dir).join("tanist.yaml")));
    if let Some(path) = &file {
        gathered.file(path);
    }
    let credentials = secrets::credentials_directory(&load.environment);
    // From the weakest source to the strongest: a later one overrides.
    gathered.environment(load.environment);
    gathered.flags(load.overrides);
    let passed_over = std::mem::take(&mut gathered.passed_over);
    let (mut values, mut problems) = gathered.check();
    problems.extend(secrets::read(&mut values, credentials.as_deref()));
    Loaded {
        file,
        values,
        passed_over,
        problems,
    }
}

/// Whether Kubernetes or Docker set this variable because of a service or container whose name begins with
/// `tanist`: `TANIST_PORT=tcp://10.0.0.1:8081`, `TANIST_SERVICE_HOST`, `TANIST_REST_PORT_8081_TCP_ADDR` and
/// the like. The variable of an option can have such a name by chance: it sets the option unless its value is
/// the address of a service.
fn is_of_a_service(variable: &str, value: &str, is_option: bool) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    let is_address = PROTOCOLS.iter().any(|protocol| {
        let scheme = format!("{}://", protocol.to_ascii_lowercase());
        value.trim().starts_with(&scheme)
    });
    let is_of_port = || {
        let mut parts = variable.split("_PORT_").skip(1);
        parts.any(|rest| {
            let mut words = rest.split('_');
            let number = words.next().unwrap_or_default();
            let protocol = words.next().unwrap_or_default();
            number.parse::<u16>().is_ok() && PROTOCOLS.contains(&protocol)
        })
    };
    let is_named = || {
        variable.ends_with("_SERVICE_HOST")
            || variable.ends_with("_SERVICE_PORT")
            || variable.contains("_SERVICE_PORT_")
            || is_of_port()
    };
    is_address || (!is_option && is_named())
}

#[derive(Default)]
struct Gathered {
    winning: BTreeMap<&'static str, (String, Source)>,
    passed_over: Vec<String>,
    problems: Vec<Problem>,
}

impl Gathered {
    fn file(&mut self, path: &Path) {
        let source = match std::fs::read_to_string(path) {
            Ok(source) => source,
            Err(error) => {
                let message = format!("the file {} can't be read: {error}", path.display());
                self.problems.push(Problem {
                    keys: Vec::new(),
                    message,
                });
                return;
            }
        };
        let (entries, misfits) = file::read(&source);
        let at = |line| Source::File {
            path: path.to_owned(),
            line,
        };
        for misfit in misfits {
            let place = at(misfit.line);
            let message = match &misfit.key {
                Some(key) => format!("`{key}` {} ({place})", misfit.message),
                None => format!("{} ({place})", misfit.message),
            };
            self.problems.push(Problem {
                keys: misfit.key.into_iter().collect(),
                message,
            });
        }
        let mut lines: BTreeMap<&'static str, u64> = BTreeMap::new();
        for entry in entries {
            let Some(spec) = find(&entry.key) else {
                self.unknown_key(&entry.key, &at(entry.line));
                continue;
            };
            if let Some(earlier) = lines.insert(spec.key, entry.line) {
                let message = format!(
                    "`{}` is set twice: {} and line {earlier}. Remove one",
                    spec.key,
                    at(entry.line)
                );
                self.problems.push(Problem {
                    keys: vec![entry.key],
                    message,
                });
                continue;
            }
            if spec.secret
                && let Err(open) = secrets::check_closed(path)
            {
                let message = format!("`{}` is in the file {}, {open}", spec.key, path.display());
                self.problems.push(Problem {
                    keys: vec![entry.key],
                    message,
                });
                continue;
            }
            self.winning.insert(spec.key, (entry.text, at(entry.line)));
        }
    }

    fn environment(&mut self, environment: Vec<(String, String)>) {
        let known: BTreeMap<String, &'static OptionSpec> = options()
            .map(|spec| (spec.environment_variable(), spec))
            .collect();
        for (variable, value) in environment {
            if !variable.starts_with(ENVIRONMENT_PREFIX)
                || RESERVED.contains(&variable.as_str())
                || variable.starts_with(RESERVED_PREFIX)
            {
                continue;
            }
            if is_of_a_service(&variable, &value, known.contains_key(&variable)) {
                self.passed_over.push(variable);
                continue;
            }
            match known.get(&variable) {
                Some(spec) => {
                    let source = Source::Environment { variable };
                    self.winning
                        .insert(spec.key, (value.trim().to_owned(), source));
                }
                None => {
                    let names = known.keys().map(String::as_str).chain(RESERVED);
                    let advice = match nearest(&variable, names) {
                        Some(name) => format!("did you mean {name}?"),
                        None => "its name is TANIST_ and a key in capitals, with _ for . and -"
                            .to_owned(),
                    };
                    let message =
                        format!("the environment variable {variable} sets no option: {advice}");
                    self.problems.push(Problem {
                        keys: vec![variable],
                        message,
                    });
                }
            }
        }
    }

    fn flags(&mut self, overrides: Vec<String>) {
        for text in overrides {
            let Some((key, value)) = text.split_once('=') else {
                let message = format!("`-D {text}` has no value: write `-D key=value`");
                self.problems.push(Problem {
                    keys: vec![text],
                    message,
                });
                continue;
            };
            match find(key.trim()) {
                Some(spec) if spec.secret => {
                    let message = format!(
                        "`-D {}` is refused: every user of this host can read it in the list of processes. {}",
                        spec.key,
                        secrets::advice(spec.key)
                    );
                    self.problems.push(Problem {
                        keys: vec![spec.key.to_owned()],
                        message,
                    });
                }
                Some(spec) => {
                    self.winning
                        .insert(spec.key, (value.trim().to_owned(), Source::Flag));
                }
                None => self.unknown_key(key.trim(), &Source::Flag),
            }
        }
    }

    fn unknown_key(&mut self, key: &str, source: &Source) {
        let message = format!("unknown key `{key}` ({source}): {}", advice(key));
        self.problems.push(Problem {
            keys: vec![key.to_owned()],
            message,
        });
    }

    /// Checks the types of the winning values.
    fn check(mut self) -> (Values, Vec<Problem>) {
        let mut values = Values::default();
        for (key, (text, source)) in std::mem::take(&mut self.winning) {
            let Some(spec) = find(key) else { continue };
            match (spec.check)(&text) {
                Ok(()) => values.set(spec, text, source),
                Err(wrong) => {
                    let shown = if is_secret(key) { MASK } else { &text };
                    let message = format!("`{key}: {shown}` {wrong} ({source})");
                    self.problems.push(Problem {
                        keys: vec![key.to_owned()],
                        message,
                    });
                    values.set_broken(spec);
                }
            }
        }
        (values, self.problems)
    }
}

/// Advice on what to write instead of an unknown key.
fn advice(key: &str) -> String {
    if let Some((_, advice)) = ELSEWHERE.iter().find(|(elsewhere, _)| *elsewhere == key) {
        return (*advice).to_owned();
    }
    let mut below = ELSEWHERE_BELOW.iter();
    if let Some((_, advice)) = below.find(|(prefix, _)| key.starts_with(prefix)) {
        return (*advice).to_owned();
    }
    match nearest(key, options().map(|spec| spec.key)) {
        Some(known) => format!("did you mean `{known}`?"),
        None => "docs/reference/configuration.md lists all keys".to_owned(),
    }
}
