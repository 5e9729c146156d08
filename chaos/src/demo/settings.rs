//! The settings of the demo's processes: the configuration given to the demo, overridden by the settings that
//! keep the cluster separate. With any configuration, the processes listen only on free ports of this host,
//! find each other by the demo's store, and write nothing outside its directory.

use std::path::{Path, PathBuf};

use tanist_config::Configuration;

/// The cluster id of the demo's processes.
pub(super) const CLUSTER_ID: &str = "default";

/// Override any configuration. Progress is reported often, so that there is something to see.
const OWN: [(&str, &str); 16] = [
    ("high-availability.type", "embedded"),
    ("high-availability.cluster-id", CLUSTER_ID),
    ("heartbeat.interval", "100 ms"),
    ("jobmanager.bind-host", "127.0.0.1"),
    ("jobmanager.rpc.address", "127.0.0.1"),
    ("jobmanager.rpc.port", "0"),
    ("jobmanager.peer.port", "0"),
    ("blob.server.port", "0"),
    ("rest.bind-address", "127.0.0.1"),
    ("rest.address", "127.0.0.1"),
    ("rest.bind-port", "0"),
    ("taskmanager.bind-host", "127.0.0.1"),
    ("taskmanager.host", "127.0.0.1"),
    ("taskmanager.rpc.port", "0"),
    ("taskmanager.data.port", "0"),
    // The demo must have no other TaskManagers, as it reads their output.
    ("resourcemanager.driver", "standalone"),
];

/// Set only if no key with one of these prefixes is set: these settings have to fit each other.
const UNLESS_SET: [(&str, &str, &[&str]); 2] = [
    (
        "heartbeat.timeout",
        "10 s",
        &["heartbeat.timeout", "taskmanager.isolation-"],
    ),
    (
        "cluster.registration.error-delay",
        "500 ms",
        &["cluster.registration."],
    ),
];

/// The part of the demo's configuration that its processes inherit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inherited {
    /// The file, absolute: the processes have another working directory.
    file: Option<PathBuf>,
    /// The arguments of each `-D`.
    overrides: Vec<String>,
    /// The keys that are set anywhere.
    set: Vec<String>,
}

impl Inherited {
    /// A configuration that was read, with the flags that were given for it.
    pub fn new(configuration: &Configuration, overrides: Vec<String>) -> Inherited {
        let explicit = configuration.explicit_settings().into_iter();
        let absolute = |file: &Path| std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        Inherited {
            file: configuration.file().map(absolute),
            overrides,
            set: explicit.map(|setting| setting.key.to_owned()).collect(),
        }
    }

    /// The arguments of a process that runs in `directory`, after the name of the command; `own`: settings of
    /// its own.
    pub(super) fn arguments(&self, directory: &Path, own: &[String]) -> Vec<String> {
        let mut arguments = Vec::new();
        if let Some(file) = &self.file {
            let file = file.to_string_lossy().into_owned();
            arguments.extend(["--config".to_owned(), file]);
        }
        let is_set = |keys: &[&str]| {
            let mut set = self.set.iter();
            set.any(|key| keys.iter().any(|begin| key.starts_with(begin)))
        };
        let unless_set = UNLESS_SET.iter().filter(|(_, _, keys)| !is_set(keys));
        let unless_set = unless_set.map(|(key, value, _)| format!("{key}={value}"));
        let always = OWN.iter().map(|(key, value)| format!("{key}={value}"));
        let below = |key: &str, name: &str| format!("{key}={}", directory.join(name).display());
        let directories = [
            store_setting(directory),
            below("high-availability.storageDir", "blobs"),
            below("process.working-dir", "working"),
            format!("io.tmp.dirs={}", directory.display()),
        ];
        let overrides = self.overrides.iter().cloned();
        for setting in overrides
            .chain(unless_set)
            .chain(always)
            .chain(directories)
            .chain(own.iter().cloned())
        {
            arguments.extend(["-D".to_owned(), setting]);
        }
        arguments
    }
}

/// The path of the embedded store of a demo in `directory`.
pub(super) fn store(directory: &Path) -> PathBuf {
    directory.join("store")
}

