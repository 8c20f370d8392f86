//! What a worker process writes down of the requests that it handles: one line for each call's beginning and end, in one write each, so
//! that no line of a killed process is lost.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Where a worker process writes its lines.
pub(crate) struct RequestLog(Mutex<File>);

impl RequestLog {
    pub(crate) fn open(path: &Path) -> Self {
        Self(Mutex::new(File::options().create(true).append(true).open(path).unwrap()))
    }

    fn write(&self, what: &str, request: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{what} {request}\n").as_bytes()).unwrap();
    }
}

/// A handler's call; dropped before it is done, it was cancelled.
pub(crate) struct Call<'a> {
    log: &'a RequestLog,
    request: String,
    is_done: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn begin(log: &'a RequestLog, request: &str) -> Self {
        log.write("begun", request);
        Self { log, request: request.to_owned(), is_done: false }
    }

    pub(crate) fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.log.write(if self.is_done { "done" } else { "dropped" }, &self.request);
    }
}

/// How often calls for one request have begun and come to their end, at all workers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) begun: u32,
    pub(crate) done: u32,
    pub(crate) dropped: u32,
}

/// Adds the lines of one worker. The last line of a killed process may have no end, and does not count.
pub(crate) fn read(path: &Path, into: &mut BTreeMap<String, Calls>) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    for line in text[..whole].lines() {
        let (what, request) = line.split_once(' ').unwrap_or_else(|| panic!("{}: no line of a worker: {line}", path.display()));
        let calls = into.entry(request.to_owned()).or_default();
        match what {
            "begun" => calls.begun += 1,
            "done" => calls.done += 1,
            "dropped" => calls.dropped += 1,
            _ => panic!("{}: no line of a worker: {line}", path.display()),
        }
    }
}

#[test]
fn calls_are_counted_over_workers_and_half_a_line_is_none() {
    let folder = tempfile::TempDir::new().unwrap();
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    let logs = paths.clone().map(|path| RequestLog::open(&path));
    Call::begin(&logs[0], "1").done();
    drop(Call::begin(&logs[1], "1"));
    std::mem::forget(Call::begin(&logs[1], "2"));
    File::options().append(true).open(&paths[1]).unwrap().write_all(b"begun 3").unwrap();
    let mut found = BTreeMap::new();
    for path in &paths {
        read(path, &mut found);
    }
    let expected = [("1", Calls { begun: 2, done: 1, dropped: 1 }), ("2", Calls { begun: 1, ..Calls::default() })];
    assert_eq!(found, BTreeMap::from(expected.map(|(request, calls)| (request.to_owned(), calls))));
}
