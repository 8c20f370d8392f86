//! Runs one command: its output into a log, its last line now and then, a limit after which it counts as hung.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::files;
use crate::report::say;

/// How often a silent command's last line is shown.
const SHOW_LINE_EVERY: Duration = Duration::from_secs(20);
/// No command of ours takes longer; one that does hangs.
pub(crate) const HUNG_AFTER: Duration = Duration::from_mins(20);
/// Lines of a failed command's output that are shown; the log has the rest.
const TAIL_LINES: usize = 150;

/// A step's log file, which collects the output of its commands.
pub(crate) struct StepLog<'a> {
    pub(crate) context: &'a TaskContext,
    path: PathBuf,
    /// What cargo may do for the steps that follow while this one waits.
    ahead: Vec<&'static [&'static str]>,
}

impl<'a> StepLog<'a> {
    pub(crate) fn begin(context: &'a TaskContext, step: &str) -> Result<Self, TaskFailure> {
        let path = context.scratch(&format!("{step}.log"));
        files::write(&path, "")?;
        Ok(Self { context, path, ahead: Vec::new() })
    }

    /// The same, for a step that calls [`StepLog::beside_cargo`].
    pub(crate) fn with_ahead(self, ahead: Vec<&'static [&'static str]>) -> Self {
        Self { ahead, ..self }
    }

    /// Does this while cargo prepares the steps that follow. What goes wrong there is reported by those steps, which do the same again.
    pub(crate) fn beside_cargo<T>(&self, work: impl FnOnce() -> T) -> T {
        let prepare = || {
            let Ok(log) = StepLog::begin(self.context, "ahead") else { return };
            for arguments in &self.ahead {
                // The step itself reports it.
                let _ = log.quietly(self.context.cargo(arguments), HUNG_AFTER);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(prepare);
            work()
        })
    }

    /// Runs the command to its end and gives back what it wrote; a status other than 0 is a failure.
    pub(crate) fn run(&self, command: Command) -> Result<String, TaskFailure> {
        self.run_for(command, HUNG_AFTER)
    }

    /// [`StepLog::run`], with its own limit.
    pub(crate) fn run_for(&self, command: Command, limit: Duration) -> Result<String, TaskFailure> {
        self.quietly(command, limit).map_err(|(failure, output)| self.refused(&output, failure))
    }

    /// Runs commands that write figures, each a line of JSON, into the file that this variable names, and reads what they wrote.
    pub(crate) fn figures(
        &self,
        variable: &str,
        limit: Duration,
        commands: impl IntoIterator<Item = Command>,
    ) -> Result<Vec<Value>, TaskFailure> {
        let (figures, failure) = self.figures_and_failure(variable, limit, commands)?;
        failure.map_or(Ok(figures), Err)
    }

    /// The same for figures that are worth a report even if a command fails, which is then the last one that was run.
    pub(crate) fn figures_and_failure(
        &self,
        variable: &str,
        limit: Duration,
        commands: impl IntoIterator<Item = Command>,
    ) -> Result<(Vec<Value>, Option<TaskFailure>), TaskFailure> {
        let file = self.path.with_extension("jsonl");
        files::write(&file, "")?;
        let failure = commands.into_iter().find_map(|mut command| {
            command.env(variable, &file);
            self.run_for(command, limit).err()
        });
        Ok((files::read(&file)?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(), failure))
    }

    /// [`StepLog::run_for`], without showing the output of a command that fails: it comes back beside the failure.
    pub(crate) fn quietly(&self, mut command: Command, limit: Duration) -> Result<String, (TaskFailure, String)> {
        let typed = as_typed(&command);
        let failed = |why: String| TaskFailure::new(why).repeated_by(typed.clone());
        let io = |e: std::io::Error| (failed(format!("{}: {e}", self.path.display())), String::new());
        let mut log = OpenOptions::new().append(true).open(&self.path).map_err(io)?;
        writeln!(log, "$ {typed}").map_err(io)?;
        let begin = usize::try_from(log.metadata().map_err(io)?.len()).unwrap_or_default();
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(io)?).stderr(log.try_clone().map_err(io)?);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|e| (failed(format!("{program} cannot be run ({e}): install it")), String::new()))?;
        let ended = self.wait(&mut child, limit, begin);
        let output = self.since(begin);
        let why = match ended {
            Ok(Some(status)) if status.success() => return Ok(output),
            Ok(Some(status)) => status.code().map_or_else(|| format!("ended by a signal ({status})"), |code| format!("exit code {code}")),
            Ok(None) => format!("no end after {} s, taken for hung", limit.as_secs()),
            Err(e) => format!("{program}: {e}"),
        };
        Err((failed(why), output))
    }

    /// Waits for the child, showing its last line now and then, or every line; `None` if it had to be killed.
    fn wait(&self, child: &mut Child, limit: Duration, begin: usize) -> std::io::Result<Option<ExitStatus>> {
        let begun = Instant::now();
        let (mut shown, mut shown_to) = (Duration::ZERO, begin);
        loop {
            // Before the lines are shown, so that none of them comes later.
            let ended = child.try_wait()?;
            if self.context.verbose {
                shown_to += self.show_from(shown_to, ended.is_some());
            }
            if ended.is_some() {
                return Ok(ended);
            }
            let elapsed = begun.elapsed();
            if elapsed > limit {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            if elapsed.saturating_sub(shown) >= SHOW_LINE_EVERY && !self.context.verbose {
                shown = elapsed;
                say(&format!("    {:>4} s  {}", elapsed.as_secs(), self.last_line()));
            }
            std::thread::sleep(Duration::from_millis(if elapsed.as_secs() == 0 { 10 } else { 100 }));
        }
    }

    /// Shows the lines behind so many bytes, without cargo's messages for programs; an unfinished line only at the end. Returns how many
    /// bytes that were.
    fn show_from(&self, begin: usize, to_the_end: bool) -> usize {
        let log = std::fs::read(&self.path).unwrap_or_default();
        let new = log.get(begin..).unwrap_or_default();
        let end = if to_the_end { new.len() } else { new.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        let text = String::from_utf8_lossy(&new[..end]);
        text.lines().filter(|line| !line.starts_with("{\"reason\":")).for_each(say);
        end
    }

    /// Shows the end of the output and counts the tests in it.
    fn refused(&self, output: &str, mut failure: TaskFailure) -> TaskFailure {
        let lines: Vec<_> = output.lines().collect();
        let tail = if self.context.verbose { &[] } else { &lines[lines.len().saturating_sub(TAIL_LINES)..] };
        for line in tail {
            say(&format!("    | {line}"));
        }
        if lines.len() > TAIL_LINES && !self.context.verbose {
            say(&format!("    | ({} lines before these are in {})", lines.len() - TAIL_LINES, self.path.display()));
        }
        let (passed, failed, _) = count_tests(output);
        (failure.passed, failure.failed) = (passed, failed.max(1));
        failure
    }

    /// What the log has behind so many bytes. One that cannot be read back loses the display, not the verdict.
    fn since(&self, begin: usize) -> String {
        let log = std::fs::read(&self.path).unwrap_or_default();
        String::from_utf8_lossy(log.get(begin..).unwrap_or_default()).into_owned()
    }

    fn last_line(&self) -> String {
        self.since(0).lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").trim().chars().take(100).collect()
    }
}

/// The command as one would type it in the workspace's folder.
fn as_typed(command: &Command) -> String {
    let quote = |word: &str| {
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_=./:,@+".contains(c));
        if plain && !word.is_empty() { word.to_owned() } else { format!("'{word}'") }
    };
    let ours = ["RUSTDOCFLAGS", "CRITERION_HOME", "PYTHONPATH"];
    let set = command.get_envs().filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?))).filter(|(n, _)| ours.contains(n));
    let mut words: Vec<_> = set.map(|(name, value)| format!("{name}={}", quote(value))).collect();
    let program = command.get_program().to_string_lossy();
    words.push(if program.ends_with("/cargo") { "cargo".into() } else { quote(&program) });
    words.extend(command.get_args().map(|word| quote(&word.to_string_lossy())));
    words.join(" ")
}

