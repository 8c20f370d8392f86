//! The sink that the settings name.

use std::sync::Arc;

use shardwise_outbox::settings::{OutboxSettings, RemoteSink, SinkFormat, SinkKind, SinkSettings};
use shardwise_outbox::sink::{
    HttpConfig, HttpSink, Mode, NatsConfig, NatsSink, RabbitMqConfig, RabbitMqSink, RedisConfig, RedisSink, Template, TlsFiles,
};
use shardwise_outbox::{FileSink, Sink, StdoutSink};

use crate::exit::{CliFailure, Code, Result};
use crate::output;

/// The `source` of what the command publishes.
const SOURCE: &str = "/shardwise/outbox";

/// Nothing is contacted.
pub(super) fn made(outbox: &OutboxSettings) -> Result<Arc<dyn Sink>> {
    match &outbox.sink {
        SinkSettings::Stdout => Ok(Arc::new(StdoutSink::new(SOURCE))),
        SinkSettings::File { path } => Ok(Arc::new(FileSink::new(path, SOURCE))),
        SinkSettings::Remote(remote) => match remote.kind {
            SinkKind::Nats => nats(remote),
            SinkKind::Redis => redis(remote),
            SinkKind::RabbitMq => rabbitmq(remote),
            SinkKind::Http => http(remote),
            _ => Err(unknown(&outbox.sink)),
        },
        other => Err(unknown(other)),
    }
}

/// A sink that cannot be reached may come; what an operator has to change ends the start.
pub(super) async fn checked(sink: &dyn Sink) -> Result<()> {
    match sink.check().await {
        Err(error) if error.is_retryable() => {
            output::note(format_args!("{error}; trying again while publishing"));
            Ok(())
        }
        checked => Ok(checked?),
    }
}

fn nats(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = NatsConfig::from_url(&remote.url, SOURCE)?.tls(tls(remote)).fence(remote.fence);
    config = config.stream(remote.stream.as_deref().unwrap_or("outbox"), remote.create);
    if let Some(path) = &remote.password_file {
        config = config.password_file(path)?;
    }
    if let Some(to) = template(remote)? {
        config = config.subject(to)?;
    }
    if let Some(mode) = mode(remote) {
        config = config.mode(mode);
    }
    Ok(Arc::new(NatsSink::new(config)?))
}

fn redis(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = RedisConfig::from_url(&remote.url, SOURCE)?.tls(tls(remote)).length_max(remote.length.map(u64::from));
    if let Some(path) = &remote.password_file {
        config = config.password_file(path)?;
    }
    if let Some(to) = template(remote)? {
        config = config.stream(to);
    }
    if let Some(mode) = mode(remote) {
        config = config.mode(mode);
    }
    Ok(Arc::new(RedisSink::new(config)))
}

fn rabbitmq(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = RabbitMqConfig::from_url(&remote.url, SOURCE)?;
    if let Some(path) = &remote.password_file {
        config = config.password_file(path)?;
    }
    if let Some(exchange) = &remote.exchange {
        config = config.exchange(exchange)?;
    }
    if let Some(to) = template(remote)? {
        config = config.routing_key(to);
    }
    if let Some(mode) = mode(remote) {
        config = config.mode(mode);
    }
    Ok(Arc::new(RabbitMqSink::new(config)))
}

fn http(remote: &RemoteSink) -> Result<Arc<dyn Sink>> {
    let mut config = HttpConfig::from_url(&remote.url, SOURCE)?.tls(tls(remote)).allow_private(remote.private);
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
    Ok(Arc::new(HttpSink::new(config)?))
}

fn template(remote: &RemoteSink) -> Result<Option<Template>> {
    Ok(remote.to.as_deref().map(Template::parse).transpose()?)
}

fn mode(remote: &RemoteSink) -> Option<Mode> {
    remote.format.map(|format| if format == SinkFormat::Structured { Mode::Structured } else { Mode::Binary })
}

fn tls(remote: &RemoteSink) -> TlsFiles {
    TlsFiles { ca: remote.ca_file.clone(), identity: remote.identity.clone() }
}

fn unknown(sink: &SinkSettings) -> CliFailure {
    CliFailure::new(Code::Usage, format!("this program has no sink {sink}"))
}
