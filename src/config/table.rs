//! The table of options: the one place that defines a key, its type, its default and its meaning. The options of each
//! store of leadership are in its file in [`super::build::stores`].
//!
//! Loading, the reference in `docs/reference/configuration.md` and the start log of a process all read this table.
//! Relations between options are in [`super::build`].

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use tanist_ha::keys::Name;
use tanist_proto::resources::CpuCores;

use super::address::{AllowedHosts, Host, PortRange, StorageLocation};
use super::build::stores::{self, HighAvailabilityType};
use super::checkpointing::{
    CheckpointRetention, ClaimMode, ExactlyOnce, OneAtATime, RestoreFrom, TolerableFailures,
};
use super::control_groups::ControlGroupsOption;
use super::external::ExternalResource;
use super::umask::Umask;
use super::value::{
    Attempts, ExecutionTarget, FailoverStrategyType, FailureThreshold, LoadBalanceMode, LocalUsers,
    LogFormat, LogLevel, MemorySize, OptionValue, RestartStrategyType, WorkerDriver,
};

/// One option with its documentation.
#[derive(Debug)]
pub struct OptionSpec {
    /// The key, as in the file and after `-D`.
    pub key: &'static str,
    /// The heading under which it is documented.
    pub section: &'static str,
    /// The name of its type.
    pub kind: &'static str,
    /// The default.
    pub default: DefaultValue,
    /// One line: the meaning of the option.
    pub description: &'static str,
    /// Whether its value is never shown.
    pub secret: bool,
    /// Checks a text; the error says why it is not a value of this option.
    pub(super) check: fn(&str) -> Result<(), String>,
}

impl OptionSpec {
    /// The environment variable that overrides the file: `TANIST_`, then the key in capitals with `_` for `.` and `-`.
    pub fn environment_variable(&self) -> String {
        let name = self.key.replace(['.', '-'], "_").to_ascii_uppercase();
        format!("{ENVIRONMENT_PREFIX}{name}")
    }
}

/// The default of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultValue {
    /// A plain value.
    Value(&'static str),
    /// A value that depends on the host or on other options, described in words.
    Derived(&'static str),
    /// No value.
    Unset,
}

/// Prefix of every environment variable of Tanist.
pub(super) const ENVIRONMENT_PREFIX: &str = "TANIST_";

/// A key with the type of its value.
#[derive(Debug)]
pub(super) struct Key<T> {
    pub(super) name: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    pub(super) const fn new(name: &'static str) -> Key<T> {
        let value = PhantomData;
        Key { name, value }
    }
}

/// Every option, by section.
pub fn options() -> impl Iterator<Item = &'static OptionSpec> {
    let stores = stores::OPTIONS.into_iter().flatten();
    HIGH_AVAILABILITY.iter().chain(stores).chain(ALL_OTHERS)
}

/// The option with that key.
pub fn find(key: &str) -> Option<&'static OptionSpec> {
    options().find(|spec| spec.key == key)
}

pub(super) fn check<T: OptionValue>(text: &str) -> Result<(), String> {
    T::parse(text).map(|_| ())
}

/// Defines a constant for each key, and a table of their options.
macro_rules! option_table {
    ($table:ident: $($section:literal { $(
        $name:ident: $type:ty = $key:literal, $default:ident $(($text:literal))?, $description:literal;
    )+ })+) => {
        $($(pub(super) const $name: $crate::table::Key<$type> = $crate::table::Key::new($key);)+)+

        pub(super) static $table: &[$crate::table::OptionSpec] = &[$($($crate::table::OptionSpec {
            key: $key,
            section: $section,
            kind: <$type as $crate::value::OptionValue>::KIND,
            default: $crate::table::DefaultValue::$default $(($text))?,
            description: $description,
            secret: <$type as $crate::value::OptionValue>::SECRET,
            check: $crate::table::check::<$type>,
        },)+)+];
    };
}

pub(super) use option_table;

