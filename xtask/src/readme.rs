//! The commands of the README and of the book's *Start* pages, run as a reader types them.
//!
//! Each page gets a new folder and is read from the top: a block of `sh` runs in the folder where the one
//! before ended, with what that one exported, as in one terminal. A comment right before a block changes that:
//! `<!-- not run: WHY -->`; `<!-- file: PATH -->`, whose block is written to that file;
//! `<!-- prints: TEXT -->`, whose output must contain TEXT;
//! `<!-- another terminal, until: TEXT -->`, whose block runs at the same time as the page, which waits for TEXT in its
//! output, and ends by Ctrl-C when the page does; `<!-- a server, until: TEXT -->`, the same for a server, which may end
//! by the signal. The servers of the tests are in the PATH.
//!
//! Two comments stand alone: `<!-- ends the terminals -->` presses Ctrl-C in those that are open, and
//! `<!-- follows: PAGE -->` first runs the blocks of a page beside this one, up to its first other terminal.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::failure::TaskFailure;
use crate::files;
use crate::pass::StepPass;
use crate::report::say;
use crate::run::StepLog;
use crate::servers;

/// For a block that builds everything on two busy cores.
const BLOCK_LIMIT: Duration = Duration::from_mins(20);
/// For a program to end after Ctrl-C.
const END_LIMIT: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(100);
/// For Cargo in the folder of a page. The pages are about what the commands do, and the hashing of a demo is fast enough unoptimised.
const CARGO_CONFIG: &str = "[profile.dev.package.shardwise-core]\nopt-level = 0\n";
/// Where the pages say that the project is; the clone comes from this checkout.
const REPOSITORY: &str = "https://github.com/shardwise/shardwise";

pub(crate) fn step(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let root = log.context.root();
    let start = std::fs::read_dir(root.join("docs/start")).map_err(TaskFailure::at("docs/start"))?;
    let is_page = |path: &PathBuf| path.extension().is_some_and(|end| end == "md");
    let mut pages: Vec<_> = start.filter_map(|entry| Some(entry.ok()?.path())).filter(is_page).collect();
    pages.sort();
    pages.insert(0, root.join("README.md"));
    let (mut ran, mut left_out) = (0, Vec::new());
    for page in pages {
        let name = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        say(&format!("    {name}"));
        let blocks = blocks(&files::read(&page)?).map_err(TaskFailure::at(&name))?;
        ran += PageRun::new(log, &name).run(&blocks, &mut left_out)?;
    }
    let note = (!left_out.is_empty()).then(|| format!("not run: {}", left_out.join("; ")));
    Ok(StepPass::noting(ran, note))
}

/// The instruction in the comment before a block.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BlockUse {
    Run,
    /// Run, and this text is in what it prints.
    Prints(String),
    NotRun(String),
    WriteFile(String),
    /// Beside the page, which goes on when this text is in the output.
    Beside(String),
    /// The same, for a program that may end by Ctrl-C's signal instead of an exit code.
    Server(String),
    /// No block: the page goes on where this one ended.
    Follows(String),
    /// No block: Ctrl-C in all other terminals.
    EndTerminals,
}

/// A fenced block that is used, and the line where it begins.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    used: BlockUse,
    text: String,
}

