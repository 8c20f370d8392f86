//! A third party's backend with settings keys of its own: read, checked, explained and masked like those of the built-in ones.

use std::sync::{Arc, Mutex};

use secrecy::ExposeSecret;
use shardwise::discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape, FileTwin};
use shardwise::discovery::{Clock, Discovery, Error, ErrorKind, MemoryBackend};
use shardwise::settings::LoadOptions;
use shardwise::{Settings, ShardingFactory, add_backend};

/// What the backend was opened with.
static OPENED: Mutex<Vec<BackendSettings>> = Mutex::new(Vec::new());

static BOARD: BackendKind = BackendKind { name: "board", keys: KEYS, claims_share: 1, open, init: None };

const KEYS: &[BackendKey] = &[
    BackendKey::new("address", BackendShape::Text, "where the board is").or("board://here").or_variable("BOARD_ADDRESS"),
    BackendKey::new("mirrors", BackendShape::Texts, "where its mirrors are"),
    BackendKey::new("is_quick", BackendShape::Flag, "whether it hurries"),
    BackendKey::new("token", BackendShape::Secret, "who may write").or_file(FileTwin {
        name: "token_file",
        variable: None,
        why: "a file with who may write, instead of token",
    }),
];

fn open(settings: &BackendSettings, clock: &Clock) -> shardwise::discovery::Result<Arc<dyn Discovery>> {
    if settings.text("address").is_none_or(|address| !address.starts_with("board://")) {
        return Err(Error::new(ErrorKind::Misconfigured, "open", "discovery.board.address must begin with board://"));
    }
    OPENED.lock().unwrap().push(settings.clone());
    Ok(Arc::new(MemoryBackend::new(clock.clone())))
}

fn load(lines: &str) -> shardwise::Result<Settings> {
    add_backend(&BOARD)?;
    let text = format!(
        "[default.resilience.sharding.policies.workers]\ngroup_name = \"g\"\n\
         [default.resilience.sharding.discovery]\nbackend = \"board\"\n[default.resilience.sharding.discovery.board]\n{lines}"
    );
    Settings::load(&LoadOptions::default().with_variables([] as [(&str, &str); 0]).with_text(text))
}

#[tokio::test]
async fn its_keys_are_read_and_arrive_at_it() {
    let settings = load("mirrors = [\"a\", \"b\"]\nis_quick = true\ntoken = \"hush\"").unwrap();
    let shown: Vec<_> = settings.in_force().iter().map(|setting| format!("{} = {}", setting.key, setting.value)).collect();
    assert!(shown.iter().any(|line| line.ends_with("discovery.board.address = board://here")), "{shown:?}");
    assert!(shown.iter().any(|line| line.ends_with("discovery.board.token = ***")), "{shown:?}");
    assert!(!format!("{settings:?}").contains("hush"));
    let sharding = ShardingFactory::from_settings(settings).unwrap().create("workers").unwrap();
    sharding.register_self().await.unwrap();
    assert!(sharding.owns("any key"), "alone in its group");
    sharding.deregister_self().await.unwrap();
    let opened = OPENED.lock().unwrap().last().cloned().expect("it was opened");
    assert_eq!((opened.text("address"), opened.flag("is_quick")), (Some("board://here"), true));
    assert_eq!(opened.texts("mirrors"), ["a", "b"]);
    assert_eq!(opened.secret("token").unwrap().expose_secret(), "hush");
}

#[test]
fn mistakes_are_answered_like_those_in_our_own_keys() {
    for (lines, expected) in [
        ("adress = \"board://x\"", "address"),
        ("is_quick = \"maybe\"", "is_quick"),
        ("token = \"a\"\ntoken_file = \"b\"", "token is written too"),
        ("mirrors = 7", "mirrors"),
    ] {
        let said = load(lines).expect_err(lines).to_string();
        assert!(said.contains("settings line ") && said.contains(expected) && !said.contains('\n'), "{said}");
    }
    let factory = ShardingFactory::from_settings(load("address = \"http://x\"").unwrap()).unwrap();
    let said = factory.create("workers").expect_err("a wrong address").to_string();
    assert!(said.contains("discovery.board.address must begin with board://"), "{said}");
}

#[test]
fn a_backend_that_does_not_fit_is_refused() {
    static TWICE: &[BackendKey] = &[BackendKey::new("a", BackendShape::Text, "one"), BackendKey::new("a", BackendShape::Text, "two")];
    static ODD: &[BackendKey] = &[BackendKey::new("a.b", BackendShape::Text, "one")];
    add_backend(&BOARD).unwrap();
    add_backend(&BOARD).expect("again is no error");
    for (kind, expected) in [
        (BackendKind { name: "local", ..BOARD }, "the name is taken"),
        (BackendKind { name: "ttl", ..BOARD }, "the name is taken"),
        (BackendKind { name: "Board 2", ..BOARD }, "\"Board 2\" is not a name"),
        (BackendKind { keys: TWICE, ..BOARD }, "it has the key a twice"),
        (BackendKind { keys: ODD, ..BOARD }, "\"a.b\" is not a name"),
        (BackendKind { keys: &[], ..BOARD }, "another backend of this name was added"),
    ] {
        let said = add_backend(Box::leak(Box::new(kind))).expect_err(expected).to_string();
        assert!(said.contains(expected), "{said}");
    }
}
