//! A small network for one test: machines that each have an address and a loopback, as the pods of a cluster.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::command::run;
use crate::error::{Error, Result};
use crate::namespace::NamespacedRun;

/// Set for the process that has the network.
const INSIDE: &str = "SHARDWISE_TEST_PODS";
/// The bits that all addresses of the network have in common.
const BITS: u8 = 16;
/// Makes the bridge to which the machines are connected, with this machine's own address and names for it.
const BRIDGE: &str = "ip link set lo up && ip link add name pods type bridge && ip addr add \"$1\" dev pods && ip link set pods up \
                      && mount --bind \"$2\" /etc/hosts && shift 2 && exec \"$@\"";
const UP: &str = "ip link set lo up && ip addr add \"$1\" dev eth0 && ip link set eth0 up";
const ADVICE: &str = "install iproute2 and util-linux (packages of Debian)";

/// The network of one test, in its own namespace: no other process sees it, it needs no rights, and it goes with its process.
#[derive(Debug)]
pub struct PodNetwork {
    connected: AtomicU32,
}

impl PodNetwork {
    /// To be called first by the test of that name (with its modules). Runs that test once more as a process with such a network, and
    /// answers `None` when that has passed; in that process it answers the network. The process itself has the address `own` there, and
    /// `names` lead to it. Other networks cannot be reached from it.
    ///
    /// Where the system does not allow this, a line on stderr says that the test did not run; in CI (the variable `CI`) it is an error.
    pub fn of_test(name: &str, own: Ipv4Addr, names: &[&str]) -> Result<Option<Self>> {
        if std::env::var_os(INSIDE).is_some() {
            return Ok(Some(Self { connected: AtomicU32::new(0) }));
        }
        // The probe in the namespaces would not name it.
        run(Command::new("ip").arg("-V"), ADVICE)?;
        let hosts = tempfile::NamedTempFile::new().map_err(Error::io("a file of hosts"))?;
        std::fs::write(hosts.path(), format!("127.0.0.1 localhost\n{own} {}\n", names.join(" "))).map_err(Error::io("a file of hosts"))?;
        let address = format!("{own}/{BITS}");
        let again = NamespacedRun {
            test: name,
            what: "a network with a bridge",
            namespaces: &["--net", "--mount"],
            script: BRIDGE,
            arguments: &[OsStr::new(&address), hosts.path().as_os_str()],
            variables: &[(INSIDE, OsStr::new("1"))],
        };
        again.passes().map(|()| None)
    }

    /// One more machine, with that address.
    pub fn pod(&self, address: Ipv4Addr) -> Result<Pod> {
        let mut holder = Command::new("unshare");
        // It ends with its input, so at the latest with this process.
        holder.args(["--net", "--", "sh", "-c", "echo && exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut pod = Pod { holder: holder.spawn().map_err(Error::io(ADVICE))? };
        let mut line = String::new();
        let output = pod.holder.stdout.take().ok_or_else(|| Error::new("a pod has no output"))?;
        if BufReader::new(output).read_line(&mut line).map_err(Error::io("the output of a pod"))? == 0 {
            return Err(Error::new(format!("unshare has made no pod: {ADVICE}")));
        }
        let (link, pid) = (format!("pod{}", self.connected.fetch_add(1, Ordering::Relaxed)), pod.holder.id().to_string());
        run(Command::new("ip").args(["link", "add", "name", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid]), ADVICE)?;
        run(Command::new("ip").args(["link", "set", "dev", &link, "master", "pods", "up"]), ADVICE)?;
        run(&mut pod.command(Command::new("sh").args(["-c", UP, "sh", &format!("{address}/{BITS}")])), ADVICE)?;
        Ok(pod)
    }
}

/// A machine of the network. It lasts until it is dropped and its last process has ended.
#[derive(Debug)]
pub struct Pod {
    holder: Child,
}

impl Pod {
    /// The same command on this machine.
    pub fn command(&self, here: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg("--").arg(here.get_program()).args(here.get_args());
        for (name, value) in here.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(folder) = here.get_current_dir() {
            command.current_dir(folder);
        }
        command
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
