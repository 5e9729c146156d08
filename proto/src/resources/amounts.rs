//! Amounts of resources, and their arithmetic.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Error: the text is not a number of cores.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no number of CPU cores: a number such as 2 or 0.5, with at most six decimals, is expected"
)]
pub struct InvalidCpuCores(String);

/// CPU cores, in millionths of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuCores(u64);

const MILLIONTHS: u64 = 1_000_000;

impl CpuCores {
    /// No cores.
    pub const ZERO: CpuCores = CpuCores(0);

    /// A number of whole cores.
    pub const fn whole(cores: u32) -> CpuCores {
        // Far below the limit of 64 bits.
        CpuCores(cores as u64 * MILLIONTHS)
    }

    /// A number of millionths of a core.
    pub const fn from_millionths(millionths: u64) -> CpuCores {
        CpuCores(millionths)
    }

    /// The value in millionths of a core.
    pub const fn millionths(self) -> u64 {
        self.0
    }

    /// The nearest representable number of cores; zero if `cores` is not a positive number.
    pub fn from_cores(cores: f64) -> CpuCores {
        // The cast saturates for values that are too large or not a number.
        CpuCores((cores * MILLIONTHS as f64).round().max(0.0) as u64)
    }

    /// The value as a number of cores.
    pub fn cores(self) -> f64 {
        self.0 as f64 / MILLIONTHS as f64
    }
}

impl fmt::Display for CpuCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / MILLIONTHS, self.0 % MILLIONTHS);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let decimals = format!("{rest:06}");
        write!(f, "{whole}.{}", decimals.trim_end_matches('0'))
    }
}

impl FromStr for CpuCores {
    type Err = InvalidCpuCores;
    fn from_str(text: &str) -> Result<CpuCores, InvalidCpuCores> {
        let invalid = || InvalidCpuCores(text.to_owned());
        let (whole, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
        let are_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let is_number = are_digits(whole) && are_digits(decimals) && decimals.len() <= 6;
        if !is_number || (whole.is_empty() && decimals.is_empty()) {
            return Err(invalid());
        }
        let whole: u64 = match whole {
            "" => 0,
            whole => whole.parse().map_err(|_| invalid())?,
        };
        let rest: u64 = format!("{decimals:0<6}").parse().map_err(|_| invalid())?;
        let millionths = whole
            .checked_mul(MILLIONTHS)
            .and_then(|it| it.checked_add(rest));
        millionths.map(CpuCores).ok_or_else(invalid)
    }
}

/// Amounts of all counted resources. Memory is in bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Resources {
    /// CPU cores.
    pub cpu: CpuCores,
    /// Memory for the operators of tasks and for their programs.
    pub task_memory: u64,
    /// Memory for records in transit between tasks.
    pub network_memory: u64,
    /// Memory for state.
    pub managed_memory: u64,
    /// All other counted resources, by name.
    pub extended: ExtendedResources,
}

/// Resources that are only names. An absent resource and an amount of zero are the same; zero is never stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ExtendedResources(BTreeMap<String, u64>);

impl ExtendedResources {
    fn of(amounts: impl Iterator<Item = (String, u64)>) -> ExtendedResources {
        ExtendedResources(amounts.filter(|(_, amount)| *amount > 0).collect())
    }
}

impl Resources {
    /// Nothing of any resource.
    pub const ZERO: Resources = Resources {
        cpu: CpuCores::ZERO,
        task_memory: 0,
        network_memory: 0,
        managed_memory: 0,
        extended: ExtendedResources(BTreeMap::new()),
    };

    /// The same with this amount of an extended resource, in place of the amount that it had.
    #[must_use]
    pub fn with_extended(mut self, name: impl Into<String>, amount: u64) -> Resources {
        let name = name.into();
        if amount == 0 {
            self.extended.0.remove(&name);
        } else {
            self.extended.0.insert(name, amount);
        }
        self
    }

    /// The amount of an extended resource.
    pub fn extended(&self, name: &str) -> u64 {
        self.extended.0.get(name).copied().unwrap_or_default()
    }

    /// The extended resources with an amount above zero, by name.
    pub fn all_extended(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.extended
            .0
            .iter()
            .map(|(name, &amount)| (name.as_str(), amount))
    }

    /// The sum of all memory.
    pub fn total_memory(&self) -> u64 {
        let tasks = self.task_memory.saturating_add(self.network_memory);
        tasks.saturating_add(self.managed_memory)
    }

