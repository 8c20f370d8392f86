//! Who may depend on whom: the crates of the workspace, and the modules of the library. What the bare library may not bring along, and what
//! every manifest says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand, Package, Target};

use crate::imports::{files, from_root, module, shipped};

/// For each crate, our crates that it may depend on, in any way. One way only: cli -> outbox -> shardwise -> backends ->
/// discovery -> core. A backend is named `backends/*` here, so that a new one needs no line.
const MAY_USE: [(&str, &[&str]); 14] = [
    ("shardwise-core", &[]),
    ("shardwise-discovery", &["shardwise-core"]),
    ("backends/*", &["shardwise-core", "shardwise-discovery", "shardwise-testkit"]),
    // Reads files and variables by a table of keys; knows no policy, no backend and no outbox.
    ("shardwise-settings", &["shardwise-core", "shardwise-discovery"]),
    // Fencing in its tests only: the tables that refuse stale writers.
    ("shardwise", &["shardwise-core", "shardwise-discovery", "shardwise-settings", "backends/*", "shardwise-fencing", "shardwise-testkit"]),
    // Writes in the user's own database; the names and epochs are the core's.
    ("shardwise-fencing", &["shardwise-core", "shardwise-testkit"]),
    // Only the library's public API, which a third-party outbox could use too.
    ("shardwise-outbox", &["shardwise", "shardwise-testkit"]),
    // HTTP over the library, for the command to start: `shardwise serve` (ADR 29).
    ("shardwise-sidecar", &["shardwise", "shardwise-testkit"]),
    ("shardwise-cli", &["shardwise", "shardwise-outbox", "shardwise-sidecar", "shardwise-testkit"]),
    ("shardwise-examples", &["shardwise", "shardwise-fencing", "shardwise-outbox"]),
    ("xtask", &["shardwise-testkit"]),
    // Try out and measure what users get; never published.
    ("shardwise-fuzz", &["shardwise", "shardwise-core", "shardwise-outbox", "backends/*"]),
    ("shardwise-instructions", &["shardwise-core"]),
    // Real servers for tests; knows nothing of us, is never published and so in no user's tree.
    ("shardwise-testkit", &[]),
];

/// Crates for SQL, TLS and HTTP, by the beginnings of their names.
const NOT_IN_THE_BARE_LIBRARY: [&str; 27] = [
    "sqlx",
    "rusqlite",
    "libsqlite3",
    "sqlite",
    "postgres",
    "tokio-postgres",
    "diesel",
    "rustls",
    "tokio-rustls",
    "webpki",
    "ring",
    "openssl",
    "native-tls",
    "aws-lc",
    "schannel",
    "security-framework",
    "boring",
    "http",
    "hyper",
    "h2",
    "reqwest",
    "ureq",
    "curl",
    "isahc",
    "axum",
    "tonic",
    "tungstenite",
];

fn metadata() -> Metadata {
    MetadataCommand::new().no_deps().exec().unwrap()
}

/// A crate's name in [`MAY_USE`]: its own, or `backends/*` by the folder it is in.
fn place<'a>(metadata: &'a Metadata, name: &'a str) -> Option<&'a str> {
    let package = metadata.workspace_packages().into_iter().find(|package| package.name.as_str() == name)?;
    let inside = package.manifest_path.strip_prefix(&metadata.workspace_root).unwrap();
    Some(if inside.starts_with("backends") { "backends/*" } else { name })
}

/// The error for an edge between two of our crates; `None` if it is allowed.
fn wrong(user: &str, dependency: &str) -> Option<String> {
    let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == user) else {
        return Some(format!("{user} is not in MAY_USE: add a line for it"));
    };
    (!allowed.contains(&dependency)).then(|| format!("{user} must not depend on {dependency}; allowed are {allowed:?}"))
}

