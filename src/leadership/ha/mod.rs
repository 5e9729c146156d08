//! Opens the configured store and its blobs: [`tanist_ha::services`] with the options of the configuration.

mod directories;

use tanist_config::HaOptions;
use tanist_gateway::kinds;
use tanist_ha::Result;
use tanist_ha::clock::Clock;
use tanist_ha::election::core::Timing;
use tanist_ha::election::{ElectionOptions, ProcessId, random_start};
use tanist_ha::records::store::RecordStore;
use tanist_ha::services;

pub use directories::{DirectoryError, check_directories, make_directory};
pub use tanist_ha::services::HaServices;

/// Opens everything for a JobManager. Retries until it succeeds.
pub async fn open(options: &HaOptions, process: &ProcessId) -> HaServices {
    let election = ElectionOptions {
        process: process.clone(),
        start: random_start(),
        timing: Timing {
            suspended_hold_off: options.detector.hold_off_timeout,
            no_contact_hold_off: options.detector.silence_timeout
                + options.detector.inquiry_timeout,
            // The detector deposes an earlier start of this process, once that start does not answer.
            deposes_earlier_self: false,
            ..Timing::default()
        },
        clock: Clock::Boottime,
    };
    let blobs = options.blob_places();
    let backend = options.backend.clone();
    services::open(backend, kinds::ALL, blobs.as_ref(), &election).await
}

/// Opens the records read-only. One attempt.
pub async fn open_records(options: &HaOptions) -> Result<RecordStore> {
    let blobs = options.blob_places();
    services::open_records(&options.backend, kinds::ALL, blobs.as_ref()).await
}
