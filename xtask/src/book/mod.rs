//! `cargo xtask book`: builds the book of `docs/` with mdBook, and checks the links and the lines of all Markdown, and the pages
//! that sources cite.

mod columns;
mod files;
mod links;
mod markdown;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::pass::StepPass;
use crate::report::say;
use crate::run::StepLog;
use crate::tools::InstalledTool;

pub(crate) use columns::wrapped;
use files::RepositoryFiles;

/// Without what it needs to serve, watch and search a book.
const MDBOOK: InstalledTool = InstalledTool { name: "mdbook", version: "0.5.4", arguments: &["--no-default-features"] };

pub(crate) fn run(context: &TaskContext) -> Result<(), TaskFailure> {
    let pass = step(&StepLog::begin(context, "book")?)?;
    say(&format!("{} links lead somewhere; the book is {}", pass.checks, context.target().join("book/index.html").display()));
    Ok(())
}

pub(crate) fn step(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let files = RepositoryFiles::load(log.context)?;
    let (checked, mut problems) = links::check(&files);
    problems.extend(columns::check(&files));
    if !problems.is_empty() {
        for problem in &problems {
            say(&format!("    {problem}"));
        }
        let count = problems.len();
        return Err(TaskFailure::counted(format!("{count} links or lines to correct"), checked, count as u64));
    }
    build(log)?;
    Ok(StepPass::many(checked))
}

fn build(log: &StepLog<'_>) -> Result<(), TaskFailure> {
    let tool = MDBOOK.path(log)?;
    let folder = log.context.target().join("book");
    let output = log.run(log.context.command(&tool, &["build", "--dest-dir", &folder.to_string_lossy()]))?;
    // mdBook only logs an include that it cannot find, and ends with 0.
    match output.lines().find(|line| line.contains("ERROR") || line.contains("WARN")) {
        Some(line) => Err(TaskFailure::new(format!("mdBook complains: {}", line.trim()))),
        None => Ok(()),
    }
}
