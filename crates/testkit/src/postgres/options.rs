//! What a server is started with.

use std::path::Path;

use crate::servers::{POSTGRES_NEWEST, POSTGRES_OLDEST, ServerPackage};

/// How a server is started. The default: the newest version, and everybody on this machine may do everything.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    oldest: bool,
    durable: bool,
    settings: Vec<(String, String)>,
}

impl PostgresOptions {
    /// The oldest version that is supported.
    #[must_use]
    pub fn oldest(mut self) -> Self {
        self.oldest = true;
        self
    }

    /// Flushes to the disk as a server does by default, for measurements. A server of tests never loses power.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// A setting as in `postgresql.conf`; the last one of a name counts.
    #[must_use]
    pub fn with_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    pub(super) fn server(&self) -> ServerPackage {
        if self.oldest { POSTGRES_OLDEST } else { POSTGRES_NEWEST }
    }

    pub(super) fn arguments(&self, folder: &Path, port: u16) -> Vec<String> {
        let place = |name: &str| folder.join(name).display().to_string();
        let mut set = vec![
            ("data_directory".to_owned(), place("data")),
            ("unix_socket_directories".to_owned(), folder.display().to_string()),
            ("listen_addresses".to_owned(), "127.0.0.1".to_owned()),
            ("port".to_owned(), port.to_string()),
            ("max_connections".to_owned(), "200".to_owned()),
            // In UTC whatever the machine has, so that logs and tests read alike.
            ("timezone".to_owned(), "UTC".to_owned()),
        ];
        if !self.durable {
            set.extend(["fsync", "full_page_writes"].map(|name| (name.to_owned(), "off".to_owned())));
        }
        set.extend(self.settings.iter().cloned());
        let arguments = set.into_iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]);
        ["-D".to_owned(), place("data")].into_iter().chain(arguments).collect()
    }
}
