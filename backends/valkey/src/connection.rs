//! One connection to the primary: scripts go out over it, and changes come in, in one order. So a script's answer comes behind all changes
//! that were published before it ran.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, Value};
use shardwise_discovery::tls::TlsFiles;
use shardwise_discovery::valkey::{Login, ValkeyAddress, dial};
use tokio_util::task::AbortOnDropHandle;

use crate::changes::ChangeRouter;
use crate::dial::{ServerFacts, TLS_LIMIT, meaning_of};
use crate::error::{ServerContext, ValkeyResult};
use crate::scripts::LuaScript;

pub(crate) struct LiveConnection {
    pub(crate) redis: MultiplexedConnection,
    pub(crate) router: Arc<ChangeRouter>,
    /// One subscribes or unsubscribes at a time, so that both reach the server in the order of the router's changes.
    pub(crate) subscribing: tokio::sync::Mutex<()>,
    pub(crate) context: ServerContext,
    /// The name of the server's history, as far as it is known.
    origin: Mutex<String>,
    /// A call found that it is of no use any more.
    is_broken: AtomicBool,
    task: AbortOnDropHandle<()>,
}

/// What a script is called with.
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'a LuaScript,
    pub(crate) keys: Vec<String>,
    /// The channel of a group's changes, for the scripts of a group: the first argument, and what the connection knows of its server's
    /// history is the second.
    pub(crate) channel: Option<String>,
    pub(crate) arguments: Vec<String>,
}

impl LiveConnection {
    /// Connects to a server and makes sure that it will do.
    pub(crate) async fn open(address: &ValkeyAddress, login: &Login, files: &TlsFiles, context: ServerContext) -> ValkeyResult<Self> {
        let router = Arc::<ChangeRouter>::default();
        let delivered = Arc::clone(&router);
        let pushed = move |push: PushInfo| -> Result<(), ()> {
            delivered.deliver(push);
            Ok(())
        };
        // Messages of channels need RESP3. Callers have limits for their whole call.
        // The database is chosen below, because the client library hides why a server refuses one.
        let info = login.connection_info().set_db(0).set_skip_set_lib_name().set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(pushed);
        let (mut redis, task) = dial(address, files, &info, config, TLS_LIMIT).await.map_err(|failure| meaning_of(failure, &context))?;
        let info: String = redis::cmd("INFO").query_async(&mut redis).await.map_err(|error| context.meaning(&error))?;
        let facts = ServerFacts::read(&info);
        facts.check(&context)?;
        if login.database != 0 {
            let chosen = redis::cmd("SELECT").arg(login.database).exec_async(&mut redis).await;
            chosen.map_err(|error| context.meaning_for_database(login.database, &error))?;
        }
        let (subscribing, is_broken) = (tokio::sync::Mutex::new(()), AtomicBool::new(false));
        Ok(Self { redis, router, subscribing, context, origin: Mutex::new(facts.origin), is_broken, task })
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.is_broken.load(Ordering::Relaxed) && !self.task.is_finished()
    }

    pub(crate) fn give_up(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn origin(&self) -> String {
        self.origin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn learn_origin(&self, origin: &str) {
        let mut known = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != origin {
            origin.clone_into(&mut known);
        }
    }

    /// Runs a script by its name, or by its text where the server does not know it (any more).
    pub(crate) async fn run(&self, call: &ScriptCall<'_>) -> ValkeyResult<Value> {
        let asked = self.ask("EVALSHA", &call.script.sha, call).await;
        let answer = match asked {
            Err(error) if error.code() == Some("NOSCRIPT") => self.ask("EVAL", &call.script.text, call).await,
            other => other,
        };
        answer.map_err(|error| self.context.meaning(&error))
    }

    async fn ask(&self, command: &str, script: &str, call: &ScriptCall<'_>) -> redis::RedisResult<Value> {
        let mut asked = redis::cmd(command);
        asked.arg(script).arg(call.keys.len());
        for key in &call.keys {
            asked.arg(key);
        }
        if let Some(channel) = &call.channel {
            asked.arg(channel).arg(self.origin());
        }
        for argument in &call.arguments {
            asked.arg(argument);
        }
        asked.query_async(&mut self.redis.clone()).await
    }
}
