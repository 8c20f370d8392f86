//! The Python code for SQLite in `docs/reference/fencing.md` works as described, and the clients have our statements.

use std::path::Path;
use std::process::Command;

use shardwise_fencing::{postgres, sqlite};

use crate::common;

/// Runs after the document's code: an owner, a paused former owner, and the resulting rows.
const THEN: &str = r#"
write = lambda text: lambda db: db.execute("INSERT INTO written VALUES (?)", (text,))
db.execute("CREATE TABLE written (text)")
fenced(db, "billing", 17, 5, write("owner"))
fenced(db, "billing", 17, 6, write("next owner"))
try:
    fenced(db, "billing", 17, 5, write("stale"))
except Fenced as refused:
    print(refused)
fenced(db, "billing", 17, 6, write("next owner"))
print([row[0] for row in db.execute("SELECT text FROM written")])
"#;

#[tokio::test]
async fn python_on_sqlite_refuses_a_stale_writer() {
    let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/fencing.md")).unwrap();
    let blocks = document.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next());
    let code = blocks.into_iter().find(|code| code.contains("import sqlite3")).unwrap();
    let (folder, pool) = common::sqlite().await;
    pool.close().await;
    let program = format!("{}\n{THEN}", code.replace("app.db", "test.db"));
    let python = Command::new("python3").args(["-c", &program]).current_dir(folder.path()).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&python.stdout), String::from_utf8_lossy(&python.stderr));
    assert_eq!(said, "slot 17 is held under a higher epoch than 5\n['owner', 'next owner', 'next owner']\n");
}

/// The statements of progress are in several places: each has them word for word.
#[test]
fn every_language_has_the_same_statements() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let progress = [postgres::RESUME, postgres::SAVE, sqlite::RESUME, sqlite::POSITION, sqlite::SAVE];
    let fences = [postgres::CHECK, sqlite::CHECK];
    for (place, statements) in [
        ("docs/reference/fencing.md", progress.to_vec()),
        ("clients/python/src/shardwise_client/_statements.py", [&progress[..], &fences[..]].concat()),
        ("clients/typescript/src/statements.ts", [&progress[..], &fences[..]].concat()),
    ] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(place)).unwrap();
        for statement in statements {
            assert!(words(&text).contains(&words(statement)), "{place} does not have: {statement}");
        }
    }
}
