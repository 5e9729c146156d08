//! Builds [`ClusterOptions`] from the values: fills in derived defaults and checks relations between options.
//!
//! Pure: all facts about the host are in [`HostFacts`]. A relation with a value that could not be read is not
//! checked: the one problem is enough.

mod checkpoints;
mod ha;
pub(super) mod stores;
mod task_manager;
mod workers;

use std::path::PathBuf;
use std::time::Duration;

use super::address::{Host, HostPort, PortRange};
use super::error::Problem;
use super::options::*;
use super::table::*;
use super::value::{MemorySize, OptionValue, RestartStrategyType, show_duration};
use super::values::Values;

/// Results, and blobs that no record refers to, must be kept for at least this multiple of the client's timeout.
const RETENTION_FACTOR: u32 = 10;
/// The largest number of key groups.
const LARGEST_MAX_PARALLELISM: u32 = 1 << 15;
const SMALLEST_MAX_MESSAGE: MemorySize = MemorySize::of_kb(1024);
const LARGEST_MAX_MESSAGE: MemorySize = MemorySize::of_kb(1024 * 1024);
const SMALLEST_MAX_CONTENT: MemorySize = MemorySize::of_kb(1);
const LARGEST_MAX_CONTENT: MemorySize = MemorySize::of_kb(1024 * 1024);

/// The facts about the host that defaults depend on.
#[derive(Debug, Clone, Default)]
pub(super) struct HostFacts {
    host_name: String,
    user: u32,
    state_home: Option<PathBuf>,
    tmp_dir: Option<PathBuf>,
}

impl HostFacts {
    /// Reads `environment` and the host's name.
    pub(super) fn gather(environment: &[(String, String)]) -> HostFacts {
        let path = |name: &str| {
            let found = environment
                .iter()
                .find(|(key, value)| key == name && !value.is_empty());
            found.map(|(_, value)| PathBuf::from(value))
        };
        let in_home = || path("HOME").map(|home| home.join(".local/state"));
        HostFacts {
            host_name: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            user: rustix::process::geteuid().as_raw(),
            state_home: path("XDG_STATE_HOME").or_else(in_home),
            tmp_dir: path("TMPDIR"),
        }
    }

    /// The address for other processes if `bind` was bound: `bind` itself, or the host name if `bind` is a wildcard.
    fn advertised(&self, bind: &Host) -> Host {
        if bind.is_wildcard() {
            Host::parse(&self.host_name).unwrap_or_else(|_| bind.clone())
        } else {
            bind.clone()
        }
    }
}

/// The result of building.
pub(super) struct Built {
    pub(super) options: ClusterOptions,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<String>,
}

/// Builds all options. If there are problems, the options are only placeholders.
pub(super) fn build(values: &Values, facts: &HostFacts) -> Built {
    let mut builder = Builder {
        values,
        facts,
        problems: Vec::new(),
        warnings: Vec::new(),
    };
    let jobmanager = builder.jobmanager();
    let ha = builder.ha();
    let options = ClusterOptions {
        checkpoints: builder.checkpoints(),
        ha,
        rest: builder.rest(&jobmanager.address),
        jobmanager,
        taskmanager: builder.taskmanager(),
        heartbeat: builder.heartbeat(),
        rpc: builder.rpc(),
        registration: builder.registration(),
        resources: builder.resources(),
        jobs: builder.jobs(),
        restart_strategy: builder.restart_strategy(),
        failover_strategy: values.get(&FAILOVER_STRATEGY),
        exception_history_size: values.get(&EXCEPTION_HISTORY),
        cleanup: builder.cleanup(),
        client: builder.client(),
        security: SecurityOptions {
            insecure: values.get(&SECURITY_INSECURE),
            local_users: values.get(&SECURITY_LOCAL_USERS),
        },
        process: builder.process(),
        log: LogOptions {
            level: values.get(&LOG_LEVEL),
            format: values.get(&LOG_FORMAT),
        },
    };
    builder.unused(
        "high-availability",
        values.get(&HA_TYPE).as_str(),
        stores::HighAvailabilityType::WORDS,
    );
    builder.unused(
        "restart-strategy",
        values.get(&RESTART_TYPE).as_str(),
        &["fixed-delay", "failure-rate", "exponential-delay"],
    );
    Built {
        options,
        problems: builder.problems,
        warnings: builder.warnings,
    }
}

