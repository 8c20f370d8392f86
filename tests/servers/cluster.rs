//! Servers of which one leads, where there are clusters; one alone of PostgreSQL and Valkey.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use shardwise_testkit::{
    ConsulCluster, ConsulOptions, Direction, EtcdCluster, EtcdOptions, NatsCluster, NatsOptions, Postgres, Process, Redis, RedisOptions,
    Usage,
};

use crate::meeting::{self, Kind, STREAM};

pub(crate) enum Servers {
    Consul(ConsulCluster),
    Etcd(EtcdCluster),
    Nats(NatsCluster),
    Postgres(Arc<Postgres>),
    Valkey(Box<Redis>),
}

impl Servers {
    /// Three where there are clusters, which wait for their disks.
    pub(crate) async fn to_measure(kind: Kind) -> Self {
        Self::start(kind, 3, EtcdOptions::default().with_fsync(), NatsOptions::default()).await
    }

    /// Of Consul and etcd so many, to which things will be done.
    pub(crate) async fn to_strike(kind: Kind, count: usize) -> Self {
        Self::start(kind, count, EtcdOptions::default(), NatsOptions::default().with_cuttable_routes()).await
    }

    /// Of NATS always three: one alone has no leaders.
    async fn start(kind: Kind, count: usize, etcd: EtcdOptions, nats: NatsOptions) -> Self {
        match kind {
            Kind::Consul => Self::Consul(ConsulCluster::start(count, ConsulOptions::default()).await.unwrap()),
            Kind::Etcd => Self::Etcd(EtcdCluster::start(count, etcd).await.unwrap()),
            Kind::Nats => Self::Nats(NatsCluster::start(3, nats.newest().durable()).await.unwrap()),
            Kind::Postgres => Self::Postgres(meeting::postgres().await),
            Kind::Valkey => Self::Valkey(Box::new(Redis::start(RedisOptions::default().valkey()).await.unwrap())),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Consul(_) => Kind::Consul,
            Self::Etcd(_) => Kind::Etcd,
            Self::Nats(_) => Kind::Nats,
            Self::Postgres(_) => Kind::Postgres,
            Self::Valkey(_) => Kind::Valkey,
        }
    }

    fn processes(&self) -> Vec<&Process> {
        match self {
            Self::Consul(cluster) => cluster.servers().iter().map(|server| &**server).collect(),
            Self::Etcd(cluster) => cluster.members().iter().map(|member| &**member).collect(),
            Self::Nats(cluster) => cluster.servers().iter().map(|server| &**server).collect(),
            Self::Postgres(server) => vec![&***server],
            Self::Valkey(server) => vec![&***server],
        }
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.processes().into_iter().map(Process::socket_addr).collect()
    }

    /// Those that the member of that name is to reach: one of Consul, all of the others.
    pub(crate) fn reached_by(&self, id: &str) -> Vec<SocketAddr> {
        let all = self.addresses();
        match self {
            Self::Consul(_) => vec![all[id.bytes().map(usize::from).sum::<usize>() % all.len()]],
            _ => all,
        }
    }

    /// The number of the server that leads; of NATS the one that leads the stream, or a consumer of it.
    pub(crate) async fn leader(&self, of_consumer: bool) -> usize {
        let leader = match self {
            Self::Consul(cluster) => cluster.leader().await,
            Self::Etcd(cluster) => cluster.leader().await,
            Self::Nats(cluster) if of_consumer => cluster.leader_of_consumer(STREAM).await,
            Self::Nats(cluster) => cluster.leader_of(STREAM).await,
            Self::Postgres(_) | Self::Valkey(_) => Ok(0),
        };
        leader.unwrap()
    }

    pub(crate) fn kill(&self, server: usize) {
        self.processes()[server].kill().unwrap();
    }

    /// Starts a killed server with what it had stored.
    pub(crate) async fn revive(&self, server: usize) {
        match self {
            Self::Consul(cluster) => cluster.servers()[server].restart(true).await,
            Self::Etcd(cluster) => cluster.members()[server].restart(true).await,
            Self::Nats(cluster) => cluster.servers()[server].restart().await,
            Self::Postgres(server) => server.restart().await,
            Self::Valkey(server) => server.restart().await,
        }
        .unwrap();
    }

    /// Stops a server: connections stay, answers do not come.
    pub(crate) fn pause(&self, server: usize) {
        match self {
            Self::Postgres(server) => server.freeze(),
            _ => self.processes()[server].pause(),
        }
        .unwrap();
    }

    pub(crate) fn resume(&self, server: usize) {
        match self {
            Self::Postgres(server) => server.thaw(),
            _ => self.processes()[server].resume(),
        }
        .unwrap();
    }

    /// Cuts the routes that others have opened to one server of three, or to each; one way, the other or both.
    pub(crate) fn cut_routes(&self, which: usize, direction: u32) {
        let Self::Nats(cluster) = self else { panic!("there are no routes") };
        for (number, route) in cluster.routes().enumerate() {
            match direction {
                _ if which < 3 && which != number => {}
                0 => route.cut(Direction::ToServer),
                1 => route.cut(Direction::ToClient),
                _ => route.cut_both(),
            }
        }
    }

    pub(crate) async fn heal_routes(&self) {
        let Self::Nats(cluster) = self else { panic!("there are no routes") };
        for route in cluster.routes() {
            route.heal().await.unwrap();
        }
    }

    /// From now on [`Servers::set_clock`] can set the time that the server's statements see: the function that reads its clock gets another
    /// name.
    pub(crate) async fn replace_clock(&self) {
        let Self::Postgres(server) = self else { panic!("this clock is not set") };
        server.execute("ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO true_clock").await.unwrap();
        self.set_clock(0).await;
    }

    /// The server's clock is that far from ours.
    pub(crate) async fn set_clock(&self, hours: i32) {
        let Self::Postgres(server) = self else { panic!("this clock is not set") };
        let function = "CREATE OR REPLACE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE";
        let body = format!("SELECT pg_catalog.true_clock() + interval '{hours} hours'");
        server.execute(&format!("{function} AS $$ {body} $$")).await.unwrap();
    }

    /// All servers together.
    pub(crate) fn usage(&self) -> Usage {
        if let Self::Postgres(server) = self {
            return server.usage().unwrap();
        }
        // One that is down has used nothing.
        let each = self.processes().into_iter().filter_map(|process| process.usage().ok());
        let add = |sum: Usage, more: Usage| Usage { processor: sum.processor + more.processor, memory: sum.memory + more.memory };
        each.fold(Usage { processor: Duration::ZERO, memory: 0 }, add)
    }
}
