//! Redis or Valkey: one server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::certs::{CertIdentity, ServerTls};
use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::process::{Launch, Process};
use crate::server::{server, started};
use crate::servers::{self, REDIS, VALKEY};

/// How a server is started. The default: everything is kept over a restart, no password, no TLS.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    is_valkey: bool,
    password: Option<String>,
    tls: Option<ServerTls>,
    settings: Vec<(String, String)>,
}

impl RedisOptions {
    /// Valkey instead of Redis.
    #[must_use]
    pub fn valkey(mut self) -> Self {
        self.is_valkey = true;
        self
    }

    /// A replica of the primary there.
    #[must_use]
    pub fn replica_of(self, primary: SocketAddr) -> Self {
        self.with_setting("replicaof", &format!("{} {}", primary.ip(), primary.port()))
    }

    /// Only with this password.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Clients and replicas only with TLS, with this certificate and its authority. A second port without TLS is the kit's own.
    #[must_use]
    pub fn with_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(ServerTls { identity: identity.clone(), demands_certificates: false });
        self
    }

    /// The same, and only with a certificate that the same authority has signed; so do the Sentinels of such a primary.
    #[must_use]
    pub fn with_mutual_tls(mut self, identity: &CertIdentity) -> Self {
        self.tls = Some(ServerTls { identity: identity.clone(), demands_certificates: true });
        self
    }

    /// A setting as in `redis.conf`, such as `maxmemory` and `3mb`.
    #[must_use]
    pub fn with_setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    fn arguments(&self, folder: &Path, port: u16, plain_port: Option<u16>) -> Vec<String> {
        let mut set = vec![
            ("bind", "127.0.0.1".to_owned()),
            ("dir", folder.display().to_string()),
            ("appendonly", "yes".to_owned()),
            // With `everysec` a busy disk lets Redis answer before it has written its log, for up to two seconds.
            ("appendfsync", "always".to_owned()),
            ("save", String::new()),
        ];
        set.push(("port", plain_port.unwrap_or(port).to_string()));
        set.extend(self.tls.iter().flat_map(|tls| tls_settings(tls, port)));
        set.extend(self.password.clone().map(|password| ("requirepass", password)));
        let own = self.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
        // A value of several words is several arguments.
        let words = |value: String| if value.is_empty() { vec![value] } else { value.split(' ').map(str::to_owned).collect() };
        set.into_iter().chain(own).flat_map(|(name, value)| [vec![format!("--{name}")], words(value)].concat()).collect()
    }
}