/// The blocks of a page that are used: those of `sh`, and those that are files.
fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let (mut blocks, mut comment) = (Vec::new(), None);
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: String =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect();
            let used = comment.take().unwrap_or(BlockUse::Run);
            if language == "sh" || matches!(used, BlockUse::WriteFile(_)) {
                blocks.push(Block { line: at + 1, used, text });
            }
        } else if let Some(said) = line.strip_prefix("<!-- ").and_then(|said| said.strip_suffix(" -->")) {
            let alone = |used| Block { line: at + 1, used, text: String::new() };
            if said == "ends the terminals" {
                blocks.push(alone(BlockUse::EndTerminals));
                continue;
            }
            comment = Some(match said.split_once(": ") {
                Some(("follows", page)) => {
                    blocks.push(alone(BlockUse::Follows(page.to_owned())));
                    continue;
                }
                Some(("prints", text)) => BlockUse::Prints(text.to_owned()),
                Some(("a server, until", text)) => BlockUse::Server(text.to_owned()),
                Some(("not run", why)) => BlockUse::NotRun(why.to_owned()),
                Some(("file", path)) => BlockUse::WriteFile(path.to_owned()),
                Some(("another terminal, until", text)) => BlockUse::Beside(text.to_owned()),
                _ => return Err(format!("line {}: this comment has no meaning for the step readme: {said}", at + 1)),
            });
        } else if comment.is_some() {
            return Err(format!("line {}: a comment for the step readme stands right before its block", at + 1));
        }
    }
    Ok(blocks)
}

/// A program in another terminal, with all that it started; killed when dropped.
struct Terminal {
    line: usize,
    is_server: bool,
    child: Child,
    output: PathBuf,
}

impl Terminal {
    /// What it wrote; empty if that cannot be read.
    fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    fn signal(&self, signal: Signal) -> nix::Result<()> {
        let group = i32::try_from(self.child.id()).map_err(|_| nix::Error::ESRCH)?;
        killpg(Pid::from_raw(group), signal)
    }

    /// Checks it until this answers something, or until the limit.
    fn until<T>(&mut self, limit: Duration, check: impl Fn(&Self, Option<ExitStatus>) -> Option<T>) -> std::io::Result<Option<T>> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            let ended = self.child.try_wait()?;
            if let Some(seen) = check(self, ended) {
                return Ok(Some(seen));
            }
            std::thread::sleep(POLL_EVERY);
        }
        Ok(None)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // One that ends by itself just now is as good.
            let _ = self.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

struct PageRun<'a> {
    log: &'a StepLog<'a>,
    name: String,
    folder: PathBuf,
}

impl<'a> PageRun<'a> {
    fn new(log: &'a StepLog<'a>, name: &str) -> Self {
        // Outside the workspace: Cargo would take a new package below its target folder for a forgotten member.
        let folder = std::env::temp_dir().join(format!("shardwise-readme-{}", std::process::id())).join(name.replace('/', "-"));
        Self { log, name: name.to_owned(), folder }
    }

    /// Runs the blocks and answers how many; what is left out goes to `left_out`.
    fn run(&self, blocks: &[Block], left_out: &mut Vec<String>) -> Result<u64, TaskFailure> {
        files::empty(&self.folder)?;
        self.write_cargo()?;
        files::write(&self.folder.join(".cargo/config.toml"), CARGO_CONFIG)?;
        let (mut ran, mut terminals) = (0, Vec::new());
        for block in blocks {
            match &block.used {
                BlockUse::Follows(page) => self.repeat(page)?,
                BlockUse::NotRun(why) => left_out.push(format!("{} line {} ({why})", self.name, block.line)),
                BlockUse::WriteFile(path) => files::write(&self.place()?.join(path), &block.text)?,
                BlockUse::EndTerminals => self.end_terminals(&mut terminals)?,
                BlockUse::Run | BlockUse::Prints(_) => self.type_in(block)?,
                BlockUse::Beside(until) | BlockUse::Server(until) => terminals.push(self.open_terminal(block, until)?),
            }
            let is_command = matches!(block.used, BlockUse::Run | BlockUse::Prints(_) | BlockUse::Beside(_) | BlockUse::Server(_));
            ran += u64::from(is_command);
        }
        self.end_terminals(&mut terminals)?;
        std::fs::remove_dir_all(&self.folder).map_err(TaskFailure::at(self.folder.display()))?;
        Ok(ran)
    }

