//! Redis: one server.

use std::path::Path;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::certs::CertIdentity;
use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::process::{Launch, Process};
use crate::server::{server, started};
use crate::servers::{self, REDIS};

/// How a server is started. The default: everything is kept over a restart, no password, no TLS.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    password: Option<String>,
    tls: Option<CertIdentity>,
    settings: Vec<(String, String)>,
}

impl RedisOptions {
    /// Only with this password.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Only with TLS, with this certificate.
    #[must_use]
    pub fn with_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(identity.clone());
        self
    }

    /// A setting as in `redis.conf`, such as `maxmemory` and `3mb`.
    #[must_use]
    pub fn with_setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    fn arguments(&self, folder: &Path, port: u16) -> Vec<String> {
        let port = port.to_string();
        let mut set = vec![
            ("bind", "127.0.0.1".to_owned()),
            ("dir", folder.display().to_string()),
            ("appendonly", "yes".to_owned()),
            // With `everysec` a busy disk lets Redis answer before it has written its log, for up to two seconds.
            ("appendfsync", "always".to_owned()),
            ("save", String::new()),
        ];
        match &self.tls {
            None => set.push(("port", port)),
            Some(identity) => {
                set.extend([("port", "0".to_owned()), ("tls-port", port), ("tls-auth-clients", "no".to_owned())]);
                set.push(("tls-cert-file", identity.certificate().display().to_string()));
                set.push(("tls-key-file", identity.key().display().to_string()));
            }
        }
        set.extend(self.password.clone().map(|password| ("requirepass", password)));
        let own = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        set.into_iter().chain(own).flat_map(|(name, value)| [format!("--{name}"), value]).collect()
    }
}

/// One running Redis; killed when dropped.
#[derive(Debug)]
pub struct Redis {
    // Dropped first: the port outlives the process.
    process: Process,
    _port: Port,
    options: RedisOptions,
}

server!(Redis);

impl Redis {
    /// A server with these options, ready for clients.
    pub async fn start(options: RedisOptions) -> Result<Self> {
        started(async || Self::launch(&options)).await
    }

    fn launch(options: &RedisOptions) -> Result<Self> {
        let (port, home) = (Port::reserve()?, servers::home(&REDIS)?);
        let folder = folder::temporary("redis")?;
        // Called by its own name it is the server, by that in the package one of the tools.
        let program = folder.path().join("redis-server");
        std::os::unix::fs::symlink(home.join(REDIS.programs[0]), &program).map_err(Error::io(program.display()))?;
        // The package has those that the system may lack.
        let libraries = servers::libraries(&home).display().to_string();
        let arguments = options.arguments(folder.path(), port.number());
        let clients = (if options.tls.is_some() { "rediss" } else { "redis" }, port.address());
        let environment = vec![("LD_LIBRARY_PATH", libraries)];
        let process = Launch { environment, clients, ..Launch::new(REDIS.title(), program, arguments, folder) }.start()?;
        Ok(Self { process, _port: port, options: options.clone() })
    }

    /// Waits until it listens and, where it can be asked in plain words, has read what it had stored.
    async fn wait_ready(&self) -> Result<()> {
        let look = async || {
            let text = |error: std::io::Error| error.to_string();
            let mut stream = TcpStream::connect(self.socket_addr()).await.map_err(text)?;
            if self.options.tls.is_some() {
                return Ok(());
            }
            // Without the password, Redis refuses the request before it says whether all data is loaded.
            let login = self.options.password.as_ref().map(|password| format!("AUTH {password}\r\n")).unwrap_or_default();
            stream.write_all(format!("{login}PING\r\n").as_bytes()).await.map_err(text)?;
            let (mut answer, mut answers) = (String::new(), BufReader::new(stream));
            for _ in login.lines().chain(["PING"]) {
                answers.read_line(&mut answer).await.map_err(text)?;
            }
            if answer.ends_with("+PONG\r\n") { Ok(()) } else { Err(answer) }
        };
        self.process.until("it answers", look).await
    }

    /// Kills it if it runs, and starts it on the same port with what it had stored; gives back when it is ready.
    pub async fn restart(&self) -> Result<()> {
        self.relaunch(true)?;
        self.wait_ready().await
    }
}
