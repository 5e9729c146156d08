//! Values that name a location: hosts, ports and port ranges, server lists, storage locations.
//!
//! Nothing is resolved or bound here; only the form of a name is checked.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use super::value::OptionValue;

/// A host name or IP address, without port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host(String);

impl Host {
    /// The text, an IPv6 address without brackets.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether only this host can reach it: `localhost` or a loopback address.
    pub fn is_loopback(&self) -> bool {
        let ip: Option<IpAddr> = self.0.parse().ok();
        ip.map_or_else(
            || self.0.eq_ignore_ascii_case("localhost"),
            |ip| ip.is_loopback(),
        )
    }

    /// Whether it is a wildcard address (`0.0.0.0` or `::`). No client can connect *to* such an address.
    pub fn is_wildcard(&self) -> bool {
        self.0.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified())
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub fn with_port(&self, port: u16) -> String {
        HostPort {
            host: self.clone(),
            port,
        }
        .to_string()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl OptionValue for Host {
    const KIND: &'static str = "host name or IP address";

    fn parse(text: &str) -> Result<Host, String> {
        let bare = text
            .strip_prefix('[')
            .and_then(|t| t.strip_suffix(']'))
            .unwrap_or(text);
        if bare.parse::<IpAddr>().is_ok() {
            return Ok(Host(bare.to_owned()));
        }
        if text.contains(':') {
            return Err("has more than a host in it: write the host alone".to_owned());
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if text.is_empty() || text.len() > 253 || !text.chars().all(allowed) {
            return Err("is no host name or IP address".to_owned());
        }
        Ok(Host(text.to_owned()))
    }
}

/// A host and a port on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// The host.
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

impl HostPort {
    /// Reads `host:port`, or `host` alone, which gets `default_port`.
    fn parse(text: &str, default_port: u16) -> Result<HostPort, String> {
        // The colons of an IPv6 address do not separate a port, bare or in brackets.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if text.parse::<IpAddr>().is_err() && !port.ends_with(']') => {
                let port: u16 = port
                    .parse()
                    .map_err(|_| format!("has no port in `{text}`"))?;
                (host, port)
            }
            _ => (text, default_port),
        };
        if port == 0 {
            return Err(format!(
                "has port 0 in `{text}`, to which no client can connect"
            ));
        }
        let host =
            Host::parse(host).map_err(|problem| format!("has `{host}` in it, which {problem}"))?;
        Ok(HostPort { host, port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.0.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The endpoints of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EtcdEndpoints(pub(super) Vec<HostPort>);

impl OptionValue for EtcdEndpoints {
    const KIND: &'static str = "host:port, separated by commas";

    fn parse(text: &str) -> Result<EtcdEndpoints, String> {
        let endpoint = |part: &str| {
            if part.starts_with("https://") {
                return Err(format!(
                    "asks for TLS in `{part}`, which isn't supported: write http://"
                ));
            }
            let bare = part.strip_prefix("http://").unwrap_or(part);
            HostPort::parse(bare.strip_suffix('/').unwrap_or(bare), 2379)
        };
        list(text, endpoint).map(EtcdEndpoints)
    }
}

/// The servers of ZooKeeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quorum(pub(super) Vec<HostPort>);

impl OptionValue for Quorum {
    const KIND: &'static str = "host:port, separated by commas";

    fn parse(text: &str) -> Result<Quorum, String> {
        if let Some((_, root)) = text.split_once('/') {
            return Err(format!(
                "has a path in it: write `high-availability.zookeeper.path.root: /{root}` for that"
            ));
        }
        list(text, |part| HostPort::parse(part, 2181)).map(Quorum)
    }
}

/// Names under which clients reach a server, as in the header `Host` of a request: without port, in any case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedHosts {
    /// Whether every name is allowed.
    any: bool,
    exact: Vec<String>,
    /// Each with its leading dot.
    suffixes: Vec<String>,
}

impl AllowedHosts {
    /// Whether requests for `host` are allowed.
    pub fn contains(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.any
            || self.exact.contains(&host)
            || self
                .suffixes
                .iter()
                .any(|suffix| host.len() > suffix.len() && host.ends_with(suffix.as_str()))
    }

    /// Adds a name.
    pub fn allow(&mut self, host: &str) {
        self.exact.push(host.to_ascii_lowercase());
    }
}

impl OptionValue for AllowedHosts {
    const KIND: &'static str = "host names, separated by commas";

    fn parse(text: &str) -> Result<AllowedHosts, String> {
        let mut hosts = AllowedHosts::default();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            if part == "*" {
                hosts.any = true;
                continue;
            }
            let (is_suffix, name) = match part.strip_prefix("*.") {
                Some(name) => (true, name),
                None => (false, part),
            };
            let name = Host::parse(name)
                .map_err(|problem| format!("has `{part}` in it, which {problem}"))?;
            if is_suffix {
                let suffix = format!(".{}", name.as_str().to_ascii_lowercase());
                hosts.suffixes.push(suffix);
            } else {
                hosts.allow(name.as_str());
            }
        }
        Ok(hosts)
    }
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let parsed: Vec<T> = parts.map(parse).collect::<Result<_, _>>()?;
    if parsed.is_empty() {
        Err("is empty: write host:port".to_owned())
    } else {
        Ok(parsed)
    }
}

impl OptionValue for u16 {
    const KIND: &'static str = "port";

    fn parse(text: &str) -> Result<u16, String> {
        let port = text.parse().ok();
        port.ok_or("is no port: write a number up to 65535, 0 for any free one".to_owned())
    }
}

/// The ports that a server may bind, tried in order. Port 0 means any free port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRange(Vec<RangeInclusive<u16>>);

impl PortRange {
    /// Only this port; 0 for any free port.
    pub fn single(port: u16) -> PortRange {
        PortRange(vec![port..=port])
    }

    /// Whether this is exactly one port, and not 0.
    pub(crate) fn is_one_fixed(&self) -> bool {
        let mut ports = self.iter();
        ports.next().is_some_and(|first| first != 0) && ports.next().is_none()
    }

    /// All ports, in the order in which to try them.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(Clone::clone)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if range.start() == range.end() {
                write!(f, "{comma}{}", range.start())?;
            } else {
                write!(f, "{comma}{}-{}", range.start(), range.end())?;
            }
        }
        Ok(())
    }
}