#[test]
fn dependencies_go_one_way() {
    let metadata = metadata();
    let mut found = Vec::new();
    for package in metadata.workspace_packages() {
        let user = place(&metadata, &package.name).unwrap();
        let ours = package.dependencies.iter().filter_map(|dependency| place(&metadata, &dependency.name));
        found.extend(ours.filter_map(|dependency| wrong(user, dependency)));
        found.extend(MAY_USE.iter().all(|(name, _)| *name != user).then(|| format!("{user} has no line in MAY_USE")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_picture_of_the_crates_names_each_backend() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let picture = fs::read_to_string(root.join("docs/internals/crates.svg")).unwrap();
    let list = picture.lines().find(|line| line.contains(": each a crate")).expect("the line of the backends");
    for folder in fs::read_dir(root.join("backends")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(list.contains(&name), "docs/internals/crates.svg lacks backends/{name}");
    }
}

#[test]
fn an_edge_that_points_back_is_found() {
    assert!(wrong("shardwise-core", "shardwise-discovery").is_some());
    assert!(wrong("shardwise", "shardwise-outbox").is_some());
    assert!(wrong("shardwise-outbox", "shardwise-core").is_some());
    assert!(wrong("backends/*", "backends/*").is_some());
    assert!(wrong("newcomer", "shardwise").is_some());
    assert!(wrong("shardwise-cli", "shardwise-outbox").is_none());
}

/// Names of everything in a package's normal dependency tree, itself included.
fn tree(package: &str, features: &[&str]) -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p}"]).args(features);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn unwanted(tree: Vec<String>) -> Vec<String> {
    let is = |name: &str, start: &str| name == start || name.strip_prefix(start).is_some_and(|rest| rest.starts_with(['-', '_', '3']));
    tree.into_iter().filter(|name| NOT_IN_THE_BARE_LIBRARY.iter().any(|start| is(name, start))).collect()
}

#[test]
fn without_features_the_library_brings_no_sql_tls_or_http() {
    let bare = tree("shardwise", &["--no-default-features"]);
    assert!(bare.iter().any(|name| name == "shardwise-core"), "the tree was not read: {bare:?}");
    assert_eq!(unwanted(bare), Vec::<String>::new());
}

#[test]
fn the_same_check_finds_sql_where_it_is() {
    assert!(!unwanted(tree("shardwise", &["--features", "local"])).is_empty());
}

#[test]
fn nothing_is_on_by_default_in_a_library() {
    let metadata = metadata();
    // The command is no library: its default is everything (ADR 42).
    let libraries = metadata.workspace_packages().into_iter().filter(|package| package.targets.iter().any(Target::is_lib));
    for package in libraries {
        let default = package.features.get("default");
        assert!(default.is_none_or(Vec::is_empty), "{}: a feature only adds, and only when asked for: {default:?}", package.name);
    }
}

/// What a published manifest leaves out.
fn left_out(package: &Package) -> Vec<&'static str> {
    let docs_rs = &package.metadata["docs"]["rs"]["all-features"];
    let sentences = [
        ("license", package.license.as_deref() == Some("MIT OR Apache-2.0")),
        ("description", package.description.as_ref().is_some_and(|text| !text.is_empty())),
        ("rust-version", package.rust_version.is_some()),
        ("repository", package.repository.is_some()),
        ("keywords", !package.keywords.is_empty()),
        ("categories", !package.categories.is_empty()),
        ("metadata.docs.rs all-features = true", docs_rs.as_bool() == Some(true)),
    ];
    sentences.into_iter().filter(|(_, is)| !is).map(|(what, _)| what).collect()
}

#[test]
fn every_published_manifest_is_complete() {
    let metadata = metadata();
    let published = metadata.workspace_packages().into_iter().filter(|package| package.publish.as_ref().is_none_or(|to| !to.is_empty()));
    let incomplete = published.map(|package| (package, left_out(package))).filter(|(_, what)| !what.is_empty());
    let incomplete: Vec<_> =
        incomplete.map(|(package, what)| format!("add to Cargo.toml of {}: {}", package.name, what.join(", "))).collect();
    assert!(incomplete.is_empty(), "{}; or set publish = false", incomplete.join("\n"));
    let versions: Vec<_> = metadata.workspace_packages().into_iter().map(|package| package.rust_version.clone()).collect();
    assert!(
        versions.windows(2).all(|pair| pair[0] == pair[1]),
        "write rust-version.workspace = true in each Cargo.toml, so that all are one: {versions:?}"
    );
}

