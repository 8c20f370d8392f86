//! Tells systemd how it goes (`Type=notify`, `WatchdogSec=`), as `sd_notify(3)` has it. Where nobody asks, nothing is said.

use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

/// The shortest time between two signs of life, whatever is asked for.
const SIGNS_APART: Duration = Duration::from_millis(10);

/// Whoever started this process and wants to know how it goes.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor {
    told: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// Without a sign of life for so long it takes this process for hung.
    patience: Option<Duration>,
}

impl Supervisor {
    /// As the environment says; nobody, if it says nothing or something that cannot be.
    pub(crate) fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok();
        let told = variable("NOTIFY_SOCKET").and_then(|name| socket(&name)).map(Arc::new);
        let is_for_us = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let patience = variable("WATCHDOG_USEC").filter(|_| is_for_us).and_then(|text| text.parse().ok()).map(Duration::from_micros);
        Self { told, patience: patience.filter(|patience| !patience.is_zero()) }
    }

    /// It does its work.
    pub(crate) fn ready(&self) {
        self.tell("READY=1");
    }

    /// It ends.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// Gives signs of life, from a task of the runtime that is to be seen alive, for as long as `is_alive` says so and the handle is kept. Once it is not,
    /// there are none, and whoever waits for them ends this process.
    pub(crate) fn watch(&self, is_alive: impl Fn() -> bool + Send + 'static) -> Option<AbortOnDropHandle<()>> {
        let (supervisor, patience) = (self.clone(), self.patience.filter(|_| self.told.is_some())?);
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let mut signs = interval((patience / 3).max(SIGNS_APART));
            signs.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                signs.tick().await;
                if is_alive() {
                    supervisor.tell("WATCHDOG=1");
                }
            }
        })))
    }

    fn tell(&self, what: &str) {
        if let Some((socket, to)) = self.told.as_deref() {
            // Whoever does not listen need not know; and it must not keep us waiting.
            let _ = socket.send_to_addr(what.as_bytes(), to);
        }
    }
}

/// A path, or after an `@` a name in Linux's abstract space.
fn socket(name: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let to = match name.strip_prefix('@') {
        None => SocketAddr::from_pathname(name).ok()?,
        Some(name) => abstract_name(name)?,
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, to))
}

#[cfg(target_os = "linux")]
fn abstract_name(name: &str) -> Option<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name).ok()
}

#[cfg(not(target_os = "linux"))]
fn abstract_name(_: &str) -> Option<SocketAddr> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn who_is_not_alive_gives_no_sign() {
        let path = std::env::temp_dir().join(format!("shardwise-supervisor-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listening = UnixDatagram::bind(&path).unwrap();
        listening.set_nonblocking(true).unwrap();
        let told = Some(Arc::new(socket(path.to_str().unwrap()).unwrap()));
        let supervisor = Supervisor { told, patience: Some(SIGNS_APART * 3) };
        let (alive, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(tokio::sync::Notify::new()));
        let (is_alive, is_asked) = (Arc::clone(&alive), Arc::clone(&asked));
        let _watched = supervisor.watch(move || {
            is_asked.notify_one();
            is_alive.load(Ordering::Relaxed)
        });
        // Whether it is alive is asked, and a sign given, in one go.
        asked.notified().await;
        let mut sign = [0; 32];
        let length = listening.recv(&mut sign).unwrap();
        assert_eq!(&sign[..length], b"WATCHDOG=1");
        alive.store(false, Ordering::Relaxed);
        while listening.recv(&mut sign).is_ok() {}
        for _ in 0..3 {
            asked.notified().await;
        }
        assert!(listening.recv(&mut sign).is_err(), "it says that it is alive");
        std::fs::remove_file(&path).unwrap();
    }
}
