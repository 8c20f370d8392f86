//! The processes of the crowd, as the test sees them.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Child, ChildStdin};
use std::time::Duration;

use tempfile::TempDir;

use super::judge::Told;
use crate::meeting::until;

/// One of the processes, living or dead.
pub(crate) struct Running {
    pub(crate) name: String,
    child: Child,
    /// Closed to make all leave.
    input: Option<ChildStdin>,
    pub(crate) told: Told,
    /// The numbers of its members that have not been asked to leave.
    pub(crate) present: BTreeSet<usize>,
}

impl Running {
    pub(crate) fn start(folder: &TempDir, name: String, members: usize) -> Self {
        let (child, input) = super::process::start(folder.path(), &name, members);
        let told = Told::open(folder.path(), &name);
        Self { name, child, input: Some(input), told, present: (0..members).collect() }
    }

    pub(crate) fn restart(&mut self, folder: &TempDir, members: usize) {
        let (child, input) = super::process::start(folder.path(), &self.name, members);
        (self.child, self.input, self.told.seen, self.present) = (child, Some(input), None, (0..members).collect());
    }

    /// Makes a member join that is not there, and leave if it is.
    pub(crate) fn toggle(&mut self, number: usize) {
        let joins = self.present.insert(number);
        if !joins {
            self.present.remove(&number);
        }
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{} {number}", if joins { "join" } else { "leave" }).unwrap();
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.input, self.present) = (None, BTreeSet::new());
    }

    /// Makes all leave, and the process end.
    pub(crate) fn leave(&mut self) {
        (self.input, self.present) = (None, BTreeSet::new());
    }

    /// Waits for the end of one that leaves.
    pub(crate) fn ends(&mut self, within: Duration) {
        let (name, child) = (&self.name, &mut self.child);
        until(&format!("{name} ends"), within, || match child.try_wait().unwrap() {
            Some(status) if status.success() => Ok(()),
            Some(status) => panic!("{name} ended with {status}: see its log"),
            None => Err("it still runs".into()),
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
