//! All calls to etcd: each in one place, over one connection to one server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, GetResponse, KvClient, LeaseClient, PutOptions, ResponseHeader, Txn,
    TxnOp, TxnOpResponse, TxnResponse, WatchClient, WatchOptions, WatchStream,
};
use secrecy::{ExposeSecret, SecretString};
use shardwise_discovery::tls::TlsFiles;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tonic::Status;

use crate::config::Endpoint;
use crate::context::ConnectionContext;
use crate::dial::dial;
use crate::error::Failure;
use crate::keys::{Folder, Keys};
use crate::lease_streams::Streams;

/// How many records one answer holds at most.
const PAGE: i64 = 1_000;
/// The most bytes one answer may have: a page of the largest records, and their keys.
const ANSWER_BYTES_MAX: usize = 96 << 20;

#[derive(Debug, Clone)]
pub(crate) struct KeyEntry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) lease: i64,
}

impl From<&etcd_client::KeyValue> for KeyEntry {
    fn from(kv: &etcd_client::KeyValue) -> Self {
        let (key, value) = (kv.key().to_vec(), kv.value().to_vec());
        Self { key, value, created: kv.create_revision(), modified: kv.mod_revision(), lease: kv.lease() }
    }
}

#[derive(Debug)]
pub(crate) struct ConnectParams {
    pub(crate) credentials: Option<(String, SecretString)>,
    pub(crate) tls: TlsFiles,
    pub(crate) prefix: String,
}

/// One connection. It is never repaired: when it breaks, there is a new one.
pub(crate) struct EtcdConnection {
    pub(crate) context: ConnectionContext,
    /// Whether the server has ever answered as etcd does.
    answered: AtomicBool,
    /// When the token was last asked for anew, after a change of users or roles.
    refreshed: Mutex<Option<Instant>>,
    client: Client,
    kv: KvClient,
    watch: WatchClient,
    pub(crate) lease_client: LeaseClient,
    pub(crate) streams: Streams,
}