option_table! { HIGH_AVAILABILITY:
    "High availability" {
        HA_TYPE: HighAvailabilityType = "high-availability.type", Value("embedded"),
            "The store of leadership and job records. `embedded` serves the processes of one host.";
        HA_CLUSTER_ID: Name = "high-availability.cluster-id", Value("default"),
            "Distinguishes clusters that share a store. All processes of a cluster use the same value.";
        HA_STORAGE_DIR: StorageLocation = "high-availability.storageDir", Derived("with `embedded`: `blobs` in its directory; otherwise none, and large graphs are split over store keys"),
            "Where blobs that are too large for the store are kept. Endpoint, region and credentials of S3 come from the environment: see [S3](../guides/s3.md).";
        HA_STORAGE_SHARED: bool = "high-availability.storage-shared", Value("false"),
            "Declares that every host of the cluster sees the directory `high-availability.storageDir`, and that of `execution.checkpointing.dir`. Buckets are always shared.";
        DETECTOR_HEARTBEAT_INTERVAL: Duration = "high-availability.detector.heartbeat-interval", Value("100 ms"),
            "Interval at which a JobManager sends heartbeats to the other JobManagers.";
        DETECTOR_SILENCE_TIMEOUT: Duration = "high-availability.detector.silence-timeout", Value("800 ms"),
            "How long the leader may be silent before a standby asks other processes about it. On a busy machine the standby waits longer by itself.";
        DETECTOR_INQUIRY_TIMEOUT: Duration = "high-availability.detector.inquiry-timeout", Value("300 ms"),
            "How long these processes may take to answer.";
        DETECTOR_HOLD_OFF: Duration = "high-availability.detector.hold-off-timeout", Derived("the lease or session timeout, at least 10 s"),
            "How long a standby does not take free leadership while it still receives heartbeats of the last leader, whose store connection was in trouble. 2 s if the standby's own store connection worked all the time.";
        TRANSFER_TIMEOUT: Duration = "high-availability.transfer-timeout", Value("5 s"),
            "How long a leader that shuts down or hands over waits for a standby to take over.";
        STALL_TIMEOUT: Duration = "recovery.stall-timeout", Value("60 s"),
            "A leader in which nothing makes progress for this long (its recovery, its runtime, its Dispatcher or ResourceManager) resigns and logs the reason.";
        HA_INLINE_THRESHOLD: MemorySize = "high-availability.inline-threshold", Value("64 kb"),
            "The largest compressed record that is kept in the store itself. Larger records become blobs.";
        HA_STANDBY_CACHE_MAX_SIZE: MemorySize = "high-availability.standby-cache.max-size", Value("256 mb"),
            "How much memory a standby's copy of the job records may take. The rest is read at takeover.";
        HA_STANDBY_CACHE_CHECK_INTERVAL: Duration = "high-availability.standby-cache.check-interval", Value("1 min"),
            "How often a standby compares that copy with the store, reading at most 256 KiB per second: no transaction reports a change that was made by hand. It logs differences and takes the store's content.";
        HA_MAX_GRAPH_SIZE: MemorySize = "high-availability.store.max-graph-size", Value("8 mb"),
            "The largest compressed graph that is split over keys of the store where no blob store survives the loss of a host. Larger graphs are refused.";
        BLOB_ORPHAN_GRACE: Duration = "blob.orphan-grace", Value("24 h"),
            "Age at which a blob that no record refers to is deleted.";
    }
}

