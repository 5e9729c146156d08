//! Creates pending files for tests.

use std::fs;
use std::path::Path;

use tanist_proto::id::JobId;
use tanist_proto::v1::Committable;

use super::names::PENDING_DIRECTORY;

/// Creates a pending file that is durable and waits for its commit. Its content is its name.
pub(super) fn pending(directory: &Path, job: JobId, name: &str) -> Committable {
    let parent = directory.join(PENDING_DIRECTORY).join(job.to_string());
    fs::create_dir_all(&parent).expect("directory");
    let path = parent.join(format!("{name}.pending"));
    fs::write(&path, name).expect("written");
    Committable {
        pending_path: path.to_string_lossy().into_owned(),
        final_path: directory.join(name).to_string_lossy().into_owned(),
    }
}