impl OptionValue for PortRange {
    const KIND: &'static str = "port, 0 (any free one), range of ports, or several";

    fn parse(text: &str) -> Result<PortRange, String> {
        let wrong = || {
            "is no port: write a number up to 65535, 0 for any free one, or a range such as `50100-50200`".to_owned()
        };
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u16 = first.trim().parse().map_err(|_| wrong())?;
            let last: u16 = last.trim().parse().map_err(|_| wrong())?;
            if first > last {
                return Err(format!(
                    "has a range that ends before it starts: write `{last}-{first}`"
                ));
            }
            if first == 0 && last != 0 {
                return Err("has a range from 0: write 0 alone for any free port".to_owned());
            }
            Ok(first..=last)
        };
        text.split(',')
            .map(|part| range(part.trim()))
            .collect::<Result<_, _>>()
            .map(PortRange)
    }
}

/// Where blobs (large graphs, artifacts, snapshots) are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageLocation {
    /// An absolute path of a directory.
    Directory(PathBuf),
    /// A bucket and a prefix in it, as `s3://bucket/prefix`.
    S3(String),
}

impl OptionValue for StorageLocation {
    const KIND: &'static str = "absolute path, or s3:// URL";

    fn parse(text: &str) -> Result<StorageLocation, String> {
        // The meaning of `..` depends on symbolic links, which hosts may see differently; a bucket has no parents.
        if text.split('/').any(|part| part == "..") {
            return Err("has `..` in it: write the path that it leads to".to_owned());
        }
        if let Some(rest) = text.strip_prefix("s3://") {
            let bucket = rest.split('/').next().unwrap_or_default();
            if bucket.is_empty() {
                return Err("names no bucket: write s3://bucket/prefix".to_owned());
            }
            return Ok(StorageLocation::S3(text.trim_end_matches('/').to_owned()));
        }
        // Flink writes `file:/path`.
        let path = text.strip_prefix("file://").unwrap_or(text);
        let path = path.strip_prefix("file:").unwrap_or(path);
        if path.is_empty() {
            return Err("is empty: write an absolute path, file:// or s3://".to_owned());
        }
        if path.contains("://") {
            return Err(
                "has an unknown scheme: write an absolute path, file:// or s3://".to_owned(),
            );
        }
        let path = PathBuf::from(path);
        if !path.is_absolute() {
            return Err("is no absolute path: processes start in different directories".to_owned());
        }
        Ok(StorageLocation::Directory(path))
    }
}

impl FromStr for StorageLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<StorageLocation, String> {
        StorageLocation::parse(text.trim())
    }
}

impl fmt::Display for StorageLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorageLocation::Directory(path) => write!(f, "{}", path.display()),
            StorageLocation::S3(url) => f.write_str(url),
        }
    }
}

/// The path below which a store's keys are: absolute, without empty parts, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RootPath(pub(super) String);

impl OptionValue for RootPath {
    const KIND: &'static str = "absolute path in the store";

    fn parse(text: &str) -> Result<RootPath, String> {
        let wrong =
            || "is no path in a store: write names after slashes, as in `/tanist`".to_owned();
        let names = text.strip_prefix('/').ok_or_else(wrong)?;
        let well_formed = |name: &str| {
            !matches!(name, "" | "." | ".." | "zookeeper") && !name.chars().any(char::is_control)
        };
        if !names.split('/').all(well_formed) {
            return Err(wrong());
        }
        Ok(RootPath(text.to_owned()))
    }
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
