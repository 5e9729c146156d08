//! Reads the options of the embedded store into a [`Store`]: each cluster has its own directory, blobs are beside them.

use std::path::PathBuf;
use std::sync::Arc;

use tanist_ha::embedded::EmbeddedOptions;

use super::super::super::options::StorePlace;
use super::super::super::table::{HA_CLUSTER_ID, option_table};
use super::super::Builder;
use super::Store;

option_table! { OPTIONS:
    "High availability" {
        EMBEDDED_DIR: PathBuf = "high-availability.embedded.dir", Derived("`$XDG_STATE_HOME/tanist` or `~/.local/state/tanist`; `/var/lib/tanist` without a home"),
            "The directory of the embedded store, on a local file system. The same for all processes of the cluster.";
    }
}

pub(super) fn read(builder: &mut Builder<'_>) -> Store {
    let in_state_home = || match &builder.facts.state_home {
        Some(home) => home.join("tanist"),
        None => PathBuf::from("/var/lib/tanist"),
    };
    let root = builder.values.find(&EMBEDDED_DIR);
    let root = root.unwrap_or_else(in_state_home);
    let cluster_id = builder.values.get(&HA_CLUSTER_ID);
    Store {
        backend: Arc::new(EmbeddedOptions::new(root.join(cluster_id.as_str()))),
        place: StorePlace {
            option: EMBEDDED_DIR.name,
            also: Some(HA_CLUSTER_ID.name),
        },
        lease_option: None,
        blobs: Some(root.join("blobs")),
    }
}
