//! `tanist ha accept`: makes a restored or copied store the cluster's store. It opens the store itself, with
//! the configuration, as a JobManager does, because no JobManager runs on a refused store.

use std::fmt::Write as _;

use tanist_config::HaOptions;
use tanist_ha::Error;
use tanist_ha::backend::Access;
use tanist_ha::election::{self, Acceptance, ProcessId};
use tanist_telemetry::ExitCode;

use super::output::{fail, hint, inform};

/// Shows what accepting the store would change, or accepts it.
pub(super) async fn accept(options: &HaOptions, yes: bool, force: bool) -> ExitCode {
    match try_to_accept(options, yes, force).await {
        Ok(code) => code,
        Err(error) => {
            fail(format_args!("the store is not accepted: {error}"));
            match error {
                Error::Unreachable { .. } | Error::Unavailable { .. } | Error::NoAnswer { .. } => {
                    ExitCode::Unreachable
                }
                _ => ExitCode::Unsuccessful,
            }
        }
    }
}

async fn try_to_accept(options: &HaOptions, yes: bool, force: bool) -> Result<ExitCode, Error> {
    let backend = &options.backend;
    let name = backend.name();
    // It only observes: a lease of its own would make other processes wait for it.
    let process = ProcessId::new("accept");
    let driver = backend.open_election(process, Access::Observe).await?;
    let wanted = election::propose(&*driver).await?;
    inform(description(name, &wanted));
    let code = if yes {
        election::accept(&*driver, &wanted, force).await?;
        inform(format_args!(
            "accepted: start the JobManagers and TaskManagers of this store; the first JobManager leads in epoch {}",
            wanted.next.epoch.next()
        ));
        ExitCode::Ended
    } else {
        inform("nothing was changed");
        hint("`tanist ha accept --yes` does it");
        ExitCode::Unsuccessful
    };
    driver.close().await;
    Ok(code)
}

fn description(name: &str, wanted: &Acceptance) -> String {
    let Acceptance { seen, next } = wanted;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<13}{value}").expect("writing to a string succeeds");
    };
    let shown = seen.store.as_ref();
    let shown = shown.map_or_else(String::new, |store| format!(", which shows {store}"));
    line("Store", format!("{name}{shown}"));
    match (&seen.epoch, &seen.unreadable) {
        (Some((record, _)), _) => {
            let incarnation = &record.incarnation;
            line(
                "Epoch",
                format!("{} of incarnation {incarnation}", record.epoch),
            );
            if let Some(store) = &record.store {
                line("Taken in", store.to_string());
            }
            if let Some(holder) = &record.holder {
                line("Taken by", holder.to_string());
            }
        }
        (None, Some(unreadable)) => line("Epoch", unreadable.reason.clone()),
        (None, None) => {}
    }
    if let Some(leader) = &seen.leader {
        line(
            "Leader",
            format!("{}, in epoch {}", leader.process, leader.epoch),
        );
    }
    write!(
        text,
        "accepting it begins incarnation {} with epoch {}: every JobManager and TaskManager of the former incarnation is refused; \
         the jobs in this store continue",
        next.incarnation, next.epoch
    )
    .expect("writing to a string succeeds");
    text
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::path::Path;

    use super::*;
    use tanist_config::{Configuration, LoadOptions};

    fn configuration(directory: &Path) -> Configuration {
        let set = |key: &str, value: &str| format!("{key}={value}");
        let load = LoadOptions {
            overrides: vec![
                set("high-availability.type", "embedded"),
                set("high-availability.cluster-id", "c"),
                set(
                    "high-availability.embedded.dir",
                    &directory.display().to_string(),
                ),
            ],
            ..LoadOptions::default()
        };
        Configuration::load(load).expect("it is valid")
    }

    #[tokio::test]
    async fn a_copied_store_is_accepted_once_it_is_asked_for_and_not_before() {
        let root = tempfile::tempdir().expect("a directory");
        let (original, copy) = (root.path().join("original"), root.path().join("copy"));
        let options = configuration(&original);
        let nothing = accept(options.ha(), true, false).await;
        assert_eq!(nothing, ExitCode::Unreachable, "nobody has made the store");

        let opened = tanist_leadership::ha::open(options.ha(), &ProcessId::new("a")).await;
        let mut leadership = opened.election.leadership();
        let granted = leadership.wait_for(|now| now.session().is_some()).await;
        drop(granted.expect("the election goes on"));
        opened.election.close().await;
        std::fs::create_dir_all(copy.join("c")).expect("made");
        // The log first: closing moves its content to the file, and then removes it.
        for name in ["tanist.db-wal", "tanist.db"] {
            let from = original.join("c").join(name);
            match std::fs::copy(from, copy.join("c").join(name)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                copied => drop(copied.expect("copied")),
            }
        }

        let options = configuration(&copy);
        let backend = &options.ha().backend;
        let driver = backend.open_election(ProcessId::new("observer"), Access::Observe);
        let driver = driver.await;
        let driver = driver.expect("opened");
        let before = driver.read().await.expect("read");
        assert_eq!(
            accept(options.ha(), false, false).await,
            ExitCode::Unsuccessful
        );
        assert_eq!(driver.read().await.expect("read"), before);
        assert_eq!(accept(options.ha(), true, false).await, ExitCode::Ended);
        let after = driver.read().await.expect("read");
        let (former, _) = before.epoch.expect("it was led");
        let (record, _) = after.epoch.expect("it was accepted");
        assert_eq!(record.epoch, former.epoch.next());
        assert_ne!(record.incarnation, former.incarnation);
        assert_ne!(former.store, after.store, "a copy shows another identity");
        assert_eq!(record.store, after.store);
    }
}