    /// The newest first.
    fn end_terminals(&self, terminals: &mut Vec<Terminal>) -> Result<(), TaskFailure> {
        while let Some(terminal) = terminals.pop() {
            self.interrupt(terminal)?;
        }
        Ok(())
    }

    /// What an earlier page of the start has made before it opened another terminal, in this page's folder.
    fn repeat(&self, page: &str) -> Result<(), TaskFailure> {
        let text = files::read(&self.log.context.root().join("docs/start").join(page))?;
        for block in blocks(&text).map_err(TaskFailure::at(page))? {
            match &block.used {
                BlockUse::WriteFile(path) => files::write(&self.place()?.join(path), &block.text)?,
                BlockUse::Run | BlockUse::Prints(_) => self.type_in(&block)?,
                BlockUse::Beside(_) | BlockUse::Server(_) => break,
                BlockUse::NotRun(_) | BlockUse::Follows(_) | BlockUse::EndTerminals => {}
            }
        }
        Ok(())
    }

    /// A `cargo` that installs what the tests have compiled: that the commands work is asked here, not how fast they are.
    fn write_cargo(&self) -> Result<(), TaskFailure> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let script = format!("#!/bin/sh\nif [ \"$1\" = install ]; then shift; set -- install --debug \"$@\"; fi\nexec '{cargo}' \"$@\"\n");
        let place = self.folder.join("installed/bin/cargo");
        files::write(&place, &script)?;
        std::fs::set_permissions(&place, Permissions::from_mode(0o755)).map_err(TaskFailure::at(place.display()))
    }

    fn failed(&self, line: usize, why: impl std::fmt::Display) -> TaskFailure {
        TaskFailure::new(format!("{} line {line}: {why}; its folder is {}", self.name, self.folder.display()))
    }

    /// Where the terminal of the page stands.
    fn place(&self) -> Result<PathBuf, TaskFailure> {
        let pwd = self.folder.join("pwd");
        if pwd.exists() { Ok(files::read(&pwd)?.trim_end().into()) } else { Ok(self.folder.clone()) }
    }

    fn type_in(&self, block: &Block) -> Result<(), TaskFailure> {
        let (pwd, exported) = (self.folder.join("pwd"), self.folder.join("exported"));
        let command = self.shell(&format!("{}pwd > '{}'\nexport -p > '{}'\n", block.text, pwd.display(), exported.display()))?;
        let printed = self.log.run_for(command, BLOCK_LIMIT).map_err(|failure| self.failed(block.line, failure))?;
        match &block.used {
            BlockUse::Prints(text) if !printed.contains(text) => {
                Err(self.failed(block.line, format_args!("{text:?} is not in its output: {printed}")))
            }
            _ => Ok(()),
        }
    }

    /// A shell that stops at the first failure, in the page's place and with its variables, with what a reader has: no settings of others,
    /// the command where Cargo installs it, a server to try, and what this checkout has built already.
    fn shell(&self, script: &str) -> Result<Command, TaskFailure> {
        let mut command = servers::user(self.log.context, "bash");
        let exported = self.folder.join("exported");
        let script = if exported.exists() { format!(". '{}'\n{script}", exported.display()) } else { script.to_owned() };
        command.args(["-euo", "pipefail", "-c", &script]).current_dir(self.place()?);
        let installed = self.folder.join("installed");
        let path = std::env::var("PATH").unwrap_or_default();
        let etcd = shardwise_testkit::servers::program("etcd")?;
        let servers = etcd.parent().unwrap_or(&etcd).display();
        command.env("PATH", format!("{}:{path}:{servers}", installed.join("bin").display()));
        command.env("CARGO_INSTALL_ROOT", installed).env("CARGO_TARGET_DIR", self.log.context.target());
        // A clone builds its own with the script that has built this one.
        if let Some(protoc) = self.protoc()? {
            command.env("SHARDWISE_PROTOC", protoc);
        }
        // The clone comes from this checkout, by the address on the page.
        command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_VALUE_0", REPOSITORY);
        command.env("GIT_CONFIG_KEY_0", format!("url.file://{}.insteadOf", self.log.context.root().display()));
        Ok(command)
    }

    /// The `protoc` that this checkout has built, if it has.
    fn protoc(&self) -> Result<Option<PathBuf>, TaskFailure> {
        let root = self.log.context.root();
        let script = files::read(&root.join("tools/protoc"))?;
        let version = script.lines().find_map(|line| line.strip_prefix("version="));
        let built = version.map(|version| root.join(format!("target/protoc/protox-{version}")));
        Ok(built.filter(|path| path.exists()))
    }

    fn open_terminal(&self, block: &Block, until: &str) -> Result<Terminal, TaskFailure> {
        let failed = |error: std::io::Error| self.failed(block.line, error);
        let output = self.folder.join(format!("terminal-{}.log", block.line));
        let file = File::create(&output).map_err(failed)?;
        let mut command = self.shell(&block.text)?;
        command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
        // Ctrl-C reaches the programs of one terminal.
        command.process_group(0);
        let is_server = matches!(block.used, BlockUse::Server(_));
        let mut terminal = Terminal { line: block.line, is_server, child: command.spawn().map_err(failed)?, output };
        let check = |terminal: &Terminal, ended: Option<ExitStatus>| {
            if terminal.output().contains(until) { Some(true) } else { ended.map(|_| false) }
        };
        match terminal.until(BLOCK_LIMIT, check).map_err(failed)? {
            Some(true) => Ok(terminal),
            _ => Err(self.failed(block.line, format_args!("{until:?} is not in its output: {}", terminal.output()))),
        }
    }

    fn interrupt(&self, mut terminal: Terminal) -> Result<(), TaskFailure> {
        let line = terminal.line;
        terminal.signal(Signal::SIGINT).map_err(|error| self.failed(line, error))?;
        match terminal.until(END_LIMIT, |_, ended| ended).map_err(|error| self.failed(line, error))? {
            Some(status) if status.success() || (terminal.is_server && status.signal() == Some(Signal::SIGINT as i32)) => Ok(()),
            Some(status) => Err(self.failed(line, format_args!("after Ctrl-C: {status}: {}", terminal.output()))),
            None => Err(self.failed(line, format_args!("it has not ended {} s after Ctrl-C", END_LIMIT.as_secs()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_say_what_becomes_of_a_block() {
        let page = "text\n```sh\na\nb\n```\n```toml\nc\n```\n<!-- not run: it takes long -->\n```sh\nd\n```\n<!-- file: src/main.rs \
                    -->\n```rust\ne\n```\n<!-- another terminal, until: ready: -->\n```sh\nf\n```\n<!-- follows: one.md -->\n\n\
                    <!-- a server, until: up -->\n```sh\ng\n```\n<!-- ends the terminals -->\n\n<!-- prints: [\"a\"] -->\n```sh\nh\n```\n";
        let block = |line, used, text: &str| Block { line, used, text: text.into() };
        let expected = [
            block(2, BlockUse::Run, "a\nb\n"),
            block(10, BlockUse::NotRun("it takes long".into()), "d\n"),
            block(14, BlockUse::WriteFile("src/main.rs".into()), "e\n"),
            block(18, BlockUse::Beside("ready:".into()), "f\n"),
            block(21, BlockUse::Follows("one.md".into()), ""),
            block(24, BlockUse::Server("up".into()), "g\n"),
            block(27, BlockUse::EndTerminals, ""),
            block(30, BlockUse::Prints("[\"a\"]".into()), "h\n"),
        ];
        assert_eq!(blocks(page).unwrap(), expected);
        assert!(blocks("<!-- not runn: a -->\n").unwrap_err().contains("no meaning"));
        assert!(blocks("<!-- not run: a -->\ntext\n").unwrap_err().contains("right before"));
    }
}
