//! A third party's backend, as small as one can be: the workers of one machine meet in a folder. Each group is a file of JSON, changed
//! under a lock. The page "Write a backend" explains it; `cargo xtask test --only author` builds it as a separate package and runs the
//! conformance suites over it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use shardwise_core::{ClaimName, GroupName, InstanceId, Member, View};
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader, Hub, follow};
use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape};
use shardwise_discovery::{
    Capabilities, Clock, Discovery, Error, ErrorKind, Grant, Note, Notes, Record, RecordId, Registration, Result, ViewSnapshot,
    WatchStream, WriteOutcome, check_note, one_line,
};

/// How long a call waits for the lock of a group, and how often it tries.
const LOCK_LIMIT: Duration = Duration::from_secs(5);
const TRY_EVERY: Duration = Duration::from_millis(1);
/// How often watches look at the file.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// How much later than its TTL a silent member may leave the view: a poll, on a busy machine.
const MARGIN: Duration = Duration::from_millis(500);
const LIMITS: FeedLimits = FeedLimits { watches: 1_024, groups: 64 };
const RECORD_BYTES_MAX: usize = 65_536;

/// `discovery.backend = "folder"`, once the program has called `shardwise::add_backend(&BACKEND)`.
pub static BACKEND: BackendKind = BackendKind { name: "folder", keys: KEYS, claims_share: 1, open, init: None };

const KEYS: &[BackendKey] =
    &[BackendKey::new("path", BackendShape::Path, "the folder where the workers of this machine meet").or("workers")];

fn open(settings: &BackendSettings, clock: &Clock) -> Result<Arc<dyn Discovery>> {
    let path = settings.path("path").unwrap_or(Path::new("workers"));
    Ok(Arc::new(FolderBackend::new(path, clock.clone())))
}

/// Workers that name the same folder.
#[derive(Clone)]
pub struct FolderBackend {
    store: FolderStore,
    hub: Hub,
}

#[derive(Clone)]
struct FolderStore {
    folder: PathBuf,
    clock: Clock,
}

impl FolderBackend {
    /// A folder, which is made when it is needed.
    pub fn new(folder: &Path, clock: Clock) -> Self {
        // Moments are counted from the machine's start, so what was written before the last one means nothing.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let store = FolderStore { folder: folder.join(boot.trim()), clock };
        let followed = store.clone();
        let hub = Hub::new(store.clock.clone(), LIMITS, move |feed| follow(FolderReader { store: followed.clone() }, feed));
        Self { store, hub }
    }
}

/// A group as its file has it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct FolderGroup {
    /// The number of the last change.
    revision: u64,
    members: BTreeMap<String, FolderRecord>,
    notes: BTreeMap<String, (u64, String)>,
    notes_written: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct FolderRecord {
    joined: u64,
    incarnation: u64,
    is_away: bool,
    /// In nanoseconds of the machine's clock.
    ends: u64,
    renewals: u64,
    json: String,
}

impl FolderStore {
    /// Where the group's file is. Names may have any characters and 255 bytes, so the path is their bytes in hexadecimal, in parts.
    fn path(&self, group: &GroupName) -> PathBuf {
        let mut path = self.folder.clone();
        for part in group.as_str().as_bytes().chunks(100) {
            let mut hexadecimal = String::new();
            for byte in part {
                // Writing into a String cannot fail.
                let _ = write!(hexadecimal, "{byte:02x}");
            }
            path.push(hexadecimal);
        }
        path
    }

