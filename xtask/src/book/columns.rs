//! Lines of Markdown: sentences have at most 120 columns, so that a change of a page shows what it changed. Tables, code and a line that
//! is one link cannot be wrapped.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Options, Parser, Tag};

use super::files::RepositoryFiles;
use super::links::is_page;

const COLUMNS: usize = 120;

/// A line for each line of prose that is too long, with its file and number.
pub(super) fn check(files: &RepositoryFiles) -> Vec<String> {
    let pages = files.texts().filter(|(path, _)| is_page(path));
    pages.flat_map(|(path, text)| too_long(text).into_iter().map(move |(at, width)| problem(path, at, width))).collect()
}

fn problem(path: &str, at: usize, width: usize) -> String {
    format!("{path}:{}: {width} columns; wrap it after at most {COLUMNS}", at + 1)
}

/// The text with those of its lines wrapped that are too long. The others stay as they are.
pub(crate) fn wrapped(text: &str) -> String {
    let long: BTreeSet<usize> = too_long(text).into_iter().map(|(at, _)| at).collect();
    let wrap = |(at, line)| if long.contains(&at) { wrap_line(line) } else { format!("{line}\n") };
    text.lines().enumerate().map(wrap).collect()
}

/// The lines of prose with more columns than allowed: the index of each, and how many it has.
fn too_long(text: &str) -> Vec<(usize, usize)> {
    let fixed = lines_that_stay(text);
    let widths = text.lines().enumerate().map(|(at, line)| (at, line, line.chars().count()));
    let long = widths.filter(|(at, line, width)| *width > COLUMNS && !fixed.contains(at) && !is_one_link(line));
    long.map(|(at, _, width)| (at, width)).collect()
}

/// The lines of tables and of code.
fn lines_that_stay(text: &str) -> BTreeSet<usize> {
    let line_of = |offset: usize| text[..offset].matches('\n').count();
    let events = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
    let fixed = events.filter(|(event, _)| matches!(event, Event::Start(Tag::CodeBlock(_) | Tag::Table(_))));
    fixed.flat_map(|(_, range)| line_of(range.start)..=line_of(range.end.saturating_sub(1))).collect()
}

/// Whether the line is one link or one word, in a list or not: `- [text](page.md)`, `[name]: address`.
fn is_one_link(line: &str) -> bool {
    let rest = line.trim().trim_start_matches(['-', '*', '>', ' ']);
    let is_link = rest.starts_with('[') && rest.ends_with(')') && rest.matches("](").count() == 1;
    let address = rest.split_once("]: ").filter(|(name, _)| name.starts_with('[')).map_or(rest, |(_, address)| address);
    is_link || !address.contains(' ')
}

/// The line in several, each of which ends with a newline. What follows the first is indented as the contents of its list are.
fn wrap_line(line: &str) -> String {
    let contents = line.trim_start_matches(' ');
    let marker = if contents.starts_with("- ") { 2 } else { 0 };
    let indent = " ".repeat(line.len() - contents.len() + marker);
    // A word that would begin a block stays behind the one before it.
    let mut parts: Vec<String> = Vec::new();
    for word in contents[marker..].split(' ') {
        match parts.last_mut() {
            Some(part) if begins_a_block(word) => part.extend([" ", word]),
            _ => parts.push(word.to_owned()),
        }
    }
    let (mut text, mut last) = (String::new(), line[..indent.len()].to_owned());
    for part in parts {
        if last.len() > indent.len() && last.chars().count() + 1 + part.chars().count() > COLUMNS {
            text.extend([&last, "\n"]);
            last.clone_from(&indent);
        }
        last.extend([if last.len() > indent.len() { " " } else { "" }, &part]);
    }
    text + &last + "\n"
}

/// Whether a line that begins with this word would be a list, a heading, a quotation or a table.
fn begins_a_block(word: &str) -> bool {
    let number = word.strip_suffix(['.', ')']).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    number || matches!(word, "-" | "+" | "*" | "=") || word.starts_with(['#', '>', '|'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        check(&RepositoryFiles::of(&[("A.md", text), ("a.rs", text)]))
    }

    #[test]
    fn a_long_line_of_prose_is_named_with_its_place() {
        let (full, long) = ("ä".repeat(119) + "\n", "ab ".repeat(40) + "c");
        assert_eq!(problems(&full), [""; 0]);
        assert_eq!(problems(&format!("# A\n\n{long}\n")), ["A.md:3: 121 columns; wrap it after at most 120"]);
        assert_eq!(problems(&format!("- a\n  {long}\n")), ["A.md:2: 123 columns; wrap it after at most 120"]);
    }

    #[test]
    fn tables_code_and_links_may_be_longer() {
        let long = "ab ".repeat(50);
        let code = format!("```sh\n{long}\n```\n\n1. a\n\n   ```sh\n   {long}\n   ```\n");
        let table = format!("| a | b |\n|---|---|\n| {long} | c |\n");
        let links = format!("- [{long}](b.md)\n\n[b]: https://example.org/{}\n", "b".repeat(120));
        for text in [&code, &table, &links] {
            assert_eq!(problems(text), [""; 0], "{text}");
        }
        assert_eq!(problems(&format!("{code}\n{long}")).len(), 1);
    }

    #[test]
    fn what_is_wrapped_has_the_same_words_and_no_long_line() {
        let words = "one two three - four 1. five ".repeat(20);
        let table = format!("| a |\n|---|\n| {words}|\n");
        let text = format!("{}\n\n{table}\n- {}\n", words.trim(), words.trim());
        let new = wrapped(&text);
        assert_eq!(too_long(&new), []);
        assert!(new.contains(&table), "{new}");
        assert_eq!(new.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
        let list = new.split("\n- ").nth(1).unwrap_or_default();
        assert!(list.lines().skip(1).all(|line| line.starts_with("  ") && !line.starts_with("  -")), "{list}");
        assert_eq!(wrapped(&new), new);
    }
}