/// The settings of a server or a Sentinel with TLS at that port, and with TLS to others.
pub(crate) fn tls_settings(tls: &ServerTls, port: u16) -> [(&'static str, String); 6] {
    let ServerTls { identity, demands_certificates } = tls;
    [
        ("tls-port", port.to_string()),
        ("tls-auth-clients", (if *demands_certificates { "yes" } else { "no" }).to_owned()),
        ("tls-replication", "yes".to_owned()),
        ("tls-cert-file", identity.certificate().display().to_string()),
        ("tls-key-file", identity.key().display().to_string()),
        ("tls-ca-cert-file", identity.authority().display().to_string()),
    ]
}

/// One running Redis; killed when dropped.
#[derive(Debug)]
pub struct Redis {
    // Dropped first: the ports outlive the process.
    process: Process,
    _port: Port,
    /// Where the kit asks, if clients need TLS.
    plain_port: Option<Port>,
    options: RedisOptions,
}

server!(Redis);

impl Redis {
    /// A server with these options, ready for clients.
    pub async fn start(options: RedisOptions) -> Result<Self> {
        started(async || Self::launch(&options)).await
    }

    fn launch(options: &RedisOptions) -> Result<Self> {
        let (port, folder) = (Port::reserve()?, folder::temporary("redis")?);
        let plain_port = options.tls.as_ref().map(|_| Port::reserve()).transpose()?;
        let program = RedisProgram::find(options.is_valkey, &folder)?;
        let arguments = options.arguments(folder.path(), port.number(), plain_port.as_ref().map(Port::number));
        let clients = (if options.tls.is_some() { "rediss" } else { "redis" }, port.address());
        let process = Launch { clients, ..program.launch(arguments, folder) }.start()?;
        Ok(Self { process, _port: port, plain_port, options: options.clone() })
    }

    /// Where it can be asked without TLS: the clients' own address unless they need TLS.
    pub fn plain_addr(&self) -> SocketAddr {
        self.plain_port.as_ref().map_or_else(|| self.socket_addr(), Port::address)
    }

    /// The certificate that clients see, and whether they need one, if they need TLS.
    pub(crate) fn tls(&self) -> Option<&ServerTls> {
        self.options.tls.as_ref()
    }

    /// Waits until it listens and has read what it had stored.
    async fn wait_ready(&self) -> Result<()> {
        let probe = async || {
            let text = |error: std::io::Error| error.to_string();
            if self.options.tls.is_some() {
                TcpStream::connect(self.socket_addr()).await.map_err(text)?;
            }
            let mut stream = TcpStream::connect(self.plain_addr()).await.map_err(text)?;
            // Without the password, Redis refuses the request before it says whether all data is loaded.
            let login = self.options.password.as_ref().map(|password| format!("AUTH {password}\r\n")).unwrap_or_default();
            stream.write_all(format!("{login}PING\r\n").as_bytes()).await.map_err(text)?;
            let (mut answer, mut answers) = (String::new(), BufReader::new(stream));
            for _ in login.lines().chain(["PING"]) {
                answers.read_line(&mut answer).await.map_err(text)?;
            }
            if answer.ends_with("+PONG\r\n") { Ok(()) } else { Err(answer) }
        };
        self.process.until("it answers", probe).await
    }

    /// Sends a command, such as `["CONFIG", "SET", "maxmemory", "1mb"]`, and gives back its answer if that is one text or number.
    pub async fn command(&self, words: &[&str]) -> Result<String> {
        let login = self.options.password.as_deref().map(|password| vec!["AUTH", password]);
        command(self.plain_addr(), login.as_deref(), words).await
    }

    /// Kills it if it runs, and starts it on the same port with what it had stored; gives back when it is ready.
    pub async fn restart(&self) -> Result<()> {
        self.relaunch(true)?;
        self.wait_ready().await
    }
}

/// How a server's program is started.
pub(crate) struct RedisProgram {
    title: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl RedisProgram {
    /// The server's program. Called by its own name it is the server, by that in the package one of the tools.
    pub(crate) fn find(is_valkey: bool, folder: &TempDir) -> Result<Self> {
        let package = if is_valkey { &VALKEY } else { &REDIS };
        let home = servers::home(package)?;
        let (title, program) = (package.title(), home.join(package.programs[0]));
        // The package has those that the system may lack.
        let libraries = servers::libraries(&home).display().to_string();
        if is_valkey {
            let program = program.display().to_string();
            let arguments =
                ["--library-path", libraries.as_str(), "--argv0", "valkey-server", program.as_str()].map(str::to_owned).to_vec();
            return Ok(Self { title, program: servers::loader(&home), arguments, environment: Vec::new() });
        }
        let link = folder.path().join("redis-server");
        std::os::unix::fs::symlink(program, &link).map_err(Error::io(link.display()))?;
        Ok(Self { title, program: link, arguments: Vec::new(), environment: vec![("LD_LIBRARY_PATH", libraries)] })
    }

    pub(crate) fn launch(self, arguments: Vec<String>, folder: TempDir) -> Launch {
        let Self { title, program, arguments: mut all, environment } = self;
        all.extend(arguments);
        Launch { environment, ..Launch::new(title, program, all, folder) }
    }
}

/// Sends one command over a connection of its own, behind the login.
pub(crate) async fn command(to: SocketAddr, login: Option<&[&str]>, words: &[&str]) -> Result<String> {
    let failed = |error: std::io::Error| Error::io(to)(error);
    let mut stream = BufReader::new(TcpStream::connect(to).await.map_err(failed)?);
    let mut answer = String::new();
    for words in login.into_iter().chain([words]) {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.extend(["$", &word.len().to_string(), "\r\n", word, "\r\n"]);
        }
        stream.get_mut().write_all(request.as_bytes()).await.map_err(failed)?;
        answer = read_answer(&mut stream).await.map_err(failed)?;
        if let Some(refusal) = answer.strip_prefix('-') {
            return Err(Error::new(format!("{}: {refusal}", words.join(" "))));
        }
    }
    Ok(answer)
}

/// An error begins with `-`; other answers come without their first character. What is neither text nor number comes as its first line.
async fn read_answer(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let line = line.trim_end();
    let Some(bytes) = line.strip_prefix('$') else {
        return Ok(line.strip_prefix(['+', ':']).unwrap_or(line).to_owned());
    };
    // With -1 there is nothing.
    let Ok(bytes) = bytes.parse::<usize>() else { return Ok(String::new()) };
    let mut text = vec![0; bytes + 2];
    stream.read_exact(&mut text).await?;
    text.truncate(bytes);
    Ok(String::from_utf8_lossy(&text).into_owned())
}
