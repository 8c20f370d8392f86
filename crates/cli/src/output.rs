//! Output for terminals and as JSON. Results go to stdout, everything else to stderr.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use shardwise::core::{Escaped, is_terminal_control};
use shardwise_outbox::one_line;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{DefaultFields, FormatFields, Writer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::colour::{self, Colour};
use crate::exit::{CliFailure, Result};
use crate::last_error::LastErrorLayer;
use crate::status_line::above;

/// How results are written: for people, or for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
// No help for each: it would stretch every command's help to three times its length.
pub(crate) enum Format {
    #[default]
    Human,
    Json,
}

/// How long warnings may be held back.
const HELD_FOR: Duration = Duration::from_secs(10);

/// Warnings since the start, while it is undecided whether the command fails: its error line then includes them.
static HELD: Mutex<Option<(Instant, Vec<u8>)>> = Mutex::new(None);

fn held() -> MutexGuard<'static, Option<(Instant, Vec<u8>)>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs to stderr: warnings and errors (from the database driver only errors, because slow SQL means nothing to the user), operators'
/// actions over HTTP, and that a store of members was created; or whatever `RUST_LOG` selects, which is never held back. Traces, if there
/// are any, have a separate layer with separate filters.
pub(crate) fn start_log(traces: Option<impl Layer<Registry> + Send + Sync>) {
    let directives = std::env::var("RUST_LOG").ok().filter(|directives| !directives.is_empty());
    let asked = directives.map(|directives| directives.parse::<Targets>()).transpose();
    let wrong = asked.as_ref().err().map(ToString::to_string);
    let asked = asked.ok().flatten();
    *held() = asked.is_none().then(|| (Instant::now(), Vec::new()));
    let filter = asked.unwrap_or_else(|| {
        let filter = Targets::new().with_default(LevelFilter::WARN).with_target("sqlx", LevelFilter::ERROR);
        filter.with_target("shardwise::operator", LevelFilter::INFO).with_target("shardwise::store", LevelFilter::INFO)
    });
    let log = fmt::layer().fmt_fields(OneLine).with_writer(|| LogOutput).with_ansi(colour::is_shown(&io::stderr())).with_filter(filter);
    let errors = LastErrorLayer.with_filter(Targets::new().with_target("shardwise", LevelFilter::WARN));
    tracing_subscriber::registry().with(traces).with(log).with(errors).init();
    if let Some(wrong) = wrong {
        tracing::warn!("RUST_LOG is ignored: {wrong}; write it as LEVEL or TARGET=LEVEL, separated by commas");
    }
}

/// Prints the warnings held back, and holds back no more.
pub(crate) fn release_log() {
    if let Some((_, bytes)) = held().take() {
        // If stderr is closed, the warnings cannot be reported.
        let _ = above(|| io::stderr().write_all(&bytes));
    }
}

/// Formats the fields of the log, including the message, on one line: foreign text can neither begin a line that looks like ours nor
/// control the terminal.
struct OneLine;

impl<'w> FormatFields<'w> for OneLine {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> std::fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        write!(writer, "{}", Escaped(&text))
    }
}

struct LogOutput;

impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some((since, kept)) = &mut *held()
            && since.elapsed() < HELD_FOR
        {
            kept.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        release_log();
        above(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Prints one line on stderr, unless the failure is quiet: what is wrong and what to do. Warnings held back until now led to it and are not
/// repeated.
pub(crate) fn complain(failure: &CliFailure) {
    *held() = None;
    if failure.is_quiet() {
        return;
    }
    // If stderr is closed, the failure cannot be reported.
    let _ = above(|| writeln!(io::stderr(), "{} {failure}", Colour::Bad.on_stderr("shardwise:")));
}

/// Prints a note on stderr that is not an error.
pub(crate) fn note(line: impl std::fmt::Display) {
    // If stderr is closed, the note cannot be printed.
    let _ = above(|| writeln!(io::stderr(), "{}", one_line(&line.to_string(), usize::MAX)));
}

/// Explains to a user at a terminal that the command waits for input.
pub(crate) fn waits_for_lines() {
    if io::stdin().is_terminal() {
        note("reading lines from the terminal; Ctrl-D ends them");
    }
}

/// `1 line`, `2 lines`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Prints one JSON value as one flushed line on stdout. Parsers see unchanged strings; control characters of terminals are written as JSON
/// escapes.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    write_stdout(&one_json_line(value)?)
}

/// The same on stderr, for a command whose stdout carries something else.
pub(crate) fn json_note(value: &impl Serialize) -> Result<()> {
    let line = one_json_line(value)?;
    above(|| io::stderr().write_all(line.as_bytes())).map_err(|error| CliFailure::io("write to stderr", &error))
}

fn one_json_line(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(value).map_err(|error| stdout_failed(&error.into()))?;
    Ok(plain_json(&json) + "\n")
}

fn write_stdout(text: &str) -> Result<()> {
    above(|| {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| stdout_failed(&error))
    })
}

/// The same JSON without control characters of terminals. They occur only in strings: outside of strings JSON is ASCII, and serde writes
/// no blanks.
fn plain_json(json: &str) -> String {
    let mut plain = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        if is_terminal_control(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String does not fail.
                let _ = write!(plain, "\\u{unit:04x}");
            }
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Prints text of lines, columns and marks of [`Colour`] on stdout; other control characters of terminals are escaped.
pub(crate) fn text(text: &str) -> Result<()> {
    let column = |column: &str| Escaped(column).to_string();
    let line = |line: &str| line.split('\t').map(column).collect::<Vec<_>>().join("\t");
    write_stdout(&colour::painted(text.split('\n').map(line).collect::<Vec<_>>().join("\n")))
}

pub(crate) fn stdout_failed(error: &io::Error) -> CliFailure {
    CliFailure::stdout(error)
}

/// The headings of columns whose cells are names of states.
const STATES: [&str; 2] = ["state", "is"];

/// Rows under a heading, with columns as wide as necessary; the last column is not padded. A cell stays on one line, whatever it contains.
/// States have their colours.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let head = heading.iter().map(|name| (*name).to_owned()).collect();
    let escaped = |row: &Vec<String>| row.iter().map(|cell| Escaped(cell).to_string()).collect();
    let lines: Vec<Vec<String>> = std::iter::once(&head).chain(rows).map(escaped).collect();
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |(number, line): (usize, &Vec<String>)| {
        let padded = line.iter().zip(heading).zip(&widths).map(|((cell, heading), width)| {
            let colour = match number {
                0 => (!cell.is_empty()).then_some(Colour::Heading),
                _ if STATES.contains(heading) => Colour::of_state(cell),
                _ => None,
            };
            colour.map_or_else(|| cell.clone(), |colour| colour.mark(cell)) + &" ".repeat(width - cell.chars().count())
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    lines.iter().enumerate().map(line).collect()
}

/// The same, or that line if there are no rows.
pub(crate) fn table_or(none: &str, heading: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() { format!("{none}\n") } else { table(heading, rows) }
}
