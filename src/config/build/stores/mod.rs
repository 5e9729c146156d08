//! The stores of leadership and jobs, one file each: its options, and how they become a [`Backend`]. No other file
//! lists them; all else is asked of the backend.

mod embedded;
mod etcd;
mod zookeeper;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tanist_ha::backend::Backend;

use super::super::options::StorePlace;
use super::super::secrets::Form;
use super::super::table::{HA_CLUSTER_ID, HA_TYPE, Key, OptionSpec};
use super::super::value::{Secret, choice};
use super::Builder;

choice! {
    /// The store of leadership and jobs.
    HighAvailabilityType, "`etcd`, `zookeeper` or `embedded`" {
        /// An etcd cluster.
        Etcd = "etcd",
        /// A ZooKeeper ensemble.
        Zookeeper = "zookeeper",
        /// A directory on this host, shared by its processes.
        Embedded = "embedded",
    }
}

/// The options of each store.
pub(crate) static OPTIONS: [&[OptionSpec]; 3] =
    [zookeeper::OPTIONS, etcd::OPTIONS, embedded::OPTIONS];

/// The passwords of stores.
pub(crate) const PASSWORDS: [Form; 2] = [etcd::PASSWORD_FORM, zookeeper::PASSWORD_FORM];

/// The configured store.
pub(super) struct Store {
    pub(super) backend: Arc<dyn Backend>,
    /// The options that say where it is.
    pub(super) place: StorePlace,
    /// The option with its lease or session timeout, if it has one.
    lease_option: Option<&'static Key<Duration>>,
    /// The directory for blobs, unless another place is configured.
    pub(super) blobs: Option<PathBuf>,
}

impl Store {
    /// The option with the lease or session timeout (how long the store keeps a dead process as leader), and its value.
    pub(super) fn lease(&self) -> Option<(&'static Key<Duration>, Duration)> {
        self.lease_option.zip(self.backend.lease())
    }
}

impl Builder<'_> {
    /// The configured store, with the options of its kind.
    pub(super) fn store(&mut self) -> Store {
        match self.values.get(&HA_TYPE) {
            HighAvailabilityType::Etcd => etcd::read(self),
            HighAvailabilityType::Zookeeper => zookeeper::read(self),
            HighAvailabilityType::Embedded => embedded::read(self),
        }
    }

    /// The keys of this cluster in a store that clusters share.
    fn namespace(&self, root: &str) -> String {
        let cluster_id = self.values.get(&HA_CLUSTER_ID);
        format!("{}/{cluster_id}", root.trim_end_matches('/'))
    }

    /// The user and the password; both or none must be set.
    fn user_password(
        &mut self,
        user: &Key<String>,
        password: &Key<Secret>,
    ) -> Option<(String, String)> {
        let (found_user, found_password) = (self.values.find(user), self.values.find(password));
        let both = found_user.is_some() == found_password.is_some();
        self.require(both, &[user.name, password.name], || {
            "set both or none".to_owned()
        });
        Some((found_user?, found_password?.reveal().to_owned()))
    }
}
