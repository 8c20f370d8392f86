//! What a process has used so far, as the kernel counts it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

/// A process's resource use.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Processor time of the threads that there are now; what ended threads had used is not in it.
    pub processor: Duration,
    /// Memory that it has now, in bytes.
    pub memory: u64,
}

impl Usage {
    /// Of this process, but processor time only of the threads whose names begin so. Names longer than 15 bytes are cut by the kernel.
    pub fn of_threads(name: &str) -> Result<Self> {
        Self::at(Path::new("/proc/self"), name)
    }

    pub(crate) fn of_process(id: u32) -> Result<Self> {
        Self::at(&PathBuf::from(format!("/proc/{id}")), "")
    }

    fn at(process: &Path, name: &str) -> Result<Self> {
        let tasks = process.join("task");
        let mut processor = Duration::ZERO;
        for task in std::fs::read_dir(&tasks).map_err(Error::io(tasks.display()))? {
            let task = task.map_err(Error::io(tasks.display()))?.path();
            // A thread may end while it is looked at.
            let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
            if read("comm").starts_with(name) {
                processor += nanoseconds(&read("schedstat"));
            }
        }
        let status = process.join("status");
        let status = std::fs::read_to_string(&status).map_err(Error::io(status.display()))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
        Ok(Self { processor, memory: resident.unwrap_or_default() * 1024 })
    }
}

/// The time on a processor is the first number.
fn nanoseconds(schedstat: &str) -> Duration {
    Duration::from_nanos(schedstat.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_is_counted_for_the_thread_that_did_it() {
        let of = |name: &str| Usage::of_threads(name).unwrap().processor;
        let worker = std::thread::Builder::new().name("works-hard".into()).spawn(move || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(20) && of("works-hard") <= Duration::from_millis(20) {}
            (of("works-hard"), of("sleeps"))
        });
        let (worked, slept) = worker.unwrap().join().unwrap();
        assert!(worked > Duration::from_millis(20) && slept.is_zero(), "{worked:?}, {slept:?}");
        assert!(Usage::of_process(std::process::id()).unwrap().memory > 100_000);
    }
}
