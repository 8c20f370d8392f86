//! `ask` between two members, beside a bare client and server, with 1 and with 64 requests in flight.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use shardwise::requests::{Request, To};
use shardwise::{InstanceId, ShardingService};
use tempfile::TempDir;

use super::bare::BareClient;
use super::group::{self, PATIENCE, TOKEN, until};
use super::lanes::{Times, measured};
use super::print_figure;
use super::server::{BYTES, Server};

const IN_FLIGHT: [usize; 2] = [1, 64];

/// What is compared.
#[derive(Clone, Copy)]
enum Way {
    BareGet,
    /// Without a token, as on one machine.
    AskGet,
    BarePost,
    /// With a token: every record of the connection is proven.
    AskPost,
}

impl Way {
    const ALL: [Self; 4] = [Self::BareGet, Self::AskGet, Self::BarePost, Self::AskPost];

    const fn name(self) -> &'static str {
        match self {
            Self::BareGet => "bare GET",
            Self::AskGet => "ask GET",
            Self::BarePost => "bare POST",
            Self::AskPost => "ask POST",
        }
    }
}

/// Two members, and the process of the second one.
struct Pair {
    client: ShardingService,
    _server: Server,
    _folder: TempDir,
}

impl Pair {
    async fn start(token: Option<&str>) -> Self {
        let folder = TempDir::new().unwrap();
        if let Some(token) = token {
            std::fs::write(folder.path().join("token"), token).unwrap();
        }
        let server = Server::member(folder.path());
        let client = group::service(folder.path(), "client");
        client.register_self().await.unwrap();
        until("the server is seen", || client.members().active() == 2).await;
        Self { client, _server: server, _folder: folder }
    }
}

/// All ways, ready.
pub(crate) struct Compared {
    bare: BareClient,
    plain: Pair,
    proven: Pair,
    _server: Server,
}

impl Compared {
    pub(crate) async fn start() -> Self {
        let server = Server::bare();
        let bare = BareClient::connect(server.port).await;
        Self { bare, plain: Pair::start(None).await, proven: Pair::start(Some(TOKEN)).await, _server: server }
    }

    /// Each way has its turn; each round begins with another one.
    pub(crate) async fn round(&self, round: usize, turn: Duration) {
        for in_flight in IN_FLIGHT {
            for at in 0..Way::ALL.len() {
                let way = Way::ALL[(at + round) % Way::ALL.len()];
                let times = self.measure(way, in_flight, turn).await;
                let [p50, p99] = [50, 99].map(|percent| times.micros(percent));
                print_figure(&json!({ "way": way.name(), "in_flight": in_flight, "p50_us": p50, "p99_us": p99, "rate": times.rate }));
            }
        }
    }

    async fn measure(&self, way: Way, in_flight: usize, turn: Duration) -> Times {
        let bare = |method: Method| {
            let client = self.bare.clone();
            measured(in_flight, turn, move || client.clone().ask(method.clone()))
        };
        match way {
            Way::BareGet => bare(Method::GET).await,
            Way::BarePost => bare(Method::POST).await,
            Way::AskGet => asks(&self.plain.client, in_flight, turn, || Request::get("echo")).await,
            Way::AskPost => asks(&self.proven.client, in_flight, turn, || Request::post("echo", "text/plain", [b'x'; BYTES])).await,
        }
    }
}

async fn asks(client: &ShardingService, in_flight: usize, turn: Duration, request: fn() -> Request) -> Times {
    let (client, server) = (client.clone(), Arc::new(InstanceId::new("server").unwrap()));
    measured(in_flight, turn, move || {
        let (client, server) = (client.clone(), Arc::clone(&server));
        async move {
            let answered = client.ask(&To::Member(&server), request(), PATIENCE).await.unwrap();
            assert_eq!((answered.answer.status, answered.answer.body.len()), (200, BYTES));
        }
    })
    .await
}
