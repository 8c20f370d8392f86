//! Notifies systemd (`Type=notify`, `WatchdogSec=`) by the protocol of `sd_notify(3)`. Without a supervisor it does nothing.

use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

/// The shortest interval between two watchdog notifications, whatever the supervisor requests.
const SIGNS_APART: Duration = Duration::from_millis(10);

/// The supervisor that started this process, if there is one.
#[derive(Debug, Clone)]
pub(crate) struct Supervisor {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// The watchdog timeout: after this time without a notification the supervisor assumes that this process hangs.
    patience: Option<Duration>,
}

impl Supervisor {
    /// Reads the supervisor from the environment; none if the variables are missing or invalid.
    pub(crate) fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok();
        let socket = variable("NOTIFY_SOCKET").and_then(|name| socket(&name)).map(Arc::new);
        let is_for_us = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let patience = variable("WATCHDOG_USEC").filter(|_| is_for_us).and_then(|text| text.parse().ok()).map(Duration::from_micros);
        Self { socket, patience: patience.filter(|patience| !patience.is_zero()) }
    }

    /// Sends watchdog notifications from a task of the monitored runtime, as long as `is_alive` returns true and the handle is kept. Once
    /// it returns false, notifications stop, and the supervisor ends this process.
    pub(crate) fn watch(&self, is_alive: impl Fn() -> bool + Send + 'static) -> Option<AbortOnDropHandle<()>> {
        let (supervisor, patience) = (self.clone(), self.patience.filter(|_| self.socket.is_some())?);
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let mut signs = interval((patience / 3).max(SIGNS_APART));
            signs.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                signs.tick().await;
                if is_alive() {
                    supervisor.notify("WATCHDOG=1");
                }
            }
        })))
    }

    /// Sends a notification of `sd_notify(3)`, such as `READY=1`.
    pub(crate) fn notify(&self, what: &str) {
        if let Some((socket, to)) = self.socket.as_deref() {
            // A supervisor that does not listen is ignored, and the send does not block.
            let _ = socket.send_to_addr(what.as_bytes(), to);
        }
    }
}

/// A path, or after an `@` a name in Linux's abstract namespace.
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
        let socket = Some(Arc::new(socket(path.to_str().unwrap()).unwrap()));
        let supervisor = Supervisor { socket, patience: Some(SIGNS_APART * 3) };
        let (alive, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(tokio::sync::Notify::new()));
        let (is_alive, is_asked) = (Arc::clone(&alive), Arc::clone(&asked));
        let _watched = supervisor.watch(move || {
            is_asked.notify_one();
            is_alive.load(Ordering::Relaxed)
        });
        // Checking `is_alive` and sending a notification happen without a pause in between.
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
