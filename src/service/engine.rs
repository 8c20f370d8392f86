//! The connection from the handle to its driver, which the first command starts.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use shardwise_discovery::Discovery;
use tokio::sync::{mpsc, oneshot};

use crate::error::{Error, ErrorKind, Result, locked};
use crate::membership::{Commands, DrainFollower, Driver, DriverCommand};

/// Commands waiting for the driver.
const COMMANDS_MAX: usize = 8;

/// How the driver is started: `tokio::spawn`, except in test fleets.
pub(crate) type Spawn = Box<dyn FnOnce(BoxFuture<'static, ()>) + Send>;

pub(super) struct ServiceEngine {
    driver: Mutex<DriverState>,
    pub(super) backend: Arc<dyn Discovery>,
    pub(super) join_limit: Duration,
    /// Follows operators' requests for this member; `None` if there can be none.
    pub(super) follower: Option<DrainFollower>,
    /// Whether the follower's task runs; it starts with the first registration.
    pub(super) follows: AtomicBool,
}

enum DriverState {
    Parked(Box<Driver>, Spawn),
    Running(Commands),
}

impl ServiceEngine {
    pub(super) fn new(
        driver: Driver,
        spawn: Spawn,
        backend: Arc<dyn Discovery>,
        join_limit: Duration,
        follower: Option<DrainFollower>,
    ) -> Self {
        let driver = Mutex::new(DriverState::Parked(Box::new(driver), spawn));
        Self { driver, backend, join_limit, follower, follows: AtomicBool::new(false) }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(*locked(&self.driver), DriverState::Running(_))
    }

    /// Sends a command and waits until the driver has processed it. Returns the driver's channel.
    pub(super) async fn ask(&self, command: DriverCommand) -> Result<Commands> {
        let commands = self.commands();
        let (taken, answer) = oneshot::channel();
        commands.send((command, taken)).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?;
        Ok(commands)
    }

    /// The driver's channel; starts the driver if necessary.
    pub(super) fn commands(&self) -> Commands {
        let mut state = locked(&self.driver);
        if let DriverState::Running(commands) = &*state {
            return commands.clone();
        }
        let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
        if let DriverState::Parked(driver, spawn) = std::mem::replace(&mut *state, DriverState::Running(sender.clone())) {
            spawn(Box::pin(driver.run(receiver)));
        }
        sender
    }
}

pub(super) fn stopped() -> Error {
    Error::new(ErrorKind::Closed, "the service has stopped: the runtime that ran it is gone")
}
