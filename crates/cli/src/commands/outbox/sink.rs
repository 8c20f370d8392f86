//! Creates the sink in the settings.

use std::sync::Arc;

#[cfg(any(feature = "http", feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
use shardwise_outbox::settings::RemoteSink;
use shardwise_outbox::settings::{OutboxSettings, SinkKind, SinkSettings};
#[cfg(any(feature = "http", feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
use shardwise_outbox::sink;
use shardwise_outbox::{FileSink, Sink, StdoutSink};

use crate::exit::{CliFailure, Result};
use crate::features;

/// The attribute `source` of published events.
const SOURCE: &str = "/shardwise/outbox";

/// Creates the sink without contacting it.
pub(super) fn made(outbox: &OutboxSettings) -> Result<Arc<dyn Sink>> {
    match &outbox.sink {
        SinkSettings::Stdout => Ok(Arc::new(StdoutSink::new(SOURCE))),
        SinkSettings::File { path } => Ok(Arc::new(FileSink::new(path, SOURCE))),
        #[cfg(feature = "nats")]
        SinkSettings::Remote(remote) if remote.kind == SinkKind::Nats => nats(remote),
        #[cfg(feature = "redis")]
        SinkSettings::Remote(remote) if remote.kind == SinkKind::Redis => redis(remote),
        #[cfg(feature = "rabbitmq")]
        SinkSettings::Remote(remote) if remote.kind == SinkKind::RabbitMq => rabbitmq(remote),
        #[cfg(feature = "kafka")]
        SinkSettings::Remote(remote) if remote.kind == SinkKind::Kafka => kafka(remote),
        #[cfg(feature = "http")]
        SinkSettings::Remote(remote) if remote.kind == SinkKind::Http => http(remote),
        other => Err(unknown(other)),
    }
}

#[cfg(feature = "nats")]
fn nats(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = sink::NatsConfig::from_url(&remote.url, SOURCE)?;
    (config.tls, config.create, config.fence) = (tls(remote), remote.create, remote.fence);
    config.creds_file.clone_from(&remote.creds_file);
    config.mode = remote.format.unwrap_or(config.mode);
    if let Some(stream) = &remote.stream {
        config.stream.clone_from(stream);
    }
    if let Some(to) = template(remote)? {
        config.subject = to;
    }
    if let Some(path) = &remote.password_file {
        config = config.password(sink::secret_in_file(path, "the NATS sink's password")?);
    }
    Ok(Arc::new(sink::NatsSink::new(config)?))
}

#[cfg(feature = "redis")]
fn redis(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = sink::RedisConfig::from_url(&remote.url, SOURCE)?;
    (config.tls, config.length_max) = (tls(remote), remote.length.map(u64::from));
    config.mode = remote.format.unwrap_or(config.mode);
    if let Some(to) = template(remote)? {
        config.stream = to;
    }
    if let Some(path) = &remote.password_file {
        config = config.password(sink::secret_in_file(path, "the Redis sink's password")?);
    }
    if let Some(path) = &remote.sentinel_password_file {
        let password = sink::secret_in_file(path, "the password at the Redis sink's Sentinels")?;
        config = config.sentinel_login(remote.sentinel_username.clone(), password)?;
    }
    Ok(Arc::new(sink::RedisSink::new(config)))
}

#[cfg(feature = "rabbitmq")]
fn rabbitmq(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = sink::RabbitMqConfig::from_url(&remote.url, SOURCE)?;
    config.tls = tls(remote);
    config.mode = remote.format.unwrap_or(config.mode);
    if let Some(to) = template(remote)? {
        config.routing_key = to;
    }
    if let Some(exchange) = &remote.exchange {
        config = config.exchange(exchange)?;
    }
    if let Some(path) = &remote.password_file {
        config = config.password(sink::secret_in_file(path, "the RabbitMQ sink's password")?);
    }
    Ok(Arc::new(sink::RabbitMqSink::new(config)))
}

#[cfg(feature = "kafka")]
fn kafka(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = sink::KafkaConfig::from_url(&remote.url, SOURCE)?;
    config.tls = tls(remote);
    config.mode = remote.format.unwrap_or(config.mode);
    config.timeout = remote.timeout.unwrap_or(config.timeout);
    config.sasl = remote.sasl;
    if let Some(to) = template(remote)? {
        config.topic = to;
    }
    if let Some(key) = &remote.message_key {
        config.key = sink::Template::parse(key)?;
    }
    if let Some(path) = &remote.password_file {
        config = config.password_file(path);
    }
    Ok(Arc::new(sink::KafkaSink::new(config)?))
}

#[cfg(feature = "http")]
fn http(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = sink::HttpConfig::from_url(&remote.url, SOURCE)?;
    (config.tls, config.allow_private) = (tls(remote), remote.private);
    config.mode = remote.format.unwrap_or(config.mode);
    config.timeout = remote.timeout.unwrap_or(config.timeout);
    if let Some(path) = &remote.password_file {
        config = config.token_file(path)?;
    }
    if let Some(path) = &remote.secret_file {
        config = config.signing_secret(&sink::secret_in_file(path, "the secret that webhooks are signed with")?)?;
    }
    Ok(Arc::new(sink::HttpSink::new(config)?))
}

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
fn template(remote: &RemoteSink) -> Result<Option<sink::Template>> {
    Ok(remote.to.as_deref().map(sink::Template::parse).transpose()?)
}

#[cfg(any(feature = "http", feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
fn tls(remote: &RemoteSink) -> sink::TlsFiles {
    sink::TlsFiles { ca: remote.ca_file.clone(), identity: remote.identity.clone() }
}

fn unknown(sink: &SinkSettings) -> CliFailure {
    let feature = match sink {
        SinkSettings::Remote(remote) => match remote.kind {
            SinkKind::Nats => "nats",
            SinkKind::Redis => "redis",
            SinkKind::RabbitMq => "rabbitmq",
            SinkKind::Kafka => "kafka",
            SinkKind::Http => "http",
            _ => "",
        },
        _ => "",
    };
    let why = features::missing(feature).unwrap_or_else(|| "this program has no such sink".into());
    CliFailure::usage(format!("the outbox's sink is {sink}: {why}"))
}
