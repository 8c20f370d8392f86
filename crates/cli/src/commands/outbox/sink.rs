//! Creates the sink in the settings.

use std::sync::Arc;

use shardwise_outbox::settings::{OutboxSettings, SinkKind, SinkSettings};
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
use shardwise_outbox::settings::{RemoteSink, SinkFormat};
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
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
        #[cfg(feature = "http")]
        SinkSettings::Remote(remote) if remote.kind == SinkKind::Http => http(remote),
        other => Err(unknown(other)),
    }
}

#[cfg(feature = "nats")]
fn nats(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = sink::NatsConfig::from_url(&remote.url, SOURCE)?.tls(tls(remote)).fence(remote.fence);
    config = config.stream(remote.stream.as_deref().unwrap_or("outbox"), remote.create).mode(mode(remote).unwrap_or_default());
    if let Some(path) = &remote.password_file {
        config = config.password_file(path)?;
    }
    if let Some(to) = template(remote)? {
        config = config.subject(to)?;
    }
    Ok(Arc::new(sink::NatsSink::new(config)?))
}

#[cfg(feature = "redis")]
fn redis(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = sink::RedisConfig::from_url(&remote.url, SOURCE)?.tls(tls(remote)).mode(mode(remote).unwrap_or_default());
    config = config.length_max(remote.length.map(u64::from));
    if let Some(path) = &remote.password_file {
        config = config.password_file(path)?;
    }
    if let Some(to) = template(remote)? {
        config = config.stream(to);
    }
    Ok(Arc::new(sink::RedisSink::new(config)))
}

#[cfg(feature = "rabbitmq")]
fn rabbitmq(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = sink::RabbitMqConfig::from_url(&remote.url, SOURCE)?.mode(mode(remote).unwrap_or_default());
    if let Some(path) = &remote.password_file {
        config = config.password_file(path)?;
    }
    if let Some(exchange) = &remote.exchange {
        config = config.exchange(exchange)?;
    }
    if let Some(to) = template(remote)? {
        config = config.routing_key(to);
    }
    Ok(Arc::new(sink::RabbitMqSink::new(config)))
}

#[cfg(feature = "http")]
fn http(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = sink::HttpConfig::from_url(&remote.url, SOURCE)?.tls(tls(remote)).allow_private(remote.private);
    if let Some(path) = &remote.password_file {
        config = config.token_file(path)?;
    }
    if let Some(path) = &remote.secret_file {
        config = config.signing_secret_file(path)?;
    }
    if let Some(timeout) = remote.timeout {
        config = config.timeout(timeout);
    }
    if let Some(mode) = mode(remote) {
        config = config.mode(mode);
    }
    Ok(Arc::new(sink::HttpSink::new(config)?))
}

#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
fn template(remote: &RemoteSink) -> Result<Option<sink::Template>> {
    Ok(remote.to.as_deref().map(sink::Template::parse).transpose()?)
}

#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
fn mode(remote: &RemoteSink) -> Option<sink::Mode> {
    remote.format.map(|format| if format == SinkFormat::Structured { sink::Mode::Structured } else { sink::Mode::Binary })
}

#[cfg(any(feature = "http", feature = "nats", feature = "redis"))]
fn tls(remote: &RemoteSink) -> sink::TlsFiles {
    sink::TlsFiles { ca: remote.ca_file.clone(), identity: remote.identity.clone() }
}

fn unknown(sink: &SinkSettings) -> CliFailure {
    let feature = match sink {
        SinkSettings::Remote(remote) => match remote.kind {
            SinkKind::Nats => "nats",
            SinkKind::Redis => "redis",
            SinkKind::RabbitMq => "rabbitmq",
            SinkKind::Http => "http",
            _ => "",
        },
        _ => "",
    };
    let why = features::missing(feature).unwrap_or_else(|| "this program has no such sink".into());
    CliFailure::usage(format!("the outbox's sink is {sink}: {why}"))
}