/// Tests passed, failed and ignored, summed over the `test result:` lines of cargo's output.
pub(crate) fn count_tests(output: &str) -> (u64, u64, u64) {
    let number = |line: &str, what: &str| {
        let part = line.split([';', '.']).find(|part| part.trim_end().ends_with(what))?;
        part.split_whitespace().next()?.parse::<u64>().ok()
    };
    let results = output.lines().filter(|line| line.starts_with("test result:"));
    results.fold((0, 0, 0), |(passed, failed, ignored), line| {
        let add = |sum: u64, what| sum + number(line, what).unwrap_or(0);
        (add(passed, "passed"), add(failed, "failed"), add(ignored, "ignored"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_over_all_binaries() {
        let output = "running 2 tests\ntest result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\nnoise\n\
                      test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        assert_eq!(count_tests(output), (15, 2, 1));
    }

    #[test]
    fn figures_of_all_commands_are_read_and_a_failure_is_one() {
        let context = TaskContext::load(false, false).unwrap();
        let log = StepLog::begin(&context, "unit-test-figures").unwrap();
        let shell = |script: &str| context.command("sh", &["-c", script]);
        let writes = ["echo '{\"a\":1}' >> $FIGURES", "echo '{\"a\":2}' >> $FIGURES; echo no figure >> $FIGURES"].map(shell);
        let figures = log.figures("FIGURES", HUNG_AFTER, writes).unwrap();
        assert_eq!(figures, [serde_json::json!({"a": 1}), serde_json::json!({"a": 2})]);
        assert_eq!(log.figures("FIGURES", HUNG_AFTER, [shell("true")]).unwrap(), [Value::Null; 0]);
        assert!(log.figures("FIGURES", HUNG_AFTER, [shell("exit 3")]).is_err());
    }

    /// Regression: with `--verbose` the output went to the terminal alone, so no test binary was found in it and no test counted.
    #[test]
    fn the_output_of_a_verbose_command_comes_back_too() {
        let context = TaskContext::load(true, false).unwrap();
        let log = StepLog::begin(&context, "unit-test-verbose").unwrap();
        let shell = |script: &str| context.command("sh", &["-c", script]);
        assert_eq!(log.run(shell("echo one; printf two")).unwrap(), "one\ntwo");
        assert!(log.run(shell("echo three; exit 3")).unwrap_err().to_string().starts_with("exit code 3"));
        assert_eq!(
            log.since(0).lines().filter(|line| !line.starts_with('$')).collect::<Vec<_>>(),
            ["one", "two$ sh -c 'echo three; exit 3'", "three"]
        );
    }

    #[test]
    fn cargo_prepares_what_follows_and_its_failure_is_none() {
        let context = TaskContext::load(false, false).unwrap();
        let log = StepLog::begin(&context, "unit-test-ahead").unwrap().with_ahead(vec![&["no-such-command"], &["--version"]]);
        assert_eq!(log.beside_cargo(|| 7), 7);
        let ahead = files::read(&context.scratch("ahead.log")).unwrap();
        assert!(ahead.contains("no-such-command") && ahead.contains("\ncargo 1."), "{ahead}");
    }

    #[test]
    fn commands_are_shown_as_typed() {
        let mut command = Command::new("/somewhere/bin/cargo");
        command.args(["doc", "--features", "a b"]).env("RUSTDOCFLAGS", "-D warnings").env("OTHER", "x");
        assert_eq!(as_typed(&command), "RUSTDOCFLAGS='-D warnings' cargo doc --features 'a b'");
    }
}