impl EtcdConnection {
    pub(crate) async fn open(endpoint: &Endpoint, access: &ConnectParams, within: Duration) -> Result<Self, Failure> {
        let (channel, wire) = dial(endpoint, &access.tls, within).await?;
        let username = access.credentials.as_ref().map(|(name, _)| name.clone());
        let (prefix, files) = (access.prefix.clone(), access.tls.clone());
        let context = ConnectionContext { endpoint: endpoint.clone(), username, prefix, files, wire };
        let mut options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
        if let Some((username, password)) = &access.credentials {
            options = options.with_user(username, password.expose_secret());
        }
        let made = timeout(within, Client::from_channel(etcd_client::Channel::Tonic(channel), Some(options))).await;
        let client = match made {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(context.cause(&error).await),
            Err(_) => return Err(Failure::TimedOut { endpoint: endpoint.to_string(), after: within }),
        };
        let kv = client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX);
        let watch = client.watch_client().max_decoding_message_size(ANSWER_BYTES_MAX);
        let answered = AtomicBool::new(access.credentials.is_some());
        let (lease_client, streams) = (client.lease_client(), Streams::default());
        Ok(Self { context, answered, refreshed: Mutex::default(), client, kv, watch, lease_client, streams })
    }

    /// The answer is not one to what was asked.
    pub(crate) fn odd(&self, why: &str) -> Failure {
        Failure::NotEtcd { endpoint: self.context.endpoint.to_string(), why: why.to_owned() }
    }

    /// Asks once, and once more with a new token where the old one has been outdated by a change of users or roles, which the client
    /// does not notice by itself.
    pub(crate) async fn ask<T, F: Future<Output = Result<T, Error>>>(&self, call: impl Fn() -> F) -> Result<T, Failure> {
        let asked = Instant::now();
        let mut answer = call().await;
        if let Err(Error::GRpcStatus(status)) = &answer
            && is_outdated(status)
        {
            answer = match self.refresh_token(asked).await {
                Ok(()) => call().await,
                Err(error) => Err(error),
            };
        }
        match answer {
            Ok(answer) => {
                self.answered.store(true, Ordering::Relaxed);
                Ok(answer)
            }
            Err(error) if self.answered.load(Ordering::Relaxed) => Err(self.context.meaning(&error)),
            Err(error) => Err(self.context.cause(&error).await),
        }
    }

    /// A new token, unless there has been one since `asked`: etcd works a tenth of a second on each, and a thousand members may want one.
    async fn refresh_token(&self, asked: Instant) -> Result<(), Error> {
        let mut refreshed = self.refreshed.lock().await;
        if refreshed.is_none_or(|last| last < asked) {
            let begun = Instant::now();
            self.client.refresh_token().await?;
            *refreshed = Some(begun);
        }
        Ok(())
    }

    pub(crate) async fn txn(&self, txn: &Txn) -> Result<TxnResponse, Failure> {
        self.ask(|| {
            let (mut kv, txn) = (self.kv.clone(), txn.clone());
            async move { kv.txn(txn).await }
        })
        .await
    }

    /// A transaction that puts something under a lease. Nothing: its conditions did not hold, or the lease has ended.
    pub(crate) async fn txn_under_lease(&self, txn: &Txn) -> Result<Option<TxnResponse>, Failure> {
        let answer = self
            .ask(|| {
                let (mut kv, txn) = (self.kv.clone(), txn.clone());
                async move { none_if_gone(kv.txn(txn).await) }
            })
            .await?;
        Ok(answer.filter(TxnResponse::succeeded))
    }

    pub(crate) fn revision_of(&self, header: Option<&ResponseHeader>) -> Result<i64, Failure> {
        header.map(ResponseHeader::revision).ok_or_else(|| self.odd("an answer has no header"))
    }

    /// The entries of these keys at one revision, by a quorum read. At most as many keys as a transaction takes.
    pub(crate) async fn read(&self, keys: &[&[u8]]) -> Result<(Vec<Option<KeyEntry>>, i64), Failure> {
        let gets: Vec<_> = keys.iter().map(|key| TxnOp::get(*key, None)).collect();
        let answer = self.txn(&Txn::new().and_then(gets)).await?;
        let found = answer.op_responses().into_iter().map(|answer| match answer {
            TxnOpResponse::Get(found) => found.kvs().first().map(KeyEntry::from),
            _ => None,
        });
        Ok((found.collect(), self.revision_of(answer.header())?))
    }

    /// A member's record and the revision of the last knock, as the quorum has them.
    pub(crate) async fn place(&self, keys: &Keys) -> Result<(Option<KeyEntry>, Option<i64>), Failure> {
        let mut found = self.read(&[&keys.member, &keys.knock]).await?.0.into_iter();
        Ok((found.next().flatten(), found.next().flatten().map(|knock| knock.modified)))
    }

    async fn get(&self, key: Vec<u8>, options: GetOptions) -> Result<GetResponse, Failure> {
        self.ask(|| {
            let (mut kv, key, options) = (self.kv.clone(), key.clone(), options.clone());
            async move { kv.get(key, Some(options)).await }
        })
        .await
    }

    pub(crate) async fn count(&self, folder: &Folder) -> Result<i64, Failure> {
        Ok(self.get(folder.key(), GetOptions::new().with_range(folder.end()).with_count_only()).await?.count())
    }

    /// Creates a record. `false`: one exists already.
    pub(crate) async fn create(&self, key: &[u8], record: &str, lease_id: i64) -> Result<bool, Failure> {
        let put = TxnOp::put(key, record, Some(PutOptions::new().with_lease(lease_id)));
        let txn = Txn::new().when([Compare::create_revision(key, CompareOp::Equal, 0)]).and_then([put]);
        Ok(self.txn(&txn).await?.succeeded())
    }

    /// Writes a record over exactly this one, under the same lease or another one. `false`: it is not there any more. What arrives late,
    /// when its caller has given up and written something newer, finds another one.
    pub(crate) async fn replace(&self, old: &KeyEntry, record: &str, lease_id: i64) -> Result<bool, Failure> {
        let put = TxnOp::put(old.key.as_slice(), record, Some(PutOptions::new().with_lease(lease_id)));
        let txn = Txn::new().when([Compare::mod_revision(old.key.as_slice(), CompareOp::Equal, old.modified)]).and_then([put]);
        Ok(self.txn(&txn).await?.succeeded())
    }

    /// Knocks for a member's id and returns the knock's revision. `None`: the member has gone, or another process has knocked.
    pub(crate) async fn knock(&self, keys: &Keys, holder: &KeyEntry) -> Result<Option<i64>, Failure> {
        let same = Compare::create_revision(keys.member.as_slice(), CompareOp::Equal, holder.created);
        let quiet = Compare::create_revision(keys.knock.as_slice(), CompareOp::Equal, 0);
        let put = TxnOp::put(keys.knock.as_slice(), "", Some(PutOptions::new().with_lease(holder.lease)));
        let txn = Txn::new().when([same, quiet]).and_then([put]);
        self.txn_under_lease(&txn).await?.map(|answer| self.revision_of(answer.header())).transpose()
    }

    /// Answers a knock by taking it away.
    pub(crate) async fn answer_knock(&self, keys: &Keys, knock: i64) -> Result<(), Failure> {
        let same = Compare::mod_revision(keys.knock.as_slice(), CompareOp::Equal, knock);
        let txn = Txn::new().when([same]).and_then([TxnOp::delete(keys.knock.as_slice(), None)]);
        self.txn(&txn).await.map(drop)
    }

    /// All records and the revision at which they are all; at most `max` and one more.
    pub(crate) async fn list(&self, folder: &Folder, max: usize) -> Result<(Vec<KeyEntry>, i64), Failure> {
        let (mut entries, mut from, mut at) = (Vec::new(), folder.key(), None);
        loop {
            let mut options = GetOptions::new().with_range(folder.end()).with_limit(PAGE);
            if let Some(revision) = at {
                options = options.with_revision(revision);
            }
            let page = self.get(from, options).await?;
            // All pages are of the moment of the first.
            let revision = at.map_or_else(|| self.revision_of(page.header()), Ok)?;
            at = Some(revision);
            entries.extend(page.kvs().iter().map(KeyEntry::from));
            match entries.last() {
                Some(last) if page.more() && entries.len() <= max => from = [last.key.as_slice(), &[0]].concat(),
                _ => return Ok((entries, revision)),
            }
        }
    }

    /// The store's revision, as the quorum has it.
    pub(crate) async fn revision(&self, folder: &Folder) -> Result<i64, Failure> {
        self.revision_of(self.get(folder.key(), GetOptions::new().with_count_only()).await?.header())
    }

    /// All changes from that revision on.
    pub(crate) async fn watch(&self, folder: &Folder, from: i64) -> Result<WatchStream, Failure> {
        let options = WatchOptions::new().with_range(folder.end()).with_start_revision(from).with_progress_notify();
        self.ask(|| {
            let (mut watch, options) = (self.watch.clone(), options.clone());
            async move { watch.watch(folder.key(), Some(options)).await }
        })
        .await
    }
}

/// The token is of a time before the last change of users and roles.
fn is_outdated(status: &Status) -> bool {
    status.message().contains("revision of auth store is old")
}

/// Nothing where etcd knows no such lease (any more).
pub(crate) fn none_if_gone<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::GRpcStatus(status)) if status.message().contains("requested lease not found") => Ok(None),
        other => other.map(Some),
    }
}
