//! A chat room for each key, over plain HTTP: any worker takes a message and brings it to the one that has the room, which keeps it in a
//! journal that refuses former owners.
//!
//! `cargo run -p shardwise-examples --example chat_rooms` starts three workers as separate processes and sends them messages by HTTP, each
//! with an `Idempotency-Key`. One worker is asked to leave, another one comes, and one that has a room is killed with SIGKILL. No message
//! is lost, and none is said twice.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

mod processes;
mod rooms;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::env;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use shardwise::ShardingService;
use shardwise::requests::{BODY_BYTES_MAX, Owned, Request, To, is_path};
use shardwise_fencing::sqlite;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use processes::{Result, Worker, WorkerLine, expect};
use rooms::Rooms;

/// The header of HTTP whose value finds a message again.
const KEY: &str = "idempotency-key";
/// How long a worker tries to bring a message to its room: longer than a takeover takes.
const WITHIN: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [] => timeout(LONGEST, demonstration()).await.map_err(|_| format!("not done within {LONGEST:?}"))?,
        [folder, id] => worker(Path::new(folder), id).await,
        _ => Err("give a folder and a name for one worker, or nothing for the demonstration".into()),
    }
}

/// Makes the rooms' database. It is made once, as by a migration: several who switch a new file to WAL are in each other's way.
async fn make_database(folder: &Path) -> Result {
    let new = options(folder).create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
    let database = SqlitePool::connect_with(new).await?;
    Ok(sqlite::create_tables(&mut *database.acquire().await?).await?)
}

fn options(folder: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(folder.join("rooms.db"))
}

async fn worker(folder: &Path, id: &str) -> Result {
    let sharding = processes::factory(folder, id, "rooms", "ownership = \"exclusive\"")?.create("rooms")?;
    let rooms = Rooms::new(id, sharding.group_name().clone(), SqlitePool::connect_with(options(folder)).await?);
    for path in ["rooms/say", "rooms/read"] {
        let rooms = rooms.clone();
        sharding.on_owned(path, move |owned: Owned| rooms.clone().handle(owned))?;
    }
    sharding.listen_for_requests().await?;
    sharding.register_self().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    tokio::select! {
        served = serve(&sharding, &listener) => served?,
        left = processes::asked_to_leave() => left?,
    }
    // The rooms end, each when its slot goes; then the others have them.
    sharding.deregister_self().await?;
    Ok(())
}

/// The HTTP that users see: `POST /rooms/NAME` with a text and a key, and `GET /rooms/NAME`.
async fn serve(sharding: &ShardingService, listener: &TcpListener) -> Result {
    loop {
        let (stream, _) = listener.accept().await?;
        let sharding = sharding.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let sharding = sharding.clone();
                async move { Ok::<_, Infallible>(front(&sharding, request).await) }
            });
            let mut server = hyper::server::conn::http1::Builder::new();
            // A connection that breaks is the caller's to notice.
            let _ = server.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn front(sharding: &ShardingService, request: hyper::Request<Incoming>) -> hyper::Response<Full<Bytes>> {
    let room = request.uri().path().strip_prefix("/rooms/").filter(|room| is_path(room) && !room.contains('/')).map(str::to_owned);
    let key = request.headers().get(KEY).and_then(|key| key.to_str().ok()).map(str::to_owned);
    let (room, asked) = match (request.method().clone(), room, key) {
        (Method::GET, Some(room), _) => (room, Request::get("rooms/read")),
        (Method::POST, Some(room), Some(key)) => match Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await {
            Ok(text) => (room, Request::post("rooms/say", "text/plain", text.to_bytes()).with_idempotency_key(key)),
            Err(error) => return response(400, error.to_string()),
        },
        _ => return response(400, "GET /rooms/NAME, or POST a text there with an Idempotency-Key\n"),
    };
    // The key makes it repeatable: it is sent again until it is answered, also to the next owner of the room.
    match sharding.ask(&To::owner(&room), asked, WITHIN).await {
        Ok(answered) => response(answered.answer.status, answered.answer.body),
        Err(error) => response(503, error.to_string()),
    }
}

