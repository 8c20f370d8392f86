//! A stream of Redis, copied into a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use shardwise_testkit::{Redis, RedisOptions};
use tokio::runtime::Runtime;

use super::{Copy, Destination};

const STREAM: &str = "soak";
/// How long the reader waits for the next entries, and how many it takes at once.
const BLOCK_MS: u64 = 200;
const COUNT: u64 = 1_000;
/// The client's default is half a second, and the machine is busy.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

pub(super) struct RedisStream {
    server: Redis,
    connection: MultiplexedConnection,
    copied: Arc<AtomicU64>,
}

impl RedisStream {
    pub(super) async fn start() -> Self {
        let server = Redis::start(RedisOptions::default()).await.unwrap();
        let connection = connect(&server).await;
        Self { server, connection, copied: Arc::default() }
    }
}

async fn connect(server: &Redis) -> MultiplexedConnection {
    let client = redis::Client::open(format!("redis://{}", server.socket_addr())).unwrap();
    let patient = AsyncConnectionConfig::new().set_connection_timeout(Some(ANSWER_WITHIN)).set_response_timeout(Some(ANSWER_WITHIN));
    client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
}

impl Destination for RedisStream {
    fn settings(&self) -> String {
        format!("sink = \"redis://{}\"\nsink_to = \"{STREAM}\"\nsink_format = \"structured\"\n", self.server.socket_addr())
    }

    fn copy_to(&self, runtime: &Runtime, path: PathBuf) {
        let (mut copy, copied) = (Copy::create(path), Arc::clone(&self.copied));
        // One that waits for entries holds up all that is behind it on its connection.
        let mut connection = runtime.block_on(connect(&self.server));
        runtime.spawn(async move {
            let mut last = "0".to_owned();
            loop {
                let mut read = redis::cmd("XREAD");
                read.arg("COUNT").arg(COUNT).arg("BLOCK").arg(BLOCK_MS).arg("STREAMS").arg(STREAM).arg(&last);
                let read: Option<StreamReadReply> = read.query_async(&mut connection).await.unwrap();
                for entry in read.into_iter().flat_map(|read| read.keys).flat_map(|stream| stream.ids) {
                    copy.append(&entry.get::<Vec<u8>>("event").unwrap());
                    copied.fetch_add(1, Ordering::SeqCst);
                    last = entry.id;
                }
            }
        });
    }

    fn is_copied(&self, runtime: &Runtime) -> bool {
        let mut connection = self.connection.clone();
        let entries: u64 = runtime.block_on(redis::cmd("XLEN").arg(STREAM).query_async(&mut connection)).unwrap();
        self.copied.load(Ordering::SeqCst) >= entries
    }
}