fn store_setting(directory: &Path) -> String {
    format!(
        "high-availability.embedded.dir={}",
        store(directory).display()
    )
}

/// The settings by which a client finds the cluster in any environment.
pub(super) fn to_find(directory: &Path) -> [String; 3] {
    [
        "high-availability.type=embedded".to_owned(),
        format!("high-availability.cluster-id={CLUSTER_ID}"),
        store_setting(directory),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tanist_config::LoadOptions;

    fn load(file: Option<PathBuf>, overrides: Vec<String>) -> Configuration {
        let load = LoadOptions {
            file,
            overrides,
            ..LoadOptions::default()
        };
        Configuration::load(load).expect("it is valid")
    }

    /// The configuration of a process that is started with these arguments.
    fn of_process(arguments: &[String]) -> Configuration {
        let after = |flag: &str| {
            let pairs = arguments.chunks(2).filter(|pair| pair[0] == flag);
            pairs.map(|pair| pair[1].clone()).collect::<Vec<_>>()
        };
        load(after("--config").pop().map(PathBuf::from), after("-D"))
    }

    fn value(configuration: &Configuration, key: &str) -> String {
        let mut settings = configuration.settings().into_iter();
        let setting = settings.find(|setting| setting.key == key);
        setting.and_then(|it| it.value).unwrap_or_default()
    }

    #[test]
    fn a_process_has_the_file_and_the_flags_and_what_is_the_demos_own_wins() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("mine.yaml");
        let text = "\
high-availability.type: etcd
high-availability.etcd.endpoints: far-away:2379
high-availability.cluster-id: production
high-availability.storageDir: /srv/blobs
jobmanager.rpc.port: 6123
rest.port: 8081
rest.address: far-away
resourcemanager.driver: local-process
taskmanager.numberOfTaskSlots: 7
heartbeat.timeout: 30 s
heartbeat.interval: 5 s
slot.request.timeout: 7 s
web.exception-history-size: 3
";
        std::fs::write(&file, text).expect("written");
        let flags = vec!["web.exception-history-size=5".to_owned()];
        let given = load(Some(file), flags.clone());
        let own = ["taskmanager.numberOfTaskSlots=2".to_owned()];
        let demo = Path::new("/tmp/the-demo");
        let arguments = Inherited::new(&given, flags).arguments(demo, &own);
        let process = of_process(&arguments);
        for (key, expected) in [
            // From the file, and from the flags over it.
            ("slot.request.timeout", "7 s"),
            ("heartbeat.timeout", "30 s"),
            ("web.exception-history-size", "5"),
            // The demo's own.
            ("heartbeat.interval", "100 ms"),
            ("high-availability.type", "embedded"),
            ("high-availability.cluster-id", CLUSTER_ID),
            ("high-availability.embedded.dir", "/tmp/the-demo/store"),
            ("high-availability.storageDir", "/tmp/the-demo/blobs"),
            ("jobmanager.rpc.port", "0"),
            ("rest.bind-port", "0"),
            ("resourcemanager.driver", "standalone"),
            ("taskmanager.numberOfTaskSlots", "2"),
        ] {
            assert_eq!(value(&process, key), expected, "{key}");
        }
    }

    #[test]
    fn without_a_configuration_a_process_has_what_suits_the_demo() {
        let arguments = Inherited::default().arguments(Path::new("/tmp/the-demo"), &[]);
        let process = of_process(&arguments);
        assert!(process.file().is_none());
        assert_eq!(process.heartbeat().timeout, Duration::from_secs(10));
        assert_eq!(
            value(&process, "cluster.registration.error-delay"),
            "500 ms"
        );
    }

    #[test]
    fn timeouts_that_fit_each_other_are_taken_together() {
        let flags = vec!["taskmanager.isolation-timeout=20 s".to_owned()];
        let given = load(None, flags.clone());
        let arguments = Inherited::new(&given, flags).arguments(Path::new("/tmp/the-demo"), &[]);
        let process = of_process(&arguments);
        assert_eq!(process.heartbeat().timeout, Duration::from_secs(50));
    }
}
