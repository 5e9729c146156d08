//! The start log of a process: its identity, host, arguments and configuration.
//!
//! One event at `info`, so that nothing can come between its lines. The caller masks secrets.

use std::fmt;

use rustix::process::{Resource, getpid, getrlimit, getuid};

use super::memory_limit::memory_limit_bytes;

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The revision from which this program was built.
pub const REVISION: &str = env!("TANIST_BUILD_REVISION");
/// Both, as `0.1.0 (1a2b3c4d5e6f)`.
pub const VERSION_AND_REVISION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("TANIST_BUILD_REVISION"),
    ")"
);

/// A value of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartupSetting {
    /// Its key.
    pub key: String,
    /// Its value, masked if it is a secret.
    pub value: String,
    /// The origin of the value.
    pub source: String,
}

/// Facts about a starting process.
#[derive(Debug, Clone, Default)]
pub struct Startup {
    /// Its kind: `jobmanager`, `taskmanager`.
    pub process: String,
    /// Its id in the cluster.
    pub resource_id: String,
    /// Its arguments, secrets masked.
    pub arguments: Vec<String>,
    /// The options that differ from their defaults, secrets masked.
    pub settings: Vec<StartupSetting>,
}

/// Logs `startup` and facts about the host, in one event.
pub fn startup_log(startup: &Startup) {
    let host = HostFacts::gather();
    tracing::info!(
        version = VERSION_AND_REVISION,
        resource_id = startup.resource_id,
        pid = host.pid,
        user = host.user,
        host = host.name,
        cores = host.cores,
        memory_mb = host.memory_mb,
        open_files = host.open_files,
        arguments = %startup.arguments.join(" "),
        configuration = %Lines(&startup.settings),
        "starting {}",
        startup.process
    );
}

/// One setting per line, indented.
struct Lines<'a>(&'a [StartupSetting]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("all defaults");
        }
        for StartupSetting { key, value, source } in self.0 {
            write!(f, "\n    {key}: {value} ({source})")?;
        }
        Ok(())
    }
}

/// The process and its host. Unknown values are 0 or `unknown`: they do not prevent the start.
#[derive(Debug)]
struct HostFacts {
    pid: i32,
    user: String,
    name: String,
    cores: usize,
    memory_mb: u64,
    open_files: u64,
}

impl HostFacts {
    fn gather() -> HostFacts {
        let user_id = getuid().as_raw();
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        HostFacts {
            pid: getpid().as_raw_nonzero().get(),
            user: user_name(&passwd, user_id).unwrap_or_else(|| user_id.to_string()),
            name: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get),
            memory_mb: memory_mb(),
            open_files: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        }
    }
}

fn user_name(passwd: &str, user_id: u32) -> Option<String> {
    let wanted = user_id.to_string();
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == wanted).then(|| name.to_owned())
    })
}

/// The memory that this process may use: the host's memory, or its own limit if that is lower.
fn memory_mb() -> u64 {
    let host = total_memory_mb(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    memory_limit_bytes().map_or(host, |bytes| host.min(bytes >> 20))
}

fn total_memory_mb(meminfo: &str) -> u64 {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kb = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kb.unwrap_or(0) >> 10
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Collects the log.
    #[derive(Clone, Default)]
    struct Collected(Arc<Mutex<Vec<u8>>>);

    impl Write for Collected {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_start_is_told_in_one_event_with_identity_host_and_configuration() {
        let collected = Collected::default();
        let writer = collected.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_writer(move || writer.clone())
            .finish();
        let setting = StartupSetting {
            key: "rest.port".to_owned(),
            value: "1".to_owned(),
            source: "-D".to_owned(),
        };
        let startup = Startup {
            process: "jobmanager".to_owned(),
            resource_id: "jm-1".to_owned(),
            arguments: vec!["tanist".to_owned(), "jobmanager".to_owned()],
            settings: vec![setting],
        };
        tracing::subscriber::with_default(subscriber, || startup_log(&startup));
        let bytes = collected.0.lock().clone();
        let event: serde_json::Value = serde_json::from_slice(&bytes).expect("one JSON object");
        assert_eq!(event["level"], "INFO");
        assert_eq!(event["message"], "starting jobmanager");
        assert_eq!(event["resource_id"], "jm-1");
        assert_eq!(event["pid"], std::process::id());
        assert_eq!(event["arguments"], "tanist jobmanager");
        assert_eq!(event["configuration"], "\n    rest.port: 1 (-D)");
        for key in ["version", "user", "host"] {
            assert!(
                event[key].as_str().is_some_and(|text| !text.is_empty()),
                "{key}: {event}"
            );
        }
        for key in ["cores", "memory_mb", "open_files"] {
            assert!(event[key].as_u64().is_some_and(|n| n > 0), "{key}: {event}");
        }
    }

    #[test]
    fn a_user_is_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nflink:x:1001:1001::/:/bin/sh\n";
        assert_eq!(user_name(passwd, 1001).as_deref(), Some("flink"));
        assert_eq!(user_name(passwd, 7), None);
    }

    #[test]
    fn memory_is_read_in_kilobytes() {
        assert_eq!(
            total_memory_mb("MemTotal:        2048 kB\nMemFree: 1 kB\n"),
            2
        );
        assert_eq!(total_memory_mb(""), 0);
    }
}