/// The modules of the library, lowest first (ADR 41). A module imports only from those before it.
const MODULES: [&str; 12] =
    ["error", "telemetry", "backend", "settings", "membership", "service", "work", "requests", "messages", "operate", "factory", "testing"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// What is wrong with an import of `name` from the root by `user`; `None` if it is allowed.
fn goes_up(user: &str, name: &str) -> Option<String> {
    let place = |module: &str| MODULES.iter().position(|known| *known == module);
    match (place(user), place(name)) {
        (None, _) => Some(format!("{user} has no place in the library: add it to MODULES and to the list in lib.rs")),
        (_, None) => Some(format!("{user} imports {name} from lib.rs: import it from its module")),
        (Some(user_at), Some(at)) => (at > user_at).then(|| format!("{user} imports {name}, which is above it")),
    }
}

#[test]
fn modules_of_the_library_import_one_way() {
    let (mut wrong, mut imports) = (Vec::new(), 0);
    for file in files(&source()) {
        let inside = file.strip_prefix(source()).unwrap();
        let path = module(inside);
        // Files of unit tests are a level deeper than their place says.
        if path == ["lib"] || inside.to_string_lossy().ends_with("tests.rs") {
            continue;
        }
        for name in from_root(shipped(&fs::read_to_string(&file).unwrap()), path.len()) {
            imports += 1;
            wrong.extend(goes_up(&path[0], &name).map(|why| format!("src/{}: {why}", inside.display())));
        }
    }
    assert!(imports > 50, "the sources were not read: {imports} imports");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_import_that_goes_up_is_found() {
    let names = |code: &str, depth| from_root(code, depth).join(" ");
    assert_eq!(names("use crate::work::Guard; // crate::factory\ncrate::error::new()", 2), "work error");
    assert_eq!(names("use crate::{error::{Error, Result}, trace, service::{\n    self,\n},\n};", 2), "error trace service");
    assert_eq!(names("use super::super::factory::X; use super::near;", 2), "factory");
    assert_eq!(names("$crate::BACKEND; mycrate::x", 1), "");
    assert!(goes_up("membership", "messages").is_some() && goes_up("newcomer", "error").is_some());
    assert!(goes_up("service", "ShardingService").is_some(), "from the root, by whatever module it has");
    assert!(goes_up("requests", "messages").is_some() && goes_up("messages", "requests").is_none(), "a message is a request");
    assert!(goes_up("messages", "membership").is_none() && goes_up("settings", "error").is_none() && goes_up("work", "work").is_none());
}

#[test]
fn every_module_has_its_place_and_its_sentence() {
    let mut entries: Vec<_> = fs::read_dir(source()).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.retain(|entry| !entry.ends_with("lib.rs"));
    entries.sort();
    let mut names: Vec<_> = entries.iter().map(|entry| entry.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    let lib = fs::read_to_string(source().join("lib.rs")).unwrap();
    let listed: Vec<(&str, &str)> = lib.lines().filter_map(|line| line.strip_prefix("// - `")?.split_once("`: ")).collect();
    assert_eq!(listed.iter().map(|(name, _)| *name).collect::<Vec<_>>(), MODULES, "the list in lib.rs");
    for (name, sentence) in listed {
        let entry = entries.iter().find(|entry| entry.file_stem().is_some_and(|stem| stem == name)).unwrap();
        let file = if entry.is_dir() { entry.join("mod.rs") } else { entry.clone() };
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(
            text.lines().next(),
            Some(format!("//! {sentence}").as_str()),
            "{name}: the first line of the module is its sentence in lib.rs"
        );
    }
    names.sort();
    let mut known = MODULES;
    known.sort_unstable();
    assert_eq!(names, known, "what is in src/");
}
