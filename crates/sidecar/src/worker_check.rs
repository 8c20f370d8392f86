//! Checks whether the local worker works (`--worker-health`).

use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use shardwise::requests::{Method, Request};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::Error;
use crate::limits::Limits;
use crate::target::Target;
use crate::worker_client::WorkerClient;

/// Below the limit of a check, so that the reason says more than that it took too long.
const CONNECTED_WITHIN: Duration = Duration::from_millis(800);

/// Where to ask for the worker's health.
#[derive(Debug, Clone)]
pub struct WorkerCheck(Arc<CheckedWorker>);

#[derive(Debug)]
struct CheckedWorker {
    /// It shares no connections with requests, so a check waits behind none.
    client: WorkerClient,
    /// The path and query, as given.
    path: String,
    /// Only a connection is opened.
    is_tcp: bool,
}

impl WorkerCheck {
    /// `http://HOST:PORT/PATH`, which is asked with GET and must answer 2xx, or `tcp://HOST:PORT`, which must take a connection.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] if the address is invalid or on another machine.
    pub fn parse(address: &str) -> Result<Self, Error> {
        let refused = || {
            Error::Options(format!(
                "--worker-health {address}: the worker is at an address of this machine, such as http://127.0.0.1:8000/healthz or \
                 tcp://127.0.0.1:8000"
            ))
        };
        let bare = address.strip_prefix("tcp://");
        // Only HTTP has a usual port.
        let has_port = |bare: &str| bare.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let target = match bare {
            None => Target::parse(address.split('?').next().unwrap_or_default()),
            Some(bare) => Target::parse(&format!("http://{bare}")).filter(|target| target.prefix.is_empty() && has_port(bare)),
        };
        let target = target.filter(Target::is_beside).ok_or_else(refused)?;
        let uri = address.parse::<Uri>().ok();
        let path = uri.as_ref().and_then(Uri::path_and_query).map_or("/", |path| path.as_str()).to_owned();
        let client = WorkerClient::new(target, Limits::default());
        Ok(Self(Arc::new(CheckedWorker { client, path, is_tcp: bare.is_some() })))
    }

    /// Whether the worker works; an error says why not.
    pub(crate) async fn check(self) -> Result<(), String> {
        let CheckedWorker { client, path, is_tcp } = &*self.0;
        let target = client.target();
        if *is_tcp {
            return match timeout(CONNECTED_WITHIN, TcpStream::connect((target.host.as_str(), target.port))).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(format!("{}: {error}", target.authority())),
                Err(_) => Err(format!("{}: no connection within {CONNECTED_WITHIN:?}", target.authority())),
            };
        }
        match client.answer(path, &Request::new(Method::Get)).await {
            Ok(answer) if answer.status < 300 => Ok(()),
            Ok(answer) => Err(format!("{}: status {}", target.authority(), answer.status)),
            Err(failed) => Err(failed.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_at_an_address_of_this_machine() {
        for good in ["http://127.0.0.1:8000/healthz/?full=1", "http://localhost", "tcp://127.0.0.1:8000", "tcp://[::1]:1"] {
            assert!(WorkerCheck::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "127.0.0.1:8000",
            "https://127.0.0.1:1",
            "http://10.0.0.7:1/x",
            "tcp://127.0.0.1",
            "tcp://10.0.0.7:1",
            "tcp://127.0.0.1:1/x",
        ] {
            let error = WorkerCheck::parse(bad).map_err(|error| error.to_string());
            assert!(error.is_err_and(|why| why.contains(bad) && why.contains("--worker-health")), "{bad}");
        }
    }
}
