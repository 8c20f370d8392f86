//! A server for webhooks that writes each event into a file before it answers.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::{Copy, Destination};

/// Larger than any event here.
const BODY_MAX: usize = 1 << 20;

type Receiver = Arc<Mutex<Option<Copy>>>;

pub(super) struct Webhook {
    address: String,
    receiver: Receiver,
}

impl Webhook {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/events", listener.local_addr().unwrap());
        let receiver = Receiver::default();
        let routes = Router::new().route("/events", post(take)).layer(DefaultBodyLimit::max(BODY_MAX)).with_state(Arc::clone(&receiver));
        tokio::spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, receiver }
    }
}

async fn take(State(receiver): State<Receiver>, event: Bytes) -> StatusCode {
    match receiver.lock().unwrap().as_mut() {
        Some(copy) => {
            copy.append(&event);
            StatusCode::NO_CONTENT
        }
        None => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl Destination for Webhook {
    fn settings(&self) -> String {
        format!("sink = \"{}\"\nsink_private = true\n", self.address)
    }

    fn copy_to(&self, _: &Runtime, path: PathBuf) {
        *self.receiver.lock().unwrap() = Some(Copy::create(path));
    }

    fn is_copied(&self, _: &Runtime) -> bool {
        true
    }
}
