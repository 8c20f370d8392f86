//! A durable queue of RabbitMQ, copied into a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use shardwise_testkit::{RabbitMq, RabbitMqOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{COPIED_WITHIN, Copy, Destination};
use crate::common::eventually;

/// The exchange and the queue.
const NAME: &str = "soak";

pub(super) struct Queue {
    server: RabbitMq,
    _connection: Connection,
    channel: Channel,
    /// With the file of the password.
    folder: TempDir,
    /// The marks that were put behind the events, and the last one that the reader has met.
    marks: AtomicU64,
    met: Arc<AtomicU64>,
}

impl Queue {
    pub(super) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("password"), "guest").unwrap();
        let server = RabbitMq::start(RabbitMqOptions::default()).await.unwrap();
        let url = format!("amqp://guest:guest@{}", server.socket_addr());
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(NAME.into(), ExchangeKind::Topic, durable, FieldTable::default()).await.unwrap();
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(NAME.into(), durable, FieldTable::default()).await.unwrap();
        channel.queue_bind(NAME.into(), NAME.into(), "#".into(), QueueBindOptions::default(), FieldTable::default()).await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self { server, _connection: connection, channel, folder, marks: AtomicU64::new(0), met: Arc::default() }
    }

    /// Puts a mark behind everything in the queue.
    async fn mark(&self) -> u64 {
        let mark = self.marks.fetch_add(1, Ordering::SeqCst) + 1;
        let body = mark.to_be_bytes();
        let publishing =
            self.channel.basic_publish("".into(), NAME.into(), BasicPublishOptions::default(), &body, BasicProperties::default());
        let confirmation = publishing.await.unwrap().await.unwrap();
        assert!(confirmation.is_ack(), "{confirmation:?}");
        mark
    }
}

impl Destination for Queue {
    fn settings(&self) -> String {
        format!(
            "sink = \"amqp://guest@{}\"\nsink_password_file = \"{}\"\nsink_exchange = \"{NAME}\"\nsink_to = \"{{aggregatetype}}\"\n\
             sink_format = \"structured\"\n",
            self.server.socket_addr(),
            self.folder.path().join("password").display()
        )
    }

    fn copy_to(&self, runtime: &Runtime, path: PathBuf) {
        let (mut copy, met, channel) = (Copy::create(path), Arc::clone(&self.met), self.channel.clone());
        let reads = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumer = channel.basic_consume(NAME.into(), "".into(), reads, FieldTable::default());
        let mut messages = runtime.block_on(consumer).unwrap();
        runtime.spawn(async move {
            while let Some(message) = messages.next().await {
                let body = message.unwrap().data;
                match body.as_slice().try_into() {
                    Ok(mark) => met.store(u64::from_be_bytes(mark), Ordering::SeqCst),
                    Err(_) => copy.append(&body),
                }
            }
        });
    }

    /// Everything that was in the queue before the mark is in the file when the reader meets the mark.
    fn is_copied(&self, runtime: &Runtime) -> bool {
        let mark = runtime.block_on(self.mark());
        eventually("the mark comes", COPIED_WITHIN, || (self.met.load(Ordering::SeqCst) >= mark).then_some(()));
        true
    }
}
