//! What a server is started with.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use nix::unistd::User;

use super::SUPERUSER;
use crate::certs::CertIdentity;
use crate::error::{Error, Result};
use crate::servers::{POSTGRES_NEWEST, POSTGRES_OLDEST, ServerPackage};

/// How a server is started. The default: the newest version, and everybody on this machine may do everything.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    oldest: bool,
    durable: bool,
    tls: Option<CertIdentity>,
    rules: Option<String>,
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

    /// With TLS too, with this certificate. Clients may show one of the same authority.
    #[must_use]
    pub fn with_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(identity.clone());
        self
    }

    /// Who may connect and how beside the test itself, as lines of `pg_hba.conf`.
    #[must_use]
    pub fn with_rules(mut self, rules: &str) -> Self {
        self.rules = Some(format!("host all {SUPERUSER} 127.0.0.1/32 trust\n{rules}\n"));
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
        if self.tls.is_some() {
            set.push(("ssl".to_owned(), "on".to_owned()));
        }
        set.extend(self.file_settings().map(|name| (name.to_owned(), place(name))));
        set.extend(self.settings.iter().cloned());
        let arguments = set.into_iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]);
        ["-D".to_owned(), place("data")].into_iter().chain(arguments).collect()
    }

    /// The settings that name a file, which stands in the server's folder under the setting's name.
    fn file_settings(&self) -> impl Iterator<Item = &'static str> {
        let of_tls = self.tls.iter().flat_map(|_| ["ssl_cert_file", "ssl_key_file", "ssl_ca_file"]);
        of_tls.chain(self.rules.iter().map(|_| "hba_file"))
    }

    /// Writes those files, for the server alone: it refuses a key that others may read.
    pub(super) fn write_files(&self, folder: &Path, user: Option<&User>) -> Result<()> {
        let of_tls = self.tls.iter().flat_map(|identity| [identity.certificate(), identity.key(), identity.authority()]);
        let mut texts = of_tls.map(|path| std::fs::read_to_string(&path).map_err(Error::io(path.display()))).collect::<Result<Vec<_>>>()?;
        texts.extend(self.rules.clone());
        for (name, text) in self.file_settings().zip(texts) {
            let path = folder.join(name);
            let write = || -> std::io::Result<()> {
                std::fs::write(&path, text)?;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
                user.map_or(Ok(()), |user| chown(&path, Some(user.uid.as_raw()), Some(user.gid.as_raw())))
            };
            write().map_err(Error::io(path.display()))?;
        }
        Ok(())
    }
}
