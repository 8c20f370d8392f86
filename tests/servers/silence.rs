//! All reading of the group falls silent while renewals go on: nothing ends, nothing fails, and the view is no longer proven.

use std::time::{Duration, Instant};

use shardwise::ShardingService;
use shardwise_testkit::{Direction, Speech, TcpProxy};

use crate::meeting::{GROUP, Kind, Server, Terms, runtime, settled, until};

const TTL: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_millis(10);
/// From the end of the silence. The requests that got no answer are given up after 2 s on Consul, 5 s on a single etcd and on PostgreSQL.
const BACK_MAX: Duration = Duration::from_secs(8);

// On NATS and Valkey renewals and events have one connection, on which no answer can be left out.
on_servers!(a_watch_that_is_silent_while_renewals_succeed_ends_ownership_within_two_ttls:
    consul Consul, etcd Etcd; soak: postgres Postgres);

/// The blocking queries of the group and its lists, but not the reads of one member's own registration that make a renewal count.
fn reads_the_group_in_consul(request: &[u8]) -> bool {
    has(request, &format!("/v1/health/service/{GROUP}?")) && !has(request, "shardwise_")
}

/// A watch or a list begins at the group's folder and has an end of its range behind it, field 2; what is about one member goes on with
/// its name there.
fn reads_the_group_in_etcd(message: &[u8]) -> bool {
    has(message, &format!("/members/{GROUP}/\x12"))
}

/// Only what reads a group asks for the number of its last claim.
fn reads_the_group_in_postgres(query: &[u8]) -> bool {
    has(query, "coalesce(g.claimed, 0)")
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

fn a_watch_that_is_silent_while_renewals_succeed_ends_ownership_within_two_ttls(kind: Kind) {
    let runtime = runtime("silence");
    let _inside = runtime.enter();
    let server = runtime.block_on(Server::start(kind));
    let proxy = runtime.block_on(match kind {
        Kind::Consul => TcpProxy::recognizing(server.address(), Speech::Http1, reads_the_group_in_consul),
        Kind::Etcd => TcpProxy::recognizing(server.address(), Speech::Grpc, reads_the_group_in_etcd),
        Kind::Postgres => TcpProxy::recognizing(server.address(), Speech::Postgres, reads_the_group_in_postgres),
        Kind::Nats | Kind::Valkey => panic!("what it is asked is not recognized"),
    });
    let proxy = proxy.unwrap();
    let terms = Terms { kind, ttl: TTL, slots: 64 };
    let member = |at, id| terms.service(at, id);
    let (behind, beside, newcomer) =
        (member(proxy.address(), "behind"), member(server.address(), "beside"), member(server.address(), "newcomer"));
    for service in [&behind, &beside] {
        runtime.block_on(service.register_self()).unwrap();
    }
    until("both see both", TTL * 5, || settled([&behind, &beside].into_iter()));

    let answered = proxy.bytes(Direction::ToClient);
    proxy.ignore();
    // etcd proves by one number that nothing has changed, and rightly so. From here on something has.
    runtime.block_on(newcomer.register_self()).unwrap();
    let changed = Instant::now();
    let mut stopped = None;
    while changed.elapsed() < TTL * 4 {
        let asked = changed.elapsed();
        if owns(&behind) {
            assert!(asked <= TTL * 2, "it owns {asked:?} after a change that it has not seen: {:?}", behind.ownership());
            assert_eq!(stopped, None, "it owns again, and nothing has proven its view");
        } else {
            stopped = stopped.or(Some(asked));
        }
        if asked > TTL {
            assert_eq!(beside.members().members().len(), 3, "it renews, so others must see it");
        }
        std::thread::sleep(POLL_EVERY);
    }
    let stopped = stopped.unwrap();
    assert!(stopped > TTL, "after {stopped:?}: not for the view, but for want of renewals");
    assert!(proxy.bytes(Direction::ToClient) > answered && owns(&beside) && owns(&newcomer));

    runtime.block_on(proxy.heal()).unwrap();
    let back = until("it owns again", BACK_MAX, || settled([&behind, &beside, &newcomer].into_iter()));
    println!("{}: owned nothing {stopped:?} after the change, and again {back:?} after the silence", kind.name());
}

fn owns(service: &ShardingService) -> bool {
    (0..500u32).any(|key| service.owns(&key))
}
