//! Whether the links of the repository's Markdown, and the pages that its sources cite, lead somewhere. No network: of an address
//! elsewhere its form alone is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::files::RepositoryFiles;
use super::markdown::MarkdownPage;

/// The book's folder. mdBook carries nothing else along.
const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";
/// How pages of the book link files that are not in it.
const ELSEWHERE: &str = "https://github.com/shardwise/shardwise/blob/main/";

/// Folders of sources, of which the pages about the code name files.
const SOURCES: [&str; 9] = ["src/", "crates/", "backends/", "tests/", "examples/", "xtask/", "deploy/", "benches/", "fuzz/"];

type Pages<'a> = BTreeMap<&'a str, MarkdownPage>;

/// How many links and citations were looked at, and a line for each that leads nowhere.
pub(super) fn check(files: &RepositoryFiles) -> (u64, Vec<String>) {
    let (mut checked, mut problems) = (0, Vec::new());
    let mut pages = Pages::new();
    for (path, text) in files.texts().filter(|(path, _)| is_page(path)) {
        match with_includes(files, path, text) {
            Ok(text) => _ = pages.insert(path, MarkdownPage::read(&text)),
            Err(missing) => problems.push(format!("{path}: includes {missing}, which is not there")),
        }
    }
    for (path, page) in &pages {
        checked += page.links.len() as u64;
        let wrong = page.links.iter().filter_map(|link| Some(format!("{path}: {link} {}", problem(files, &pages, path, link)?)));
        problems.extend(wrong);
    }
    for (path, text) in files.texts() {
        let codes = pages.get(path).filter(|_| describes_the_code(path)).into_iter().flat_map(|page| &page.codes);
        let of_sources = codes.flat_map(|code| SOURCES.into_iter().flat_map(|folder| cited(code, folder)));
        // NAME is the reader's choice.
        for cited in cited(text, BOOK).chain(of_sources.filter(|path| !path.contains("NAME"))) {
            checked += 1;
            if !files.any_begins(cited) {
                problems.push(format!("{path}: cites {cited}, which is not there"));
            }
        }
    }
    problems.extend(left_out(&pages).map(|path| format!("{path}: {SUMMARY} does not link it, so it is not in the book")));
    (checked, problems)
}

pub(super) fn is_page(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "md")
}

/// Whether the page describes the present code. Decisions describe the day on which they were made.
fn describes_the_code(path: &str) -> bool {
    ["docs/architecture.md", "CONTRIBUTING.md"].contains(&path)
        || ["docs/internals/", "docs/reference/"].iter().any(|folder| path.starts_with(folder))
}

/// The page with the files that mdBook puts into it.
fn with_includes(files: &RepositoryFiles, path: &str, text: &str) -> Result<String, String> {
    let mut whole = String::with_capacity(text.len());
    for line in text.lines() {
        match line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}")) {
            Some(name) => whole += resolve(path, name).and_then(|file| files.text(&file)).ok_or(name)?,
            None => whole += line,
        }
        whole.push('\n');
    }
    Ok(whole)
}

