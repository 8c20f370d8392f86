//! Every published crate, as its users get it.

use crate::context::Context;
use crate::run::{Failure, Log};
use crate::steps::Passed;

/// What each package has to carry.
const IN_EVERY_PACKAGE: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];
/// What some packages have to carry besides.
const IN_ONE_PACKAGE: [(&str, &str); 3] = [
    ("shardwise", "README.md"),
    ("shardwise", "CHANGELOG.md"),
    // The golden vectors travel with the code that they hold.
    ("shardwise-core", "testdata/circles.txt"),
];

/// Packs all crates and builds each from its package alone.
pub(crate) fn package(log: &Log<'_>) -> Result<Passed, Failure> {
    let published = published(log.context);
    for name in &published {
        let output = log.run(log.context.cargo(&["package", "--package", name, "--list", "--allow-dirty"]))?;
        let files: Vec<_> = output.lines().map(str::trim).collect();
        let others = IN_ONE_PACKAGE.iter().filter(|(package, _)| package == name).map(|(_, file)| *file);
        if let Some(missing) = IN_EVERY_PACKAGE.into_iter().chain(others).find(|file| !files.contains(file)) {
            return Err(Failure::new(format!("the package {name} would not contain {missing}: add it, or name it in `include`")));
        }
    }
    let mut arguments = vec!["package", "--allow-dirty"];
    arguments.extend(published.iter().flat_map(|name| ["--package", name]));
    log.run(log.context.cargo(&arguments))?;
    Ok(Passed::many(published.len() as u64))
}

/// Our packages that are not kept back by `publish = false`.
fn published(context: &Context) -> Vec<&str> {
    let kept_back = |publish: &Option<Vec<String>>| publish.as_ref().is_some_and(Vec::is_empty);
    context.packages().into_iter().filter(|package| !kept_back(&package.publish)).map(|package| package.name.as_str()).collect()
}
