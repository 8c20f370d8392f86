//! The connection in use. All calls and watches of a backend share one; when it fails, the next call makes another, by way of the Sentinels
//! where there are any.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use shardwise_core::GroupName;
use shardwise_discovery::tls::TlsFiles;
use shardwise_discovery::valkey::Login;
use shardwise_discovery::{AbandonedCall, Clock, SharedConnection};
use tokio::time::timeout;

use crate::connection::{LiveConnection, ScriptCall};
use crate::dial::CONNECT_LIMIT;
use crate::error::{Failure, ServerContext, ValkeyResult};
use crate::keys::KeyPrefix;
use crate::member_keys::MemberKeys;
use crate::scripts::{GroupAnswer, LuaScript, ScriptSet};
use crate::sentinel::ServerLocator;

/// How long one call may take in all, with connecting.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// The most groups whose highest revision is remembered.
const GROUPS_REMEMBERED: usize = 4_096;

/// Whether a call may make the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MakesGroup {
    Yes,
    No,
}

pub(crate) struct Client {
    pub(crate) clock: Clock,
    pub(crate) keys: KeyPrefix,
    pub(crate) scripts: ScriptSet,
    pub(crate) locator: ServerLocator,
    /// The keys of another fleet that groups follow as well.
    pub(crate) member_keys: Option<MemberKeys>,
    login: Login,
    files: TlsFiles,
    connection: SharedConnection<LiveConnection, Failure>,
    /// The highest revision of each group that was shown. Each call sends it to the server: where its own is lower, it has forgotten
    /// what it confirmed, and goes on above.
    shown: Mutex<HashMap<GroupName, u64>>,
}

impl Client {
    pub(crate) fn new(
        clock: Clock,
        keys: KeyPrefix,
        member_keys: Option<MemberKeys>,
        locator: ServerLocator,
        login: Login,
        files: TlsFiles,
    ) -> Self {
        Self {
            clock,
            keys,
            scripts: ScriptSet::new(),
            locator,
            member_keys,
            login,
            files,
            connection: SharedConnection::new(LiveConnection::is_usable),
            shown: Mutex::default(),
        }
    }

    pub(crate) fn username(&self) -> Option<&str> {
        self.login.username.as_deref()
    }

    pub(crate) fn channel(&self, group: &GroupName) -> String {
        self.keys.channel(group, self.login.database)
    }

    fn shown(&self) -> MutexGuard<'_, HashMap<GroupName, u64>> {
        // Nothing under this lock can panic halfway through a change.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest revision of the group that was shown.
    pub(crate) fn highest(&self, group: &GroupName) -> u64 {
        self.shown().get(group).copied().unwrap_or_default()
    }

    /// This revision of the group is shown now.
    pub(crate) fn show(&self, group: &GroupName, revision: u64) {
        let mut shown = self.shown();
        if let Some(highest) = shown.get_mut(group) {
            *highest = revision.max(*highest);
        } else if shown.len() < GROUPS_REMEMBERED {
            shown.insert(group.clone(), revision);
        }
    }

    /// A call of a group's script.
    pub(crate) fn call<'a>(
        &self,
        script: &'a LuaScript,
        group: &GroupName,
        makes_group: MakesGroup,
        arguments: impl IntoIterator<Item = String>,
    ) -> ScriptCall<'a> {
        let may_make = if makes_group == MakesGroup::Yes { "w" } else { "r" };
        let mut all = vec![format!("{:016x}", rand::random::<u64>()), self.highest(group).to_string(), may_make.to_owned()];
        all.extend(arguments);
        ScriptCall { script, keys: self.keys.group(group), channel: Some(self.channel(group)), arguments: all }
    }

    /// Runs a script of a group. It may be carried out twice.
    pub(crate) async fn run(&self, call: &ScriptCall<'_>) -> ValkeyResult<GroupAnswer> {
        let (connection, answer) = self.bounded(call).await?;
        read(&connection, answer)
    }

    /// Runs a script that concerns no members.
    pub(crate) async fn run_alone(&self, script: &LuaScript, key: String, arguments: Vec<String>) -> ValkeyResult<Value> {
        let call = ScriptCall { script, keys: vec![key], channel: None, arguments };
        self.bounded(&call).await.map(|(_, answer)| answer)
    }

    async fn bounded(&self, call: &ScriptCall<'_>) -> ValkeyResult<(Arc<LiveConnection>, Value)> {
        let used = self.connection.present();
        // A call that takes too long counts as abandoned.
        let suspicion = AbandonedCall::begin(|| used.iter().for_each(|connection| self.forget(connection)));
        let answer = timeout(CALL_LIMIT, self.exchange(call)).await;
        if answer.is_ok() {
            suspicion.answered();
        }
        let late = || Failure::TimedOut { place: self.locator.places(), after: CALL_LIMIT };
        answer.unwrap_or_else(|_| Err(late()))
    }

    async fn exchange(&self, call: &ScriptCall<'_>) -> ValkeyResult<(Arc<LiveConnection>, Value)> {
        // One that was there already may have been dead for a while, or its server may have become a replica.
        let mut may_be_stale = self.connection.present().is_some();
        loop {
            let connection = self.connected().await?;
            match connection.run(call).await {
                Err(failure) if failure.is_of_connection() => {
                    self.forget(&connection);
                    if !std::mem::replace(&mut may_be_stale, false) {
                        return Err(failure);
                    }
                }
                answer => return answer.map(|answer| (connection, answer)),
            }
        }
    }

    /// Takes a connection out of use.
    pub(crate) fn forget(&self, connection: &Arc<LiveConnection>) {
        connection.give_up();
        self.connection.forget(connection);
    }

    /// The connection, opened if there is none. Of several callers at once one opens it, and the others share the result.
    pub(crate) async fn connected(&self) -> ValkeyResult<Arc<LiveConnection>> {
        let late = || Failure::Unreachable {
            place: self.locator.places(),
            setting: self.locator.setting(),
            why: format!("no connection within {} ms", CONNECT_LIMIT.as_millis()),
        };
        self.connection.get(|| async { timeout(CONNECT_LIMIT, self.open()).await.unwrap_or_else(|_| Err(late())) }).await
    }

    async fn open(&self) -> ValkeyResult<LiveConnection> {
        let address = self.locator.locate(&self.files).await?;
        let context = ServerContext {
            place: address.to_string(),
            setting: self.locator.setting(),
            of: "",
            username: self.login.username.clone(),
            prefix: self.keys.as_str().to_owned(),
            has_sentinels: self.locator.has_sentinels(),
        };
        LiveConnection::open(&address, &self.login, &self.files, context).await
    }
}

/// Reads the answer of a group's script.
pub(crate) fn read(connection: &LiveConnection, answer: Value) -> ValkeyResult<GroupAnswer> {
    let answer = GroupAnswer::read(&connection.context.place, answer)?;
    connection.learn_origin(&answer.origin);
    Ok(answer)
}
