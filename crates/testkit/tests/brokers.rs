//! The servers that sinks write to: they start, keep their data over a restart, and demand the credentials that they are configured with.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper of tests")]

use std::net::SocketAddr;
use std::time::Duration;

use shardwise_testkit::{Nats, NatsCluster, NatsOptions, RabbitMq, RabbitMqOptions, Redis, RedisOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Says something and gives back what is answered up to `until`.
async fn talk(to: SocketAddr, words: &str, until: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(words.as_bytes()).await.unwrap();
    let (mut answer, mut part) = (String::new(), [0; 4096]);
    while !answer.contains(until) {
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read(&mut part)).await;
        let bytes = read.unwrap_or_else(|_| panic!("waited 30 s in vain for {until:?}; heard {answer:?}")).unwrap();
        assert!(bytes > 0, "the connection ended before {until:?} came; heard {answer:?}");
        answer.push_str(&String::from_utf8_lossy(&part[..bytes]));
    }
    answer
}

#[tokio::test]
async fn nats_keeps_streams_over_a_restart_and_asks_for_the_password() {
    let options = NatsOptions::default().with_user("app", "secret");
    let nats = Nats::start(options).await.unwrap();
    let created = nats.request("$JS.API.STREAM.CREATE.S", r#"{"name":"S","subjects":["s.>"]}"#).await.unwrap();
    assert!(created.contains("did_create"), "{created}");
    nats.restart().await.unwrap();
    let described = nats.request("$JS.API.STREAM.INFO.S", "").await.unwrap();
    assert!(described.contains("\"subjects\":[\"s."), "{described}");
    let taken = nats.request("s.a", "something").await.unwrap();
    assert!(taken.contains("\"seq\":1"), "{taken}");
    talk(nats.socket_addr(), "CONNECT {}\r\nPING\r\n", "Authorization Violation").await;
}

#[tokio::test]
async fn a_nats_cluster_has_another_leader_after_the_first_is_killed() {
    // Their routes go through proxies, as in tests that cut them.
    let cluster = NatsCluster::start(3, NatsOptions::default().newest().with_cuttable_routes()).await.unwrap();
    assert_eq!((cluster.addresses().len(), cluster.routes().count()), (3, 3));
    let create = r#"{"name":"S","subjects":["s.>"],"retention":"limits","storage":"file","num_replicas":3}"#;
    let request = format!("PUB $JS.API.STREAM.CREATE.S answer {}\r\n{create}\r\n", create.len());
    let login = "CONNECT {\"verbose\":false}\r\nSUB answer 1\r\n";
    talk(cluster.servers()[0].socket_addr(), &format!("{login}{request}"), "did_create").await;
    let first = cluster.leader_of("S").await.unwrap();
    cluster.servers()[first].kill().unwrap();
    assert_ne!(cluster.leader_of("S").await.unwrap(), first);
    cluster.servers()[first].restart().await.unwrap();
    cluster.restart().await.unwrap();
    cluster.leader_of("S").await.unwrap();
}

#[tokio::test]
async fn redis_keeps_keys_over_a_restart_and_asks_for_the_password() {
    let redis = Redis::start(RedisOptions::default().with_password("secret")).await.unwrap();
    talk(redis.socket_addr(), "AUTH secret\r\nSET key value\r\n", "+OK\r\n+OK").await;
    redis.restart().await.unwrap();
    talk(redis.socket_addr(), "AUTH secret\r\nGET key\r\n", "value").await;
    talk(redis.socket_addr(), "GET key\r\n", "NOAUTH").await;
}

#[tokio::test]
async fn a_redis_with_a_password_is_ready_when_it_has_read_what_it_had_stored() {
    // It loads slowly, and serves requests only every 1,024 commands.
    let options = RedisOptions::default().with_password("secret").with_setting("key-load-delay", "200");
    let redis = Redis::start(options).await.unwrap();
    let writes = (0..4_096).map(|key| format!("SET key-{key} value\r\n")).collect::<Vec<_>>().concat();
    talk(redis.socket_addr(), &format!("AUTH secret\r\n{writes}ECHO written\r\n"), "written").await;
    redis.restart().await.unwrap();
    let answer = talk(redis.socket_addr(), "AUTH secret\r\nDBSIZE\r\nECHO asked\r\n", "asked").await;
    assert!(answer.contains(":4096\r\n"), "{answer}");
}

#[tokio::test]
async fn rabbitmq_answers_before_and_after_a_restart() {
    let rabbit = RabbitMq::start(RabbitMqOptions::default()).await.unwrap();
    talk(rabbit.socket_addr(), "AMQP\0\0\u{9}\u{1}", "RabbitMQ").await;
    rabbit.restart().await.unwrap();
    talk(rabbit.socket_addr(), "AMQP\0\0\u{9}\u{1}", "RabbitMQ").await;
}
