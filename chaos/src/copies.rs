//! Copies of a cluster's store, and JobManagers that are started on a copy: as when an operator restores a backup for a
//! drill, or moves the data. Two JobManagers of one cluster id then have different stores.

use std::path::Path;

use anyhow::Context as _;
use tanist_ha::testing::servers::ports::free_port;

use crate::cluster::Cluster;
use crate::process::Process;
use crate::store::Store;

/// A copy of a cluster's store, and a JobManager of the same cluster id on it.
#[derive(Debug)]
pub struct Copy {
    /// The JobManager, not started yet.
    pub jobmanager: Process,
    /// `host:port` of its REST server.
    pub rest: String,
    _store: Store,
}

impl Cluster {
    /// Copies the store while the cluster runs. `process` is the id of the JobManager on the copy.
    pub async fn copy(&self, process: &str) -> anyhow::Result<Copy> {
        let to = self.directory.join(format!("store-of-{process}"));
        let store = self.store.copy(&self.store_directory, &to).await?;
        let rest_port = free_port();
        let own = [
            ("jobmanager.id".to_owned(), process.to_owned()),
            ("rest.port".to_owned(), rest_port.to_string()),
        ];
        let place = store.place_setting(&to);
        let own = own.into_iter().chain([place]);
        let own: Vec<(String, String)> = own.collect();
        let shared = self.settings.iter();
        let shared = shared.filter(|(key, _)| !own.iter().any(|(of_its_own, _)| of_its_own == key));
        let mut arguments = vec!["jobmanager".to_owned()];
        for (key, value) in shared.chain(&own) {
            arguments.extend(["-D".to_owned(), format!("{key}={value}")]);
        }
        let jobmanager = Process::new(
            process.to_owned(),
            self.cli.program().to_owned(),
            arguments,
            &self.directory,
            self.guard.clone(),
        )?;
        Ok(Copy {
            jobmanager,
            rest: format!("127.0.0.1:{rest_port}"),
            _store: store,
        })
    }
}

/// Copies a directory with its content.
pub(crate) fn copy_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_all(&entry.path(), &target)?,
            false => {
                std::fs::copy(entry.path(), &target)
                    .with_context(|| target.display().to_string())?;
            }
        }
    }
    Ok(())
}
