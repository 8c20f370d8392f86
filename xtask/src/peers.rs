//! What the benchmark `peers` needs besides Criterion: a list of words and Python's uhashring, and its tables in
//! `docs/internals/performance.md`.

use std::path::PathBuf;
use std::process::Stdio;

use shardwise_testkit::python_with;

use crate::failure::TaskFailure;
use crate::files;
use crate::measured::{BenchmarkFigure, row};
use crate::run::StepLog;

pub(crate) const NAME: &str = "peers";
pub(crate) const WORDS: &str = "SHARDWISE_BENCH_WORDS";

const PAGE: &str = "docs/internals/performance.md";
const BEGIN: &str = "<!-- From here to the end mark: written by `cargo xtask bench peers`. -->";
const END: &str = "<!-- The end mark. -->";
const MEMBERS: [u32; 4] = [3, 16, 256, 1_000];
const LISTS: [(&str, &str); 4] = [
    ("ids of 15 bytes", "Ids of 15 bytes"),
    ("UUIDs as text", "UUIDs as text"),
    ("URLs of 200 bytes", "URLs of 200 bytes"),
    ("words", "236,000 English words"),
];
const OURS: &str = "filter_at";
const HASH: &str = "floor: XXH3 of each key";
/// What is asked with every number of members, and how the page calls it.
const ASKED: [(&str, &str); 12] = [
    (OURS, "`filter_at`"),
    ("filter_indices_at", "`filter_indices_at`"),
    ("owners of three", "`owners(key, 3)`"),
    ("placement uhashring", "placement `uhashring`"),
    ("placement modulo", "placement `modulo`"),
    ("placement hashring", "placement `hashring`"),
    ("hashring", "`hashring`"),
    ("hashring with XXH3", "`hashring` with XXH3"),
    ("anchorhash", "`anchorhash`"),
    ("jumphash", "`jumphash`"),
    ("FNV-1a modulo", "FNV-1a modulo"),
    ("uhashring", "Python's `uhashring`"),
];

/// Webster's second dictionary, of 1934 and out of copyright, one word a line and sorted.
const WRITE_WORDS: &str = "import sys\nfrom english_words import get_english_words_set as words\n\
                           open(sys.argv[1], 'w', encoding='utf-8').write('\\n'.join(sorted(words(['web2']))) + '\\n')";

/// Python with the packages, and the words in a file.
pub(crate) struct PythonPeer {
    python: PathBuf,
    pub(crate) words: PathBuf,
}

/// Fetches the packages, once; of uhashring the version that `crates/core` follows.
pub(crate) fn prepare(log: &StepLog<'_>) -> Result<PythonPeer, TaskFailure> {
    let python = python_with(&["uhashring==2.4", "english-words==2.0.2"])?;
    let words = log.context.scratch("words.txt");
    log.run(log.context.command(&python.to_string_lossy(), &["-c", WRITE_WORDS, &words.to_string_lossy()]))?;
    Ok(PythonPeer { python, words })
}

/// The cost of one key in Python's uhashring.
pub(crate) fn uhashring(log: &StepLog<'_>, beside: &PythonPeer) -> Result<Vec<BenchmarkFigure>, TaskFailure> {
    let arguments = ["-B", "crates/core/benches/uhashring_peer.py", &beside.words.to_string_lossy()];
    // Read here and not from the log, because a benchmark's output goes to the terminal.
    let output = log.context.command(&beside.python.to_string_lossy(), &arguments).stderr(Stdio::inherit()).output();
    let output = output.map_err(TaskFailure::at(beside.python.display()))?;
    let figures: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().filter_map(figure_of).collect();
    let expected = LISTS.len() * MEMBERS.len();
    match figures.len() {
        found if found == expected => Ok(figures),
        found => Err(TaskFailure::new(format!("{found} of {expected} figures of uhashring"))),
    }
}

/// A line of the Python program: list, members, nanoseconds.
fn figure_of(line: &str) -> Option<BenchmarkFigure> {
    let mut parts = line.split('\t');
    let (list, members, nanos) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
    let name = format!("filter/uhashring/{list}, {members} members");
    Some(BenchmarkFigure { name, nanos, low: nanos, high: nanos, fastest: nanos, elements: Some(1.0) })
}

