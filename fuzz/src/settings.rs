//! Settings: a file's text, and variables over it. Each error is one line that names something.

use shardwise::settings::LoadOptions;
use shardwise_outbox::settings::LoadedSettings;

pub(crate) const SETTINGS: &[&[u8]] = &[
    SMALL.as_bytes(),
    include_bytes!("../../settings.toml"),
    b"[default.resilience.sharding.policies.p]\ngroup_name = \"g\"\nslots = 0",
    b"[default.resilience.sharding.policies.p]\ngroup_name = \"g\"\nslots = 65537\nvirtual_nodes = 65536\nload_margin = \"none\"",
    b"[default.resilience.sharding.policies.p]\ngroup_name = \"g\"\nload_margin = 10.0005",
    b"[default.resilience.sharding.policies.p]\ngroup_name = \"g\"\n[default.resilience.sharding.policies.p.next]\nslots = 1024",
    b"[default.resilience.sharding.policies.p]\ngroup_name = \"g\"\nplacement = \"uhashring\"\n[default.resilience.sharding.policies.p.next]\n\
      placement = \"ring\"\nslots = 64",
    b"[default.resilience.sharding.policies.p]\ngroup_name = \"g\"\nownership = \"exclusive\"\nepoch_floor = 7\nmin_members = 2\n\
      on_drain_timeout = \"release\"\n[default.resilience.sharding.policies.p.next]\nvirtual_nodes = 16",
    b"[default.resilience.sharding.policies.p]\ngroup_name = \"g\"\non_backend_loss = \"keep\"\nkeep_for = \"1h\"\nmax_loss = \"50%\"",
    b"[default.resilience.sharding.instance]\nweight = 101\n",
    b"[default.resilience.sharding.discovery]\nttl = \"1ms\"\nbackend = 5",
    b"default = 1",
    b"[default]\nresilience = []",
    b"[[default.resilience.sharding.policies]]\n[default.outbox.o]\npolicy = \"p\"\nstore = \"x\"\nsink = \"y\"",
];

pub(crate) const VARIABLES: &[&[u8]] = &[
    b"SHARDWISE__RESILIENCE__SHARDING__POLICIES__P__SLOTS=4096",
    b"SHARDWISE__RESILIENCE__SHARDING__INSTANCE__METADATA__TEAM=a,b",
    b"SHARDWISE__RESILIENCE__SHARDING__POLICIES__P__NEXT__LOAD_MARGIN=none\nSHARDWISE_ENV=production",
    b"SHARDWISE__=x\nSHARDWISE____=\nSHARDWISE__RESILIENCE=1",
    b"SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__CONSUL__ADDRESS=\nCONSUL_HTTP_ADDR=unix:///x",
];

const SMALL: &str = r#"
[default.resilience.sharding.policies.p]
group_name = "g"
slots = 64
virtual_nodes = 16
load_margin = 0.05

[production.resilience.sharding.policies.p]
slots = 128
"#;

/// The outcome of reading settings: valid ones are valid in every part, an error is one line.
fn check(options: &LoadOptions) {
    match LoadedSettings::load(options) {
        Ok(loaded) => {
            for (name, of) in &loaded.settings.policies {
                assert_eq!(of.policy.name, *name);
                // What one change of the settings would make of it is as valid as what they say now.
                let mut changed = of.policy.clone();
                let next = changed.next.take();
                changed.placement = next.unwrap_or(changed.placement);
                for policy in [of.policy.clone(), changed] {
                    assert_eq!(policy.clone().validated().err(), None, "{policy:?}");
                    assert_eq!(policy.placement.validated(), Ok(policy.placement));
                }
            }
        }
        Err(error) => {
            let line = error.to_string();
            assert!(!line.trim().is_empty() && !line.contains('\n'), "{line:?}");
        }
    }
}

pub(crate) fn settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    check(&LoadOptions::default().with_text(text));
}

/// Lines of `NAME=value` over a small file.
pub(crate) fn variables(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    check(&LoadOptions::default().with_text(SMALL).with_variables(pairs));
}
