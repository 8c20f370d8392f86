//! Statements against each other on a real server: what each transaction sees to by itself, whatever was read before it.

use std::time::Duration;

use futures::future::join_all;
use shardwise_core::{ClaimStore, Epoch, GroupName, Incarnation, InstanceId, Resource, StoreId};
use shardwise_discovery::{CallNumber, Clock, RecordId};
use shardwise_testkit::{Database, Postgres, PostgresOptions};

use super::claims::{self, KnownStore, StoreStanding};
use super::members::{self, Changed, Registered};
use super::reads::{self, GroupChanges, KnownNumbers, NOTHING_KNOWN};
use crate::client::{CallTurn, Client};
use crate::{PostgresBackend, PostgresBackendConfig};

const TTL: Duration = Duration::from_secs(30);
const RECORD: &str = r#"{"schema":1,"incarnation":"0000000000000001","state":"active"}"#;

struct Bench {
    client: Client,
    _database: Database,
}

impl Bench {
    async fn new() -> Self {
        let server = Postgres::start(PostgresOptions::default().durable()).await.unwrap();
        let database = server.database().await.unwrap();
        let config = PostgresBackendConfig::new(database.url());
        PostgresBackend::init(&config).await.unwrap();
        let schema = super::Schema::new(&config.schema).unwrap();
        Self { client: Client::new(config.options().unwrap(), schema, Clock::system()), _database: database }
    }

    async fn run(&self, sql: String) -> crate::answers::Answers {
        self.client.run(CallTurn::MayWait, sql).await.unwrap()
    }

    async fn registered(&self, record_id: &RecordId) {
        let answers = self.run(members::register(&self.client.schema, record_id, RECORD, TTL, CallNumber::next())).await;
        assert!(matches!(Registered::read(&answers).unwrap(), Registered::Written));
    }

    /// What a group has: revision, and the beat and life of its only member.
    async fn only(&self, group: &GroupName) -> (i64, Option<(u64, i64)>) {
        let known = KnownNumbers { members: NOTHING_KNOWN, claims: None };
        let changes = GroupChanges::read(&self.run(reads::changes(&self.client.schema, group, known)).await, known).unwrap();
        (changes.head.revision, changes.members.first().map(|row| (row.beat.count, row.beat.life)))
    }
}

fn record(group: &str, id: &str, incarnation: u64) -> RecordId {
    let (group, instance_id) = (GroupName::new(group).unwrap(), InstanceId::new(id).unwrap());
    RecordId { group, instance_id, incarnation: Incarnation::new(incarnation) }
}

/// Two evictors and a renewer for one beat: the record is renewed and stays, or is evicted once and the renewal finds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_renewal_and_two_evictions_one_wins() {
    let bench = Bench::new().await;
    let schema = &bench.client.schema;
    let (mut renewed, mut evicted) = (0, 0);
    for round in 0..200 {
        let a = record("race", "a", round);
        bench.registered(&a).await;
        let (before, there) = bench.only(&a.group).await;
        let (beat, _) = there.unwrap();
        let eviction = || members::evict(schema, &[(a.clone(), beat)]).unwrap();
        let mut calls = vec![members::renew(schema, &a, TTL), eviction(), eviction()];
        calls.rotate_left(usize::try_from(round % 3).unwrap());
        let answers = join_all(calls.into_iter().map(|sql| bench.run(sql))).await;
        let wins = answers.iter().filter(|answers| !answers.last().is_empty()).count();
        assert_eq!(wins, 1, "round {round}");
        match bench.only(&a.group).await {
            (revision, Some((now, _))) => {
                assert_eq!((revision, now), (before, beat + 1), "a renewal is no change");
                renewed += 1;
                bench.run(members::deregister(schema, &a, CallNumber::next())).await;
            }
            (revision, None) => {
                assert_eq!(revision, before + 1, "evicted once");
                evicted += 1;
            }
        }
    }
    println!("renewed {renewed}, evicted {evicted}");
    assert!(renewed > 0 && evicted > 0, "the rounds were different: {renewed}, {evicted}");
}

