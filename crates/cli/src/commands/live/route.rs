//! `shardwise route` and `shardwise routes`: where requests of a key go, and the operator's routes of single keys.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use shardwise::core::routing::{KeyHash, KeyRoute};
use shardwise::requests::{NoRoute, Route, RouteCause, To, Width};
use shardwise::{InstanceId, Member, MemberState, Router, ShardKey as _, View};
use tokio::time::{Instant, sleep};

use super::owner::why_unserved;
use crate::commands::group::PolicyArg;
use crate::commands::{IS_IT_THERE, load_settings, waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, table_or};

/// The members, their shares and the operator's route follow the first view within this time.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
#[command(after_help = "\
The set has the members that may serve the key, its owner first; a request chooses one of them. This command knows no load and no width that \
an owner has reported, so the set is larger than one only by an operator's route.
Exit code 1: no member serves the key now.

  shardwise route tenant-7")]
pub(crate) struct RouteArgs {
    /// Look up this key
    key: String,
    #[command(flatten)]
    group: PolicyArg,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Routes need max_width = 2 or more in the policy of all members.

  shardwise routes set tenant-7 --width 3
  shardwise routes list
  shardwise routes clear tenant-7")]
pub(crate) enum RoutesCommand {
    /// Spread the requests of a key over several members, or move them
    #[command(after_help = "\
Requests of the key go to the first members among its owner and those that follow it on the ring, except those to skip. Callers read it within \
a TTL. It overrides what the key's owner reports, and replaces an earlier route. At most 64 keys have one, under eventual ownership only. \
The policy's max_width limits the width and must be 2 or more on all members, also for --skip.

  shardwise routes set tenant-7 --width 3
  shardwise routes set tenant-7 --skip worker-1")]
    Set(SetRoute),
    /// Clear the route of a key
    #[command(after_help = "\
Exit code 1: the key had no route.

  shardwise routes clear tenant-7")]
    Clear(ClearRoute),
    /// List the routes of keys
    #[command(after_help = "\
Keys are listed by their hashes, which are also on the page and which --hash of set and clear takes.

  shardwise routes list")]
    List(ListRoutes),
}

#[derive(Debug, Args)]
pub(crate) struct SetRoute {
    #[command(flatten)]
    key: RoutedKey,
    /// Spread them over this many members, 1 to 4
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4))]
    width: u64,
    /// Avoid this member, if others can serve the key; repeatable
    #[arg(long, value_name = "ID")]
    skip: Vec<String>,
    #[command(flatten)]
    group: PolicyArg,
}

#[derive(Debug, Args)]
pub(crate) struct ClearRoute {
    #[command(flatten)]
    key: RoutedKey,
    #[command(flatten)]
    group: PolicyArg,
}

#[derive(Debug, Args)]
pub(crate) struct ListRoutes {
    #[command(flatten)]
    group: PolicyArg,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct RoutedKey {
    /// Take this key
    key: Option<String>,
    /// Take the key with this hash, as `list` shows it
    #[arg(long, value_name = "HEX")]
    hash: Option<String>,
}

impl RouteArgs {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy) = self.group.open(common)?;
        let router = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.router(&policy)).await?;
        output::release_log();
        // Where keys have no routes, that is an error.
        let routes = factory.routes(&policy).await.unwrap_or_default();
        let route = match known(&router, &To::owner(self.key.as_str()), routes.get(self.key.key_hash())).await {
            Ok(route) => route,
            Err(no_route) => {
                let cause = why_unserved(&factory, &policy, router.observer()).await;
                output::note(format_args!("shardwise: no route: {}", cause.unwrap_or_else(|| no_route.to_string())));
                return Ok(Code::No);
            }
        };
        let (hash, json) = (hash_of(&self.key), self.as_json(&route));
        common.print(&json, || {
            let set: Vec<_> = route.set().map(InstanceId::as_str).collect();
            let epoch = route.epoch().map(|epoch| format!("epoch\t{epoch}\n")).unwrap_or_default();
            format!("pick\t{}\nset\t{}\nwhy\t{}\n{epoch}hash\t{hash}\n", route.member(), set.join(", "), route.cause().as_str())
        })?;
        Ok(Code::Ok)
    }

    /// The fields of the HTTP API.
    fn as_json(&self, route: &Route) -> Value {
        json!({
            "key": self.key,
            "key_hash": hash_of(&self.key),
            "set": route.set().collect::<Vec<_>>(),
            "pick": route.member(),
            "incarnation": route.incarnation().to_string(),
            "why": route.cause().as_str(),
            "epoch": route.epoch(),
        })
    }
}

