//! The keys of a backend: their origins, and that secrets are not shown.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use shardwise_discovery::settings::FileTwin;
use shardwise_settings::{Reader, SchemaNode, Sources};

use super::*;

const KIND: BackendKind = BackendKind {
    name: "post",
    keys: &[
        BackendKey::new("address", BackendShape::Text, "where it is").or("http://here").or_variable("POST_ADDR"),
        BackendKey::new("boxes", BackendShape::Texts, "which ones").or("a,b"),
        BackendKey::new("tls", BackendShape::Flag, "whether").or_variable("POST_SSL"),
        BackendKey::new("ca_file", BackendShape::Path, "whom to trust"),
        BackendKey::new("token", BackendShape::Secret, "who we are").or_variable("POST_TOKEN").or_file(FileTwin {
            name: "token_file",
            variable: Some("POST_TOKEN_FILE"),
            why: "the file with the token",
        }),
    ],
    claims_share: 1,
    open: |_, _| unreachable!("no test opens it"),
    init: None,
};

/// Settings for a policy `p` and for all, in `[default]` and in `[production]`, which is in force.
#[derive(Default)]
struct Written {
    sections: BTreeMap<&'static str, String>,
    variables: BTreeMap<String, OsString>,
}

impl Written {
    /// Adds a line of TOML.
    fn with(mut self, key: &str, value: &str, section: &'static str) -> Self {
        let line = format!("{} = {value}\n", key.replace("own.", "own.p."));
        self.sections.entry(section).or_default().push_str(&line);
        self
    }

    fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// The settings, and everything that is displayed of them.
    fn read(self) -> (Result<BackendSettings, String>, String) {
        let post = || vec![SchemaNode::table("post", KIND.keys.iter().flat_map(keys_of).map(SchemaNode::Leaf).collect())];
        let root = [SchemaNode::table("common", post()), SchemaNode::Named { name: "own", each: post(), is_open: false }];
        let section = |name: &str| format!("[{name}]\n{}", self.sections.get(name).map_or("", String::as_str));
        let text = format!("{}{}", section("default"), section("production"));
        let sources =
            Sources { name: "s.toml", text: &text, environment: Some("production"), variables: &self.variables, base: Path::new("") };
        let reader = Reader::new(&sources, &root).unwrap();
        let read = read(&reader.table("own.p").inheriting("common"), &KIND).map_err(|error| error.to_string());
        let shown = reader.into_in_force().iter().map(|s| format!("{}={} ({})", s.key, s.value, s.origin)).collect::<Vec<_>>().join("\n");
        (read, shown.replace("own.p.", "own."))
    }
}

fn nothing() -> Written {
    Written::default()
}

/// A text in TOML syntax.
fn text(text: &str) -> String {
    format!("{text:?}")
}

fn file_with(secret: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, secret).unwrap();
    (folder, path.display().to_string())
}

fn secret_in(settings: &BackendSettings) -> &str {
    use secrecy::ExposeSecret;
    settings.secret("token").unwrap().expose_secret()
}

#[test]
fn defaults_hold_where_nothing_is_written() {
    let (settings, shown) = nothing().read();
    assert_eq!(settings.unwrap(), defaults(&KIND));
    assert_eq!(shown, "own.post.address=http://here (default)\nown.post.boxes=a,b (default)");
}

#[test]
fn other_tools_variables_go_before_defaults_and_behind_what_is_written() {
    let (settings, shown) = nothing().with_variable("POST_ADDR", "http://there").with_variable("POST_SSL", "1").read();
    let settings = settings.unwrap();
    assert_eq!((settings.text("address"), settings.flag("tls")), (Some("http://there"), true));
    assert!(shown.contains("own.post.address=http://there (environment variable POST_ADDR)"), "{shown}");
    let (settings, _) = nothing().with_variable("POST_ADDR", "no").with("common.post.address", &text("yes"), "default").read();
    assert_eq!(settings.unwrap().text("address"), Some("yes"));
}

#[test]
fn lists_are_lists_in_the_file() {
    let list = |value: &str| nothing().with("own.post.boxes", value, "default").read().0;
    assert_eq!(list("[\"x\", \"y\"]").unwrap().texts("boxes"), ["x", "y"]);
    let refused = list(&text("x,y")).unwrap_err();
    assert_eq!(refused, "s.toml line 2: own.p.post.boxes is \"x,y\": write a list of texts, such as [\"a\", \"b\"]");
    assert!(list("[]").unwrap_err().ends_with("at least one is needed, and none may be empty"));
}

#[test]
fn a_secret_is_never_shown() {
    let (settings, shown) = nothing().with("own.post.token", &text("hush-hush"), "default").read();
    assert_eq!(secret_in(&settings.unwrap()), "hush-hush");
    assert!(shown.contains("own.post.token=***") && !shown.contains("hush"), "{shown}");
    for wrong in [&*text("hush\nhush"), "4711", "[\"hush\"]"] {
        let refused = nothing().with("own.post.token", wrong, "default").read().0.unwrap_err();
        assert!(refused.starts_with("s.toml line 2: own.p.post.token is ***: "), "{refused}");
        assert!(!refused.contains("hush") && !refused.contains("4711"), "{refused}");
    }
}

#[test]
fn an_address_is_shown_without_its_password() {
    let (settings, shown) = nothing().with("own.post.address", &text("http://u:hush@h"), "default").read();
    assert_eq!(settings.unwrap().text("address"), Some("http://u:hush@h"));
    assert!(shown.contains("own.post.address=http://***@h ") && !shown.contains("hush"), "{shown}");
}

#[test]
fn a_secret_comes_from_a_file_without_its_last_newline() {
    let (_folder, path) = file_with("hush hush\n");
    let (settings, shown) = nothing().with("own.post.token_file", &text(&path), "default").read();
    assert_eq!(secret_in(&settings.unwrap()), "hush hush");
    assert!(shown.contains(&format!("own.post.token_file={path} ")) && !shown.contains("hush"), "{shown}");
    let (settings, _) = nothing().with_variable("POST_TOKEN_FILE", &path).read();
    assert_eq!(secret_in(&settings.unwrap()), "hush hush");
    for (bad, why) in [("hush\n\n", "no line breaks"), ("", "leave the key out")] {
        let (_folder, path) = file_with(bad);
        let refused = nothing().with("own.post.token_file", &text(&path), "default").read().0.unwrap_err();
        assert!(refused.contains(why) && refused.contains("post.token_file") && !refused.contains("hush"), "{refused}");
    }
    let refused = nothing().with("own.post.token_file", &text("/no/such/file"), "default").read().0.unwrap_err();
    assert!(refused.contains("own.p.post.token_file is \"/no/such/file\": the file cannot be read: "), "{refused}");
}

#[test]
fn of_secret_and_file_the_nearer_one_counts_and_of_equals_none() {
    let (_folder, path) = file_with("from file");
    let both = |key: &str, section: &'static str, key_of_file: &str, section_of_file: &'static str| {
        let written = nothing().with(key, &text("written"), section);
        written.with(key_of_file, &text(&path), section_of_file).read().0.map(|settings| secret_in(&settings).to_owned())
    };
    assert_eq!(both("own.post.token", "default", "common.post.token_file", "production").unwrap(), "written");
    assert_eq!(both("common.post.token", "default", "own.post.token_file", "default").unwrap(), "from file");
    assert_eq!(both("common.post.token", "default", "common.post.token_file", "production").unwrap(), "from file");
    let refused = both("own.post.token", "default", "own.post.token_file", "default").unwrap_err();
    assert!(refused.ends_with("token is written too; remove one of them"), "{refused}");
}
