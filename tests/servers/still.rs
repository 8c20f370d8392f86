//! A fleet with exclusive ownership to which nothing happens: whatever the number of slots, nothing is written to the backend but renewals.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwise::ShardingService;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

use crate::exclusive::{Place, share};
use crate::meeting::{Kind, Server, alone, runtime, until};

const TTL: Duration = Duration::from_secs(2);
const RENEW_EVERY: u32 = 3;
const MEMBERS: u32 = 3;
/// How long the fleets are watched, in TTLs.
const TTLS: u32 = 3;
const LOOK_EVERY: Duration = Duration::from_millis(1);

#[test]
fn while_nothing_happens_nothing_is_written_but_renewals() {
    let _alone = alone();
    let runtime = runtime("still");
    let _inside = runtime.enter();
    let kinds = [None, Some(Kind::Consul), Some(Kind::Etcd)];
    let places = kinds.map(|kind| runtime.block_on(Place::start(kind)));
    let fleets: Vec<_> = places.iter().map(|place| ["a", "b", "c"].map(|id| place.service(id, 256, TTL))).collect();
    for service in fleets.iter().flatten() {
        runtime.block_on(service.register_self()).unwrap();
    }
    until("all share", Duration::from_secs(20), || {
        fleets.iter().try_for_each(|fleet| share(&fleet.iter().collect::<Vec<&ShardingService>>()))
    });
    // What follows a change by itself is over after a TTL: the next in line, and the last heartbeats of watches.
    std::thread::sleep(TTL);

    let before = places.each_ref().map(|place| runtime.block_on(written(place)));
    let began = Instant::now();
    let commits = places.iter().find_map(|place| match place {
        Place::Local(folder) => Some(runtime.block_on(commits(folder))),
        Place::Server(..) | Place::Servers(_) => None,
    });
    let after = places.each_ref().map(|place| runtime.block_on(written(place)));
    for ((place, before), after) in places.iter().zip(before).zip(after) {
        assert_eq!(before, after, "{}: something was written", place.name());
    }
    // Each member renews three times in a TTL, and once more at the edges of what was watched.
    let renewals = MEMBERS * (u32::try_from(began.elapsed().as_nanos() / (TTL / RENEW_EVERY).as_nanos()).unwrap() + 1);
    let commits = commits.unwrap();
    assert!((1..=renewals).contains(&commits), "{commits} transactions were committed to the file, and {renewals} renewals are due");
}

/// The server's content, with everything that a write would change; renewals do not.
async fn written(place: &Place) -> Value {
    match place {
        // Counted instead: a renewal is a write there.
        Place::Local(_) | Place::Servers(_) => Value::Null,
        Place::Server(_, server) => match &**server {
            // Each entry has the index at which it was written last.
            Server::Consul(consul) => {
                let claims = consul.api("GET", "/v1/kv/?recurse&consistent", None).await.unwrap();
                let sessions = consul.api("GET", "/v1/session/list?consistent", None).await.unwrap();
                let checks = consul.api("GET", "/v1/health/state/any?consistent", None).await.unwrap();
                assert!(claims.as_array().is_some_and(|claims| claims.len() >= 256), "{claims}");
                json!([claims, sessions, checks])
            }
            Server::Nats(_) | Server::Postgres(_) | Server::Valkey(_) => panic!("a renewal is a write there"),
            // Grows with every write of anybody, but not with the renewal of a lease.
            Server::Etcd(etcd) => etcd.api("/v3/kv/range", &json!({ "key": "eA==" })).await.unwrap()["header"]["revision"].clone(),
        },
    }
}

/// How many transactions others commit to the file in the time in which it is watched.
async fn commits(folder: &TempDir) -> u32 {
    let options = SqliteConnectOptions::new().filename(folder.path().join("workers.db")).busy_timeout(TTL);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let (mut seen, mut commits) = (None, 0);
    let began = Instant::now();
    while began.elapsed() < TTL * TTLS {
        let version: i64 = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut connection).await.unwrap();
        commits += u32::from(seen.is_some_and(|seen| seen != version));
        seen = Some(version);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    commits
}
