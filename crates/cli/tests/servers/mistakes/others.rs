//! Mistakes in the settings for NATS, PostgreSQL and Valkey: one of each kind. The backends' own tests have the rest.

use shardwise_testkit::{Authority, Nats, NatsOptions, Port, Postgres, PostgresOptions, Redis, RedisOptions};

use super::{Case, Mistake, REFUSED, Table, UNAVAILABLE, USAGE, WRONG, silence};
use crate::meeting::Kind;

const SECRET: &str = "77aa0c52-right-secret";

fn table(kind: Kind, address: &str, more: &str) -> Table {
    Table { kind, address: address.into(), more: more.into() }
}

fn mistake(kind: Kind, address: &str, more: &str, code: i32, parts: &[&str]) -> Mistake {
    Mistake { table: table(kind, address, more), code, parts: parts.iter().map(|&part| part.into()).collect() }
}

fn password(password: &str) -> String {
    format!("password = \"{password}\"")
}

pub(super) async fn nats() -> Case {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let options = || NatsOptions::default().newest();
    let guarded = Nats::start(options().with_user("worker", SECRET)).await.unwrap();
    let secure = Nats::start(options().with_tls(&authority.server().unwrap())).await.unwrap();
    let (nobody, silent) = (Port::reserve().unwrap(), silence(guarded.socket_addr()).await);
    let [nowhere, mute] = [nobody.address().to_string(), silent.address().to_string()];
    let user = |secret: &str| format!("username = \"worker\"\n{}", password(secret));
    let stranger = format!("ca_file = \"{}\"", other.file().display());
    let of = |address: &str, more: &str, code, parts: &[&str]| mistake(Kind::Nats, address, more, code, parts);
    let mistakes = vec![
        of(&format!("nats://{nowhere}"), &user(WRONG), UNAVAILABLE, &[&nowhere]),
        of(&format!("nats://{mute}"), &user(WRONG), UNAVAILABLE, &[&mute]),
        of(&guarded.address(), &user(WRONG), REFUSED, &["refuses the credentials", "discovery.nats.password"]),
        of(&secure.address(), &stranger, REFUSED, &["TLS fails", "discovery.nats.ca_file"]),
        of("http://127.0.0.1:4222", &user(WRONG), USAGE, &["discovery.nats.urls", "nats://"]),
    ];
    let right = table(Kind::Nats, &guarded.address(), &user(SECRET));
    Case { _servers: Box::new((guarded, secure, nobody, silent, authority, other)), mistakes, right, secret: SECRET }
}

/// The server asks for no password, and none is shown all the same.
pub(super) async fn postgres() -> Case {
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let (nobody, silent) = (Port::reserve().unwrap(), silence(server.socket_addr()).await);
    let [nowhere, mute] = [nobody.address().to_string(), silent.address().to_string()];
    let good = Kind::Postgres.address(server.socket_addr());
    let of = |address: &str, code, parts: &[&str]| mistake(Kind::Postgres, address, &password(WRONG), code, parts);
    let mistakes = vec![
        of(&Kind::Postgres.address(nobody.address()), UNAVAILABLE, &[&nowhere]),
        of(&Kind::Postgres.address(silent.address()), UNAVAILABLE, &[&mute]),
        of(&format!("{good}_not_there"), REFUSED, &["does not exist", "discovery.postgres.url"]),
        of(&format!("{good}?sslmode=require"), REFUSED, &["TLS fails", "sslmode", "discovery.postgres.url"]),
        of(&format!("{good}?sslrootcert=/nowhere/ca.pem"), USAGE, &["discovery.postgres.url", "sslrootcert", "cannot be read"]),
        of(&good, REFUSED, &["has no tables", "`shardwise backend init`"]),
        of(&good.replace("postgres://", "mysql://"), USAGE, &["discovery.postgres.url", "must begin with postgres://"]),
    ];
    let right = table(Kind::Postgres, &good, &password(SECRET));
    Case { _servers: Box::new((server, nobody, silent)), mistakes, right, secret: SECRET }
}

pub(super) async fn valkey() -> Case {
    let authority = Authority::new().unwrap();
    let guarded = Redis::start(RedisOptions::default().valkey().with_password(SECRET)).await.unwrap();
    let plain = Redis::start(RedisOptions::default().valkey()).await.unwrap();
    let replica = Redis::start(RedisOptions::default().valkey().replica_of(plain.socket_addr())).await.unwrap();
    let (nobody, silent) = (Port::reserve().unwrap(), silence(plain.socket_addr()).await);
    let [nowhere, mute] = [nobody.address().to_string(), silent.address().to_string()];
    let ca = format!("ca_file = \"{}\"", authority.file().display());
    let of = |address: &str, more: &str, code, parts: &[&str]| mistake(Kind::Valkey, address, more, code, parts);
    let mistakes = vec![
        of(&format!("redis://{nowhere}"), &password(WRONG), UNAVAILABLE, &[&nowhere]),
        of(&format!("redis://{mute}"), &password(WRONG), UNAVAILABLE, &[&mute]),
        of(&guarded.address(), &password(WRONG), REFUSED, &["does not accept the default user", "discovery.valkey.password"]),
        of(&plain.address().replace("redis://", "rediss://"), &ca, REFUSED, &["does not speak TLS", "discovery.valkey.url"]),
        of(&replica.address(), "", REFUSED, &["is a replica", "discovery.valkey.url"]),
        of("http://127.0.0.1:6379", &password(WRONG), USAGE, &["discovery.valkey.url"]),
    ];
    let right = table(Kind::Valkey, &guarded.address(), &password(SECRET));
    Case { _servers: Box::new((guarded, plain, replica, nobody, silent, authority)), mistakes, right, secret: SECRET }
}
