//! What the benchmark `peers` needs beside Criterion, a list of words and Python's uhashring, and its tables in
//! `docs/internals/performance.md`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Stdio;

use crate::measured::BenchmarkFigure;
use crate::run::{StepLog, TaskFailure};
use crate::vectors;

/// The benchmark that this is about.
pub(crate) const NAME: &str = "peers";
/// The variable that names the word list for the benchmark.
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
const FLOORS: [(&str, &str); 2] = [(HASH, "floor: XXH3 of each key"), ("floor: one byte of each key", "floor: one byte of each key")];

/// Webster's second dictionary, of 1934 and out of copyright, one word a line and sorted.
const WRITE_WORDS: &str = "import sys\nfrom english_words import get_english_words_set as words\n\
                           open(sys.argv[1], 'w', encoding='utf-8').write('\\n'.join(sorted(words(['web2']))) + '\\n')";

/// Python with the packages, and the words in a file.
pub(crate) struct PythonPeer {
    python: PathBuf,
    pub(crate) words: PathBuf,
}

/// Fetches the packages by their names and versions, once; of uhashring the version that `crates/core` follows. The folder names both
/// versions, so that others are not taken for them.
pub(crate) fn prepare(log: &StepLog<'_>) -> Result<PythonPeer, TaskFailure> {
    let packages = [("uhashring==2.4", "uhashring"), ("english-words==2.0.2", "english_words")];
    let python = vectors::environment(log, "venv-peers-2.4-2.0.2", &packages)?;
    let words = log.context.scratch("words.txt");
    log.run(log.context.command(&python.to_string_lossy(), &["-c", WRITE_WORDS, &words.to_string_lossy()]))?;
    Ok(PythonPeer { python, words })
}

/// The cost of one key in Python's uhashring.
pub(crate) fn uhashring(log: &StepLog<'_>, beside: &PythonPeer) -> Result<Vec<BenchmarkFigure>, TaskFailure> {
    let arguments = ["-B", "crates/core/benches/uhashring_peer.py", &beside.words.to_string_lossy()];
    // Read here and not from the log, because a benchmark's output goes to the terminal.
    let output = log.context.command(&beside.python.to_string_lossy(), &arguments).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| TaskFailure::new(format!("{}: {e}", beside.python.display())))?;
    let figures: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().filter_map(figure_of).collect();
    let expected = LISTS.len() * MEMBERS.len();
    if figures.len() == expected {
        Ok(figures)
    } else {
        Err(TaskFailure::new(format!("{} of {expected} figures of uhashring", figures.len())))
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
    let failed = |e: std::io::Error| TaskFailure::new(format!("{}: {e}", path.display()));
    let page = std::fs::read_to_string(&path).map_err(failed)?;
    let tables = tables(head, figures);
    let page = between(&page, &tables).ok_or_else(|| TaskFailure::new(format!("{PAGE}: the marks are missing: {BEGIN} and {END}")))?;
    std::fs::write(&path, page).map_err(failed)
}

/// The page with other text between its marks.
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

/// Writing to a String cannot fail, so what `writeln!` answers is let go.
fn tables(head: &str, figures: &[BenchmarkFigure]) -> String {
    let mut text = format!("{head}\n");
    let row = |text: &mut String, name: &str, cell: &dyn Fn(u32) -> Option<String>| {
        let cells: Vec<_> = MEMBERS.iter().map(|members| cell(*members).unwrap_or_else(|| "–".into())).collect();
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    };
    let columns = "| | 3 members | 16 | 256 | 1,000 |\n|---|---:|---:|---:|---:|\n";
    for (list, title) in LISTS {
        let _ = write!(text, "\n### {title}\n\n{columns}");
        let cost = |what: &str, members| each(figures, &format!("filter/{what}/{list}, {members} members"));
        for (what, name) in ASKED {
            let cell = |members| {
                let (value, ours) = (cost(what, members)?, cost(OURS, members)?);
                Some(if what.starts_with("filter") { nanos(value) } else { format!("{} ({}×)", nanos(value), nanos(value / ours)) })
            };
            row(&mut text, name, &cell);
        }
        for (what, name) in FLOORS {
            row(&mut text, name, &|members| Some(nanos(cost(what, members)?)));
        }
        let over = |members| Some(format!("{:.2}", cost(OURS, members)? / cost(HASH, members)?));
        row(&mut text, "`filter_at` over the hash alone", &over);
    }
    let _ = write!(text, "\n### A million keys, which no cache holds: over the hash alone\n\n{columns}");
    for (list, title) in &LISTS[..3] {
        for (what, name) in &ASKED[..2] {
            let over = |members: u32| {
                let cost = |what: &str| each(figures, &format!("a million/{what}/{list}, {members} members"));
                Some(format!("{:.2}", cost(what)? / cost(HASH)?))
            };
            row(&mut text, &format!("{title}, {name}"), &over);
        }
    }
    if let Some(cost) = each(figures, &format!("filter/{OURS}/500000 ids, 300 members")) {
        let _ = writeln!(text, "\n500,000 ids and 300 members, one worker: {:.2} ms.", cost * 0.5);
    }
    text
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