    /// Runs `change` on the group as of now, and writes it back if that has changed it. Nothing is awaited once the lock is held: a call
    /// that is dropped was not carried out, and none is carried out late.
    async fn with<T>(
        &self,
        operation: &'static str,
        group: &GroupName,
        change: impl FnOnce(&mut FolderGroup, u64) -> Result<T> + Send,
    ) -> Result<T> {
        let failed =
            |error: io::Error| Error::new(ErrorKind::Unavailable, operation, one_line(&format!("the folder of {group:?}: {error}")));
        let path = self.path(group);
        std::fs::create_dir_all(&path).map_err(failed)?;
        let lock = OpenOptions::new().create(true).append(true).open(path.join("lock")).map_err(failed)?;
        self.locked(operation, &lock).await?;
        let read = match std::fs::read(path.join("group.json")) {
            Ok(json) => serde_json::from_slice(&json).map_err(io::Error::other).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => FolderGroup::default(),
            // A file that cannot be read is no empty group.
            Err(error) => return Err(failed(error)),
        };
        let now = self.clock.now().as_nanos();
        let mut group = FolderGroup { members: read.members.clone(), notes: read.notes.clone(), ..read };
        group.members.retain(|_, record| now < record.ends);
        if group.members.len() != read.members.len() {
            group.revision += 1;
        }
        let answer = change(&mut group, now);
        if group != read {
            let json = serde_json::to_vec(&group).map_err(io::Error::other).map_err(failed)?;
            // Readers see the old file or the new one.
            std::fs::write(path.join("next.json"), json).map_err(failed)?;
            std::fs::rename(path.join("next.json"), path.join("group.json")).map_err(failed)?;
        }
        // The lock ends with its file.
        answer
    }

