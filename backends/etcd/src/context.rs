//! What the errors of one connection mean.

use shardwise_discovery::one_line;
use shardwise_discovery::tls::TlsFiles;
use tonic::Code;

use crate::config::Endpoint;
use crate::dial::{TransportError, diagnose};
use crate::error::Failure;

/// A connection's server and user, for the meaning of errors.
#[derive(Debug)]
pub(crate) struct ConnectionContext {
    pub(crate) endpoint: Endpoint,
    pub(crate) username: Option<String>,
    pub(crate) prefix: String,
    pub(crate) files: TlsFiles,
    pub(crate) wire: TransportError,
}

impl ConnectionContext {
    pub(crate) fn forbidden(&self) -> Failure {
        Failure::Forbidden { username: self.username.clone(), prefix: self.prefix.clone() }
    }

    /// The meaning of a failed call of the etcd client.
    pub(crate) fn meaning(&self, error: &etcd_client::Error) -> Failure {
        let endpoint = self.endpoint.to_string();
        let broken = |endpoint, why| self.wire.get().cloned().unwrap_or(Failure::Broken { endpoint, why });
        let etcd_client::Error::GRpcStatus(status) = error else { return broken(endpoint, one_line(&error.to_string())) };
        let message = one_line(status.message());
        let says = |text: &str| message.contains(text);
        match status.code() {
            _ if says("rpc not supported for learner") => Failure::Learner { endpoint },
            _ if says("authentication failed") => Failure::Credentials { username: self.username.clone().unwrap_or_default() },
            _ if says("user name is empty") => Failure::NoCredentials,
            _ if says("authentication is not enabled") => Failure::NoAuthentication,
            _ if says("database space exceeded") => Failure::Full { endpoint },
            _ if says("has been compacted") => Failure::Compacted,
            // The server does not know that revision yet: the store was restored since.
            _ if says("future revision") => Failure::Replaced,
            Code::PermissionDenied => self.forbidden(),
            Code::Unimplemented => Failure::NotEtcd { endpoint, why: message },
            Code::DeadlineExceeded | Code::ResourceExhausted | Code::Unauthenticated => Failure::NotReady { endpoint, why: message },
            Code::Unavailable if says("etcdserver: ") => Failure::NotReady { endpoint, why: message },
            // tonic's error for a broken connection; the message says little.
            Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled => broken(endpoint, message),
            _ => Failure::Refused { endpoint, why: message },
        }
    }

    /// What a failed call means to a server that has never answered: where it hung up, it is asked why.
    pub(crate) async fn cause(&self, error: &etcd_client::Error) -> Failure {
        match self.meaning(error) {
            broken @ Failure::Broken { .. } => diagnose(&self.endpoint, &self.files).await.unwrap_or(broken),
            failure => failure,
        }
    }
}