/// An eviction that comes late hits no later life and no later beat of the same life.
#[tokio::test]
async fn beats_never_repeat() {
    let bench = Bench::new().await;
    let (schema, a, mut seen) = (&bench.client.schema, record("beats", "a", 1), Vec::new());
    for _ in 0..3 {
        bench.registered(&a).await;
        for _ in 0..3 {
            seen.push(bench.only(&a.group).await.1.unwrap().0);
            bench.run(members::renew(schema, &a, TTL)).await;
        }
        bench.registered(&a).await;
        seen.push(bench.only(&a.group).await.1.unwrap().0);
        let away = bench.run(members::step_away(schema, &a, RECORD, TTL, CallNumber::next())).await;
        assert_eq!(Changed::read(&away).unwrap(), Changed::Written);
        seen.push(bench.only(&a.group).await.1.unwrap().0);
        let last = *seen.last().unwrap();
        for stale in &seen[..seen.len() - 1] {
            assert!(bench.run(members::evict(schema, &[(a.clone(), *stale)]).unwrap()).await.last().is_empty(), "{stale} of {seen:?}");
        }
        assert_eq!(bench.run(members::evict(schema, &[(a.clone(), last)]).unwrap()).await.last().len(), 1);
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}

/// Acquisitions of many members at once: epochs rise in the order of the commits, and each resource has one holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisitions_of_many_have_an_order() {
    const MEMBERS: u64 = 8;
    let bench = Bench::new().await;
    let (schema, group) = (&bench.client.schema, GroupName::new("order").unwrap());
    let store =
        StoreStanding::read(&bench.run(claims::open_store(schema, &group, StoreId::new(7), 0)).await).unwrap().unwrap().store.unwrap();
    assert_eq!(store, ClaimStore { id: StoreId::new(7), floor: 0 });
    let members: Vec<_> = (0..MEMBERS).map(|n| record("order", &format!("m{n}"), n)).collect();
    join_all(members.iter().map(|member| bench.registered(member))).await;
    let (mut epochs, known) = (Vec::<Epoch>::new(), KnownStore { store, lsn: 0 });
    for round in 0..20_u32 {
        let wanted: Vec<_> = (0..50).map(|slot| Resource::Slot(round * 50 + slot)).collect();
        let asking = members.iter().map(|member| bench.run(claims::acquire(schema, member, &known, &wanted)));
        let mut of_round = Vec::new();
        for answers in join_all(asking).await {
            let rows = claims::read_acquired(&answers).unwrap().unwrap();
            assert_eq!(rows.len(), wanted.len(), "each is answered");
            of_round.extend(rows.into_iter().filter_map(|row| row.epoch));
        }
        assert_eq!(of_round.len(), wanted.len(), "each is granted once");
        let (least, most) = (of_round.iter().min().unwrap(), of_round.iter().max().unwrap());
        assert!(epochs.last().is_none_or(|last| last < least), "{epochs:?}, then {least}");
        epochs.push(*most);
    }
}

/// What is behind in the same history, under another history, or another store grants nothing.
#[tokio::test]
async fn nothing_is_granted_where_the_store_is_not_the_one_that_is_known() {
    let bench = Bench::new().await;
    let (schema, a) = (&bench.client.schema, record("stores", "a", 1));
    let opened = bench.run(claims::open_store(schema, &a.group, StoreId::new(7), 0)).await;
    let standing = StoreStanding::read(&opened).unwrap().unwrap();
    let store = standing.store.unwrap();
    bench.registered(&a).await;
    let granted = async |store: ClaimStore, lsn: u64| {
        let wanted = [Resource::Slot(1)];
        let answers = bench.run(claims::acquire(schema, &a, &KnownStore { store, lsn }, &wanted)).await;
        claims::read_acquired(&answers).unwrap().unwrap().len()
    };
    assert_eq!(granted(ClaimStore { floor: 1, ..store }, 0).await, 0, "another floor");
    assert_eq!(granted(ClaimStore { id: StoreId::new(8), ..store }, 0).await, 0, "another store");
    assert_eq!(granted(store, standing.position.lsn + (1 << 40)).await, 0, "an older copy of the database");
    assert_eq!(granted(store, standing.position.lsn).await, 1);
    bench.run(format!("UPDATE {schema}.member_group SET history = 'elsewhere/00000001'")).await;
    assert_eq!(granted(store, 0).await, 0, "another history");
}
