//! RabbitMQ: one node.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::certs::CertIdentity;
use crate::command::run_beside;
use crate::error::{Error, Result};
use crate::folder;
use crate::ports::Port;
use crate::process::{Launch, Process, dying_with_parent};
use crate::server::{server, started};
use crate::servers::{self, RABBITMQ};

/// The node's name in Erlang.
const NODE: &str = "test@localhost";
/// Erlang only on this machine.
const ON_LOOPBACK: [&str; 3] = ["-kernel", "inet_dist_use_interface", "{127,0,0,1}"];

/// The first bytes of an AMQP 0.9.1 client.
const GREETING: &[u8] = b"AMQP\0\0\x09\x01";

/// How a node is started. The default: the user `guest` with the password `guest`.
#[derive(Clone, Debug, Default)]
pub struct RabbitMqOptions {
    settings: Vec<String>,
    tls: Option<(CertIdentity, bool)>,
}

impl RabbitMqOptions {
    /// A line of `rabbitmq.conf`, such as `max_message_size = 4096`.
    #[must_use]
    pub fn with_setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }

    /// With TLS on a second port, with this certificate; whether clients must have one of the same authority.
    #[must_use]
    pub fn with_tls(mut self, identity: &CertIdentity, demands_certificates: bool) -> Self {
        self.tls = Some((identity.clone(), demands_certificates));
        self
    }

    fn configuration(&self, port: u16, tls_port: Option<u16>) -> String {
        let mut text = format!("listeners.tcp.default = 127.0.0.1:{port}\nlog.console = true\nlog.file = false\n");
        // Writing to a text does not fail.
        if let (Some((identity, demands_certificates)), Some(tls_port)) = (&self.tls, tls_port) {
            let verify = if *demands_certificates { "verify_peer" } else { "verify_none" };
            let _ = writeln!(text, "listeners.ssl.default = 127.0.0.1:{tls_port}\nssl_options.verify = {verify}");
            let _ = writeln!(text, "ssl_options.fail_if_no_peer_cert = {demands_certificates}");
            for (name, path) in [("cacertfile", identity.authority()), ("certfile", identity.certificate()), ("keyfile", identity.key())] {
                let _ = writeln!(text, "ssl_options.{name} = {}", path.display());
            }
        }
        for line in &self.settings {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// One running node; killed when dropped.
#[derive(Debug)]
pub struct RabbitMq {
    // Dropped first: the ports outlive the processes.
    process: Process,
    /// Erlang's directory of nodes, without which none starts.
    _directory: Process,
    _ports: [Port; 3],
    tls_port: Option<Port>,
    machine: ErlangMachine,
}

server!(RabbitMq);

/// How a virtual machine is started that meets the node.
#[derive(Debug)]
struct ErlangMachine {
    program: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl ErlangMachine {
    /// The home has the cookie, which the node writes. Nodes of one directory at that port find each other.
    fn new(erlang: &Path, bin: &Path, home: &Path, directory: &Port) -> Self {
        let environment = vec![
            ("HOME", home.display().to_string()),
            ("ROOTDIR", erlang.display().to_string()),
            ("BINDIR", bin.display().to_string()),
            ("EMU", "beam".to_owned()),
            ("PROGNAME", "erl".to_owned()),
            ("ERL_EPMD_PORT", directory.number().to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ];
        Self { program: bin.join("erlexec"), environment }
    }

    /// Has the node evaluate a call that must answer `ok`, as `rabbitmqctl` does, which needs a shell and its own paths.
    async fn call(&self, call: &str) -> Result<()> {
        let expression = format!(
            "case rpc:call('{NODE}', {call}) of ok -> erlang:halt(0); \
             Answer -> io:format(standard_error, \"~p~n\", [Answer]), erlang:halt(1) end."
        );
        let mut command = dying_with_parent(Signal::SIGKILL, None, &self.program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.args(["-noinput", "-boot", "start_clean", "-hidden", "-start_epmd", "false", "-sname", "operator@localhost"]);
        command.args(ON_LOOPBACK).args(["-eval", &expression]);
        run_beside(command, "the node answers something else than ok").await.map(drop)
    }
}

impl RabbitMq {
    /// A node with these options, ready for clients.
    pub async fn start(options: RabbitMqOptions) -> Result<Self> {
        started(async || Self::launch(&options)).await
    }

    fn launch(options: &RabbitMqOptions) -> Result<Self> {
        let home = servers::home(&RABBITMQ)?;
        let (port, nodes, peers) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
        let folder = folder::temporary("rabbitmq")?;
        let tls_port = options.tls.as_ref().map(|_| Port::reserve()).transpose()?;
        let text = options.configuration(port.number(), tls_port.as_ref().map(Port::number));
        for (name, text) in [("rabbitmq.conf", text.as_str()), ("enabled_plugins", "[].")] {
            std::fs::write(folder.path().join(name), text).map_err(Error::io(name))?;
        }
        let place = |name: &str| folder.path().join(name).display().to_string();
        let erlang = home.join("usr/lib/erlang");
        let bin = erlang_programs(&erlang)?;
        let rabbit = home.join("usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8");
        let at_home = |path: &str| rabbit.join(path).display().to_string();
        let directory_arguments = ["-port".to_owned(), nodes.number().to_string(), "-address".to_owned(), "127.0.0.1".to_owned()];
        let directory = Launch::new("epmd", bin.join("epmd"), directory_arguments.into(), folder::temporary("epmd")?);
        let machine = ErlangMachine::new(&erlang, &bin, folder.path(), &nodes);
        let of_rabbit = [
            ("RABBITMQ_HOME", rabbit.display().to_string()),
            ("RABBITMQ_NODENAME", NODE.to_owned()),
            ("RABBITMQ_DIST_PORT", peers.number().to_string()),
            ("RABBITMQ_CONFIG_FILE", place("rabbitmq.conf")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", place("enabled_plugins")),
            ("RABBITMQ_PLUGINS_DIR", at_home("plugins")),
            ("RABBITMQ_MNESIA_BASE", place("mnesia")),
            ("RABBITMQ_LOG_BASE", place("logs")),
            ("RABBITMQ_LOGS", "-".to_owned()),
            ("RABBITMQ_PID_FILE", place("pid")),
            ("RABBITMQ_GENERATED_CONFIG_DIR", place("generated")),
            ("RABBITMQ_FEATURE_FLAGS_FILE", place("flags")),
        ];
        let environment = machine.environment.iter().cloned().chain(of_rabbit).collect();
        // Erlang's threads spin and yield while they wait, and the kernel's scheduler starves threads that yield. Beside two busy
        // processes a node had not started after 100 s; it takes twelve with this. Without any spinning an idle machine starts it half
        // as fast.
        let quiet = ["+sbwt", "very_short", "+sbwtdcpu", "none", "+sbwtdio", "none"];
        let mut arguments: Vec<String> = quiet.map(str::to_owned).into();
        let plugins = rabbit.join("plugins");
        for entry in std::fs::read_dir(&plugins).map_err(Error::io(plugins.display()))?.filter_map(std::result::Result::ok) {
            arguments.extend(["-pa".to_owned(), entry.path().join("ebin").display().to_string()]);
        }
        arguments.extend(["-noinput", "-boot", "start_sasl", "-s", "rabbit", "boot"].map(str::to_owned));
        arguments.extend(ON_LOOPBACK.map(str::to_owned));
        for limit in ["inet_dist_listen_min", "inet_dist_listen_max"] {
            arguments.extend(["-kernel".to_owned(), limit.to_owned(), peers.number().to_string()]);
        }
        let launch = Launch::new(RABBITMQ.title(), machine.program.clone(), arguments, folder);
        let directory = directory.start()?;
        let process = Launch { clients: ("amqp", port.address()), environment, ..launch }.start()?;
        Ok(Self { process, _directory: directory, _ports: [port, nodes, peers], tls_port, machine })
    }

    async fn wait_ready(&self) -> Result<()> {
        let probe = async || {
            let reported = |error: std::io::Error| error.to_string();
            let mut stream = TcpStream::connect(self.socket_addr()).await.map_err(reported)?;
            stream.write_all(GREETING).await.map_err(reported)?;
            // A frame of the first channel.
            let mut answer = [0; 3];
            stream.read_exact(&mut answer).await.map_err(reported)?;
            if answer != [1, 0, 0] {
                return Err(format!("it says {answer:?}"));
            }
            match &self.tls_port {
                Some(port) => TcpStream::connect(port.address()).await.map(drop).map_err(reported),
                None => Ok(()),
            }
        };
        self.process.until("it answers", probe).await
    }

    /// Where clients connect with TLS.
    pub fn tls_addr(&self) -> Result<SocketAddr> {
        self.tls_port.as_ref().map(Port::address).ok_or_else(|| Error::new("it was started without TLS"))
    }

    /// Gives a user another password of letters and digits, as `rabbitmqctl change_password` does. Connections that are there stay.
    pub async fn change_password(&self, user: &str, password: &str) -> Result<()> {
        if !user.chars().chain(password.chars()).all(|sign| sign.is_ascii_alphanumeric()) {
            return Err(Error::new("a user and a password of letters and digits are needed"));
        }
        let arguments = format!("[<<\"{user}\">>, <<\"{password}\">>, <<\"operator\">>]");
        self.machine.call(&format!("rabbit_auth_backend_internal, change_password, {arguments}")).await
    }

    /// Kills it if it runs, and starts it on the same port with what it had stored; gives back when it is ready.
    pub async fn restart(&self) -> Result<()> {
        self.relaunch(true)?;
        self.wait_ready().await
    }
}

/// The folder with the virtual machine, whose name has its version.
fn erlang_programs(erlang: &Path) -> Result<PathBuf> {
    let mut entries = std::fs::read_dir(erlang).map_err(Error::io(erlang.display()))?.filter_map(std::result::Result::ok);
    let found = entries.find(|entry| entry.file_name().to_string_lossy().starts_with("erts-")).map(|entry| entry.path().join("bin"));
    found.ok_or_else(|| Error::new(format!("{} has no virtual machine", erlang.display())))
}