struct Builder<'a> {
    values: &'a Values,
    facts: &'a HostFacts,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Builder<'_> {
    /// Adds `message` as a problem of these keys unless `holds`.
    fn require(&mut self, holds: bool, keys: &[&'static str], message: impl FnOnce() -> String) {
        if holds || keys.iter().any(|key| self.values.is_broken(key)) {
            return;
        }
        let described: Vec<String> = keys.iter().map(|key| self.values.describe(key)).collect();
        let message = format!("{}: {}", described.join(", "), message());
        self.problems.push(Problem {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            message,
        });
    }

    /// Reads a duration that must not be zero.
    fn positive(&mut self, key: &Key<Duration>) -> Duration {
        let duration = self.values.get(key);
        self.require(!duration.is_zero(), &[key.name], || {
            "must be longer than zero".to_owned()
        });
        duration
    }

    /// Checks that `short` is not longer than `long`.
    fn not_above(&mut self, short: (&Key<Duration>, Duration), long: (&Key<Duration>, Duration)) {
        let ((short_key, short), (long_key, long)) = (short, long);
        self.require(short <= long, &[short_key.name, long_key.name], || {
            format!(
                "write at least `{}: {}`",
                long_key.name,
                show_duration(short)
            )
        });
    }

    /// Warns of options below `prefix` that were set for a type that is not in use.
    fn unused(&mut self, prefix: &str, used: &str, types: &[&str]) {
        for other in types.iter().filter(|other| **other != used) {
            let below = format!("{prefix}.{other}.");
            for key in self.values.keys().filter(|key| key.starts_with(&below)) {
                let set = self.values.describe(key);
                self.warnings.push(format!(
                    "{set}, but `{prefix}.type` is `{used}`: it has no effect"
                ));
            }
        }
    }

    /// Reads and returns the address for other processes, and the address to bind. Warns if the first can't work, or if
    /// the second is open to other hosts.
    fn address(
        &mut self,
        key: &Key<Host>,
        bind_key: &Key<Host>,
        default: Option<&Host>,
    ) -> (Host, Host) {
        let bind = self.values.get(bind_key);
        let wanted = self.values.find(key);
        let explicit = wanted.is_some();
        let derived = || match default {
            Some(default) if bind.is_wildcard() => default.clone(),
            _ => self.facts.advertised(&bind),
        };
        let address = wanted.unwrap_or_else(derived);
        self.require(!address.is_wildcard(), &[key.name], || {
            "is a wildcard address, so no process can connect to it: write this host's name"
                .to_owned()
        });
        if explicit && bind.is_loopback() && !address.is_loopback() {
            self.warnings.push(format!(
                "{}, but {}: other hosts can't connect; `{}: 0.0.0.0` lets them",
                self.values.describe(key.name),
                self.values.describe(bind_key.name),
                bind_key.name
            ));
        }
        if !bind.is_loopback() {
            self.warnings.push(format!(
                "{}: a caller who reaches it has full control, because nothing is encrypted or authenticated",
                self.values.describe(bind_key.name)
            ));
        }
        (address, bind)
    }

    /// Reads a retention time that must cover a client's late retry.
    fn kept_for_retries(&mut self, key: &Key<Duration>) -> Duration {
        let kept = self.values.get(key);
        let least = self
            .values
            .get(&CLIENT_TIMEOUT)
            .saturating_mul(RETENTION_FACTOR);
        self.require(kept >= least, &[key.name, CLIENT_TIMEOUT.name], || {
            format!(
                "a retry may come late, so write at least ten times the client's timeout, `{}: {}`",
                key.name,
                show_duration(least)
            )
        });
        kept
    }

    fn jobmanager(&mut self) -> JobManagerOptions {
        let (address, bind_host) = self.address(&JM_ADDRESS, &JM_BIND_HOST, None);
        JobManagerOptions {
            id: self.values.find(&JM_ID),
            bind_host,
            address,
            ports: self.values.get(&JM_PORT),
            peer_ports: self.values.get(&JM_PEER_PORT),
            blob_ports: self.values.get(&BLOB_PORT),
            result_expiration: self.kept_for_retries(&JOBSTORE_EXPIRATION),
            max_artifacts: self.values.get(&ARTIFACTS_MAX_SIZE),
            max_described: self.values.get(&JOBSTORE_MAX_CAPACITY),
            description_cache: self.values.get(&JOBSTORE_CACHE_SIZE),
        }
    }

    fn rest(&mut self, jobmanager: &Host) -> RestOptions {
        let (address, bind_address) =
            self.address(&REST_ADDRESS, &REST_BIND_ADDRESS, Some(jobmanager));
        let port = || PortRange::single(self.values.get(&REST_PORT));
        let bind_ports = self.values.find(&REST_BIND_PORT).unwrap_or_else(port);
        let await_leader_timeout = self.values.get(&REST_AWAIT_LEADER);
        let max_content_length = self.values.get(&REST_MAX_CONTENT);
        self.require(
            (SMALLEST_MAX_CONTENT..=LARGEST_MAX_CONTENT).contains(&max_content_length),
            &[REST_MAX_CONTENT.name],
            || format!("write `{SMALLEST_MAX_CONTENT}` to `{LARGEST_MAX_CONTENT}`"),
        );
        RestOptions {
            address,
            bind_address,
            bind_ports,
            allowed_hosts: self.values.find(&REST_ALLOWED_HOSTS).unwrap_or_default(),
            await_leader_timeout,
            max_content_length,
        }
    }

    fn taskmanager(&mut self) -> TaskManagerOptions {
        let (host, bind_host) = self.address(&TM_HOST, &TM_BIND_HOST, None);
        let (isolation_timeout, isolation_cancellation_timeout) = self.isolation();
        TaskManagerOptions {
            isolation_timeout,
            isolation_cancellation_timeout,
            resource_id: self.values.find(&TM_RESOURCE_ID),
            bind_host,
            host,
            rpc_ports: self.values.get(&TM_PORT),
            data_ports: self.values.get(&TM_DATA_PORT),
            slots: self.values.get(&TM_SLOTS),
            cpu: self.cpu(),
            memory: self.memory(),
            external_resources: self.external_resources(),
            worker_of: self.values.find(&TM_WORKER_OF),
            control_group: self.values.find(&TM_CONTROL_GROUP),
            registration_timeout: self.positive(&TM_REGISTRATION_TIMEOUT),
            slot_timeout: self.positive(&TM_SLOT_TIMEOUT),
            failover_timeout: self.positive(&TM_FAILOVER_TIMEOUT),
        }
    }

    fn heartbeat(&mut self) -> HeartbeatOptions {
        let interval = self.positive(&HEARTBEAT_INTERVAL);
        let timeout = self.values.get(&HEARTBEAT_TIMEOUT);
        let keys = [HEARTBEAT_INTERVAL.name, HEARTBEAT_TIMEOUT.name];
        self.require(interval < timeout, &keys, || {
            let twice = show_duration(interval.saturating_mul(2));
            format!(
                "the timeout must be longer than the interval: write `{}: {twice}` or more",
                keys[1]
            )
        });
        let rpc_failure_threshold = self.values.get(&HEARTBEAT_THRESHOLD);
        HeartbeatOptions {
            interval,
            timeout,
            rpc_failure_threshold,
        }
    }

    fn rpc(&mut self) -> RpcOptions {
        let ask_timeout = self.positive(&RPC_ASK_TIMEOUT);
        let max_message_size = self.values.get(&RPC_MAX_MESSAGE);
        let allowed = SMALLEST_MAX_MESSAGE..=LARGEST_MAX_MESSAGE;
        self.require(
            allowed.contains(&max_message_size),
            &[RPC_MAX_MESSAGE.name],
            || format!("write `{SMALLEST_MAX_MESSAGE}` to `{LARGEST_MAX_MESSAGE}`"),
        );
        let inline_deployment_threshold = self.values.get(&RPC_INLINE_DEPLOYMENT);
        let (half, keys) = (
            max_message_size.max(SMALLEST_MAX_MESSAGE).as_usize() / 2,
            [RPC_INLINE_DEPLOYMENT.name, RPC_MAX_MESSAGE.name],
        );
        self.require(
            inline_deployment_threshold.as_usize() <= half,
            &keys,
            || {
                format!(
                    "a message holds more than the graph: write at most half of `{}`",
                    keys[1]
                )
            },
        );
        RpcOptions {
            ask_timeout,
            max_message_size,
            inline_deployment_threshold,
        }
    }

    fn registration(&mut self) -> RegistrationOptions {
        let initial_timeout = self.positive(&REGISTRATION_INITIAL);
        let max_timeout = self.values.get(&REGISTRATION_MAX);
        self.not_above(
            (&REGISTRATION_INITIAL, initial_timeout),
            (&REGISTRATION_MAX, max_timeout),
        );
        RegistrationOptions {
            initial_timeout,
            max_timeout,
            error_delay: self.values.get(&REGISTRATION_ERROR_DELAY),
            refused_delay: self.values.get(&REGISTRATION_REFUSED_DELAY),
        }
    }

    fn resources(&mut self) -> ResourceOptions {
        let job_timeout = self.positive(&RM_JOB_TIMEOUT);
        let lost = self.values.get(&HEARTBEAT_TIMEOUT);
        let keys = [RM_JOB_TIMEOUT.name, HEARTBEAT_TIMEOUT.name];
        self.require(job_timeout > lost, &keys, || {
            let twice = show_duration(lost.saturating_mul(2));
            format!(
                "a job must keep its slots for longer than a heartbeat timeout: write `{}: {twice}` or more",
                keys[0]
            )
        });
        let start_up_time = self.values.find(&RM_START_UP_TIME);
        ResourceOptions {
            start_up_time: start_up_time.unwrap_or_else(|| self.values.get(&SLOT_REQUEST_TIMEOUT)),
            job_timeout,
            load_balance: self.values.get(&LOAD_BALANCE_MODE),
            reservation_delay: self.values.get(&RESERVATION_DELAY),
            slot_request_timeout: self.positive(&SLOT_REQUEST_TIMEOUT),
            slot_idle_timeout: self.positive(&SLOT_IDLE_TIMEOUT),
            workers: self.workers(),
        }
    }

    fn jobs(&mut self) -> JobOptions {
        let default_parallelism = self.values.get(&PARALLELISM);
        let max_parallelism = self.values.get(&MAX_PARALLELISM);
        let keys = [PARALLELISM.name, MAX_PARALLELISM.name];
        self.require(
            max_parallelism.get() <= LARGEST_MAX_PARALLELISM,
            &keys[1..],
            || format!("write at most {LARGEST_MAX_PARALLELISM}"),
        );
        self.require(default_parallelism <= max_parallelism, &keys, || {
            format!(
                "the default must not be above the maximum: write `{}: {max_parallelism}` or less",
                keys[0]
            )
        });
        let cancellation = self.values.get(&TASK_CANCELLATION_TIMEOUT);
        let interval = self.values.get(&TASK_CANCELLATION_INTERVAL);
        JobOptions {
            default_parallelism,
            max_parallelism,
            operator_chaining: self.values.get(&CHAINING),
            task_cancellation_timeout: (!cancellation.is_zero()).then_some(cancellation),
            task_cancellation_interval: (!interval.is_zero()).then_some(interval),
        }
    }

    fn restart_strategy(&mut self) -> RestartStrategyOptions {
        let values = self.values;
        let (initial_backoff, max_backoff) = (values.get(&EXP_INITIAL), values.get(&EXP_MAX));
        self.not_above((&EXP_INITIAL, initial_backoff), (&EXP_MAX, max_backoff));
        let backoff_multiplier = values.get(&EXP_MULTIPLIER);
        let grows = backoff_multiplier >= 1.0;
        self.require(grows, &[EXP_MULTIPLIER.name], || {
            "write 1 or more".to_owned()
        });
        let jitter_factor = values.get(&EXP_JITTER);
        let is_part = (0.0..=1.0).contains(&jitter_factor);
        self.require(is_part, &[EXP_JITTER.name], || "write 0 to 1".to_owned());
        let interval = self.positive(&RATE_INTERVAL);
        match values.get(&RESTART_TYPE) {
            RestartStrategyType::None => RestartStrategyOptions::None,
            RestartStrategyType::FixedDelay => RestartStrategyOptions::FixedDelay {
                attempts: values.get(&FIXED_ATTEMPTS),
                delay: values.get(&FIXED_DELAY),
            },
            RestartStrategyType::FailureRate => RestartStrategyOptions::FailureRate {
                max_failures_per_interval: values.get(&RATE_MAX_FAILURES),
                interval,
                delay: values.get(&RATE_DELAY),
            },
            RestartStrategyType::ExponentialDelay => RestartStrategyOptions::ExponentialDelay {
                initial_backoff,
                max_backoff,
                backoff_multiplier,
                reset_backoff_threshold: values.get(&EXP_RESET),
                jitter_factor,
                attempts_before_reset: values.get(&EXP_ATTEMPTS),
            },
        }
    }

    fn cleanup(&mut self) -> CleanupOptions {
        let initial_backoff = self.positive(&CLEANUP_INITIAL);
        let max_backoff = self.values.get(&CLEANUP_MAX);
        self.not_above(
            (&CLEANUP_INITIAL, initial_backoff),
            (&CLEANUP_MAX, max_backoff),
        );
        CleanupOptions {
            initial_backoff,
            max_backoff,
            attempts: self.values.get(&CLEANUP_ATTEMPTS),
        }
    }

    fn client(&mut self) -> ClientOptions {
        let timeout = self.positive(&CLIENT_TIMEOUT);
        let retry_period = self.positive(&CLIENT_RETRY);
        self.not_above((&CLIENT_RETRY, retry_period), (&CLIENT_TIMEOUT, timeout));
        let port = self.values.get(&REST_PORT);
        // Port 0 becomes another one when it is bound: clients then find the server in the store.
        let pointed = port != 0
            && (self.values.is_set(REST_ADDRESS.name) || self.values.is_set(REST_PORT.name));
        let rest = || HostPort {
            host: self
                .values
                .find(&REST_ADDRESS)
                .unwrap_or_else(|| self.facts.advertised(&self.values.get(&REST_BIND_ADDRESS))),
            port,
        };
        ClientOptions {
            state_recovery: self.state_recovery(),
            target: self.values.find(&EXECUTION_TARGET),
            rest: pointed.then(rest),
            timeout,
            retry_period,
        }
    }

    fn process(&mut self) -> ProcessOptions {
        ProcessOptions {
            working_dir: self.working_dir(),
            shutdown_timeout: self.positive(&SHUTDOWN_TIMEOUT),
            tmp_dirs: self.tmp_dirs(),
            control_groups: self.values.get(&CONTROL_GROUPS),
            output_umask: self.values.find(&OUTPUT_UMASK),
        }
    }

    fn tmp_dirs(&self) -> Vec<PathBuf> {
        let tmp_dir = self.facts.tmp_dir.clone();
        let default = || vec![tmp_dir.unwrap_or_else(|| PathBuf::from("/tmp"))];
        self.values.find(&TMP_DIRS).unwrap_or_else(default)
    }

    fn working_dir(&self) -> PathBuf {
        // All users of a host share the parent directory: a common name would belong to the first user.
        let own = format!("tanist-{}", self.facts.user);
        let first = || self.tmp_dirs().swap_remove(0).join(own);
        self.values.find(&WORKING_DIR).unwrap_or_else(first)
    }
}
