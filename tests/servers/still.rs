//! A fleet with exclusive ownership to which nothing happens: whatever the number of slots, nothing is written to the backend but renewals.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwise::ShardingService;
use shardwise_testkit::{Nats, Postgres};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

use crate::exclusive::{Place, share};
use crate::meeting::{Kind, STREAM, Server, alone, runtime, until};

const TTL: Duration = Duration::from_secs(2);
const RENEW_EVERY: u32 = 3;
const MEMBERS: u32 = 3;
/// How long the fleets are watched, in TTLs.
const TTLS: u32 = 3;
const POLL_EVERY: Duration = Duration::from_millis(1);

#[test]
fn while_nothing_happens_nothing_is_written_but_renewals() {
    let _alone = alone();
    nothing_is_written_but_renewals(&[None, Some(Kind::Consul), Some(Kind::Etcd)]);
}

case!(soak alone nats nothing_is_written_but_renewals(&[Some(Kind::Nats)]));
case!(soak alone postgres nothing_is_written_but_renewals(&[Some(Kind::Postgres)]));

fn nothing_is_written_but_renewals(kinds: &[Option<Kind>]) {
    let runtime = runtime("still");
    let _inside = runtime.enter();
    let places: Vec<_> = kinds.iter().map(|kind| runtime.block_on(Place::start(*kind))).collect();
    let fleets: Vec<_> = places.iter().map(|place| ["a", "b", "c"].map(|id| place.service(id, 256, TTL))).collect();
    for service in fleets.iter().flatten() {
        runtime.block_on(service.register_self()).unwrap();
    }
    until("all share", Duration::from_secs(20), || {
        fleets.iter().try_for_each(|fleet| share(&fleet.iter().collect::<Vec<&ShardingService>>()))
    });
    // What follows a change by itself is over after a TTL: the next in line, and the last heartbeats of watches.
    std::thread::sleep(TTL);

    let read = || places.iter().map(|place| runtime.block_on(written(place))).collect::<Vec<_>>();
    let before = read();
    let began = Instant::now();
    let file = places.iter().find_map(|place| match place {
        Place::Local(folder) => Some(folder),
        Place::Server(..) | Place::Servers(_) => None,
    });
    let commits = file.map(|folder| runtime.block_on(commits(folder)));
    std::thread::sleep((TTL * TTLS).saturating_sub(began.elapsed()));
    for ((place, before), after) in places.iter().zip(before).zip(read()) {
        assert_eq!(before, after, "{}: something was written", place.name());
    }
    let Some(commits) = commits else { return };
    // Each member renews three times in a TTL, and once more at the edges of what was watched.
    let renewals = MEMBERS * (u32::try_from(began.elapsed().as_nanos() / (TTL / RENEW_EVERY).as_nanos()).unwrap() + 1);
    assert!((1..=renewals).contains(&commits), "{commits} transactions were committed to the file, and {renewals} renewals are due");
}

/// The server's content, with everything that a write would change, but not a renewal.
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
            Server::Nats(nats) => in_the_bucket(nats).await,
            Server::Postgres(postgres) => in_the_tables(postgres).await,
            Server::Valkey(_) => panic!("there are no claims"),
            // Grows with every write of anybody, but not with the renewal of a lease.
            Server::Etcd(etcd) => etcd.api("/v3/kv/range", &json!({ "key": "eA==" })).await.unwrap()["header"]["revision"].clone(),
        },
    }
}

/// The sequence of the last message of members, of claims, of notes and of the store of claims. Beats are renewals and probes prove what
/// was read, so both are left out.
async fn in_the_bucket(nats: &Nats) -> Value {
    let mut last = Vec::new();
    for part in ["m.*", "c.>", "n.*", "s"] {
        let wanted = json!({ "last_by_subj": format!("$KV.shardwise.workers.{part}") });
        let answer = nats.request(&format!("$JS.API.STREAM.MSG.GET.{STREAM}"), &wanted.to_string()).await.unwrap();
        last.push(serde_json::from_str::<Value>(&answer).unwrap()["message"]["seq"].clone());
    }
    assert!(last[0].is_u64() && last[1].is_u64() && last[3].is_u64(), "{last:?}");
    Value::from(last)
}

/// All rows, each with the transaction that wrote it; of members without what a renewal changes.
async fn in_the_tables(postgres: &Postgres) -> Value {
    let mut tables = Vec::new();
    for rows in [
        "SELECT c.xmin::text AS transaction, c.* FROM shardwise.claim AS c",
        "SELECT n.xmin::text AS transaction, n.* FROM shardwise.note AS n",
        "SELECT d.xmin::text AS transaction, d.* FROM shardwise.departure AS d",
        "SELECT g.xmin::text AS transaction, g.* FROM shardwise.member_group AS g",
        "SELECT m.instance_id, m.incarnation, m.joined, m.changed, m.away, m.call, m.record FROM shardwise.member AS m",
    ] {
        let all = format!("SELECT coalesce(string_agg(r::text, '\n' ORDER BY r::text), '') FROM ({rows}) AS r");
        tables.push(postgres.execute(&all).await.unwrap().remove(0).remove(0).unwrap());
    }
    assert!(tables[0].lines().count() >= 256, "{}", tables[0]);
    Value::from(tables)
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
        tokio::time::sleep(POLL_EVERY).await;
    }
    commits
}
