//! One module for each verb.

pub(crate) mod backend;
pub(crate) mod demo;
mod group;
pub(crate) mod init;
pub(crate) mod live;
pub(crate) mod manual;
pub(crate) mod outbox;
pub(crate) mod probe;
pub(crate) mod ring;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod watch;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shardwise::discovery::settings::without_secrets;
use shardwise::settings::{DiscoverySettings, LoadOptions};
use shardwise::{PolicyName, Settings, ShardingFactory};
use shardwise_outbox::settings::LoadedSettings;

use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::{last_error, output};

fn load_settings(common: &Common) -> Result<Settings> {
    Ok(load_with_outboxes(common)?.settings)
}

/// The same, including the outboxes.
fn load_with_outboxes(common: &Common) -> Result<LoadedSettings> {
    let mut options = LoadOptions::from_process();
    if let Some(file) = &common.settings {
        options = options.with_file(file);
    }
    LoadedSettings::load(&options).map_err(|error| match named_settings(common) {
        None if matches!(Path::new(DEFAULT_SETTINGS).try_exists(), Ok(false)) => CliFailure::usage(no_default_settings()),
        Some(path) if matches!(path.try_exists(), Ok(false)) => {
            let named = common.settings.as_ref().map(|path| format!(" --settings {}", path.display())).unwrap_or_default();
            CliFailure::from(error).and(format_args!("`shardwise init{named}` writes one"))
        }
        _ => error.into(),
    })
}

/// The library's message, with the option that only the command has.
fn no_default_settings() -> String {
    let folder = std::env::current_dir().map_or_else(|_| "the working directory".to_owned(), |folder| folder.display().to_string());
    format!(
        "there is no {DEFAULT_SETTINGS} in {folder}: go to its folder, name it with --settings FILE or SHARDWISE_SETTINGS, or write one \
         with `shardwise init`"
    )
}

const DEFAULT_SETTINGS: &str = "settings.toml";

/// The settings file that the command line or the environment names.
fn named_settings(common: &Common) -> Option<PathBuf> {
    let of_environment = || std::env::var_os("SHARDWISE_SETTINGS").filter(|path| !path.is_empty()).map(PathBuf::from);
    common.settings.clone().or_else(of_environment)
}

/// The path of the settings file: from the command line, from the environment, or the default.
fn settings_path(common: &Common) -> PathBuf {
    named_settings(common).unwrap_or_else(|| DEFAULT_SETTINGS.into())
}

/// The outbox whose publishers use this policy.
fn outbox_of<'s>(settings: &'s Settings, policy: &str) -> Result<Option<&'s PolicyName>> {
    let mine = settings.policy(policy)?;
    let meets = |policy: &PolicyName| settings.policies.get(policy).is_some_and(|other| other.meets(mine));
    Ok(settings.outboxes.iter().find(|(_, policy)| meets(policy)).map(|(name, _)| name))
}

/// Refuses to join the group of an outbox: only its publishers may share it, because another member's slots would never be published.
fn joins_no_outbox(settings: &Settings, policy: &str, instead: &str) -> Result<()> {
    outbox_of(settings, policy)?.map_or(Ok(()), |outbox| {
        Err(CliFailure::usage(format!(
            "policy {policy:?} is the ring of outbox {:?}: only its publishers (shardwise outbox run) may join it, because the events of every \
             other member's slots would wait indefinitely; {instead}",
            outbox.as_str()
        )))
    })
}

/// A command that waits longer than this for its backend says so.
const WAITS_QUIETLY: Duration = Duration::from_secs(2);

/// The description of a wait for a policy's group.
fn waits_for(factory: &ShardingFactory, policy: &str) -> String {
    // An unknown policy is refused before anything is waited for.
    let place = factory.discovery(policy).map(place_of).unwrap_or_default();
    format!("the discovery backend of policy {policy:?}{place}")
}

/// The backend and its address, without secrets, such as ` (consul at http://127.0.0.1:8500)`.
fn place_of(discovery: &DiscoverySettings) -> String {
    let options = &discovery.options;
    let endpoints = ["endpoints", "urls", "sentinels"].into_iter().flat_map(|key| options.texts(key));
    let endpoints: Vec<String> = endpoints.map(|endpoint| without_secrets(endpoint)).collect();
    let endpoints = (!endpoints.is_empty()).then(|| endpoints.join(", "));
    let address = ["address", "url"].into_iter().find_map(|key| options.text(key));
    let path = options.path("path").map(|path| path.display().to_string());
    let place = path.or_else(|| address.map(without_secrets)).or(endpoints);
    format!(" ({}{})", discovery.backend, place.map(|place| format!(" at {place}")).unwrap_or_default())
}

/// What to look at while the backend of an observer or a store does not answer.
const IS_IT_THERE: &str = "is it running and reachable?";
/// The same for a member: a backend that answers may still wait for a former process with the same id to expire.
const WHY_NOT_JOINED: &str =
    "either it is not reachable, or it still has a record of this id from a process that was killed, which expires within a TTL";

/// Runs `work`, and prints a note on stderr if it has to wait: with the latest error in the log, else with the hint.
async fn waiting<T>(what: &str, hint: &str, work: impl Future<Output = T>) -> T {
    last_error::forget();
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(WAITS_QUIETLY, &mut work).await {
        return done;
    }
    still_waiting(what, hint);
    work.await
}

fn still_waiting(what: &str, hint: &str) {
    let why = last_error::latest().unwrap_or_else(|| hint.to_owned());
    output::note(format_args!("shardwise: still waiting for {what} after {WAITS_QUIETLY:?}; {why}"));
}

pub(crate) fn block_on(work: impl Future<Output = Result<Code>>) -> Result<Code> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| CliFailure::io("start the runtime", &error))?;
    let result = runtime.block_on(work);
    // A blocked write to a pipe cannot be cancelled, but the process must still end.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use shardwise::discovery::settings::BackendValue;

    use super::*;

    #[test]
    fn a_wait_names_the_backend_and_its_address_without_secrets() {
        let at = |backend: &str, key: &str, value: BackendValue| {
            let mut discovery = DiscoverySettings::new(backend);
            discovery.options = discovery.options.with(key, value);
            place_of(&discovery)
        };
        let address = |text: &str| BackendValue::Text(text.to_owned());
        assert_eq!(at("consul", "address", address("http://user:hush@h:8500")), " (consul at http://***@h:8500)");
        let endpoints = BackendValue::Texts(vec!["http://a:2379".to_owned(), "hush@b:2379".to_owned()]);
        assert_eq!(at("etcd", "endpoints", endpoints), " (etcd at http://a:2379, ***@b:2379)");
        assert_eq!(at("local", "path", BackendValue::Path("/run/shardwise.db".into())), " (local at /run/shardwise.db)");
        assert_eq!(place_of(&DiscoverySettings::new("memory")), " (memory)");
    }
}
