//! A group that moves to another backend and back by stop and start, as docs/howto/moving-backends.md says: epochs rise, and the fence of
//! a database accepts the new owners and refuses the old ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use shardwise_testkit::{Postgres, PostgresOptions};
use sqlx::{Connection as _, SqliteConnection};
use tokio::runtime::Runtime;

use crate::common::{Place, Ran, eventually};
use crate::meeting::{Kind, SLOTS, SOON, alone, leave, policy, start_server, start_worker};

const TTL: &str = "3s";
/// The statement of docs/reference/fencing.md.
const FENCE: &str = "INSERT INTO shardwise_fence (group_name, resource, epoch) VALUES (?, ?, ?)
ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE shardwise_fence.epoch <= excluded.epoch";

/// The epoch of each slot.
type Epochs = BTreeMap<u32, u64>;

#[test]
fn from_consul_to_etcd_and_back() {
    let _alone = alone();
    let runtime = Runtime::new().unwrap();
    let (_consul, consul_at) = runtime.block_on(start_server(Kind::Consul));
    let (_etcd, etcd_at) = runtime.block_on(start_server(Kind::Etcd));
    let settings = |kind: Kind, at: SocketAddr| kind.settings(&format!("http://{at}"), TTL, "");
    there_and_back(&runtime, &settings(Kind::Consul, consul_at), &settings(Kind::Etcd, etcd_at));
}

#[test]
fn from_local_to_postgres_and_back() {
    let _alone = alone();
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Postgres::start(PostgresOptions::default().durable())).unwrap();
    let url = runtime.block_on(server.database()).unwrap().url();
    let table = "[default.resilience.sharding.discovery";
    let local = format!("{table}]\nttl = \"{TTL}\"\n");
    let postgres = format!("{table}]\nbackend = \"postgres\"\nttl = \"{TTL}\"\n{table}.postgres]\nurl = {url:?}\n");
    let prepared = Place::with_settings(&(postgres.clone() + &workers(0)));
    let made = prepared.run(&["backend", "init"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    there_and_back(&runtime, &local, &postgres);
}

fn workers(floor: u64) -> String {
    policy("workers", &format!("ownership = \"exclusive\"\nepoch_floor = {floor}"))
}

fn there_and_back(runtime: &Runtime, one: &str, other: &str) {
    let place = Place::empty();
    let mut fence = runtime.block_on(DatabaseFence::create(&place.path("app.db")));
    let (mut floor, mut former) = (0, Epochs::new());
    for (number, backend) in [one, other, one].into_iter().enumerate() {
        let file = format!("settings-{number}.toml");
        place.write(&file, backend.to_owned() + &workers(floor));
        let stage = Stage { place: &place, file: &file };
        let mut fleet = ["worker-1", "worker-2"].map(|id| start_worker(&place, &file, "workers", id));
        let epochs = stage.held();
        assert!(epochs.values().all(|epoch| *epoch > floor), "above the floor {floor}: {epochs:?}");
        for (slot, epoch) in &epochs {
            assert!(runtime.block_on(fence.accepts(*slot, *epoch)), "the new owner of slot {slot} writes under epoch {epoch}");
        }
        for (slot, epoch) in &former {
            assert!(!runtime.block_on(fence.accepts(*slot, *epoch)), "a former owner of slot {slot} wrote under epoch {epoch}");
        }
        stage.run().fails(4, &["the group has members", "worker-1", "stop them first"]);
        leave(&mut fleet);
        let (taken, next) = stage.take_epoch();
        let highest = epochs.values().copied().max().unwrap();
        assert!(taken > highest && next > taken, "epoch {taken} and floor {next} after {highest}");
        let (again, _) = stage.take_epoch();
        assert!(again > taken, "each time a higher one: {again} after {taken}");
        (floor, former) = (next, epochs);
    }
}

/// The group on one backend.
struct Stage<'p> {
    place: &'p Place,
    file: &'p str,
}

impl Stage<'_> {
    /// The epochs of all slots, once every slot is held.
    fn held(&self) -> Epochs {
        eventually("every slot is held", SOON, || {
            let ran = self.place.run(&["holders", "--json", "--settings", self.file]);
            // It fails while the backend or its store of claims is not there yet.
            let all: Value = serde_json::from_slice(&ran.out).ok()?;
            let epoch = |slot: &Value| Some((u32::try_from(slot["slot"].as_u64()?).ok()?, slot["epoch"].as_u64()?));
            let epochs: Epochs = all["slots"].as_array()?.iter().filter_map(epoch).collect();
            (epochs.len() == SLOTS as usize).then_some(epochs)
        })
    }

    fn run(&self) -> Ran {
        self.place.run(&["backend", "epoch", "--json", "--settings", self.file])
    }

    /// The epoch and the floor, once the backend shows that the members have left.
    fn take_epoch(&self) -> (u64, u64) {
        eventually("the epoch is taken", SOON, || {
            let ran = self.run();
            let shown: Value = serde_json::from_slice(&ran.out).ok()?;
            Some((shown["epoch"].as_u64()?, shown["epoch_floor"].as_u64()?))
        })
    }
}

/// A database with the fences of the workers' own writes.
struct DatabaseFence(SqliteConnection);

impl DatabaseFence {
    async fn create(file: &Path) -> Self {
        let mut database = SqliteConnection::connect(&format!("sqlite:{}?mode=rwc", file.display())).await.unwrap();
        sqlx::raw_sql(include_str!("../../../fencing/sql/sqlite/fence.up.sql")).execute(&mut database).await.unwrap();
        Self(database)
    }

    /// Whether a write in this slot passes under this epoch.
    async fn accepts(&mut self, slot: u32, epoch: u64) -> bool {
        let write = sqlx::query(FENCE).bind("workers").bind(format!("slot/{slot}")).bind(i64::try_from(epoch).unwrap());
        write.execute(&mut self.0).await.unwrap().rows_affected() == 1
    }
}