/// The route, once the members, their shares and the operator's route are known.
async fn known(router: &Router, to: &To<'_>, wanted: Option<&KeyRoute>) -> std::result::Result<Route, NoRoute> {
    let until = Instant::now() + KNOWN_WITHIN;
    loop {
        let route = router.route(to);
        let is_known = match &route {
            Ok(route) => wanted.is_none_or(|wanted| has(route, wanted, &router.observer().members())),
            Err(no_route) => *no_route != NoRoute::NoView,
        };
        if is_known || Instant::now() >= until {
            return route;
        }
        sleep(POLL_EVERY).await;
    }
}

/// Whether the route is already the one that the operator has set.
fn has(route: &Route, wanted: &KeyRoute, view: &View) -> bool {
    let serves = |member: &&Member| member.state == MemberState::Active && !wanted.skips(&member.instance_id);
    let most = view.members().iter().filter(serves).count().min(wanted.width().get().into());
    let is_set = route.cause() == RouteCause::Operator && route.width() >= most && !route.set().any(|id| wanted.skips(id));
    // If it skips all of them, it skips none.
    is_set || most == 0
}

fn hash_of(key: &str) -> KeyHash {
    KeyHash::new(key.key_hash())
}

impl RoutedKey {
    /// The hash, and what the key is called in messages.
    fn parse(&self) -> Result<(KeyHash, String)> {
        match (&self.key, &self.hash) {
            (Some(key), _) => Ok((hash_of(key), format!("{key:?}"))),
            (None, Some(hash)) => {
                let parsed = KeyHash::from_hex(hash);
                let refused = || CliFailure::usage(format!("--hash {hash:?}: a hash has sixteen hexadecimal digits"));
                Ok((parsed.ok_or_else(refused)?, format!("with hash {hash}")))
            }
            // The parser requires one of them.
            (None, None) => Err(CliFailure::usage("name a key, or --hash")),
        }
    }
}

impl RoutesCommand {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        match self {
            Self::Set(set) => set.run(common).await,
            Self::Clear(clear) => clear.run(common).await,
            Self::List(list) => list.run(common).await,
        }
    }
}

impl SetRoute {
    async fn run(&self, common: &Common) -> Result<Code> {
        let (hash, key) = self.key.parse()?;
        let id = |id: &String| InstanceId::new(id).map_err(|error| CliFailure::usage(format!("--skip {id:?}: {error}")));
        let skip = self.skip.iter().map(id).collect::<Result<Vec<_>>>()?;
        let route = KeyRoute::new(hash, self.width, skip).map_err(|error| CliFailure::usage(error.to_string()))?;
        let (factory, policy) = self.group.open(common)?;
        let changed = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.set_route(&policy, &route)).await?;
        let json = json!({"policy": policy, "key_hash": hash, "width": route.width(), "skip": route.skip(), "changed": changed});
        common.print(&json, || {
            let skip: Vec<_> = route.skip().iter().map(InstanceId::as_str).collect();
            let skips = if skip.is_empty() { String::new() } else { format!(", skips {}", skip.join(", ")) };
            let what = format!("key {key}: width {}{skips}", route.width());
            if changed { format!("{what}; callers read it within a TTL\n") } else { format!("{what}, as before\n") }
        })?;
        Ok(Code::Ok)
    }
}

impl ClearRoute {
    async fn run(&self, common: &Common) -> Result<Code> {
        let (hash, key) = self.key.parse()?;
        let (factory, policy) = self.group.open(common)?;
        let changed = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.clear_route(&policy, hash)).await?;
        common.print(&json!({"policy": policy, "key_hash": hash, "changed": changed}), || {
            if changed { format!("key {key}: cleared; callers read it within a TTL\n") } else { format!("key {key}: it has no route\n") }
        })?;
        Ok(if changed { Code::Ok } else { Code::No })
    }
}

impl ListRoutes {
    async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy) = self.group.open(common)?;
        let routes = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.routes(&policy)).await?;
        // They were set before max_width was lowered, and stay until they are cleared.
        if routes.iter().next().is_some() && load_settings(common)?.policy(&policy)?.requests.max_width == Width::ONE {
            output::note(format_args!(
                "policy {policy} has max_width = 1 in these settings, so no route has an effect: raise it on all members"
            ));
        }
        let one = |route: &KeyRoute| json!({"key_hash": route.key(), "width": route.width(), "skip": route.skip()});
        let json = json!({"policy": policy, "routes": routes.iter().map(one).collect::<Vec<_>>()});
        common.print(&json, || {
            let row = |route: &KeyRoute| {
                let skip: Vec<_> = route.skip().iter().map(InstanceId::as_str).collect();
                vec![route.key().to_string(), route.width().to_string(), skip.join(", ")]
            };
            let rows: Vec<_> = routes.iter().map(row).collect();
            table_or(&format!("{policy}: no key has a route"), &["hash", "width", "skips"], &rows)
        })?;
        Ok(Code::Ok)
    }
}
