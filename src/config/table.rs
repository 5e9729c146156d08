//! The table of all options: the one place where a key, its type, its default and its meaning are written down.
//!
//! Loading, the reference in `docs/configuration.md` and what a process logs at its start all read this table. Relations
//! between options are in [`super::build`].

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use tanist_ha::keys::Name;
use tanist_proto::resources::CpuCores;

use super::address::{
    AllowedHosts, EtcdEndpoints, Host, PortRange, Quorum, RootPath, StorageLocation,
};
use super::control_groups::ControlGroupsOption;
use super::external::ExternalResource;
use super::umask::Umask;
use super::value::{
    Attempts, ExecutionTarget, FailoverStrategyType, FailureThreshold, HighAvailabilityType,
    LoadBalanceMode, LocalUsers, LogFormat, LogLevel, MemorySize, OptionValue, RestartStrategyType,
    Secret, WorkerDriver,
};

/// One option, as it is documented.
#[derive(Debug)]
pub struct OptionSpec {
    /// The key, as in the file and after `-D`.
    pub key: &'static str,
    /// The heading under which it is documented.
    pub section: &'static str,
    /// Its type, in words.
    pub kind: &'static str,
    /// What holds when it isn't set.
    pub default: DefaultValue,
    /// One line: what it is for.
    pub description: &'static str,
    /// Whether its value is never shown.
    pub secret: bool,
    /// Says what is wrong with a text as value of this option.
    pub(super) check: fn(&str) -> Result<(), String>,
}

impl OptionSpec {
    /// The environment variable that overrides the file: `TANIST_`, then the key in capitals with `_` for `.` and `-`.
    pub fn environment_variable(&self) -> String {
        let name = self.key.replace(['.', '-'], "_").to_ascii_uppercase();
        format!("{ENVIRONMENT_PREFIX}{name}")
    }
}

/// What holds when an option isn't set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultValue {
    /// This value.
    Value(&'static str),
    /// A value that follows from the host or from other options, in words.
    Derived(&'static str),
    /// Nothing.
    Unset,
}

/// With what every environment variable of Tanist begins.
pub(super) const ENVIRONMENT_PREFIX: &str = "TANIST_";

/// A key together with the type of its value.
#[derive(Debug)]
pub(super) struct Key<T> {
    pub(super) name: &'static str,
    value: PhantomData<fn() -> T>,
}

/// The option of that key.
pub fn find(key: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| spec.key == key)
}

fn check<T: OptionValue>(text: &str) -> Result<(), String> {
    T::parse(text).map(|_| ())
}

macro_rules! options {
    ($($section:literal { $(
        $name:ident: $type:ty = $key:literal, $default:ident $(($text:literal))?, $description:literal;
    )+ })+) => {
        $($(pub(super) const $name: Key<$type> = Key { name: $key, value: PhantomData };)+)+

        /// Every option, by section.
        pub static OPTIONS: &[OptionSpec] = &[$($(OptionSpec {
            key: $key,
            section: $section,
            kind: <$type as OptionValue>::KIND,
            default: DefaultValue::$default $(($text))?,
            description: $description,
            secret: <$type as OptionValue>::SECRET,
            check: check::<$type>,
        },)+)+];
    };
}