option_table! { ALL_OTHERS:
    "JobManager" {
        JM_ID: Name = "jobmanager.id", Derived("host and RPC port"),
            "Identifies this JobManager across restarts, so that it can end its own earlier term at once.";
        JM_BIND_HOST: Host = "jobmanager.bind-host", Value("127.0.0.1"),
            "The address that the RPC server binds. `0.0.0.0` for all addresses, with `security.insecure: true`.";
        JM_ADDRESS: Host = "jobmanager.rpc.address", Derived("`jobmanager.bind-host`, or this host's name if that is a wildcard address"),
            "The address under which other processes reach this JobManager.";
        JM_PORT: PortRange = "jobmanager.rpc.port", Value("6123"),
            "The port of the RPC server. The bound port is published.";
        JM_PEER_PORT: PortRange = "jobmanager.peer.port", Value("0"),
            "The port on which other JobManagers and TaskManagers check whether this JobManager is alive. The bound port is published.";
        BLOB_PORT: PortRange = "blob.server.port", Value("0"),
            "The port on which every JobManager serves large graphs to TaskManagers and other JobManagers, bound on the address of the RPC server. The bound port is published.";
        ARTIFACTS_MAX_SIZE: MemorySize = "artifacts.max-size", Value("4 gb"),
            "Limit for the total size of the files that a job uploads for its programs. Such files need a blob store that survives the loss of a host.";
        JOBSTORE_EXPIRATION: Duration = "jobstore.expiration-time", Value("3600 s"),
            "How long the result and the description of an ended job are kept. Only time with a leader counts. At least ten times `client.timeout`, because a late retry must still find the result.";
        JOBSTORE_MAX_CAPACITY: NonZeroU32 = "jobstore.max-capacity", Value("10000"),
            "Number of ended jobs whose description (vertices, subtasks, failures, plan) is kept; the oldest are removed first. Their results stay.";
        JOBSTORE_CACHE_SIZE: MemorySize = "jobstore.cache-size", Value("50 mb"),
            "How much memory a leader uses for descriptions of ended jobs. It reads the others from the store on request.";
    }
    "REST" {
        REST_ADDRESS: Host = "rest.address", Derived("`rest.bind-address`, or `jobmanager.rpc.address` if that is a wildcard address"),
            "The address under which clients reach the REST server.";
        REST_BIND_ADDRESS: Host = "rest.bind-address", Value("127.0.0.1"),
            "The address that the REST server binds. `0.0.0.0` for all addresses, with `security.insecure: true`.";
        REST_PORT: u16 = "rest.port", Value("8081"),
            "The port that clients connect to. 0: any free port, which clients find in the store.";
        REST_BIND_PORT: PortRange = "rest.bind-port", Derived("`rest.port`"),
            "The port that the REST server binds.";
        REST_ALLOWED_HOSTS: AllowedHosts = "rest.allowed-hosts", Unset,
            "Names under which clients reach the REST server besides `rest.address`, for example through a proxy or a Kubernetes service. `*.example.com` allows all names below, `*` allows any name. A request for another host is answered with 421.";
        REST_AWAIT_LEADER: Duration = "rest.await-leader-timeout", Value("30 s"),
            "How long a request waits for a leader before it is answered with 503.";
        REST_MAX_CONTENT: MemorySize = "rest.server.max-content-length", Value("100 mb"),
            "The largest body of a request. A larger body is answered with 413.";
        EXCEPTION_HISTORY: NonZeroU32 = "web.exception-history-size", Value("16"),
            "Number of failures of a job that are kept, each with its concurrent failures. They are part of the job's record.";
    }
    "TaskManager" {
        TM_RESOURCE_ID: Name = "taskmanager.resource-id", Derived("generated at start"),
            "Identifies this TaskManager.";
        TM_BIND_HOST: Host = "taskmanager.bind-host", Value("127.0.0.1"),
            "The address that the RPC and data servers bind. `0.0.0.0` for all addresses, with `security.insecure: true`.";
        TM_HOST: Host = "taskmanager.host", Derived("`taskmanager.bind-host`, or this host's name if that is a wildcard address"),
            "The address under which other processes reach this TaskManager.";
        TM_PORT: PortRange = "taskmanager.rpc.port", Value("0"),
            "The port of the RPC server. The bound port is published.";
        TM_DATA_PORT: PortRange = "taskmanager.data.port", Value("0"),
            "The port that receives records from other TaskManagers. The bound port is published.";
        TM_SLOTS: NonZeroU32 = "taskmanager.numberOfTaskSlots", Value("1"),
            "Number of slots that this TaskManager offers.";
        TM_CPU: CpuCores = "taskmanager.cpu.cores", Derived("the cores that the process may use"),
            "Number of CPU cores of all its slots together. Counted, not enforced.";
        TM_EXTERNAL: Vec<ExternalResource> = "external-resources", Unset,
            "Other resources of this TaskManager, as `NAME:AMOUNT` or `NAME:AMOUNT:VARIABLE`. They are counted like CPU and given to tasks by index. Programs of a task find its indices in `TANIST_RESOURCE_NAME` and in the variable that is named here, such as `gpu:4:CUDA_VISIBLE_DEVICES`.";
        TM_REGISTRATION_TIMEOUT: Duration = "taskmanager.registration.timeout", Value("5 min"),
            "A TaskManager that has no ResourceManager for this long logs a warning. It keeps running and keeps its tasks.";
        TM_SLOT_TIMEOUT: Duration = "taskmanager.slot.timeout", Value("10 s"),
            "An allocated slot that no JobMaster has taken for this long is free again.";
        TM_WORKER_OF: Name = "taskmanager.worker-of", Unset,
            "Set by the driver that starts this TaskManager, never by hand: the incarnation of the cluster that it belongs to. The TaskManager ends when that cluster has no record of it any more.";
        TM_CONTROL_GROUP: PathBuf = "taskmanager.control-group", Unset,
            "Set by the driver that starts this TaskManager, never by hand: the control group that it enters first.";
        TM_FAILOVER_TIMEOUT: Duration = "job-manager-failover-timeout", Value("5 min"),
            "How long tasks continue while neither a leader nor the store can be reached. While one of them can be reached, tasks continue without limit.";
        TM_ISOLATION: Duration = "taskmanager.isolation-timeout", Derived("three fifths of `heartbeat.timeout`"),
            "A TaskManager that has received no answer from the store for this long stops the tasks of jobs with `isolation: stop-first`. The leader sends its value to TaskManagers.";
        TM_ISOLATION_CANCELLATION: Duration = "taskmanager.isolation-cancellation-timeout", Derived("a fifth of `heartbeat.timeout`"),
            "How long those tasks may take to end. After that, the process ends.";
    }
    "Memory of TaskManagers" {
        MEMORY_PROCESS: MemorySize = "taskmanager.memory.process.size", Derived("the memory that the system allows the process, unless other sizes are set"),
            "All memory of a TaskManager: `flink.size` and the overhead. One of the two totals, or the sizes of the parts, is enough: the rest is derived. Sizes that do not add up are refused.";
        MEMORY_FLINK: MemorySize = "taskmanager.memory.flink.size", Unset,
            "All memory except the overhead: framework, task, network and managed memory.";
        MEMORY_FRAMEWORK: MemorySize = "taskmanager.memory.framework.size", Value("128 mb"),
            "Memory of the TaskManager itself. It belongs to no slot.";
        MEMORY_TASK: MemorySize = "taskmanager.memory.task.size", Derived("the rest of `flink.size`"),
            "Memory for the operators of tasks and for their programs. Counted, not enforced.";
        MEMORY_NETWORK_FRACTION: f64 = "taskmanager.memory.network.fraction", Value("0.1"),
            "The fraction of `flink.size` for records in transit between tasks.";
        MEMORY_NETWORK_MIN: MemorySize = "taskmanager.memory.network.min", Value("64 mb"),
            "The smallest network memory.";
        MEMORY_NETWORK_MAX: MemorySize = "taskmanager.memory.network.max", Unset,
            "The largest network memory. If unset, only the fraction limits it.";
        MEMORY_MANAGED: MemorySize = "taskmanager.memory.managed.size", Unset,
            "Memory for keyed state, divided equally among slots or as jobs request it. Counted, not enforced: a task whose slot needs more says so, and goes on.";
        MEMORY_MANAGED_FRACTION: f64 = "taskmanager.memory.managed.fraction", Value("0.4"),
            "The fraction of `flink.size` that is managed memory if no size is set.";
        MEMORY_OVERHEAD_FRACTION: f64 = "taskmanager.memory.overhead.fraction", Value("0.1"),
            "The fraction of `process.size` for the allocator, stacks and other memory that is not accounted for.";
        MEMORY_OVERHEAD_MIN: MemorySize = "taskmanager.memory.overhead.min", Value("192 mb"),
            "The smallest overhead.";
        MEMORY_OVERHEAD_MAX: MemorySize = "taskmanager.memory.overhead.max", Value("1 gb"),
            "The largest overhead.";
    }
    "Liveness and RPC" {
        HEARTBEAT_INTERVAL: Duration = "heartbeat.interval", Value("10 s"),
            "Interval at which components request heartbeats from each other.";
        HEARTBEAT_TIMEOUT: Duration = "heartbeat.timeout", Value("50 s"),
            "A component that has been silent for this long counts as lost.";
        HEARTBEAT_THRESHOLD: FailureThreshold = "heartbeat.rpc-failure-threshold", Value("2"),
            "A component counts as lost after this number of refused calls in a row, unless the leader finds that it is cut off itself. For an address on the leader's own host one refused call is enough. -1 disables it.";
        RPC_ASK_TIMEOUT: Duration = "rpc.ask.timeout", Value("10 s"),
            "Timeout of a call.";
        RPC_MAX_MESSAGE: MemorySize = "rpc.max-message-size", Value("16 mb"),
            "The largest message between processes.";
        RPC_INLINE_DEPLOYMENT: MemorySize = "rpc.inline-deployment-threshold", Value("256 kb"),
            "The largest graph that is part of deployments and forwarded submissions. Receivers fetch larger graphs by hash. At most half of `rpc.max-message-size`.";
        REGISTRATION_INITIAL: Duration = "cluster.registration.initial-timeout", Value("10 s"),
            "How long the first registration attempt waits for its answer; the time doubles with each further attempt. A broken connection or a new leader ends an attempt at once, so a short time only adds load to a busy leader.";
        REGISTRATION_MAX: Duration = "cluster.registration.max-timeout", Value("30 s"),
            "The longest wait for the answer to a registration.";
        REGISTRATION_ERROR_DELAY: Duration = "cluster.registration.error-delay", Value("10 s"),
            "The pause after a failed registration attempt. A new leader ends the pause.";
        REGISTRATION_REFUSED_DELAY: Duration = "cluster.registration.refused-registration-delay", Value("30 s"),
            "The pause after a refused registration. A new leader ends the pause.";
    }
    "Slots and resources" {
        RM_JOB_TIMEOUT: Duration = "resourcemanager.job.timeout", Value("5 min"),
            "A job that has had no JobMaster for this long loses its requirements and its unused slots.";
        RM_DRIVER: WorkerDriver = "resourcemanager.driver", Value("standalone"),
            "What starts TaskManagers. `standalone`: the operator, by hand; `local-process`: the leading JobManager, as processes of its own host, when jobs need them. The same for all JobManagers.";
        RM_LOG_DIR: PathBuf = "resourcemanager.local-process.log-dir", Derived("`workers` in `process.working-dir`"),
            "Where the driver `local-process` keeps the logs of the last 50 TaskManagers that it started.";
        RM_IDLE_TIMEOUT: Duration = "resourcemanager.taskmanager-timeout", Value("30 s"),
            "A TaskManager that a driver started is released after it has been unused for this long. A TaskManager that keeps results which are still read is in use.";
        RM_REGISTRATION_TIMEOUT: Duration = "resourcemanager.taskmanager-registration.timeout", Value("5 min"),
            "How long a TaskManager that a driver started may take to register, also at the next leader. After that it is stopped and another one is started. At least `heartbeat.timeout`.";
        RM_MAX_FAILURE_RATE: f64 = "resourcemanager.start-worker.max-failure-rate", Value("10"),
            "Number of failed TaskManager starts per minute at which the driver stops starting TaskManagers for `resourcemanager.start-worker.retry-interval`.";
        RM_RETRY_INTERVAL: Duration = "resourcemanager.start-worker.retry-interval", Value("3 s"),
            "How long the driver then starts no TaskManager.";
        SLOTS_MIN: u32 = "slotmanager.number-of-slots.min", Value("0"),
            "The driver always provides at least this number of slots, even if no job needs them.";
        SLOTS_MAX: u32 = "slotmanager.number-of-slots.max", Value("2147483647"),
            "The driver starts no TaskManager that would raise the number of slots above this.";
        REDUNDANT_TMS: u32 = "slotmanager.redundant-taskmanager-num", Value("0"),
            "Number of TaskManagers whose slots the driver keeps free beyond what jobs need, so that a lost TaskManager is replaced at once.";
        RM_START_UP_TIME: Duration = "resourcemanager.standalone.start-up-time", Derived("`slot.request.timeout`"),
            "How long TaskManagers may take to register, from the start of a leader's term or since they left. After that, a job that requests a slot larger than any TaskManager receives an error at once.";
        LOAD_BALANCE_MODE: LoadBalanceMode = "taskmanager.load-balance.mode", Value("none"),
            "Which TaskManagers a job gets slots from. `none`: as few as possible, so that few failures affect the job; `slots`: those with the smallest fraction of slots in use, so that the load is even.";
        SLOT_REQUEST_TIMEOUT: Duration = "slot.request.timeout", Value("5 min"),
            "How long a job waits for slots that the cluster cannot provide, neither from registered TaskManagers nor from those that a driver may start, before this counts as a failure. If the cluster has enough slots, the job waits for its turn without limit; after this time it only returns the slots that it has if they are too few.";
        RESERVATION_DELAY: Duration = "slotmanager.reservation.delay", Value("10 s"),
            "After this time slots are reserved for the first of the jobs that lack some, in order of submission, so that smaller jobs submitted later cannot starve it.";
        SLOT_IDLE_TIMEOUT: Duration = "slot.idle.timeout", Value("50 s"),
            "A job returns a slot that it has not used for this long.";
    }
    "Jobs" {
        PARALLELISM: NonZeroU32 = "parallelism.default", Value("1"),
            "The parallelism of steps that do not set one.";
        MAX_PARALLELISM: NonZeroU32 = "pipeline.max-parallelism", Value("128"),
            "The largest parallelism that a job can ever have: the number of groups into which its keys are divided. At most 32768.";
        CHAINING: bool = "pipeline.operator-chaining.enabled", Value("true"),
            "Whether steps that forward records directly to each other share a task.";
        TASK_CANCELLATION_TIMEOUT: Duration = "task.cancellation.timeout", Value("3 min"),
            "A cancelled task that has not ended after this time ends its TaskManager. 0 disables it.";
        TASK_CANCELLATION_INTERVAL: Duration = "task.cancellation.interval", Value("30 s"),
            "How often the cancellation of a task that has not ended is repeated and logged. 0 disables it.";
    }
    "Restarts" {
        RESTART_TYPE: RestartStrategyType = "restart-strategy.type", Value("exponential-delay"),
            "What happens to a job's tasks after a failure, unless the job sets its own strategy.";
        FAILOVER_STRATEGY: FailoverStrategyType = "jobmanager.execution.failover-strategy", Value("region"),
            "Which tasks restart when one fails. `region`: those of its pipelined region and those that read from it; `full`: all tasks of the job that have not finished permanently.";
        FIXED_ATTEMPTS: u32 = "restart-strategy.fixed-delay.attempts", Value("1"),
            "Number of restarts of `fixed-delay` before the job fails.";
        FIXED_DELAY: Duration = "restart-strategy.fixed-delay.delay", Value("1 s"),
            "The pause before each of these restarts.";
        RATE_MAX_FAILURES: NonZeroU32 = "restart-strategy.failure-rate.max-failures-per-interval", Value("1"),
            "Number of failures per interval that `failure-rate` tolerates before the job fails.";
        RATE_INTERVAL: Duration = "restart-strategy.failure-rate.failure-rate-interval", Value("1 min"),
            "The interval in which failures are counted.";
        RATE_DELAY: Duration = "restart-strategy.failure-rate.delay", Value("1 s"),
            "The pause before each of these restarts.";
        EXP_INITIAL: Duration = "restart-strategy.exponential-delay.initial-backoff", Value("100 ms"),
            "The first pause of `exponential-delay`.";
        EXP_MAX: Duration = "restart-strategy.exponential-delay.max-backoff", Value("1 min"),
            "The longest pause.";
        EXP_MULTIPLIER: f64 = "restart-strategy.exponential-delay.backoff-multiplier", Value("1.5"),
            "The factor by which the pause grows with each failure.";
        EXP_RESET: Duration = "restart-strategy.exponential-delay.reset-backoff-threshold", Value("1 h"),
            "Time without a failure after which the pause is reset to the first one.";
        EXP_JITTER: f64 = "restart-strategy.exponential-delay.jitter-factor", Value("0.1"),
            "The fraction by which a pause varies at random, from 0 to 1.";
        EXP_ATTEMPTS: Attempts = "restart-strategy.exponential-delay.attempts-before-reset-backoff", Value("infinite"),
            "Number of restarts without a reset of the pause before the job fails.";
    }
    "Checkpoints" {
        CHECKPOINTING_INTERVAL: Duration = "execution.checkpointing.interval", Unset,
            "Time between the beginnings of two checkpoints, at least 10 ms, for jobs that set none. 0, or not set: no checkpoints are taken.";
        CHECKPOINTING_MIN_PAUSE: Duration = "execution.checkpointing.min-pause", Value("0 ms"),
            "Time between the end of a checkpoint and the beginning of the next one, at least, for jobs that set none.";
        CHECKPOINTING_TIMEOUT: Duration = "execution.checkpointing.timeout", Value("10 min"),
            "A checkpoint that is not complete after this time fails, for jobs that set none.";
        CHECKPOINTING_TOLERABLE: TolerableFailures = "execution.checkpointing.tolerable-failed-checkpoints", Value("-1"),
            "Number of failed checkpoints of a region in a row after which one more is a failure of the region, for jobs that set none. -1: any number, since a slow disk is no reason to restart a healthy job (Flink: 0).";
        CHECKPOINTING_RETAINED: NonZeroU32 = "execution.checkpointing.num-retained", Value("1"),
            "Number of completed checkpoints that are kept of a job that sets none.";
        CHECKPOINTING_MODE: ExactlyOnce = "execution.checkpointing.mode", Value("EXACTLY_ONCE"),
            "The only mode: each record counts once in the restored state. `AT_LEAST_ONCE` is refused.";
        CHECKPOINTING_MAX_CONCURRENT: OneAtATime = "execution.checkpointing.max-concurrent-checkpoints", Value("1"),
            "Number of checkpoints of a region that are in progress at the same time. Any other number is refused.";
        CHECKPOINTING_RETENTION: CheckpointRetention = "execution.checkpointing.externalized-checkpoint-retention", Value("DELETE_ON_CANCELLATION"),
            "Whether the newest checkpoint of a job that sets nothing else is kept when the job is cancelled: `RETAIN_ON_CANCELLATION` keeps it as long as the job's result. That of a job that FAILED is always kept so. `NO_EXTERNALIZED_CHECKPOINTS` is refused.";
        CHECKPOINTS_DIR: StorageLocation = "execution.checkpointing.dir", Derived("`high-availability.storageDir`"),
            "Where the objects of checkpoints are kept, if not with the other objects. All JobManagers and TaskManagers reach it; `high-availability.storage-shared` declares the same for it. Checkpoints of jobs that run are not moved when it is changed.";
        SAVEPOINT_DIR: StorageLocation = "execution.checkpointing.savepoint-dir", Unset,
            "Directory below which each savepoint whose request names none gets a directory of its own. All JobManagers and TaskManagers reach it.";
        STATE_RECOVERY_PATH: RestoreFrom = "execution.state-recovery.path", Unset,
            "The starting point of submitted jobs that name none: the path of a savepoint, or `job:` and the id of a job whose checkpoint was retained. Read by clients, by applications, and by JobManagers for job files that are sent to their REST server. `--from-savepoint` and `savepoint-path` override it.";
        STATE_RECOVERY_IGNORE_UNCLAIMED: bool = "execution.state-recovery.ignore-unclaimed-state", Value("false"),
            "Whether such a job may drop saved state that belongs to none of its steps. If false, it is refused.";
        STATE_RECOVERY_CLAIM_MODE: ClaimMode = "execution.state-recovery.claim-mode", Value("NO_CLAIM"),
            "`NO_CLAIM`: what a job begins from stays as it is, and can be used again. `CLAIM`: a retained checkpoint is moved to the job; a savepoint belongs to the user and can't be claimed. `LEGACY` is refused. It is about `execution.state-recovery.path` alone, and not about applications, all of whose jobs begin from that path. `--claim-mode` and `claim-mode` override it.";
    }
    "Cleanup" {
        CLEANUP_INITIAL: Duration = "cleanup-strategy.exponential-delay.initial-backoff", Value("1 s"),
            "The pause before the first retry of the cleanup after an ended job.";
        CLEANUP_MAX: Duration = "cleanup-strategy.exponential-delay.max-backoff", Value("1 h"),
            "The longest such pause.";
        CLEANUP_ATTEMPTS: Attempts = "cleanup-strategy.exponential-delay.attempts", Value("infinite"),
            "Number of cleanup retries in one term; the next leader resumes the cleanup. An application, or a cluster for one job, ends after them and reports what is left.";
    }
    "Client" {
        EXECUTION_TARGET: ExecutionTarget = "execution.target", Derived("`remote`: the configured REST server, else the leader that the store names"),
            "Where `tanist run` sends a job: to a running cluster, or to a cluster of its own that ends with the job. `--target` overrides it.";
        CLIENT_TIMEOUT: Duration = "client.timeout", Value("60 s"),
            "How long a client retries, also over failovers, before it gives up.";
        CLIENT_RETRY: Duration = "client.retry-period", Value("200 ms"),
            "The pause between retries of a client. It is short because a takeover takes milliseconds: a longer pause would be most of the time that a user waits.";
    }
    "Security" {
        SECURITY_INSECURE: bool = "security.insecure", Value("false"),
            "Allows servers to bind addresses other than loopback although nothing is encrypted or authenticated: a caller who reaches a port has full control.";
        SECURITY_LOCAL_USERS: LocalUsers = "security.local-users", Value("same"),
            "Which users of this host may connect to a port: `same`, the process's own user and root; `any`, all of them.";
    }
    "Process" {
        TMP_DIRS: Vec<PathBuf> = "io.tmp.dirs", Derived("`$TMPDIR` or `/tmp`"),
            "Directories for files that need not outlive the process.";
        WORKING_DIR: PathBuf = "process.working-dir", Derived("`tanist-` and the user's id in the first of `io.tmp.dirs`"),
            "The directory in which each process has a directory of its own for local files. No other user may have write access to it.";
        OUTPUT_UMASK: Umask = "process.output-umask", Derived("the umask of the process at its start"),
            "The file mode creation mask, in octal as `022`, of files that file sinks and the programs of jobs write. The process's own files are closed to other users.";
        CONTROL_GROUPS: ControlGroupsOption = "process.control-groups", Value("off"),
            "The control group (version 2) below which the process makes one for each program of a task and for each TaskManager that it starts, to enforce their limits. `auto`: its own, if that is delegated to it; otherwise it logs the reason, and limits of programs are enforced per process. A path: that group; TaskManagers do not start if it can't be used.";
        SHUTDOWN_TIMEOUT: Duration = "process.shutdown-timeout", Value("30 s"),
            "How long an orderly shutdown may take before the process is killed.";
        LOG_LEVEL: LogLevel = "log.level", Value("info"),
            "The lowest level of log events that JobManagers and TaskManagers write; with `-D` on the command line, also other commands. `TANIST_LOG` (as in `info,tanist_rpc=debug`) is more detailed and takes precedence.";
        LOG_FORMAT: LogFormat = "log.format", Value("text"),
            "Format of log events on standard error.";
    }
}

