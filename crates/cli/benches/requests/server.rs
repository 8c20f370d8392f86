//! The other end: this program once more, as a bare server or as a member. It ends with the program that has started it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use shardwise::requests::{Answer, Request};

use super::{bare, group, hops, runtime};

/// What a process serves; unset in the benchmark itself.
const ROLE: &str = "SHARDWISE_BENCH_ROLE";
/// The folder of a member.
const FOLDER: &str = "SHARDWISE_BENCH_FOLDER";
const BARE: &str = "bare";
const MEMBER: &str = "member";
const FIRST_HOP: &str = "first hop";
const LAST_HOP: &str = "last hop";

/// The bytes of every request's body and of every answer's.
pub(crate) const BYTES: usize = 100;

pub(crate) fn is_wanted() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Serves until the input ends.
pub(crate) fn run() {
    std::thread::spawn(|| {
        std::io::stdin().lock().lines().for_each(drop);
        std::process::exit(0);
    });
    let (role, folder) = (std::env::var(ROLE).unwrap(), std::env::var_os(FOLDER).unwrap_or_default());
    runtime().block_on(async {
        let folder = Path::new(&folder);
        match role.as_str() {
            BARE => return bare::serve().await,
            FIRST_HOP => return hops::serve_first(folder).await,
            LAST_HOP => return hops::serve_last(folder).await,
            _ => {}
        }
        let service = group::service(folder, "server");
        service.on_request("echo", |_: Request| std::future::ready(Answer::bytes("text/plain", vec![b'x'; BYTES]))).unwrap();
        service.listen_for_requests().await.unwrap();
        service.register_self().await.unwrap();
        println!("ready 0");
        std::future::pending::<()>().await;
    });
}

/// A running one; it ends when this is dropped.
pub(crate) struct Server {
    child: Child,
    _input: ChildStdin,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn bare() -> Self {
        Self::start(BARE, None)
    }

    pub(crate) fn member(folder: &Path) -> Self {
        Self::start(MEMBER, Some(folder))
    }

    pub(crate) fn first_hop(folder: &Path) -> Self {
        Self::start(FIRST_HOP, Some(folder))
    }

    pub(crate) fn last_hop(folder: &Path) -> Self {
        Self::start(LAST_HOP, Some(folder))
    }

    fn start(role: &str, folder: Option<&Path>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(ROLE, role).envs(folder.map(|folder| (FOLDER, folder)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().strip_prefix("ready ").and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("the {role} does not serve: {line:?}"));
        let input = child.stdin.take().unwrap();
        Self { child, _input: input, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
