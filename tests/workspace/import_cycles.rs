//! The modules at the top level of each crate import one way: no module needs another one that needs it. A folder is one module, and tests
//! do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use cargo_metadata::MetadataCommand;

use crate::imports::{files, from_root, module, shipped};

/// Import cycles that are allowed: the package, the modules of the cycle, and why.
const EXCEPTIONS: [(&str, &[&str], &str); 1] = [(
    "shardwise-discovery",
    &["claims", "contract", "notes"],
    "the traits of one contract: a backend hands out its claims and notes, and both are of a backend",
)];

/// For each module of a crate, the modules that it imports from.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The names that the root re-exports, each with its module.
fn re_exports(root: &str) -> BTreeMap<&str, &str> {
    let mut names = BTreeMap::new();
    let statements = root.split(';').filter_map(|statement| statement.rsplit_once("use ").map(|(_, path)| path));
    for path in statements {
        let path = path.trim_start_matches("crate::").trim_start_matches("self::");
        let Some((module, inside)) = path.split_once("::") else { continue };
        let words = inside.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        names.extend(words.map(|word| (word, module)));
    }
    names
}

/// The imports of a crate with this root and these files, each by its module path.
fn imports(root: &str, files: &[(Vec<String>, String)]) -> Imports {
    let re_exports = re_exports(root);
    let modules: BTreeSet<&str> = files.iter().map(|(path, _)| path[0].as_str()).collect();
    let mut imports: Imports = modules.iter().map(|module| ((*module).to_owned(), BTreeSet::new())).collect();
    for (path, code) in files {
        let named = from_root(shipped(code), path.len());
        let found = named.iter().map(|name| modules.get(name.as_str()).or_else(|| re_exports.get(name.as_str())));
        // What the root itself defines is of no module.
        let found = found.flatten().filter(|module| modules.contains(*module) && **module != path[0]).map(|module| (*module).to_owned());
        imports.entry(path[0].clone()).or_default().extend(found);
    }
    imports
}

/// The imports of the modules that are on a cycle, or on a way from one cycle to another.
fn cycles(mut imports: Imports) -> Imports {
    loop {
        let used: BTreeSet<String> = imports.values().flatten().cloned().collect();
        let on_cycle = |(module, needs): &(&String, &BTreeSet<String>)| !needs.is_empty() && used.contains(*module);
        let rest: BTreeSet<String> = imports.iter().filter(on_cycle).map(|(module, _)| module.clone()).collect();
        if rest.len() == imports.len() {
            return imports;
        }
        imports.retain(|module, _| rest.contains(module));
        for needs in imports.values_mut() {
            needs.retain(|need| rest.contains(need));
        }
    }
}

/// The import cycles of the crate in this folder, and how many imports were read. Files of tests are left out, and so are other programs.
fn cycles_in(source: &Path) -> (Imports, usize) {
    let root = ["lib.rs", "main.rs"].into_iter().find_map(|name| fs::read_to_string(source.join(name)).ok());
    let of_crate = |path: &[String]| {
        let is_test = path.iter().any(|part| part == "tests" || part.ends_with("_tests"));
        !is_test && !matches!(path[0].as_str(), "lib" | "main" | "bin")
    };
    let modules = files(source).into_iter().map(|file| (module(file.strip_prefix(source).unwrap()), file));
    let modules = modules.filter(|(path, _)| of_crate(path));
    let read: Vec<_> = modules.map(|(path, file)| (path, fs::read_to_string(file).unwrap())).collect();
    let imports = imports(&root.unwrap_or_default(), &read);
    let count = imports.values().map(BTreeSet::len).sum();
    (cycles(imports), count)
}

#[test]
fn modules_of_each_crate_import_one_way() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let (mut wrong, mut read) = (Vec::new(), 0);
    for package in metadata.workspace_packages() {
        let source = package.manifest_path.parent().unwrap().join("src");
        if !source.exists() {
            continue;
        }
        let (found, count) = cycles_in(source.as_std_path());
        read += count;
        let excepted = EXCEPTIONS.iter().find(|(name, ..)| package.name == *name).map_or(&[][..], |(_, modules, _)| modules);
        if !found.keys().map(String::as_str).eq(excepted.iter().copied()) {
            wrong.push(format!("{}: import cycles {found:?}, allowed {excepted:?}", package.name));
        }
    }
    assert!(read > 500, "the sources were not read: {read} imports");
    assert!(wrong.is_empty(), "move what both modules need into one of them or below both:\n{}", wrong.join("\n"));
}

#[test]
fn an_import_cycle_is_found() {
    let found = |files: &[(&str, &str)]| {
        let files: Vec<_> = files.iter().map(|(path, code)| (module(Path::new(path)), (*code).to_owned())).collect();
        cycles(imports("mod a;\npub use a::{Thing, inner::Other as Renamed};\n\npub struct Own;", &files)).into_keys().collect::<Vec<_>>()
    };
    let (a, b, c) =
        (("a/mod.rs", "use crate::b::X;"), ("b/deep.rs", "use super::super::c::Y;"), ("c.rs", "fn f() { crate::Renamed::new() }"));
    assert_eq!(found(&[a, b, c]), ["a", "b", "c"], "over a folder, a path without `use`, and a name from the root");
    assert_eq!(found(&[a, b, ("c.rs", "use crate::Own; // crate::a\n"), ("d.rs", "use crate::a::Thing;")]), [""; 0]);
    assert_eq!(found(&[a, b, ("c.rs", "use std::fmt;\n#[cfg(test)]\nmod tests {\n    use crate::Thing;")]), [""; 0], "tests do not count");
    assert_eq!(found(&[("a/mod.rs", "use crate::a::deep;"), ("a/deep.rs", "use super::Thing;")]), [""; 0], "a folder is one module");
}