/// Writes the tables between the marks of the page.
pub(crate) fn write(log: &StepLog<'_>, head: &str, figures: &[BenchmarkFigure]) -> Result<(), TaskFailure> {
    let path = log.context.root().join(PAGE);
    let page = between(&files::read(&path)?, &tables(head, figures));
    files::write(&path, &page.ok_or_else(|| TaskFailure::new(format!("{PAGE}: the marks are missing: {BEGIN} and {END}")))?)
}

fn between(page: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{text}\n{END}{after}"))
}

/// Nanoseconds for each key, the fastest sample.
fn each(figures: &[BenchmarkFigure], name: &str) -> Option<f64> {
    let figure = figures.iter().find(|figure| figure.name == name)?;
    Some(figure.fastest / figure.elements?)
}

fn nanos(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn tables(head: &str, figures: &[BenchmarkFigure]) -> String {
    let mut text = format!("{head}\n");
    let line = |name: &str, cell: &dyn Fn(u32) -> Option<String>| {
        let cells = MEMBERS.map(|members| cell(members).unwrap_or_else(|| "–".into()));
        row(std::iter::once(name.to_owned()).chain(cells))
    };
    let columns = "| | 3 members | 16 | 256 | 1,000 |\n|---|---:|---:|---:|---:|\n";
    for (list, title) in LISTS {
        text.extend(["\n### ", title, "\n\n", columns]);
        let cost = |what: &str, members| each(figures, &format!("filter/{what}/{list}, {members} members"));
        for (what, name) in ASKED {
            text += &line(name, &|members| {
                let (value, ours) = (cost(what, members)?, cost(OURS, members)?);
                Some(if what.starts_with("filter") { nanos(value) } else { format!("{} ({}×)", nanos(value), nanos(value / ours)) })
            });
        }
        for floor in [HASH, "floor: one byte of each key"] {
            text += &line(floor, &|members| Some(nanos(cost(floor, members)?)));
        }
        let over = |members| Some(format!("{:.2}", cost(OURS, members)? / cost(HASH, members)?));
        text += &line("`filter_at` over the hash alone", &over);
    }
    text.extend(["\n### A million keys, which no cache holds: over the hash alone\n\n", columns]);
    for (list, title) in &LISTS[..3] {
        for (what, name) in &ASKED[..2] {
            text += &line(&format!("{title}, {name}"), &|members| {
                let cost = |what: &str| each(figures, &format!("a million/{what}/{list}, {members} members"));
                Some(format!("{:.2}", cost(what)? / cost(HASH)?))
            });
        }
    }
    let largest = each(figures, &format!("filter/{OURS}/500000 ids, 300 members"));
    text + &largest.map_or_else(String::new, |cost| format!("\n500,000 ids and 300 members, one worker: {:.2} ms.\n", cost * 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_between_the_marks_is_replaced() {
        let page = format!("above\n{BEGIN}\nold\n{END}\nbelow\n");
        let new = between(&page, "new\n").unwrap_or_default();
        assert_eq!(new, format!("above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"));
        assert_eq!(between("no marks", "new"), None);
    }

    #[test]
    fn a_table_has_the_ratio_to_ours_and_to_the_hash() {
        let figure = |name: &str, nanos: f64| BenchmarkFigure {
            name: name.into(),
            nanos,
            low: nanos,
            high: nanos,
            fastest: nanos,
            elements: Some(10.0),
        };
        let figures = [
            figure("filter/filter_at/words, 16 members", 24.0),
            figure("filter/hashring/words, 16 members", 480.0),
            figure("filter/floor: XXH3 of each key/words, 16 members", 20.0),
        ];
        let text = tables("Some machine.", &figures);
        assert!(text.contains("| `hashring` | – | 48 (20×) | – | – |"), "{text}");
        assert!(text.contains("| `filter_at` over the hash alone | – | 1.20 | – | – |"), "{text}");
        assert_eq!(figure_of("words\t16\t2000.5").and_then(|figure| each(&[figure], "filter/uhashring/words, 16 members")), Some(2_000.5));
    }
}