const NO_HEAP: &str = "there is no heap to size: remove it";
const NO_JVM: &str = "there is no JVM: remove it";

/// Keys of Flink that have a different form here, with advice for each.
pub(super) const ELSEWHERE: &[(&str, &str)] = &[
    ("high-availability", "write `high-availability.type`"),
    ("restart-strategy", "write `restart-strategy.type`"),
    ("pekko.ask.timeout", "write `rpc.ask.timeout`"),
    ("akka.ask.timeout", "write `rpc.ask.timeout`"),
    ("pekko.framesize", "write `rpc.max-message-size`"),
    ("akka.framesize", "write `rpc.max-message-size`"),
    (
        "high-availability.jobmanager.port",
        "write `jobmanager.rpc.port`",
    ),
    (
        "high-availability.zookeeper.client.tolerate-suspended-connections",
        "a lost connection never ends a term: remove it",
    ),
    (
        "cleanup-strategy.type",
        "cleanup always is retried with exponential delay: remove it",
    ),
    (
        "state.checkpoints.dir",
        "write `execution.checkpointing.dir`",
    ),
    (
        "state.checkpoints.num-retained",
        "write `execution.checkpointing.num-retained`",
    ),
    (
        "state.savepoints.dir",
        "write `execution.checkpointing.savepoint-dir`",
    ),
    (
        "execution.savepoint.path",
        "write `execution.state-recovery.path`",
    ),
    (
        "execution.savepoint.ignore-unclaimed-state",
        "write `execution.state-recovery.ignore-unclaimed-state`",
    ),
    (
        "execution.savepoint-restore-mode",
        "write `execution.state-recovery.claim-mode`",
    ),
    (
        "execution.checkpointing.incremental",
        "checkpoints always are incremental: remove it",
    ),
    (
        "execution.checkpointing.unaligned",
        "barriers are always aligned: remove it",
    ),
    (
        "execution.checkpointing.unaligned.enabled",
        "barriers are always aligned: remove it",
    ),
    ("env.java.opts.all", NO_JVM),
    ("env.java.opts", NO_JVM),
    ("env.java.opts.jobmanager", NO_JVM),
    ("env.java.opts.taskmanager", NO_JVM),
    ("env.java.home", NO_JVM),
    ("jobmanager.heap.size", NO_HEAP),
    ("jobmanager.memory.process.size", NO_HEAP),
    ("jobmanager.memory.flink.size", NO_HEAP),
    ("jobmanager.memory.heap.size", NO_HEAP),
    (
        "taskmanager.heap.size",
        "write `taskmanager.memory.process.size`",
    ),
    (
        "taskmanager.memory.framework.heap.size",
        "there is no heap: write `taskmanager.memory.framework.size`",
    ),
    (
        "taskmanager.memory.framework.off-heap.size",
        "there is no heap: write `taskmanager.memory.framework.size`",
    ),
    (
        "taskmanager.memory.task.heap.size",
        "there is no heap: write `taskmanager.memory.task.size`",
    ),
    (
        "taskmanager.memory.task.off-heap.size",
        "there is no heap: write `taskmanager.memory.task.size`",
    ),
    (
        "taskmanager.memory.jvm-metaspace.size",
        "there is no JVM: it is part of `taskmanager.memory.overhead.min` and `.max`",
    ),
    (
        "taskmanager.memory.jvm-overhead.fraction",
        "write `taskmanager.memory.overhead.fraction`",
    ),
    (
        "taskmanager.memory.jvm-overhead.min",
        "write `taskmanager.memory.overhead.min`",
    ),
    (
        "taskmanager.memory.jvm-overhead.max",
        "write `taskmanager.memory.overhead.max`",
    ),
    (
        "taskmanager.memory.segment-size",
        "records are passed on in batches of any size: remove it",
    ),
    (
        "taskmanager.memory.managed.consumer-weights",
        "managed memory has one consumer: remove it",
    ),
];

/// Prefixes of keys of Flink that have a different form here, with advice for each.
pub(super) const ELSEWHERE_BELOW: &[(&str, &str)] = &[(
    "external-resource.",
    "write `external-resources: NAME:AMOUNT`",
)];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_option() {
        for spec in options() {
            if let DefaultValue::Value(text) = spec.default {
                assert_eq!((spec.check)(text), Ok(()), "{}", spec.key);
            }
        }
    }

    #[test]
    fn no_two_options_share_a_key_or_an_environment_variable() {
        let mut seen = BTreeMap::new();
        for spec in options() {
            let earlier = seen.insert(spec.environment_variable(), spec.key);
            assert_eq!(earlier, None, "{}", spec.key);
        }
    }

    #[test]
    fn secrets_are_exactly_the_passwords() {
        for spec in options() {
            assert_eq!(spec.secret, spec.key.ends_with("password"), "{}", spec.key);
        }
    }

    #[test]
    fn a_key_that_is_elsewhere_is_not_an_option() {
        for (key, _) in ELSEWHERE {
            assert!(find(key).is_none(), "{key}");
        }
    }
}
