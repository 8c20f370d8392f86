//! A user's program: it joins a group over TLS by every policy of its settings, and leaves the TLS provider of the process unchanged.
//!
//! `cargo xtask test --only tls` builds it as a separate package and runs it with real servers. Arguments: the settings file, and the
//! default provider of the process: `none`, `unusable`, or `aws-lc`.

use std::error::Error;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use shardwise::ShardingFactory;

/// The place in memory of the default provider of this process.
fn provider() -> Option<*const CryptoProvider> {
    CryptoProvider::get_default().map(Arc::as_ptr)
}

/// Makes it what the argument says.
fn install(default: &str) {
    let provider = match default {
        "none" => return,
        // Every connection through it fails.
        "unusable" => CryptoProvider { cipher_suites: Vec::new(), kx_groups: Vec::new(), ..rustls::crypto::ring::default_provider() },
        "aws-lc" => rustls::crypto::aws_lc_rs::default_provider(),
        other => panic!("no such default: {other}"),
    };
    provider.install_default().expect("none is installed before main");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [settings, default] = arguments.as_slice() else { panic!("wanted: the settings file and the default provider") };
    install(default);
    let before = provider();
    assert_eq!(before.is_none(), default == "none");

    let factory = ShardingFactory::from_file(settings)?;
    let policies: Vec<_> = factory.policy_names().collect();
    assert!(!policies.is_empty());
    for policy in policies {
        let sharding = factory.create(policy)?;
        sharding.register_self().await?;
        assert!(sharding.owns("any key"), "{policy}: alone in its group and owns nothing");
        assert_eq!(provider(), before, "{policy}: the default provider of the process is another one now");
        sharding.deregister_self().await?;
        println!("{policy}: joined and left with the default provider {default}");
    }
    assert_eq!(provider(), before, "the default provider of the process is another one now");
    Ok(())
}