options! {
    "High availability" {
        HA_TYPE: HighAvailabilityType = "high-availability.type", Value("embedded"),
            "Where leadership and jobs are kept. `embedded` serves the processes of one host.";
        HA_CLUSTER_ID: Name = "high-availability.cluster-id", Value("default"),
            "Tells clusters apart that share a store. All processes of a cluster have the same.";
        HA_STORAGE_DIR: StorageLocation = "high-availability.storageDir", Derived("with `embedded`: `blobs` in its directory; else none, and large graphs are split over store keys"),
            "Where blobs are kept that are too large for the store. Who asks S3, where it is, and whom it has to prove itself to, the environment says: see [operations](operations.md#s3-and-files-from-addresses).";
        HA_STORAGE_SHARED: bool = "high-availability.storage-shared", Value("false"),
            "Says that `high-availability.storageDir` is a directory that every host of the cluster sees. Buckets always are shared.";
        DETECTOR_BEAT_INTERVAL: Duration = "high-availability.detector.beat-interval", Value("100 ms"),
            "How often a JobManager gives the others a sign of life.";
        DETECTOR_SILENCE_TIMEOUT: Duration = "high-availability.detector.silence-timeout", Value("800 ms"),
            "After how much silence of the leader a standby asks others about it. A busy machine widens it by itself.";
        DETECTOR_ASK_TIMEOUT: Duration = "high-availability.detector.ask-timeout", Value("300 ms"),
            "How long those may take to answer.";
        DETECTOR_HOLD_OFF: Duration = "high-availability.detector.hold-off-timeout", Derived("the lease or session timeout, at least 10 s"),
            "How long a standby leaves leadership that came free to a leader that it still hears: its store was in trouble. Where the standby's own store answered all along it is 2 s.";
        TRANSFER_TIMEOUT: Duration = "high-availability.transfer-timeout", Value("5 s"),
            "How long a leader that is asked to end, or to hand over, waits for a standby to take over.";
        STALL_TIMEOUT: Duration = "recovery.stall-timeout", Value("60 s"),
            "How long nothing may move in a leader (its recovery, its runtime, its Dispatcher or ResourceManager) before it resigns and says why.";
        HA_INLINE_THRESHOLD: MemorySize = "high-availability.inline-threshold", Value("64 kb"),
            "The largest record, compressed, that is kept in the store itself. Larger ones become blobs.";
        HA_STANDBY_CACHE_MAX_SIZE: MemorySize = "high-availability.standby-cache.max-size", Value("256 mb"),
            "How much memory a standby's copy of the jobs' records may take. What does not fit is read when it takes over.";
        HA_STANDBY_CACHE_CHECK_INTERVAL: Duration = "high-availability.standby-cache.check-interval", Value("1 min"),
            "How often a standby compares that copy with what the store holds, at 256 KiB a second at most: what somebody changed there by hand no transaction names. It says what differs, and takes what the store holds.";
        HA_MAX_GRAPH_SIZE: MemorySize = "high-availability.store.max-graph-size", Value("8 mb"),
            "The largest graph, compressed, that is split over keys of the store where no blob store survives the loss of a host. Larger ones are refused.";
        BLOB_ORPHAN_GRACE: Duration = "blob.orphan-grace", Value("24 h"),
            "How old a blob is that nothing points to before it is deleted.";
        ZK_QUORUM: Quorum = "high-availability.zookeeper.quorum", Unset,
            "The ZooKeeper servers. Needed with `zookeeper`; the port is 2181 where none is given.";
        ZK_ROOT: RootPath = "high-availability.zookeeper.path.root", Value("/tanist"),
            "The node under which each cluster has its own.";
        ZK_SESSION_TIMEOUT: Duration = "high-availability.zookeeper.client.session-timeout", Value("10 s"),
            "After how much silence ZooKeeper ends a session. The servers bound it to 2 to 20 of their ticks.";
        ZK_CONNECTION_TIMEOUT: Duration = "high-availability.zookeeper.client.connection-timeout", Derived("half of the session timeout"),
            "How long one attempt to connect to one server may take.";
        ZK_USER: String = "high-availability.zookeeper.auth.user", Unset,
            "The user for digest authentication; the cluster's nodes are then closed to all others.";
        ZK_PASSWORD: Secret = "high-availability.zookeeper.auth.password", Unset,
            "That user's password. Refused after `-D`, which every user of the host can read.";
        ZK_PASSWORD_FILE: PathBuf = "high-availability.zookeeper.auth.password-file", Derived("the systemd credential `tanist.zookeeper-password`, where the process is given one"),
            "A file with that user's password instead, which other users can't read. A line's end after it is left out.";
        ETCD_ENDPOINTS: EtcdEndpoints = "high-availability.etcd.endpoints", Unset,
            "The etcd servers. Needed with `etcd`; the port is 2379 where none is given.";
        ETCD_ROOT: RootPath = "high-availability.etcd.path.root", Value("/tanist"),
            "The prefix under which each cluster has its keys.";
        ETCD_USER: String = "high-availability.etcd.user", Unset,
            "The etcd user, if authentication is on.";
        ETCD_PASSWORD: Secret = "high-availability.etcd.password", Unset,
            "That user's password. Refused after `-D`, which every user of the host can read.";
        ETCD_PASSWORD_FILE: PathBuf = "high-availability.etcd.password-file", Derived("the systemd credential `tanist.etcd-password`, where the process is given one"),
            "A file with that user's password instead, which other users can't read. A line's end after it is left out.";
        ETCD_LEASE_TTL: Duration = "high-availability.etcd.lease-ttl", Value("5 s"),
            "After how much silence etcd drops a process's lease. Whole seconds; etcd grants 2 s at the least by default.";
        ETCD_REQUEST_TIMEOUT: Duration = "high-availability.etcd.request-timeout", Derived("half of the lease's time to live"),
            "How long one request to etcd may take before it is sent again.";
        ETCD_QUOTA: MemorySize = "high-availability.etcd.quota-backend-bytes", Derived("what etcd says, from 3.6 on; else its default, `2 gb`"),
            "What etcd was started with as `--quota-backend-bytes`, so that a store that fills up is warned of in time. Set it where etcd does not say it and has another one.";
        EMBEDDED_DIR: PathBuf = "high-availability.embedded.dir", Derived("`$XDG_STATE_HOME/tanist` or `~/.local/state/tanist`; `/var/lib/tanist` without a home"),
            "The directory of the embedded store, on a local file system, the same for all processes of the cluster.";
    }
    "JobManager" {
        JM_ID: Name = "jobmanager.id", Derived("host and RPC port"),
            "Names this JobManager across its restarts, so that it can end its own earlier term at once.";
        JM_BIND_HOST: Host = "jobmanager.bind-host", Value("127.0.0.1"),
            "The address that the RPC server binds. `0.0.0.0` for all, with `security.insecure: true`.";
        JM_ADDRESS: Host = "jobmanager.rpc.address", Derived("`jobmanager.bind-host`, or this host's name if that stands for all addresses"),
            "The address under which other processes reach this JobManager.";
        JM_PORT: PortRange = "jobmanager.rpc.port", Value("6123"),
            "The port of the RPC server. The port really bound is published.";
        JM_PEER_PORT: PortRange = "jobmanager.peer.port", Value("0"),
            "The port on which other JobManagers and TaskManagers hear whether this one lives. The port really bound is published.";
        BLOB_PORT: PortRange = "blob.server.port", Value("0"),
            "The port over which every JobManager serves large graphs to TaskManagers and other JobManagers, bound as the RPC server is. The port really bound is published.";
        ARTIFACTS_MAX_SIZE: MemorySize = "artifacts.max-size", Value("4 gb"),
            "How many bytes the files may have together that a job uploads for its programs. They need a blob store that survives the loss of a host.";
        JOBSTORE_EXPIRATION: Duration = "jobstore.expiration-time", Value("3600 s"),
            "How long the result of an ended job is kept, and its description, counted while somebody leads. At least ten times `client.timeout`: a late retry must still find it.";
        JOBSTORE_MAX_CAPACITY: NonZeroU32 = "jobstore.max-capacity", Value("10000"),
            "Of how many ended jobs the description (vertices, subtasks, failures, plan) is kept at most; the oldest go first. Their results stay.";
        JOBSTORE_CACHE_SIZE: MemorySize = "jobstore.cache-size", Value("50 mb"),
            "How much memory a leader uses for descriptions of ended jobs. The others are read when somebody asks for them.";
    }
    "REST" {
        REST_ADDRESS: Host = "rest.address", Derived("`rest.bind-address`, or `jobmanager.rpc.address` if that stands for all addresses"),
            "The address under which clients reach the REST server.";
        REST_BIND_ADDRESS: Host = "rest.bind-address", Value("127.0.0.1"),
            "The address that the REST server binds. `0.0.0.0` for all, with `security.insecure: true`.";
        REST_PORT: u16 = "rest.port", Value("8081"),
            "The port that clients connect to; 0: any free one, which the store names.";
        REST_BIND_PORT: PortRange = "rest.bind-port", Derived("`rest.port`"),
            "The port that the REST server binds.";
        REST_ALLOWED_HOSTS: AllowedHosts = "rest.allowed-hosts", Unset,
            "Names under which clients reach the REST server besides `rest.address`, as behind a proxy or a Kubernetes service. `*.example.com` stands for all names below, `*` for any. A request for another host is answered with 421.";
        REST_AWAIT_LEADER: Duration = "rest.await-leader-timeout", Value("30 s"),
            "How long a request waits for a leader before it is answered with 503.";
        REST_MAX_CONTENT: MemorySize = "rest.server.max-content-length", Value("100 mb"),
            "The largest body of a request. Larger ones are answered with 413.";
        EXCEPTION_HISTORY: NonZeroU32 = "web.exception-history-size", Value("16"),
            "How many failures of a job are remembered, each with those that came with it. They are part of the job's record.";
    }
    "TaskManager" {
        TM_RESOURCE_ID: Name = "taskmanager.resource-id", Derived("made up at start"),
            "Names this TaskManager.";
        TM_BIND_HOST: Host = "taskmanager.bind-host", Value("127.0.0.1"),
            "The address that the RPC and data servers bind. `0.0.0.0` for all, with `security.insecure: true`.";
        TM_HOST: Host = "taskmanager.host", Derived("`taskmanager.bind-host`, or this host's name if that stands for all addresses"),
            "The address under which other processes reach this TaskManager.";
        TM_PORT: PortRange = "taskmanager.rpc.port", Value("0"),
            "The port of the RPC server. The port really bound is published.";
        TM_DATA_PORT: PortRange = "taskmanager.data.port", Value("0"),
            "The port over which records come in. The port really bound is published.";
        TM_SLOTS: NonZeroU32 = "taskmanager.numberOfTaskSlots", Value("1"),
            "How many slots this TaskManager offers.";
        TM_CPU: CpuCores = "taskmanager.cpu.cores", Derived("the cores that the process may use"),
            "How many CPU cores its slots have together. Counted, not enforced.";
        TM_EXTERNAL: Vec<ExternalResource> = "external-resources", Unset,
            "What else it has to give, as `NAME:AMOUNT` or `NAME:AMOUNT:VARIABLE`: counted like CPU, and given to tasks by index. Programs of a task find its indices in `TANIST_RESOURCE_NAME`, and in the variable that is named here, such as `gpu:4:CUDA_VISIBLE_DEVICES`.";
        TM_REGISTRATION_TIMEOUT: Duration = "taskmanager.registration.timeout", Value("5 min"),
            "After how long without a ResourceManager a TaskManager complains. It stays and keeps its tasks.";
        TM_SLOT_TIMEOUT: Duration = "taskmanager.slot.timeout", Value("10 s"),
            "After how long an allocated slot that no JobMaster took is free again.";
        TM_WORKER_OF: Name = "taskmanager.worker-of", Unset,
            "Set by the driver that starts this TaskManager, never by hand: the incarnation of the cluster that it is for. When that has no record of it any more, it ends.";
        TM_CONTROL_GROUP: PathBuf = "taskmanager.control-group", Unset,
            "Set by the driver that starts this TaskManager, never by hand: the control group that it enters first.";
        TM_FAILOVER_TIMEOUT: Duration = "job-manager-failover-timeout", Value("5 min"),
            "How long tasks go on without a leader while the store can't be reached either. As long as either answers, they go on anyway.";
        TM_ISOLATION: Duration = "taskmanager.isolation-timeout", Derived("three fifths of `heartbeat.timeout`"),
            "After how long without an answer of the store a TaskManager stops the tasks of jobs with `isolation: stop-first`. The leader tells TaskManagers.";
        TM_ISOLATION_CANCELLATION: Duration = "taskmanager.isolation-cancellation-timeout", Derived("a fifth of `heartbeat.timeout`"),
            "How long those tasks may take to end; then the process ends.";
    }
    "Memory of TaskManagers" {
        MEMORY_PROCESS: MemorySize = "taskmanager.memory.process.size", Derived("what the system lets the process have, unless other sizes say it"),
            "All memory of a TaskManager: `flink.size` and the overhead. One of the two totals is enough, or the sizes of the parts; what is left open follows, and what does not add up is refused.";
        MEMORY_FLINK: MemorySize = "taskmanager.memory.flink.size", Unset,
            "All of it but the overhead: framework, task, network and managed memory.";
        MEMORY_FRAMEWORK: MemorySize = "taskmanager.memory.framework.size", Value("128 mb"),
            "What the TaskManager itself takes. It is no slot's.";
        MEMORY_TASK: MemorySize = "taskmanager.memory.task.size", Derived("the rest of `flink.size`"),
            "For what tasks do with records, and for their programs. Counted, not enforced.";
        MEMORY_NETWORK_FRACTION: f64 = "taskmanager.memory.network.fraction", Value("0.1"),
            "The part of `flink.size` for records on their way between tasks.";
        MEMORY_NETWORK_MIN: MemorySize = "taskmanager.memory.network.min", Value("64 mb"),
            "The least of it.";
        MEMORY_NETWORK_MAX: MemorySize = "taskmanager.memory.network.max", Unset,
            "The most of it; without, only the fraction bounds it.";
        MEMORY_MANAGED: MemorySize = "taskmanager.memory.managed.size", Unset,
            "For state, per slot in equal parts or as jobs ask for it. Counted, not enforced.";
        MEMORY_MANAGED_FRACTION: f64 = "taskmanager.memory.managed.fraction", Value("0"),
            "The part of `flink.size` that is managed memory where no size is set.";
        MEMORY_OVERHEAD_FRACTION: f64 = "taskmanager.memory.overhead.fraction", Value("0.1"),
            "The part of `process.size` for the allocator, stacks and what else nobody counts.";
        MEMORY_OVERHEAD_MIN: MemorySize = "taskmanager.memory.overhead.min", Value("192 mb"),
            "The least of it.";
        MEMORY_OVERHEAD_MAX: MemorySize = "taskmanager.memory.overhead.max", Value("1 gb"),
            "The most of it.";
    }
    "Liveness and RPC" {
        HEARTBEAT_INTERVAL: Duration = "heartbeat.interval", Value("10 s"),
            "How often components ask each other for a heartbeat.";
        HEARTBEAT_TIMEOUT: Duration = "heartbeat.timeout", Value("50 s"),
            "After how much silence the other side counts as lost.";
        HEARTBEAT_THRESHOLD: FailureThreshold = "heartbeat.rpc-failure-threshold", Value("2"),
            "After how many refused calls in a row the other side counts as lost, unless it is found that the leader is what is cut off; at an address of the leader's own host the first one is enough. -1 for never.";
        RPC_ASK_TIMEOUT: Duration = "rpc.ask.timeout", Value("10 s"),
            "How long the answer to a call may take.";
        RPC_MAX_MESSAGE: MemorySize = "rpc.max-message-size", Value("16 mb"),
            "The largest message between processes.";
        RPC_INLINE_DEPLOYMENT: MemorySize = "rpc.inline-deployment-threshold", Value("256 kb"),
            "The largest graph that goes along with deployments and forwarded submissions. Larger ones are fetched by their hash. At most half of `rpc.max-message-size`.";
        REGISTRATION_INITIAL: Duration = "cluster.registration.initial-timeout", Value("10 s"),
            "How long the first attempt to register waits for its answer; each further one twice as long. A connection that breaks ends an attempt at once, and news of another leader does: a short time only makes a busy leader busier.";
        REGISTRATION_MAX: Duration = "cluster.registration.max-timeout", Value("30 s"),
            "The longest wait for the answer to a registration.";
        REGISTRATION_ERROR_DELAY: Duration = "cluster.registration.error-delay", Value("10 s"),
            "The pause after an attempt to register that failed. News of a leader ends it.";
        REGISTRATION_REFUSED_DELAY: Duration = "cluster.registration.refused-registration-delay", Value("30 s"),
            "The pause after a refused registration. News of a leader ends it.";
    }
    "Slots and resources" {
        RM_JOB_TIMEOUT: Duration = "resourcemanager.job.timeout", Value("5 min"),
            "After how long without a JobMaster a job loses its requirements and unused slots.";
        RM_DRIVER: WorkerDriver = "resourcemanager.driver", Value("standalone"),
            "Who starts TaskManagers. `standalone`: somebody by hand; `local-process`: the leading JobManager, as processes of its own host, as jobs need them. The same for all JobManagers.";
        RM_LOG_DIR: PathBuf = "resourcemanager.local-process.log-dir", Derived("`workers` in `process.working-dir`"),
            "Where the driver `local-process` keeps the logs of the TaskManagers that it started, the last 50.";
        RM_IDLE_TIMEOUT: Duration = "resourcemanager.taskmanager-timeout", Value("30 s"),
            "After how long a TaskManager that a driver started and nobody uses is released. One that keeps results which somebody still reads is in use.";
        RM_REGISTRATION_TIMEOUT: Duration = "resourcemanager.taskmanager-registration.timeout", Value("5 min"),
            "In which a TaskManager that a driver started has to register, also at the next leader; else it is stopped, and another one is started. At least `heartbeat.timeout`.";
        RM_MAX_FAILURE_RATE: f64 = "resourcemanager.start-worker.max-failure-rate", Value("10"),
            "How many TaskManagers whose start fails within a minute are too many: then none is started for a while.";
        RM_RETRY_INTERVAL: Duration = "resourcemanager.start-worker.retry-interval", Value("3 s"),
            "For how long then.";
        SLOTS_MIN: u32 = "slotmanager.number-of-slots.min", Value("0"),
            "So many slots a driver sees to at any time, whether jobs need them or not.";
        SLOTS_MAX: u32 = "slotmanager.number-of-slots.max", Value("2147483647"),
            "A driver starts no TaskManager with which there would be more slots than this.";
        REDUNDANT_TMS: u32 = "slotmanager.redundant-taskmanager-num", Value("0"),
            "The slots of so many TaskManagers a driver keeps free beyond what jobs need, so that the loss of one is made good at once.";
        RM_START_UP_TIME: Duration = "resourcemanager.standalone.start-up-time", Derived("`slot.request.timeout`"),
            "How long TaskManagers have to register, from the beginning of a leader's term or since they left, before a job that asks for a slot larger than any of them is told so at once.";
        LOAD_BALANCE_MODE: LoadBalanceMode = "taskmanager.load-balance.mode", Value("none"),
            "From which TaskManagers a job is given slots: `none`, from as few as possible, so that few failures reach it; `slots`, from those of which the smallest part is in use, so that all are used alike.";
        SLOT_REQUEST_TIMEOUT: Duration = "slot.request.timeout", Value("5 min"),
            "How long a job waits for slots that the cluster has no room for, with the TaskManagers that there are and those that a driver may start, before that counts as a failure. What there is room for waits for its turn, without limit; it only gives back, after this time, slots that are too few for it.";
        RESERVATION_DELAY: Duration = "slotmanager.reservation.delay", Value("10 s"),
            "After how long slots are kept for the first of the jobs that lack some, in the order in which they were submitted, so that smaller ones that come later do not take them for ever.";
        SLOT_IDLE_TIMEOUT: Duration = "slot.idle.timeout", Value("50 s"),
            "After how long a job gives back a slot that it doesn't use.";
    }
    "Jobs" {
        PARALLELISM: NonZeroU32 = "parallelism.default", Value("1"),
            "The parallelism of steps that name none.";
        MAX_PARALLELISM: NonZeroU32 = "pipeline.max-parallelism", Value("128"),
            "The largest parallelism that a job can ever be given: into so many groups its keys are divided. At most 32768.";
        CHAINING: bool = "pipeline.operator-chaining.enabled", Value("true"),
            "Whether steps that pass records straight on share a task.";
        TASK_CANCELLATION_TIMEOUT: Duration = "task.cancellation.timeout", Value("3 min"),
            "After how long a cancelled task that doesn't end takes its TaskManager down. 0 for never.";
        TASK_CANCELLATION_INTERVAL: Duration = "task.cancellation.interval", Value("30 s"),
            "How often a cancelled task that hasn't ended is told again, and the log says so. 0 for never.";
    }
    "Restarts" {
        RESTART_TYPE: RestartStrategyType = "restart-strategy.type", Value("exponential-delay"),
            "What happens to a job's tasks after a failure, unless the job says otherwise.";
        FAILOVER_STRATEGY: FailoverStrategyType = "jobmanager.execution.failover-strategy", Value("region"),
            "Which tasks start anew when one fails: those of its pipelined region and those that read from it, or all of the job that have not finished for good.";
        FIXED_ATTEMPTS: u32 = "restart-strategy.fixed-delay.attempts", Value("1"),
            "How often `fixed-delay` restarts before the job fails.";
        FIXED_DELAY: Duration = "restart-strategy.fixed-delay.delay", Value("1 s"),
            "The pause before each of these restarts.";
        RATE_MAX_FAILURES: NonZeroU32 = "restart-strategy.failure-rate.max-failures-per-interval", Value("1"),
            "How many failures in one interval `failure-rate` bears before the job fails.";
        RATE_INTERVAL: Duration = "restart-strategy.failure-rate.failure-rate-interval", Value("1 min"),
            "The interval in which failures are counted.";
        RATE_DELAY: Duration = "restart-strategy.failure-rate.delay", Value("1 s"),
            "The pause before each of these restarts.";
        EXP_INITIAL: Duration = "restart-strategy.exponential-delay.initial-backoff", Value("1 s"),
            "The first pause of `exponential-delay`.";
        EXP_MAX: Duration = "restart-strategy.exponential-delay.max-backoff", Value("1 min"),
            "The longest pause.";
        EXP_MULTIPLIER: f64 = "restart-strategy.exponential-delay.backoff-multiplier", Value("1.5"),
            "By what the pause grows with each failure.";
        EXP_RESET: Duration = "restart-strategy.exponential-delay.reset-backoff-threshold", Value("1 h"),
            "After how long without failure the pause is the first one again.";
        EXP_JITTER: f64 = "restart-strategy.exponential-delay.jitter-factor", Value("0.1"),
            "By which part of itself a pause varies at random, from 0 to 1.";
        EXP_ATTEMPTS: Attempts = "restart-strategy.exponential-delay.attempts-before-reset-backoff", Value("infinite"),
            "How many restarts are made without the pause being reset before the job fails.";
    }
    "Cleanup" {
        CLEANUP_INITIAL: Duration = "cleanup-strategy.exponential-delay.initial-backoff", Value("1 s"),
            "The pause before the cleanup after an ended job is first tried again.";
        CLEANUP_MAX: Duration = "cleanup-strategy.exponential-delay.max-backoff", Value("1 h"),
            "The longest such pause.";
        CLEANUP_ATTEMPTS: Attempts = "cleanup-strategy.exponential-delay.attempts", Value("infinite"),
            "How often the cleanup is tried again in one term; the next leader resumes it. An application, or a cluster for one job, ends then and says what is left.";
    }
    "Client" {
        EXECUTION_TARGET: ExecutionTarget = "execution.target", Derived("`remote`: the REST server that is named, else the leader that the store names"),
            "Where `tanist run` sends a job: to a cluster that runs, or to one of its own that ends with it. `--target` overrides it.";
        CLIENT_TIMEOUT: Duration = "client.timeout", Value("60 s"),
            "How long a client goes on trying, over failovers, before it gives up.";
        CLIENT_RETRY: Duration = "client.retry-period", Value("200 ms"),
            "The pause between a client's tries. Short, as a takeover takes milliseconds: a longer pause would be most of what a user waits for.";
    }
    "Security" {
        SECURITY_INSECURE: bool = "security.insecure", Value("false"),
            "Lets servers bind other addresses than loopback, though nothing is encrypted or authenticated: a caller who reaches a port has full control.";
        SECURITY_LOCAL_USERS: LocalUsers = "security.local-users", Value("same"),
            "Which users of this host may connect to a port: `same`, the process's own user and root; `any`, all of them.";
    }
    "Process" {
        TMP_DIRS: Vec<PathBuf> = "io.tmp.dirs", Derived("`$TMPDIR` or `/tmp`"),
            "Directories for files that needn't outlive the process.";
        WORKING_DIR: PathBuf = "process.working-dir", Derived("`tanist-` and the user's id in the first of `io.tmp.dirs`"),
            "The directory in which each process has its own for local files. Nobody else may write to it.";
        OUTPUT_UMASK: Umask = "process.output-umask", Derived("the one with which the process was started"),
            "The file mode creation mask, in octal as `022`, of what file sinks and the programs of jobs write. What a process keeps for itself is closed to other users.";
        CONTROL_GROUPS: ControlGroupsOption = "process.control-groups", Value("off"),
            "Under which control group (version 2) the process makes one for each program of a task and each TaskManager that it starts, which holds these to their limits. `auto`: its own, where that is delegated to it; else it says why not, and limits of programs are held per process. A path: that one; where it can't be used TaskManagers do not start.";
        SHUTDOWN_TIMEOUT: Duration = "process.shutdown-timeout", Value("30 s"),
            "How long an orderly end may take before the process is ended.";
        LOG_LEVEL: LogLevel = "log.level", Value("info"),
            "Which log events JobManagers and TaskManagers show, and, given with `-D`, any command. `TANIST_LOG` (as in `info,tanist::rpc=debug`) is finer and wins.";
        LOG_FORMAT: LogFormat = "log.format", Value("text"),
            "How log events look on standard error.";
    }
}

const NO_HEAP: &str = "there is no heap to size: remove it";
const NO_JVM: &str = "there is no JVM: remove it";

/// Keys that users of Flink know, for which there is something else here.
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

/// With what keys begin that users of Flink know, for which there is something else here.
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
        for spec in OPTIONS {
            if let DefaultValue::Value(text) = spec.default {
                assert_eq!((spec.check)(text), Ok(()), "{}", spec.key);
            }
        }
    }

    #[test]
    fn no_two_options_share_a_key_or_an_environment_variable() {
        let mut seen = BTreeMap::new();
        for spec in OPTIONS {
            let earlier = seen.insert(spec.environment_variable(), spec.key);
            assert_eq!(earlier, None, "{}", spec.key);
        }
    }

    #[test]
    fn secrets_are_exactly_the_passwords() {
        for spec in OPTIONS {
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