    /// Whether all amounts are zero.
    pub fn is_zero(&self) -> bool {
        *self == Resources::ZERO
    }

    /// Whether each amount is at least that of `other`.
    pub fn covers(&self, other: &Resources) -> bool {
        self.cpu >= other.cpu
            && self.task_memory >= other.task_memory
            && self.network_memory >= other.network_memory
            && self.managed_memory >= other.managed_memory
            && other
                .all_extended()
                .all(|(name, amount)| self.extended(name) >= amount)
    }

    /// The sum.
    #[must_use]
    pub fn plus(&self, other: &Resources) -> Resources {
        self.combined(other, u64::saturating_add)
    }

    /// The difference; `None` if this does not cover `other`.
    pub fn minus(&self, other: &Resources) -> Option<Resources> {
        self.covers(other).then(|| self.saturating_minus(other))
    }

    /// The difference; an amount that would be negative is zero.
    #[must_use]
    pub fn saturating_minus(&self, other: &Resources) -> Resources {
        self.combined(other, u64::saturating_sub)
    }

    /// The product with `count`.
    #[must_use]
    pub fn times(&self, count: u32) -> Resources {
        self.each(|amount| amount.saturating_mul(count.into()))
    }

    /// One of `count` equal parts, rounded down. A count of 0 counts as 1.
    #[must_use]
    pub fn divided_by(&self, count: u32) -> Resources {
        self.each(|amount| amount / u64::from(count.max(1)))
    }

    /// How many times `part` fits into this. `None`: without limit, because `part` is zero.
    pub fn holds(&self, part: &Resources) -> Option<u64> {
        let pairs = [
            (self.cpu.0, part.cpu.0),
            (self.task_memory, part.task_memory),
            (self.network_memory, part.network_memory),
            (self.managed_memory, part.managed_memory),
        ];
        let extended = part
            .all_extended()
            .map(|(name, amount)| (self.extended(name), amount));
        let all = pairs.into_iter().chain(extended);
        all.filter_map(|(there, wanted)| there.checked_div(wanted))
            .min()
    }

    fn each(&self, of: impl Fn(u64) -> u64) -> Resources {
        let extended = self
            .extended
            .0
            .iter()
            .map(|(name, &amount)| (name.clone(), of(amount)));
        Resources {
            cpu: CpuCores(of(self.cpu.0)),
            task_memory: of(self.task_memory),
            network_memory: of(self.network_memory),
            managed_memory: of(self.managed_memory),
            extended: ExtendedResources::of(extended),
        }
    }

    fn combined(&self, other: &Resources, of: impl Fn(u64, u64) -> u64) -> Resources {
        let names = self.extended.0.keys().chain(other.extended.0.keys());
        let extended =
            names.map(|name| (name.clone(), of(self.extended(name), other.extended(name))));
        Resources {
            cpu: CpuCores(of(self.cpu.0, other.cpu.0)),
            task_memory: of(self.task_memory, other.task_memory),
            network_memory: of(self.network_memory, other.network_memory),
            managed_memory: of(self.managed_memory, other.managed_memory),
            extended: ExtendedResources::of(extended),
        }
    }
}

/// The error in the name of an extended resource, if any.
pub fn extended_name_problem(name: &str) -> Option<&'static str> {
    let is_allowed =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.len() <= 64
        && name.chars().all(is_allowed);
    (!is_name)
        .then_some("is no name: write up to 64 lower-case letters, digits, - and _, a letter first")
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Resources {
            cpu, task_memory, ..
        } = self;
        write!(f, "{cpu} cores, {} of task memory", Bytes(*task_memory))?;
        let rest = [
            ("network", self.network_memory),
            ("managed", self.managed_memory),
        ];
        for (purpose, bytes) in rest.into_iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, ", {} of {purpose} memory", Bytes(bytes))?;
        }
        for (name, amount) in self.all_extended() {
            write!(f, ", {amount} {name}")?;
        }
        Ok(())
    }
}

/// Displays bytes for people: exact, in the largest unit that needs no decimals.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("gb", 30), ("mb", 20), ("kb", 10)];
        let whole = |bits: u32| self.0 > 0 && self.0.trailing_zeros() >= bits;
        match units.into_iter().find(|&(_, bits)| whole(bits)) {
            Some((unit, bits)) => write!(f, "{} {unit}", self.0 >> bits),
            None => write!(f, "{} bytes", self.0),
        }
    }
}
