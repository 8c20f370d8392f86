//! The key placements `uhashring` and `modulo` beside Python: the real package, installed by its name, is asked for a million keys.
//!
//! `OTHER_FLEETS_SEED=<number>` repeats a run.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests report by panicking")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use shardwise::core::Key;
use shardwise::{InstanceId, KeyOwners, KeyPlacement, ShardKey, Weight};
use shardwise_testkit::python_with;

const KEYS: usize = 1_000_000;
const KEYS_PER_FLEET: usize = 1_000;

/// What text is made of: letters, signs of Python and JSON, combining marks, letters with and without their marks, right to left,
/// emoji with joiners and skin, the first and the last characters of each length in UTF-8, a byte order mark, controls.
const PIECES: [&str; 36] = [
    "a",
    "Z",
    "0",
    "9",
    "-",
    "-0",
    "/",
    " ",
    "\"",
    "\\",
    "'",
    "{",
    "%s",
    "\n",
    "\t",
    "\u{1}",
    "\u{7f}",
    "\u{80}",
    "\u{7ff}",
    "\u{800}",
    "\u{ffff}",
    "\u{10000}",
    "\u{10ffff}",
    "\u{feff}",
    "é",
    "e\u{301}",
    "\u{301}",
    "ß",
    "İ",
    "שלום",
    "日本",
    "🦀",
    "👩🏽\u{200d}🚀",
    "🇪🇺",
    "tenant-",
    "order/",
];

enum Asked {
    Text(String),
    Number(i64),
}

impl ShardKey for Asked {
    fn with_key<R>(&self, read: impl FnOnce(Key<'_>) -> R) -> R {
        match self {
            Self::Text(text) => text.with_key(read),
            Self::Number(number) => number.with_key(read),
        }
    }
}

fn text(random: &mut StdRng) -> String {
    match random.random_range(0..100) {
        0 => String::new(),
        1 => "x".repeat(random.random_range(50..5_000)),
        2..40 => format!("tenant-{}", random.random::<u32>()),
        _ => (0..random.random_range(1..12)).map(|_| PIECES[random.random_range(0..PIECES.len())]).collect(),
    }
}

fn fleet(random: &mut StdRng) -> Vec<(InstanceId, Weight)> {
    let weighted = random.random_bool(0.7);
    let size = if random.random_bool(0.1) { random.random_range(20..120) } else { random.random_range(1..12) };
    let mut fleet = BTreeMap::new();
    while fleet.len() < size {
        let id = if random.random_bool(0.5) { format!("worker-{}", random.random_range(0..1_000)) } else { text(random) };
        if let Ok(id) = InstanceId::new(id) {
            let heavy = weighted && random.random_bool(0.02);
            let weight = if heavy { random.random_range(1..=100) } else { random.random_range(1..=if weighted { 4 } else { 1 }) };
            fleet.insert(id, Weight::new(weight).unwrap());
        }
    }
    fleet.into_iter().collect()
}

struct Python {
    child: Child,
    questions: BufWriter<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Python {
    fn start() -> Self {
        let python = python_with(&["uhashring==2.4"]).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/other_fleets.py");
        let mut child = Command::new(python).args(["-B", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (questions, answers) = (BufWriter::new(child.stdin.take().unwrap()), BufReader::new(child.stdout.take().unwrap()));
        Self { child, questions, answers }
    }

    /// The positions of the owners of `keys`: by uhashring, by modulo.
    fn ask(&mut self, members: &[(InstanceId, Weight)], keys: &[Asked]) -> [Vec<usize>; 2] {
        let members: Vec<_> = members.iter().map(|(id, weight)| json!([id, weight])).collect();
        let keys: Vec<Value> = keys
            .iter()
            .map(|key| match key {
                Asked::Text(text) => json!(text),
                Asked::Number(number) => json!(number),
            })
            .collect();
        writeln!(self.questions, "{}", json!({"members": members, "keys": keys})).unwrap();
        self.questions.flush().unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("Python did not answer ({error}): {line:?}; its words are above"))
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // One that has ended needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_million_keys_have_the_owners_that_python_says() {
    let seed = std::env::var("OTHER_FLEETS_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("OTHER_FLEETS_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut python = Python::start();
    let mut asked = 0;
    while asked < KEYS {
        let members = fleet(&mut random);
        let keys: Vec<Asked> = (0..KEYS_PER_FLEET)
            .map(|_| if random.random_bool(0.1) { Asked::Number(random.random()) } else { Asked::Text(text(&mut random)) })
            .collect();
        let said = python.ask(&members, &keys);
        for (placement, said) in [KeyPlacement::Uhashring, KeyPlacement::Modulo].into_iter().zip(said) {
            let owners = KeyOwners::place(members.iter().cloned(), placement, 1).unwrap();
            assert_eq!(said.len(), keys.len());
            for (key, position) in keys.iter().zip(said) {
                let reported = key.with_key(|key| key.with_text(|text| String::from_utf8_lossy(text).into_owned()));
                assert_eq!(owners.owner(key), Some(&members[position].0), "{placement} of {reported:?} among {members:?}, seed {seed}");
            }
        }
        asked += keys.len();
    }
}