    async fn locked(&self, operation: &'static str, lock: &File) -> Result<()> {
        let until = self.clock.now().plus(LOCK_LIMIT);
        while lock.try_lock().is_err() {
            if self.clock.now() >= until {
                return Err(Error::new(ErrorKind::TimedOut, operation, "the lock of the group was held by others for 5 s"));
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
        Ok(())
    }

    async fn view(&self, operation: &'static str, group: &GroupName) -> Result<ViewSnapshot> {
        let proven = self.clock.now();
        let view = self.with(operation, group, |group, _| group.view(operation)).await?;
        Ok(ViewSnapshot { view: Arc::new(view), proven })
    }
}

impl FolderGroup {
    /// The record of exactly this life.
    fn there(&mut self, record_id: &RecordId) -> Option<&mut FolderRecord> {
        let record = self.members.get_mut(record_id.instance_id.as_str())?;
        (record.incarnation == record_id.incarnation.get()).then_some(record)
    }

    /// The living record of exactly this life.
    fn own(&mut self, record_id: &RecordId, operation: &'static str) -> Result<&mut FolderRecord> {
        let why = || format!("{:?} has no living record here; register again", record_id.instance_id);
        self.there(record_id).filter(|record| !record.is_away).ok_or_else(|| Error::new(ErrorKind::Lost, operation, why()))
    }

    fn view(&self, operation: &'static str) -> Result<View> {
        let member = |(id, record): (&String, &FolderRecord)| -> std::result::Result<Member, String> {
            let id = InstanceId::new(id).map_err(|error| error.to_string())?;
            Record::decode(id, record.joined, &record.json).map_err(|error| error.to_string())
        };
        let members = self.members.iter().map(member).collect::<std::result::Result<_, _>>();
        let members = members.map_err(|why| Error::new(ErrorKind::Misconfigured, operation, one_line(&why)))?;
        Ok(View::new(self.revision, members))
    }
}

fn encoded(member: &Member, operation: &'static str) -> Result<String> {
    Record::encode_within(RECORD_BYTES_MAX, member).map_err(|refused| Error::new(refused.kind(), operation, refused.to_string()))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[async_trait]
impl Discovery for FolderBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("folder", MARGIN).with_places().without_claims("it is a small example; use \"local\"")
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let (record_id, ttl) = (registration.record_id(), registration.ttl);
        let json = encoded(&registration.member, "register")?;
        let started = self.store.clock.now();
        let register = |group: &mut FolderGroup, now: u64| {
            let (id, incarnation, number) = (record_id.instance_id.as_str(), record_id.incarnation.get(), group.revision + 1);
            let (joined, renewals) = match group.members.get(id) {
                Some(there) if there.is_away => (number, there.renewals),
                Some(other) if other.incarnation != incarnation => {
                    let holder = Record::decode(record_id.instance_id.clone(), other.joined, &other.json).ok();
                    let kind = ErrorKind::InUse { address: holder.and_then(|holder| holder.address), stamp: other.renewals };
                    return Err(Error::new(kind, "register", format!("instance id {:?} is in use", record_id.instance_id)));
                }
                Some(own) => (own.joined, own.renewals),
                None => (number, 0),
            };
            let record =
                FolderRecord { joined, incarnation, is_away: false, ends: now.saturating_add(nanos(ttl)), renewals: renewals + 1, json };
            group.members.insert(id.to_owned(), record);
            group.revision = number;
            Ok(())
        };
        self.store.with("register", &registration.group, register).await?;
        Ok(Grant { started, ttl })
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        let started = self.store.clock.now();
        let renew = |group: &mut FolderGroup, now: u64| {
            let record = group.own(record_id, "renew")?;
            (record.ends, record.renewals) = (now.saturating_add(nanos(ttl)), record.renewals + 1);
            Ok(())
        };
        self.store.with("renew", &record_id.group, renew).await?;
        Ok(Grant { started, ttl })
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        let (record_id, json) = (registration.record_id(), encoded(&registration.member, "update")?);
        let update = |group: &mut FolderGroup, _: u64| {
            let record = group.own(&record_id, "update")?;
            if record.json != json {
                record.json = json;
                group.revision += 1;
            }
            Ok(())
        };
        self.store.with("update", &registration.group, update).await
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        let deregister = |group: &mut FolderGroup, _: u64| {
            if group.there(record_id).is_some() {
                group.members.remove(record_id.instance_id.as_str());
                group.revision += 1;
            }
            Ok(())
        };
        self.store.with("deregister", &record_id.group, deregister).await
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        let (record_id, json) = (registration.record_id(), encoded(&registration.away_member(), "step_away")?);
        let step_away = |group: &mut FolderGroup, now: u64| {
            if group.there(&record_id).is_some_and(|record| record.is_away) {
                return Ok(());
            }
            let record = group.own(&record_id, "step_away")?;
            (record.is_away, record.ends, record.json) = (true, now.saturating_add(nanos(rejoin_grace)), json);
            group.revision += 1;
            Ok(())
        };
        self.store.with("step_away", &registration.group, step_away).await
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.store.view("members", group).await
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.hub.watch(group, prove_every)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        Some(self)
    }
}

#[async_trait]
impl Notes for FolderBackend {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let read = |group: &mut FolderGroup, _: u64| {
            Ok(group.notes.get(name.as_str()).map(|(version, text)| Note { text: text.clone(), version: *version }))
        };
        self.store.with("note", group, read).await
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        check_note(name, text)?;
        let write = |group: &mut FolderGroup, _: u64| {
            let there = group.notes.get(name.as_str()).map(|(version, text)| Note { text: text.clone(), version: *version });
            if there.as_ref().map_or(0, |note| note.version) != expected {
                return Ok(WriteOutcome::Other(there));
            }
            group.notes_written += 1;
            group.notes.insert(name.as_str().to_owned(), (group.notes_written, text.to_owned()));
            Ok(WriteOutcome::Written(group.notes_written))
        };
        self.store.with("write_note", group, write).await
    }
}

/// Reads one group for all watches of this process.
struct FolderReader {
    store: FolderStore,
}

impl FolderReader {
    async fn poll(&self, feed: &Feed) -> Result<()> {
        let ViewSnapshot { view, proven } = self.store.view("watch", feed.group()).await?;
        match feed.latest() {
            Some(latest) if *latest == *view => feed.prove(proven),
            _ => feed.show(view, Some(proven)),
        }
        Ok(())
    }
}

impl GroupReader<View> for FolderReader {
    // Each poll is a proof, and they are more frequent than any watch asks for.
    const NEXT_PROVES: bool = true;

    async fn open(&mut self, feed: &Feed) -> Result<()> {
        self.poll(feed).await
    }

    async fn next(&mut self, feed: &Feed) -> Result<()> {
        tokio::time::sleep(POLL_EVERY).await;
        self.poll(feed).await
    }
}
