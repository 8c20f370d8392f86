//! `deploy/Dockerfile`.

use crate::{file, is_pinned, probes, takes, text};

/// Instructions with continued lines joined, without comments.
fn instructions() -> Vec<(String, String)> {
    let joined = text("Dockerfile").replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.trim().to_owned())).unwrap()).collect()
}

#[test]
fn the_image_is_small_pinned_and_not_roots() {
    let instructions = instructions();
    let all = |name: &str| instructions.iter().filter(|(each, _)| each == name).map(|(_, rest)| rest.as_str()).collect::<Vec<_>>();
    let stages = all("FROM");
    assert_eq!(stages.len(), 2, "one stage builds, the other one is shipped");
    let first = instructions.iter().position(|(name, _)| name == "FROM").unwrap();
    for (stage, argument) in stages.iter().zip(["RUST_DIGEST", "DEBIAN_DIGEST"]) {
        let image = stage.split(' ').next().unwrap();
        let tagged = image.strip_suffix(&format!("${{{argument}:+@${{{argument}}}}}")).unwrap_or_else(|| panic!("{image} takes no digest"));
        is_pinned(tagged);
        let declared = instructions[..first].iter().any(|(name, rest)| name == "ARG" && rest == argument);
        assert!(declared, "{argument} is known to FROM only if it is declared before the first one, without a value");
        let documented = text("README.md").contains(&format!("--build-arg {argument}="));
        assert!(documented && text("README.md").contains(tagged), "deploy/README.md says how {argument} of {tagged} is had");
    }
    assert!(stages[0].contains(env!("CARGO_PKG_RUST_VERSION")), "{} is not the Rust of the workspace", stages[0]);
    let shipped = instructions.iter().rposition(|(name, _)| name == "FROM").unwrap();
    assert!(
        !instructions[shipped..].iter().any(|(name, rest)| name == "COPY" && !rest.starts_with("--from=build ")),
        "of the sources nothing"
    );
    let user: u32 = all("USER")[0].split(':').next().unwrap().parse().unwrap();
    assert_ne!(user, 0);
    let program = all("COPY").into_iter().find(|rest| rest.starts_with("--from=build ")).unwrap();
    assert!(program.contains("target/release/shardwise") && program.ends_with("/usr/local/bin/shardwise"), "{program}");

    let json = |text: &str| serde_json::from_str::<Vec<String>>(text).unwrap();
    let check = all("HEALTHCHECK")[0].split_once("CMD ").unwrap().1;
    let check = json(check);
    assert_eq!(probes(&check.iter().map(String::as_str).collect::<Vec<_>>()), 8087);
    assert_eq!(json(all("ENTRYPOINT")[0]), ["shardwise"]);
    takes(&json(all("CMD")[0]).iter().map(String::as_str).collect::<Vec<_>>());
    let build = all("RUN").into_iter().find(|run| run.starts_with("cargo build")).unwrap();
    assert!(["--locked", "--release", "--package shardwise-cli", "--bin shardwise"].iter().all(|part| build.contains(part)), "{build}");
}

#[test]
fn what_is_built_and_what_is_secret_stays_outside() {
    let ignored = std::fs::read_to_string(file("../.dockerignore")).unwrap();
    for name in ["target", ".git"] {
        assert!(ignored.lines().any(|line| line == name), "{name}");
    }
}
