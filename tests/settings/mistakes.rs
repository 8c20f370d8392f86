//! Each mistake, and the one line that answers it.

use shardwise::{OwnershipMode, VersionRule};

use super::*;

#[test]
fn not_toml() {
    assert!(refused("[default]\nslots = = 3").starts_with("settings line 2: this is not TOML: "));
    assert!(refused("[default]\n[default]").starts_with("settings line 2: this is not TOML: "));
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one() {
    assert_eq!(refused_policy_line("slot = 5"), "slot is not a setting: did you mean slots?");
    assert_eq!(refused_policy_line("group = \"g\""), "group is not a setting: did you mean group_name?");
    assert_eq!(refused_policy_line("ttl = \"5s\""), "ttl is not a setting: did you mean discovery.ttl?");
    assert_eq!(refused_policy_line("zone = \"x\""), "zone is not a setting: it belongs in resilience.sharding.instance.zone");
    assert_eq!(
        refused("[default.resilience.sharding]\nxyz = 1"),
        "settings line 2: resilience.sharding.xyz is not a setting: known here: enabled, instance, discovery, policies"
    );
    let spaced = refused("[default.resilience.sharding.instance]\n\"my\\nkey\" = 1");
    assert!(spaced.starts_with("settings line 2: resilience.sharding.instance.\"my\\nkey\" is not a setting: "), "{spaced}");
}

#[test]
fn a_slip_in_a_section_that_is_not_in_force_is_found_too() {
    let text = format!("{WORKERS}[production.resilience.sharding.policies.workers]\nslot = 5");
    assert_eq!(refused(&text), "settings line 4: resilience.sharding.policies.workers.slot is not a setting: did you mean slots?");
}

#[test]
fn settings_outside_a_section_would_never_be_read() {
    assert_eq!(
        refused("[resilience.sharding]\nenabled = true"),
        "settings line 1: resilience.sharding stands outside a section: write [default.resilience.sharding…]"
    );
    assert_eq!(refused("\n[outbox.o]"), "settings line 2: outbox stands outside a section: write [default.outbox…]");
}

#[test]
fn a_next_that_changes_nothing_or_cannot_be_is_refused() {
    let same = "next.virtual_nodes is 1024: next changes nothing; set the keys that change, or remove it";
    assert_eq!(refused_policy_line("next.virtual_nodes = 1024\nnext.load_margin = 0.050"), same);
    let empty = "next is empty: next changes nothing; set the keys that change, or remove it";
    assert_eq!(refused_policy_line("next = {}"), empty);
    let table = "[default.resilience.sharding.policies.workers.next]";
    assert_eq!(refused_policy_line(table), empty);
    assert!(with(&format!("{WORKERS}{table}"), &["~POLICIES__WORKERS__NEXT__SLOTS=64"]).is_ok(), "a variable may fill it");
    assert_eq!(refused_policy_line("next = 3"), "next is 3: a table of settings is expected here");
    assert_eq!(refused_policy_line("next.slots = 0"), "next.slots is 0: a whole number from 1 to 65536 is allowed");
    assert_eq!(refused_policy_line("next.slot = 5"), "next.slot is not a setting: did you mean slots?");
    assert!(refused_policy_line("next.min_members = 5").starts_with("next.min_members is not a setting: "));
}

#[test]
fn the_slots_of_an_outbox_cannot_change_while_publishers_run() {
    let with = |next: &str| {
        format!(
            "[default.resilience.sharding.policies.workers]\ngroup_name = \"g\"\nnext = {{ {next} }}\n\
             [default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:o.db\"\nsink = \"stdout\""
        )
    };
    assert_eq!(
        refused(&with("slots = 2048")),
        "settings line 3: resilience.sharding.policies.workers.next.slots is 2048: an outbox uses this policy and fences each slot in its \
         database, so slots cannot change while publishers run; remove this, stop all publishers, change the policy's own slots, start them \
         again"
    );
    let settings = Settings::from_toml_str(&with("slots = 1024, virtual_nodes = 2048")).unwrap();
    let next = settings.policy("workers").unwrap().policy.next.unwrap();
    assert_eq!((next.slots, next.virtual_nodes), (1_024, 2_048), "how slots are placed may");
}

#[test]
fn a_width_is_1_to_4_and_only_slots_under_eventual_ownership_are_spread() {
    for width in ["0", "5"] {
        assert_eq!(
            refused_policy_line(&format!("max_width = {width}")),
            format!("max_width is {width}: a whole number from 1 to 4 is allowed")
        );
    }
    let exclusive = refused_policy_line("max_width = 2\nownership = \"exclusive\"");
    assert_eq!(exclusive, "max_width is 2: with ownership = \"exclusive\" only the holder of a slot serves its keys: remove it");
    assert_eq!(refused_policy_line("requests_at_once = 0"), "requests_at_once is 0: a whole number from 1 to 65536 is allowed");
    let settings = read(&format!("{WORKERS}max_width = 3\nsaturated_at = 4\nrequests_waiting = 7"));
    let requests = settings.policy("workers").unwrap().requests;
    assert_eq!((requests.max_width.get(), requests.saturated_at, requests.at_once, requests.waiting), (3, 4, 64, 7));
}

#[test]
fn what_goes_with_one_kind_of_ownership_alone() {
    let lines = [
        ("on_drain_timeout = \"hold\"", "on_drain_timeout is \"hold\""),
        ("epoch_floor = 7", "epoch_floor is 7"),
        ("version_rule = \"newest\"", "version_rule is \"newest\""),
    ];
    for (line, value) in lines {
        assert_eq!(refused_policy_line(line), format!("{value}: it is about claims: write ownership = \"exclusive\" too, or remove it"));
    }
    let exclusive = |line: &str| refused_policy_line(&format!("{line}\nownership = \"exclusive\""));
    assert_eq!(exclusive("on_drain_timeout = \"wait\""), "on_drain_timeout is \"wait\": write \"hold\" or \"release\"");
    assert_eq!(exclusive("version_rule = \"oldest\""), "version_rule is \"oldest\": write \"none\" or \"newest\"");
    let said = exclusive("version_rule = \"newest\"\nplacement = \"modulo\"");
    assert!(said.contains("write placement = \"ring\" or ownership = \"eventual\""), "{said}");
    for number in ["-1", "1.5", "4503599627370497", "\"1\""] {
        let said = exclusive(&format!("epoch_floor = {number}"));
        assert!(said.starts_with(&format!("epoch_floor is {number}: a whole number from 0 to 4503599627370496 is allowed")), "{said}");
    }
    assert!(exclusive("on_backend_loss = \"keep\"").contains("a claim ends with the lease"), "{}", exclusive("on_backend_loss = \"keep\""));
    let said = exclusive("next = { slots = 64 }");
    assert!(said.contains("claims are on slots, so their number cannot change while members run: keep 1024"), "{said}");
    let settings = "[default.resilience.sharding.policies.workers]\ngroup_name = \"g\"\nownership = \"exclusive\"\non_drain_timeout = \"release\"\n\
                    epoch_floor = 4503599627370496\nversion_rule = \"newest\"\nnext = { virtual_nodes = 64 }";
    let policy = Settings::from_toml_str(settings).unwrap().policy("workers").unwrap().policy.clone();
    assert_eq!((policy.ownership, policy.placement.slots, policy.epoch_floor), (OwnershipMode::Exclusive, 1_024, 1 << 52));
    assert_eq!(policy.next.map(|next| (next.slots, next.virtual_nodes)), Some((1_024, 64)));
    assert_eq!(policy.version_rule, VersionRule::Newest);
}

/// A file with that text in the folder, as a line of settings.
fn token_line(folder: &Path, key: &str, text: &str) -> String {
    let file = folder.join(format!("token-{}", text.len()));
    std::fs::write(&file, text).unwrap();
    format!("{key} = '{}'", file.display())
}

#[test]
fn requests_and_messages_stay_on_this_machine_unless_networks_are_named_and_members_prove_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let with_token = |text: &str| token_line(folder.path(), "peer_token_file", text);
    for (line, said) in [
        ("peer_networks = [\"10.0.0.7/8\"]".to_owned(), "peer_networks is [\"10.0.0.7/8\"]: the address has bits behind"),
        ("peer_networks = [\"10.0.0.0\"]".to_owned(), "write networks as \"10.0.0.0/8\""),
        ("peer_networks = []".to_owned(), "peer_networks is []"),
        ("peer_listen = \"localhost:7500\"".to_owned(), "peer_listen is \"localhost:7500\": write an IP address and a port"),
        ("peer_listen = \"0.0.0.0:7500\"".to_owned(), "peer_listen is \"0.0.0.0:7500\": others than this machine's programs"),
        ("peer_token_file = \"nowhere\"".to_owned(), "peer_token_file is \"nowhere\": the file cannot be read"),
        (with_token(""), "a secret that is empty is none"),
        (with_token("hush-too-short"), "a token is 16 to 1024 bytes"),
        (with_token("hush with blanks in it"), "a token is 16 to 1024 bytes"),
        (with_token(&"x".repeat(1_025)), "a token is 16 to 1024 bytes"),
        (format!("peer_listen = \"10.0.0.7:7500\"\n{}", with_token("hush-hush-hush-hush\n")), "it is in none of peer_networks"),
    ] {
        let refused = refused_policy_line(&line);
        assert!(refused.contains(said) && !refused.contains("hush"), "{refused}");
    }
    let lines = format!("{WORKERS}peer_networks = [\"10.0.0.0/8\", \"fd00::/8\"]\n{}", with_token("hush-hush-hush-hush\n"));
    let settings = read(&lines);
    let peers = &settings.policy("workers").unwrap().peers;
    assert_eq!(peers.networks.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.0/8", "fd00::/8"]);
    assert!(peers.token.is_some() && peers.listen.ip().is_loopback() && !format!("{settings:?}").contains("hush"));
    let settings = read(&format!("{lines}\npeer_listen = \"10.0.0.7:7500\""));
    assert_eq!(settings.policy("workers").unwrap().peers.listen.to_string(), "10.0.0.7:7500");
    // Other members could not know that address.
    let everywhere = format!("discovery.backend = \"memory\"\npeer_listen = \"0.0.0.0:7500\"\n{}", with_token("hush-hush-hush-hush\n"));
    let settings = read(&format!("{WORKERS}{everywhere}"));
    let nowhere = message(shardwise::ShardingFactory::from_settings(settings.clone()).unwrap().create("workers").map(|_| settings));
    assert!(nowhere.contains("set instance.address and instance.port"), "{nowhere}");
    let found = format!("{WORKERS}{everywhere}\n[default.resilience.sharding.instance]\naddress = \"auto\"\nport = 80\n");
    let service = shardwise::ShardingFactory::from_settings(read(&found)).unwrap().create("workers").unwrap();
    let shown = service.requests_arrive_at(([0, 0, 0, 0], 7500).into(), false).unwrap();
    assert_eq!(shown, "tcp://127.0.0.1:7500", "the backend is in this process");
    for name in ["channel", "requests", "messages"] {
        let own = refused(&format!("[default.resilience.sharding.instance]\nmetadata.\"shardwise.{name}\" = \"x\""));
        assert!(own.contains("shardwise itself writes this name"), "{own}");
    }
}

/// From the time when messages to singletons had an address and a token of their own.
#[test]
fn earlier_names_of_settings_count_and_not_beside_the_present_ones() {
    let folder = tempfile::tempdir().unwrap();
    let with_token = |key: &str| token_line(folder.path(), key, "hush-hush-hush-hush\n");
    let settings = read(&format!("{WORKERS}messages_listen = \"127.0.0.1:7400\"\n{}", with_token("messages_token_file")));
    let peers = &settings.policy("workers").unwrap().peers;
    assert_eq!((peers.listen.to_string().as_str(), peers.token.is_some()), ("127.0.0.1:7400", true));
    assert!(!format!("{settings:?}").contains("hush"));
    for (lines, said) in [
        ("messages_listen = \"localhost:7400\"".to_owned(), "messages_listen is \"localhost:7400\": write an IP address and a port"),
        ("messages_listen = \"0.0.0.0:7400\"".to_owned(), "messages_listen is \"0.0.0.0:7400\": others than this machine's programs"),
        ("messages_token_file = \"nowhere\"".to_owned(), "messages_token_file is \"nowhere\": the file cannot be read"),
        (
            "messages_listen = \"127.0.0.1:7400\"\npeer_listen = \"127.0.0.1:7500\"".to_owned(),
            "messages_listen is \"127.0.0.1:7400\": peer_listen is set too",
        ),
        (format!("{}\n{}", with_token("messages_token_file"), with_token("peer_token_file")), "peer_token_file is set too"),
    ] {
        let refused = refused_policy_line(&lines);
        assert!(refused.contains(said) && !refused.contains("hush"), "{refused}");
    }
}

#[test]
fn certificates_of_members_go_together() {
    for (lines, said) in [
        ("peer_cert_file = \"own.pem\"", "write peer_key_file too"),
        ("peer_key_file = \"own-key.pem\"", "write peer_cert_file too"),
        ("peer_name = \"members.example\"", "write peer_ca_file too"),
        ("peer_name = \"members.example\"\npeer_ca_file = \"ca.pem\"", "write peer_token_file too"),
    ] {
        let refused = refused_policy_line(lines);
        assert!(refused.contains(said), "{refused}");
    }
    let lines = format!("{WORKERS}peer_ca_file = \"ca.pem\"\npeer_cert_file = \"own.pem\"\npeer_key_file = \"own-key.pem\"");
    if cfg!(feature = "tls") {
        // A certificate of this member alone keeps no caller out.
        let open = refused_policy_line("peer_cert_file = \"own.pem\"\npeer_key_file = \"own-key.pem\"\npeer_listen = \"0.0.0.0:7500\"");
        assert!(open.contains("write peer_token_file too, or listen on 127.0.0.1"), "{open}");
        let certificates = &read(&lines).policy("workers").unwrap().peers.certificates.clone();
        let names = [&certificates.ca_file, &certificates.cert_file, &certificates.key_file];
        assert!(names.iter().all(|name| name.is_some()), "{certificates:?}");
    } else {
        assert!(refused(&lines).contains("enable the feature tls"), "{}", refused(&lines));
    }
}

#[test]
fn a_placement_that_is_unknown() {
    assert_eq!(
        refused_policy_line("placement = \"rings\""),
        "placement is \"rings\": write \"ring\" or \"quota\" or \"uhashring\" or \"modulo\" or \"hashring\""
    );
}

#[test]
fn what_means_nothing_under_a_key_placement_is_refused() {
    for placement in ["uhashring", "modulo", "hashring"] {
        let with = |line: &str| refused_policy_line(&format!("{line}\nplacement = \"{placement}\""));
        assert_eq!(with("slots = 64"), format!("slots is 64: placement {placement} has no slots; remove it"));
        assert_eq!(with("load_margin = 0.1"), format!("load_margin is 0.1: placement {placement} has no load_margin; remove it"));
        assert_eq!(
            with("max_loss = \"50%\""),
            format!(
                "max_loss is \"50%\": remove it: with placement {placement} the other fleet takes over the keys of every member that vanishes"
            )
        );
        assert_eq!(
            refused_policy_line(&format!("next = {{ placement = \"{placement}\", slots = 64 }}")),
            format!("next.slots is 64: placement {placement} has no slots; remove it")
        );
        let exclusive = with("ownership = \"exclusive\"");
        assert_eq!(
            exclusive,
            format!(
                "ownership is \"exclusive\": placement {placement} has no slots that could be claimed; write placement = \"ring\" or ownership = \
                 \"eventual\""
            )
        );
    }
    for placement in ["uhashring", "modulo"] {
        assert_eq!(
            refused_policy_line(&format!("virtual_nodes = 160\nplacement = \"{placement}\"")),
            format!("virtual_nodes is 160: placement {placement} has no virtual_nodes; remove it")
        );
    }
}

#[test]
fn an_outbox_has_no_key_placement_now_or_next() {
    for line in ["placement = \"modulo\"", "next.placement = \"modulo\""] {
        let text = format!(
            "[default.outbox.o]\npolicy = \"workers\"\nstore = \"sqlite:o.db\"\nsink = \"stdout\"\n\
             [default.resilience.sharding.policies.workers]\ngroup_name = \"g\"\n{line}"
        );
        let refused = refused(&text);
        let expected = "placement is \"modulo\": an outbox uses this policy and fences each slot in its database, and only \"ring\" and \"quota\" have slots; write one of these";
        assert!(refused.ends_with(expected), "{refused}");
    }
}

#[test]
fn a_missing_group() {
    assert_eq!(
        refused("\n[default.resilience.sharding.policies.workers]"),
        "settings line 2: resilience.sharding.policies.workers.group_name is missing: name the group of workers that share this work, \
         such as group_name = \"orders\""
    );
}

#[test]
fn a_ttl_that_does_not_cover_three_renewals() {
    assert_eq!(
        refused_policy_line("discovery = { ttl = \"2s\", renew_every = \"1s\" }"),
        "discovery.ttl is \"2s\": it must cover three renewals: at least 3s with renew_every = 1s"
    );
    assert_eq!(
        refused("[default.resilience.sharding.discovery]\nrenew_every = \"4s\""),
        "settings line 2: resilience.sharding.discovery.ttl is \"10s\": it must cover three renewals: at least 12s with renew_every = 4s"
    );
    let inherited = format!("[default.resilience.sharding.discovery]\nrenew_every = \"3s\"\n{WORKERS}discovery.ttl = \"6s\"");
    assert_eq!(
        refused(&inherited),
        "settings line 5: resilience.sharding.policies.workers.discovery.ttl is \"6s\": it must cover three renewals: \
         at least 9s with renew_every = 3s"
    );
    assert_eq!(refused_policy_line("discovery.ttl = \"99ms\""), "discovery.ttl is \"99ms\": between 100ms and 1d is allowed");
    assert_eq!(
        refused_policy_line("discovery.stop_margin = \"9s\""),
        "discovery.stop_margin is \"9s\": with ttl = 10s ownership would end before the first renewal; use less than 6566ms, or a longer ttl"
    );
    assert_eq!(refused_policy_line("discovery.renew_every = \"0\""), "discovery.renew_every is \"0s\": more than zero is needed");
}

/// A worker that claims is granted half there: it never got in, or was fenced before each renewal.
#[cfg(feature = "consul")]
#[test]
fn a_stop_margin_that_is_too_long_for_what_consul_grants() {
    let with = |timing: &str, ownership: &str| {
        format!("[default.resilience.sharding.discovery]\nbackend = \"consul\"\n{timing}\n{WORKERS}ownership = \"{ownership}\"")
    };
    for (margin, ttl) in [("5s", "10s"), ("4s", "10s")] {
        let timing = format!("ttl = \"{ttl}\"\nstop_margin = \"{margin}\"");
        assert_eq!(
            refused(&with(&timing, "exclusive")),
            format!(
                "settings line 4: resilience.sharding.discovery.stop_margin is \"{margin}\": with ttl = {ttl}, of which the backend grants 5s, \
                 ownership would end before the first renewal; use less than 3283ms, or a longer ttl"
            )
        );
        assert!(Settings::from_toml_str(&with(&timing, "eventual")).is_ok(), "without claims all of it is granted");
    }
    // The margin is a default, so the error shows the line of the TTL.
    let short = refused(&with("ttl = \"300ms\"", "exclusive"));
    assert!(
        short.starts_with(
            "settings line 3: resilience.sharding.policies.workers.discovery.stop_margin is \"100ms\": with ttl = 300ms, of which "
        ),
        "{short}"
    );
    assert!(Settings::from_toml_str(&with("ttl = \"10s\"\nstop_margin = \"3s\"", "exclusive")).is_ok());
}

#[test]
fn wrong_types_and_ranges() {
    let duration = |quotes: &str| format!("write a whole number and a unit of ms, s, m, h or d{quotes}, such as \"5s\" or \"100ms\"");
    let whole = "a whole number from 1 to 65536 is allowed";
    let margin = "write \"none\" or a number from 0 to 10 with at most three decimals, such as 0.05";
    for (line, seen) in [
        ("slots = 0", format!("slots is 0: {whole}")),
        ("slots = 65537", format!("slots is 65537: {whole}")),
        ("slots = -1", format!("slots is -1: {whole}")),
        ("slots = 1.5", format!("slots is 1.5: {whole}")),
        ("slots = 999999999999999999", format!("slots is 999999999999999999: {whole}")),
        ("slots = \"64\"", format!("slots is \"64\": {whole}, without quotes")),
        ("slots = [64]", format!("slots is an array: {whole}")),
        ("virtual_nodes = true", format!("virtual_nodes is true: {whole}")),
        ("min_members = 0", "min_members is 0: a whole number from 1 to ".into()),
        (
            "keep_for = \"5m\"",
            "keep_for is \"5m\": it says for how long the last view is kept: write on_backend_loss = \"keep\" too".into(),
        ),
        ("on_backend_loss = \"wait\"", "on_backend_loss is \"wait\": write \"stop\" or \"keep\"".into()),
        ("max_loss = \"100%\"", "max_loss is \"100%\": write a whole percentage from \"1%\" to \"99%\", such as \"50%\"".into()),
        ("max_loss = 0.5", "max_loss is 0.5: write a whole percentage from \"1%\" to \"99%\", such as \"50%\"".into()),
        ("drain_timeout = 30", format!("drain_timeout is 30: {}", duration(" in quotes"))),
        ("drain_timeout = \"30 sec\"", format!("drain_timeout is \"30 sec\": {}", duration(""))),
        ("drain_timeout = \"25h\"", "drain_timeout is \"25h\": between 0s and 1d is allowed".into()),
        ("rejoin_grace = \"61m\"", "rejoin_grace is \"61m\": between 0s and 1h is allowed".into()),
        ("rejoin_grace = \"1s\"", "rejoin_grace is \"1s\": 0s or from 2s to 1h is allowed".into()),
        ("load_margin = 0.0505", format!("load_margin is 0.0505: {margin}")),
        ("load_margin = 11", format!("load_margin is 11: {margin}")),
        ("load_margin = \"0.05\"", format!("load_margin is \"0.05\": {margin}")),
        ("load_margin = 5e-5", format!("load_margin is 5e-5: {margin}")),
        ("slots = 64.0", format!("slots is 64.0: {whole}")),
        ("slots = 99999999999999999999999999999999999999999", format!("slots is 1e41: {whole}")),
        ("ownership = 1979-05-27", "ownership is a date: write \"eventual\" or \"exclusive\"".into()),
        (
            "peer_networks = [\"10.0.0.0/8,fd00::/8\"]",
            "peer_networks is [\"10.0.0.0/8,fd00::/8\"]: write each text in its own quotes".into(),
        ),
        ("load_margin = nan", format!("load_margin is nan: {margin}")),
        ("placement.x = 1", "placement is a table: write \"ring\"".into()),
        ("discovery = \"local\"", "discovery is \"local\": a table of settings is expected here".into()),
        ("discovery.backend = \"\"", "discovery.backend is \"\": write the backend's name, such as \"local\"".into()),
    ] {
        let message = refused_policy_line(line);
        assert!(message.starts_with(&seen), "{line}: {message}");
    }
    let long = refused_policy_line(&format!("ownership = \"{}\"", "é".repeat(500_000)));
    assert!(long.len() < 300 && long.ends_with("…\": write \"eventual\" or \"exclusive\""), "{long}");
}

#[test]
fn the_tables_above() {
    assert_eq!(
        refused("[default.resilience.sharding]\nenabled = \"yes\""),
        "settings line 2: resilience.sharding.enabled is \"yes\": write true or false, without quotes"
    );
    assert_eq!(refused("default = 5"), "settings line 1: default is 5: a table of settings is expected here");
    let array = refused("[[default.outbox]]\nstore = 1");
    assert_eq!(array, "settings line 1: outbox is an array: a table of settings is expected here");
    assert_eq!(
        refused("[default.outbox]\npolicy = \"x\""),
        "settings line 2: outbox.policy is a key without a name before it: put it into a table whose name you choose"
    );
    assert_eq!(
        refused("[default.resilience.sharding.policies]\nworkers = \"g\""),
        "settings line 2: resilience.sharding.policies.workers is \"g\": a table of settings is expected here"
    );
}

#[test]
fn names_that_do_not_fit_a_variable() {
    for name in ["Workers", "\"my workers\"", "a-b", "a__b", "_a", "\"🦀\"", "\"\""] {
        let seen = refused(&format!("[default.resilience.sharding.policies.{name}]\ngroup_name = \"g\""));
        let allowed = "use lower-case letters, digits and single underscores, beginning with a letter";
        assert_eq!(seen, format!("settings line 1: resilience.sharding.policies.{name} is not a name: {allowed}"));
    }
}

#[test]
fn group_names() {
    assert_eq!(
        refused("[default.resilience.sharding.policies.workers]\ngroup_name = \"\""),
        "settings line 2: resilience.sharding.policies.workers.group_name is \"\": the group name is empty: give it at least one character"
    );
    let long = refused(&format!("[default.resilience.sharding.policies.workers]\ngroup_name = \"{}\"", "x".repeat(256)));
    assert!(long.ends_with("the group name has 256 bytes; at most 255 are allowed"), "{long}");
}

#[test]
fn the_instance() {
    let instance = |line: &str| {
        let seen = refused(&format!("[default.resilience.sharding.instance]\n{line}"));
        seen.replace("settings line 2: resilience.sharding.instance.", "")
    };
    assert_eq!(instance("id = \"\""), "id is \"\": the instance id is empty: give it at least one character");
    assert_eq!(instance("id = \"a\\u0000b\""), "id is \"a\\0b\": the instance id contains a NUL character: remove it");
    let both = "is missing; write both or none";
    assert_eq!(instance("address = \"h\""), format!("address is \"h\": resilience.sharding.instance.port {both}"));
    assert_eq!(instance("port = 80"), format!("port is 80: resilience.sharding.instance.address {both}"));
    assert_eq!(instance("port = 0"), "port is 0: a whole number from 1 to 65535 is allowed");
    for host in ["h:80", "http://h", "[::1]", "a b", ""] {
        let seen = instance(&format!("address = \"{host}\"\nport = 80"));
        assert!(seen.starts_with(&format!("address is \"{host}\": write a host name or an IP address alone")), "{seen}");
    }
    assert_eq!(instance("weight = 101"), "weight is 101: a whole number from 1 to 100 is allowed");
    assert!(instance("zone = \"\"").ends_with("1 to 255 bytes without NUL are allowed; leave the key out for none"));
    assert_eq!(instance("metadata.a = 1"), "metadata.a is 1: write a text in quotes");
    let heavy = instance(&format!("metadata = {{ a = \"{}\" }}", "x".repeat(4_096)));
    assert!(heavy.ends_with("with it the metadata has 4097 bytes; at most 4096 are allowed"), "{heavy}");
}

#[test]
fn members_meet_in_an_outbox_only_if_it_names_their_policy_and_is_in_postgresql() {
    let nobody = "discovery.backend is \"outbox\": only the policy that an outbox names can meet in it; write this below that policy, or \
                  another backend";
    assert_eq!(refused_policy_line("discovery.backend = \"outbox\""), nobody);
    let common = refused(&format!("{WORKERS}[default.resilience.sharding.discovery]\nbackend = \"outbox\""));
    assert_eq!(common, format!("settings line 4: resilience.sharding.{nobody}"));
    let stored = |store: &str| {
        let outbox = format!("[default.outbox.o]\npolicy = \"workers\"\nsink = \"stdout\"\n{store}");
        refused_policy_line(&format!("discovery.backend = \"outbox\"\n{outbox}"))
    };
    assert_eq!(
        stored("store = \"sqlite:o.db\""),
        "discovery.backend is \"outbox\": the store of outbox.o is not in PostgreSQL; write \"local\" if all publishers are on one machine"
    );
    assert!(stored("").contains("outbox.o.store is missing: "), "{}", stored(""));
    let missing = stored("store = \"postgres://app@db/app\"\nstore_password_file = \"nowhere\"");
    assert!(missing.contains("outbox.o.store_password_file is \"nowhere\": "), "{missing}");
}

#[test]
fn the_policy_of_an_outbox() {
    let outbox = |line: &str| refused(&format!("{WORKERS}[default.outbox.o]\n{line}")).replace("settings line 4: outbox.o.", "");
    assert_eq!(
        outbox("policy = \"worker\""),
        "policy is \"worker\": there is no such policy; known policies: workers (did you mean workers?)"
    );
    assert_eq!(outbox("policy = \"x\""), "policy is \"x\": there is no such policy; known policies: workers");
    let missing = outbox("store = \"sqlite:o.db\"");
    assert!(missing.starts_with("settings line 3: outbox.o.policy is missing: "), "{missing}");
}

#[test]
fn two_outboxes_in_one_group() {
    let outbox = |name: &str, policy: &str| {
        format!("[default.outbox.{name}]\npolicy = \"{policy}\"\nstore = \"sqlite:{name}.db\"\nsink = \"stdout\"\n")
    };
    assert_eq!(
        refused(&format!("{WORKERS}{}{}", outbox("a", "workers"), outbox("b", "workers"))),
        "settings line 8: outbox.b.policy is \"workers\": outbox.a has the same policy, and publishers of two outboxes must not share slots; \
         give each outbox its own policy, with its own group_name"
    );
    let policy = |name: &str, more: &str| format!("[default.resilience.sharding.policies.{name}]\ngroup_name = \"g\"\n{more}");
    let elsewhere = "discovery.backend = \"memory\"\n";
    assert_eq!(
        refused(&format!("{}{}{}{}", policy("x", ""), policy("y", ""), outbox("a", "x"), outbox("b", "y"))),
        "settings line 10: outbox.b.policy is \"y\": its group is also that of policy x, which outbox.a has, and publishers of two outboxes must not \
         share slots; give each policy its own group_name"
    );
    Settings::from_toml_str(&format!("{}{}{}{}", policy("x", ""), policy("y", elsewhere), outbox("a", "x"), outbox("b", "y"))).unwrap();
}

#[test]
fn an_outbox_without_any_policy() {
    let seen = refused("[default.outbox.o]\npolicy = \"p\"\nstore = \"sqlite:o.db\"\nsink = \"stdout\"");
    let known = "known policies: none; add [default.resilience.sharding.policies.NAME]";
    assert_eq!(seen, format!("settings line 2: outbox.o.policy is \"p\": there is no such policy; {known}"));
}

#[test]
fn an_environment_without_a_section() {
    assert_eq!(
        message(with(LAYERED, &["SHARDWISE_ENV=prod"])),
        "SHARDWISE_ENV is \"prod\": settings has no such section; it has: default, production, staging (did you mean production?)"
    );
    assert_eq!(message(with("", &["SHARDWISE_ENV=x"])), "SHARDWISE_ENV is \"x\": settings has no such section; it has: none");
}

#[test]
fn variables_that_name_no_setting() {
    let seen = |pair: &str| {
        let message = message(with(WORKERS, &[pair]));
        let name = pair.split('=').next().unwrap().replace('~', "SHARDWISE__RESILIENCE__SHARDING__");
        let message = message.strip_prefix(&format!("environment variable {name}: ")).map(ToOwned::to_owned);
        message.unwrap().replace("SHARDWISE__RESILIENCE__SHARDING__", "~")
    };
    let of_workers = "resilience.sharding.policies.workers";
    let slot = format!("{of_workers}.slot is not a setting: did you mean ~POLICIES__WORKERS__SLOTS?");
    assert_eq!(seen("~POLICIES__WORKERS__SLOT=1"), slot);
    let ttl = format!("{of_workers}.ttl is not a setting: did you mean ~POLICIES__WORKERS__DISCOVERY__TTL?");
    assert_eq!(seen("~POLICIES__WORKERS__TTL=1s"), ttl);
    assert_eq!(seen("~POLICIES__WORKERS__ZONE=x"), format!("{of_workers}.zone is not a setting: it belongs in ~INSTANCE__ZONE"));
    assert_eq!(seen("SHARDWISE__RESILENCE__SHARDING__ENABLED=1"), "resilence is not a setting: did you mean ~ENABLED?");
    assert_eq!(seen("SHARDWISE__SHARDING__ENABLED=1"), "sharding is not a setting: did you mean ~ENABLED?");
    assert_eq!(seen("SHARDWISE__DATABASE__URL=1"), "database is not a setting: known here: RESILIENCE, OUTBOX");
    assert_eq!(seen("SHARDWISE_RESILIENCE__SHARDING__ENABLED=1"), "write two underscores after SHARDWISE: ~ENABLED");
    assert_eq!(seen("~ENABLED=yes"), "resilience.sharding.enabled is \"yes\": write true or false");
    assert_eq!(
        seen("~POLICIES__WORKERS__DRAIN_TIMEOUT=5"),
        "resilience.sharding.policies.workers.drain_timeout is \"5\": write a whole number and a unit of ms, s, m, h or d, such as \"5s\" or \
         \"100ms\""
    );
    assert_eq!(seen("~ENABLED__X=1"), "resilience.sharding.enabled is a table: write true or false");
    assert_eq!(seen("~POLICIES=1"), "resilience.sharding.policies is a table of settings: add __ and the name of one of them");
    assert!(seen("~POLICIES__=1").starts_with("resilience.sharding.policies.\"\" is not a name: "));
    assert_eq!(
        seen("~INSTANCE__METADATA=1"),
        "resilience.sharding.instance.metadata is a table of settings: add __ and the name of one of them"
    );
    assert!(seen("~INSTANCE__METADATA__=1").contains("a name has at least one character"));
    assert_eq!(seen("~INSTANCE__METADATA__A__B=1"), "resilience.sharding.instance.metadata.a is a table: write a text in quotes");
    assert_eq!(seen("SHARDWISE__RESILIENCE=1"), "resilience is a table of settings: add __ and the name of one of them");
    assert!(seen("SHARDWISE__RESILIENCE__RETRY=1").starts_with("resilience.retry is not a setting: "));
    assert_eq!(
        seen("~POLICIES__WORKERS__NEXT=1"),
        "resilience.sharding.policies.workers.next is a table of settings: add __ and the name of one of them"
    );
    assert_eq!(seen("~enabled=1"), "write its name in capitals: ~ENABLED");
    assert_eq!(
        seen("~POLICIES__WORKERS__SLOTS=many"),
        "resilience.sharding.policies.workers.slots is \"many\": a whole number from 1 to 65536 is allowed"
    );
    assert_eq!(
        seen("~POLICIES__WORKER__SLOTS=5"),
        "resilience.sharding.policies.worker is nowhere else, and group_name is missing (did you mean ~POLICIES__WORKERS__SLOTS?)"
    );
}

#[cfg(unix)]
#[test]
fn variables_that_are_not_text() {
    use std::os::unix::ffi::OsStrExt;
    let bytes = std::ffi::OsStr::from_bytes(b"\xff");
    let seen = |name: &str| {
        let options = LoadOptions::default().with_variables([(name, bytes)]);
        message(Settings::load(&options.with_text("")))
    };
    assert_eq!(seen("SHARDWISE__OUTBOX__O__SINK"), "environment variable SHARDWISE__OUTBOX__O__SINK: its value is not UTF-8 text");
    assert_eq!(seen("SHARDWISE_ENV"), "SHARDWISE_ENV is not UTF-8 text");
}

#[test]
fn an_unknown_policy_lists_the_known_ones() {
    let settings = read(&format!("{WORKERS}[default.resilience.sharding.policies.others]\ngroup_name = \"h\""));
    let error = settings.policy("worker").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownPolicy);
    assert_eq!(error.to_string(), "there is no policy \"worker\"; known: others, workers (did you mean workers?)");
}