fn response(status: u16, body: impl Into<Bytes>) -> hyper::Response<Full<Bytes>> {
    let mut response = hyper::Response::new(Full::new(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

const LONGEST: Duration = Duration::from_mins(1);
const USERS: usize = 4;
/// The messages of each user, in turn to each of the rooms.
const EACH: usize = 90;
const ROOMS: usize = 3;

/// Where users reach workers, by the workers' names.
type Fronts = Arc<Mutex<BTreeMap<String, SocketAddr>>>;

async fn demonstration() -> Result {
    let folder = tempfile::tempdir()?;
    processes::prepare(folder.path())?;
    make_database(folder.path()).await?;
    let (said, mut heard) = mpsc::channel(64);
    let mut workers = Vec::new();
    for id in ["ada", "bob", "eve"] {
        workers.push(Worker::start(folder.path(), id, &said)?);
    }
    let (fronts, mut owners, acknowledged) = (Fronts::default(), HashMap::new(), Arc::new(AtomicUsize::new(0)));
    while lock(&fronts).len() < workers.len() {
        hear(heard.recv().await.ok_or("the workers are gone")?, &fronts, &mut owners);
    }
    let mut users = JoinSet::new();
    for user in 0..USERS {
        users.spawn(chats(user, Arc::clone(&fronts), Arc::clone(&acknowledged)));
    }
    let (mut step, mut poll) = (0, tokio::time::interval(Duration::from_millis(5)));
    loop {
        tokio::select! {
            line = heard.recv() => hear(line.ok_or("the workers are gone")?, &fronts, &mut owners),
            user = users.join_next() => match user {
                Some(user) => user??,
                None => break,
            },
            _ = poll.tick() => match (step, acknowledged.load(Ordering::Relaxed)) {
                (0, third) if third >= USERS * EACH / 3 => {
                    // Users go elsewhere first, as by a balancer.
                    lock(&fronts).remove("ada");
                    leaves(&mut workers, "ada").await?;
                    workers.push(Worker::start(folder.path(), "joe", &said)?);
                    step = 1;
                }
                (1, two_thirds) if two_thirds >= USERS * EACH * 2 / 3 => {
                    let owner = owners.get("room-0").cloned().ok_or("no worker has room-0")?;
                    let at = workers.iter().position(|worker| worker.id == owner).ok_or("the owner of room-0 is gone")?;
                    workers.remove(at).kill().await?;
                    lock(&fronts).remove(&owner);
                    println!("{owner}, which has room-0, is killed");
                    step = 2;
                }
                _ => {}
            },
        }
    }
    expect(step == 2, "all was said before a worker was killed")?;
    judge(&fronts).await
}

async fn leaves(workers: &mut Vec<Worker>, id: &str) -> Result {
    let at = workers.iter().position(|worker| worker.id == id).ok_or("it is gone already")?;
    workers.remove(at).leave().await?;
    println!("{id} has left");
    Ok(())
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers where a worker is reached, and who has a room.
fn hear((id, line): WorkerLine, fronts: &Fronts, owners: &mut HashMap<String, String>) {
    if let Ok(at) = line.parse() {
        lock(fronts).insert(id, at);
        return;
    }
    println!("{line}");
    if let Some((room, _)) = line.strip_prefix(&format!("{id} opens ")).and_then(|rest| rest.split_once(' ')) {
        owners.insert(room.to_owned(), id);
    }
}

/// One user: says one message after the other, each again and again with its key until it is acknowledged.
async fn chats(user: usize, fronts: Fronts, acknowledged: Arc<AtomicUsize>) -> Result {
    for number in 0..EACH {
        let (path, text) = (format!("/rooms/room-{}", number % ROOMS), format!("{user}-{number}"));
        let mut tries = 0;
        loop {
            let reached: Vec<SocketAddr> = lock(&fronts).values().copied().collect();
            let at = *reached.get((user + tries) % reached.len().max(1)).ok_or("no worker is left")?;
            match send(at, Method::POST, &path, &text).await {
                Ok((StatusCode::OK, _)) => break,
                // A worker that is gone, or does not know what became of it.
                Ok(_) | Err(_) => sleep(Duration::from_millis(20)).await,
            }
            tries += 1;
        }
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// One request of HTTP on its own connection. The text is the key too.
async fn send(at: SocketAddr, method: Method, path: &str, text: &str) -> Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(at).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = hyper::Request::builder().method(method).uri(path).header("host", at.to_string()).header(KEY, text);
    let response = timeout(WITHIN * 2, sender.send_request(request.body(Full::new(Bytes::from(text.to_owned())))?)).await??;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

/// Each message is in its room once, and those of one user in their order.
async fn judge(fronts: &Fronts) -> Result {
    let at = *lock(fronts).values().next().ok_or("no worker is left")?;
    for room in 0..ROOMS {
        let (status, body) = send(at, Method::GET, &format!("/rooms/room-{room}"), "read").await?;
        expect(status == StatusCode::OK, format!("room-{room} is answered with {status}"))?;
        let said: Vec<String> = serde_json::from_slice(&body)?;
        expect(said.len() == USERS * EACH / ROOMS, format!("room-{room} has {} messages", said.len()))?;
        for user in 0..USERS {
            let own = |text: &&String| text.split_once('-').is_some_and(|(by, _)| by == user.to_string());
            let wanted = (room..EACH).step_by(ROOMS).map(|number| format!("{user}-{number}"));
            expect(said.iter().filter(own).cloned().eq(wanted), format!("of user {user}, room-{room} has {said:?}"))?;
        }
    }
    println!("{} messages said in {ROOMS} rooms, none lost, none twice", USERS * EACH);
    Ok(())
}