/// The fault of a link of that page.
fn problem(files: &RepositoryFiles, pages: &Pages<'_>, page: &str, link: &str) -> Option<String> {
    if let Some(file) = link.strip_prefix(ELSEWHERE) {
        return missing(files, pages, file);
    }
    if let Some((scheme, rest)) = link.split_once(':') {
        let host = rest.trim_start_matches('/').split(['/', '?', '#']).next().unwrap_or_default();
        let is_address = matches!(scheme, "https" | "http") && !host.is_empty() && !link.contains(char::is_whitespace);
        return (!is_address).then(|| "is not an address".into());
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = if path.is_empty() { Some(page.to_owned()) } else { resolve(page, path) };
    match target {
        None => Some("leads out of the repository".into()),
        Some(file) if page.starts_with(BOOK) && !file.starts_with(BOOK) => Some(format!("leads out of the book: write {ELSEWHERE}{file}")),
        Some(file) => missing(files, pages, &anchor.map_or_else(|| file.clone(), |anchor| format!("{file}#{anchor}"))),
    }
}

/// Why that file, or that heading of a page, is not there.
fn missing(files: &RepositoryFiles, pages: &Pages<'_>, file: &str) -> Option<String> {
    let (path, anchor) = file.split_once('#').map_or((file, None), |(path, anchor)| (path, Some(anchor)));
    match (pages.get(path), anchor) {
        _ if !files.has(path.trim_end_matches('/')) => Some("is not there".into()),
        (Some(page), Some(anchor)) if !page.anchors.contains(anchor) => Some(format!("has no heading #{anchor}")),
        _ => None,
    }
}

/// The path from the repository's root that a link of the page leads to; nothing if that is out of it.
fn resolve(page: &str, link: &str) -> Option<String> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop()?,
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// What a text names below that folder, such as `docs/adr/0013` in a comment. What is behind a `/` is a link or a part of another path.
fn cited<'t>(text: &'t str, folder: &'static str) -> impl Iterator<Item = &'t str> {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    text.match_indices(folder).filter(move |(at, _)| !text[..*at].ends_with(is_of_path)).map(move |(at, _)| {
        let rest = &text[at..];
        rest[..rest.find(|c| !is_of_path(c)).unwrap_or(rest.len())].trim_end_matches(['.', '-'])
    })
}

/// Pages of the book's folder that its summary does not link.
fn left_out<'a>(pages: &Pages<'a>) -> impl Iterator<Item = &'a str> {
    let linked = pages.get(SUMMARY).into_iter().flat_map(|page| &page.links);
    let linked: BTreeSet<String> = linked.filter_map(|link| resolve(SUMMARY, link)).collect();
    let of_the_book: Vec<&str> = pages.keys().copied().filter(|path| path.starts_with(BOOK) && *path != SUMMARY).collect();
    of_the_book.into_iter().filter(move |path| !linked.contains(*path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        check(&RepositoryFiles::of(files)).1
    }

    const BOOK_OF_TWO: [(&str, &str); 2] = [(SUMMARY, "[a](README.md) [b](figures.md)"), ("docs/figures.md", "# Ten figures\n")];

    fn of_the_readme(text: &str) -> Vec<String> {
        problems(&[&BOOK_OF_TWO[..], &[("docs/README.md", text), ("tools/protoc", ""), ("LICENSE", "")]].concat())
    }

    #[test]
    fn links_to_pages_headings_folders_and_addresses_lead_somewhere() {
        let text = "[a](figures.md) [b](figures.md#ten-figures) [c](https://etcd.io/docs) [d](#here)\n\n# Here\n\n";
        let elsewhere = format!("[e]({ELSEWHERE}tools/protoc) [f]({ELSEWHERE}tools/)\n");
        assert_eq!(of_the_readme(&(text.to_owned() + &elsewhere)), [""; 0]);
        assert_eq!(check(&RepositoryFiles::of(&BOOK_OF_TWO)).0, 2);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named_with_its_page() {
        let cases = [
            ("[a](gone.md)", "docs/README.md: gone.md is not there"),
            ("![a](gone.svg)", "docs/README.md: gone.svg is not there"),
            ("[a](figures.md#eleven)", "docs/README.md: figures.md#eleven has no heading #eleven"),
            ("[a](#there)", "docs/README.md: #there has no heading #there"),
            ("[a](../../x)", "docs/README.md: ../../x leads out of the repository"),
            ("[a](https://)", "docs/README.md: https:// is not an address"),
            ("[a](ftp://x.example)", "docs/README.md: ftp://x.example is not an address"),
        ];
        for (text, problem) in cases {
            assert_eq!(of_the_readme(text), [problem], "{text}");
        }
        let leaves = of_the_readme("[a](../LICENSE)");
        assert_eq!(leaves, [format!("docs/README.md: ../LICENSE leads out of the book: write {ELSEWHERE}LICENSE")]);
        let elsewhere = format!("{ELSEWHERE}tools/gone");
        assert_eq!(of_the_readme(&format!("[a]({elsewhere})")), [format!("docs/README.md: {elsewhere} is not there")]);
    }

    #[test]
    fn pages_include_files_and_sources_cite_pages() {
        let readme = ("docs/README.md", "{{#include ../NOTES.md}}\n");
        let found = problems(&[&BOOK_OF_TWO[..], &[readme, ("NOTES.md", "[a](docs/README.md)\n")]].concat());
        assert_eq!(found, ["docs/README.md: docs/README.md is not there"]);
        assert_eq!(of_the_readme("{{#include ../GONE.md}}"), ["docs/README.md: includes ../GONE.md, which is not there"]);
        let gone = format!("{BOOK}gone.md");
        let source = format!("// See `{BOOK}README.md`, {BOOK}figures and {gone}.");
        let found = problems(&[&BOOK_OF_TWO[..], &[("docs/README.md", ""), ("a.rs", &source)]].concat());
        assert_eq!(found, [format!("a.rs: cites {gone}, which is not there")]);
    }

    #[test]
    fn pages_about_the_code_name_files_that_are_there() {
        let page = "`src/lib.rs`, `crates/*/src` and `src/gone.rs`\n";
        let files = [
            (SUMMARY, "[a](architecture.md) [b](adr/0001-placement-by-slots.md)"),
            ("docs/architecture.md", page),
            ("docs/adr/0001-placement-by-slots.md", page),
        ];
        let sources = [("src/lib.rs", ""), ("crates/core/src/lib.rs", "")];
        assert_eq!(problems(&[&files[..], &sources].concat()), ["docs/architecture.md: cites src/gone.rs, which is not there"]);
    }

    #[test]
    fn a_page_that_the_summary_does_not_link_is_not_in_the_book() {
        let found = problems(&[("docs/README.md", ""), (SUMMARY, "")]);
        assert_eq!(found, ["docs/README.md: docs/SUMMARY.md does not link it, so it is not in the book"]);
    }
}
