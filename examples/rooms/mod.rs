//! The rooms of `chat_rooms`: each is a task that begins with the first message and ends when its slot must be handed over.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use shardwise::requests::{Answer, Owned};
use shardwise::{ClaimName, Epoch, GroupName, Guard};
use shardwise_fencing::{Journal, JournalError};
use sqlx::SqlitePool;
use tokio::sync::{mpsc, oneshot};

/// How far a journal grows between two snapshots.
const SNAPSHOT_EVERY: u64 = 50;

/// A message in a room's journal. Its key finds it again when it is sent a second time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoomMessage {
    key: String,
    text: String,
}

/// What is asked of a room.
struct Asked {
    /// To be said, or only read.
    message: Option<RoomMessage>,
    reply: oneshot::Sender<Answer>,
}

/// The rooms that are open at this worker.
#[derive(Clone)]
pub(crate) struct Rooms {
    id: String,
    group: GroupName,
    database: SqlitePool,
    /// At most as many requests wait in all inboxes as the worker handles at once.
    open: Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Asked>>>>,
}

impl Rooms {
    pub(crate) fn new(id: &str, group: GroupName, database: SqlitePool) -> Self {
        Self { id: id.to_owned(), group, database, open: Arc::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, mpsc::UnboundedSender<Asked>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles `rooms/say`, whose request has a key, and `rooms/read`, whose request has none.
    pub(crate) async fn handle(self, owned: Owned) -> Result<Answer, Answer> {
        let room = String::from_utf8_lossy(owned.key.as_key().bytes()).into_owned();
        let text = String::from_utf8_lossy(&owned.request.body).into_owned();
        let message = owned.request.idempotency_key.clone().map(|key| RoomMessage { key, text });
        let (reply, answer) = oneshot::channel();
        self.ask(&room, &owned, Asked { message, reply })?;
        // Without a reply the room was lost, and the message may be in its journal or not: the same key finds it there.
        answer.await.map_err(|_| Answer::problem(503, "room-lost", "The room was lost", "send it again with the same key"))
    }

    /// Passes it to the room, which begins now if it is not open.
    fn ask(&self, room: &str, owned: &Owned, asked: Asked) -> Result<(), Answer> {
        let Some(guard) = &owned.guard else {
            return Err(Answer::problem(500, "not-exclusive", "Not exclusive", "a room needs ownership = \"exclusive\""));
        };
        let name = ClaimName::new(format!("room/{room}"));
        let name = name.map_err(|error| Answer::problem(400, "bad-room", "This is no room", &error.to_string()))?;
        let mut open = self.open();
        let inbox = open.entry(room.to_owned()).or_insert_with(|| {
            let (inbox, messages) = mpsc::unbounded_channel();
            let journal = Journal::sqlite(self.database.clone(), self.group.clone(), name);
            tokio::spawn(self.clone().run(room.to_owned(), journal, Arc::clone(guard), messages));
            inbox
        });
        // If the room has just been lost, its inbox is closed, and there is no reply.
        let _ = inbox.send(asked);
        Ok(())
    }

    /// The life of a room. It holds a guard of its own, so that the slot moves only once it has ended.
    async fn run(self, room: String, journal: Journal, guard: Arc<Guard>, mut inbox: mpsc::UnboundedReceiver<Asked>) {
        let why = tokio::select! {
            biased;
            ended = self.chat(&room, journal, &guard, &mut inbox) => match ended {
                Ok(()) => return println!("{} hands {room} over", self.id),
                // Another worker has the room by now, or the database fails: those who wait get no reply.
                Err(error) => error.to_string(),
            },
            () = guard.lost() => "it is lost".to_owned(),
        };
        println!("{} closes {room}: {why}", self.id);
        self.open().remove(&room);
    }

    /// Ends well once the slot must be handed over and nothing waits.
    async fn chat(
        &self,
        room: &str,
        journal: Journal,
        guard: &Guard,
        inbox: &mut mpsc::UnboundedReceiver<Asked>,
    ) -> Result<(), JournalError> {
        let Some(epoch) = guard.epoch() else { return Ok(()) };
        let mut chat = Chat::load(journal, epoch).await?;
        println!("{} opens {room} under epoch {epoch}", self.id);
        loop {
            let asked = tokio::select! {
                biased;
                asked = inbox.recv() => asked,
                () = guard.finish() => self.next_or_close(room, inbox),
            };
            let Some(Asked { message, reply }) = asked else { return Ok(()) };
            if let Some(message) = message {
                chat.say(message).await?;
            }
            // Who has asked may be gone.
            let _ = reply.send(Answer::json(&chat.messages.iter().map(|message| &message.text).collect::<Vec<_>>()));
        }
    }

    /// What still waits. If nothing does, the room is closed: what comes from here on opens it again, here or at the next owner.
    fn next_or_close(&self, room: &str, inbox: &mut mpsc::UnboundedReceiver<Asked>) -> Option<Asked> {
        let mut open = self.open();
        let waiting = inbox.try_recv().ok();
        if waiting.is_none() {
            open.remove(room);
        }
        waiting
    }
}

/// A room's state, and the journal that has it.
struct Chat {
    journal: Journal,
    epoch: Epoch,
    version: u64,
    messages: Vec<RoomMessage>,
    keys: HashSet<String>,
}

impl Chat {
    /// Where the last owner stopped. From here on the journal refuses that one.
    async fn load(journal: Journal, epoch: Epoch) -> Result<Self, JournalError> {
        let loaded = journal.take_over(epoch).await?;
        let snapshot = loaded.snapshot.as_ref().and_then(|snapshot| serde_json::from_slice(&snapshot.state).ok());
        let mut messages: Vec<RoomMessage> = snapshot.unwrap_or_default();
        messages.extend(loaded.events.iter().filter_map(|event| serde_json::from_slice::<RoomMessage>(&event.payload).ok()));
        let keys = messages.iter().map(|message| message.key.clone()).collect();
        Ok(Self { journal, epoch, version: loaded.version, messages, keys })
    }

    /// Says it once: with a key that is in the journal it was said before.
    async fn say(&mut self, message: RoomMessage) -> Result<(), JournalError> {
        if self.keys.contains(&message.key) {
            return Ok(());
        }
        let event = serde_json::json!(message).to_string();
        self.version = self.journal.append(self.version, self.epoch, &[event]).await?;
        self.keys.insert(message.key.clone());
        self.messages.push(message);
        if self.version.is_multiple_of(SNAPSHOT_EVERY) {
            let state = serde_json::json!(self.messages).to_string();
            self.journal.snapshot(self.version, self.epoch, state.as_bytes()).await?;
        }
        Ok(())
    }
}
