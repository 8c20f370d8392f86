//! `shardwise ask`: sends one request to a member, without joining.

use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::de::IgnoredAny;
use serde_json::json;
use shardwise::core::parse_duration;
use shardwise::requests::{Answer, Answered, AskError, BODY_BYTES_MAX, NoRoute, Request, SessionId, To};
use shardwise::{ClaimName, InstanceId, Router, ShardingFactory};

use super::owner::why_unserved;
use crate::commands::group::PolicyArg;
use crate::commands::{IS_IT_THERE, waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format};

/// The most members that an error names.
const NAMED_MAX: usize = 20;

#[derive(Debug, Args)]
#[command(
    override_usage = "shardwise ask [OPTIONS] <--key|--name|--member|--session|--any> <PATH>",
    after_help = "\
The body of the answer goes to stdout; --json prints one line with the member, status, type and body. A POST without --data reads its body \
from stdin. The request goes on to another member as long as it was certainly not handled; a GET, or one with --idempotency-key, also if \
that is unknown. It proves itself by the policy's peer_token_file and certificates; without them members answer only GET.
Exit code 1: the answer has status 400 or higher. Exit code 3: no member took the request in time, and nothing was done. Exit code 4: it was \
refused, or it is unknown if it was handled.

  shardwise ask --key tenant-7 cache/size
  shardwise ask --key room-7 rooms/say --data hello --within 30s"
)]
pub(crate) struct AskArgs {
    /// Ask the handler at this path, which may have a query
    path: String,
    #[command(flatten)]
    target: AskTarget,
    /// Send this method [default: POST with --data, else GET]
    #[arg(long, value_enum, value_name = "METHOD", ignore_case = true, hide_possible_values = true)]
    method: Option<AskMethod>,
    /// Send this body
    #[arg(long, value_name = "TEXT")]
    data: Option<String>,
    /// State this type of the body [default: JSON or text, as it is]
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Send it again while it is unknown if it was handled
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Wait this long for the answer, up to 5m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    within: Duration,
    #[command(flatten)]
    group: PolicyArg,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct AskTarget {
    /// Ask the owner of this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Ask the holder of this name, such as singleton/leader
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Ask this member
    #[arg(long, value_name = "ID")]
    member: Option<String>,
    /// Ask the member that opened this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Ask any active member
    #[arg(long)]
    any: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AskMethod {
    Get,
    Post,
}

/// The destination as it was named, checked.
enum AskedTarget {
    Key(String),
    Name(ClaimName),
    Member(InstanceId),
    Session(SessionId),
    Any,
}

impl AskArgs {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let target = self.target.parse()?;
        let (factory, policy) = self.group.open(common)?;
        let request = self.request()?;
        let router = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.router(&policy)).await?;
        output::release_log();
        let Answered { answer, by, .. } = match router.ask(&target.to(), request, self.within).await {
            Ok(answered) => answered,
            Err(error) => return Err(failure(&with_cause(error, &target, &factory, &policy, &router).await, &router)),
        };
        match common.format() {
            Format::Json => output::json_line(&json!({
                "by": by,
                "status": answer.status,
                "content_type": answer.content_type,
                "body": String::from_utf8_lossy(&answer.body),
            }))?,
            Format::Human => print_body(&answer)?,
        }
        if answer.status < 400 {
            return Ok(Code::Ok);
        }
        output::note(format_args!("shardwise: {by} answers with status {}", answer.status));
        Ok(Code::No)
    }

    fn request(&self) -> Result<Request> {
        let is_post = self.method.map_or(self.data.is_some(), |method| method == AskMethod::Post);
        if !is_post && (self.data.is_some() || self.content_type.is_some()) {
            return Err(CliFailure::usage("a GET has no body: drop --data and --content-type, or write --method post"));
        }
        let (path, query) = match self.path.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (self.path.as_str(), None),
        };
        let path = path.trim_start_matches('/');
        let mut request = if is_post {
            let body = self.data.as_ref().map_or_else(stdin_body, |data| Ok(data.clone().into_bytes()))?;
            let kind = self.content_type.clone().unwrap_or_else(|| kind_of(&body).to_owned());
            Request::post(path, kind, body)
        } else {
            Request::get(path)
        };
        (request.query, request.idempotency_key) = (query, self.idempotency_key.clone());
        Ok(request)
    }
}

impl AskTarget {
    fn parse(&self) -> Result<AskedTarget> {
        let refused = |flag: &str, given: &str, error: &dyn std::fmt::Display| CliFailure::usage(format!("{flag} {given:?}: {error}"));
        Ok(match self {
            Self { key: Some(key), .. } => AskedTarget::Key(key.clone()),
            Self { name: Some(name), .. } => AskedTarget::Name(ClaimName::new(name).map_err(|error| refused("--name", name, &error))?),
            Self { member: Some(id), .. } => AskedTarget::Member(InstanceId::new(id).map_err(|error| refused("--member", id, &error))?),
            // The id is all that is needed to use the session, so it is not repeated.
            Self { session: Some(id), .. } => {
                AskedTarget::Session(id.parse::<SessionId>().map_err(|error| CliFailure::usage(error.to_string()))?)
            }
            Self { any: true, .. } => AskedTarget::Any,
            // The parser requires one of them.
            _ => return Err(CliFailure::usage("name a destination: --key, --name, --member, --session or --any")),
        })
    }
}

impl AskedTarget {
    fn to(&self) -> To<'_> {
        match self {
            Self::Key(key) => To::owner(key.as_str()),
            Self::Name(name) => To::Holder(name),
            Self::Member(id) => To::Member(id),
            Self::Session(id) => To::Session(id),
            Self::Any => To::any(),
        }
    }

    /// Whether no member can serve it as long as no key has an owner.
    const fn needs_owners(&self) -> bool {
        matches!(self, Self::Key(_) | Self::Name(_) | Self::Any)
    }
}

/// The whole input.
fn stdin_body() -> Result<Vec<u8>> {
    output::waits_for_lines();
    let mut body = Vec::new();
    let most = BODY_BYTES_MAX as u64;
    std::io::stdin().lock().take(most + 1).read_to_end(&mut body).map_err(|error| CliFailure::io("read stdin", &error))?;
    if body.len() as u64 > most { Err(CliFailure::usage(format!("the body has more than {most} bytes"))) } else { Ok(body) }
}

fn kind_of(body: &[u8]) -> &'static str {
    if serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        "application/json"
    } else if std::str::from_utf8(body).is_ok() {
        "text/plain; charset=utf-8"
    } else {
        "application/octet-stream"
    }
}

/// The body as it is, or at a terminal as one that cannot control it.
fn print_body(answer: &Answer) -> Result<()> {
    if std::io::stdout().is_terminal() {
        return output::text(&(String::from_utf8_lossy(&answer.body) + "\n"));
    }
    output::bytes(&answer.body)
}

/// The same error with the cause, if no key has an owner.
async fn with_cause(error: AskError, target: &AskedTarget, factory: &ShardingFactory, policy: &str, router: &Router) -> AskError {
    match error {
        AskError::TooLate { within, why } if target.needs_owners() => {
            AskError::TooLate { within, why: why_unserved(factory, policy, router.observer()).await.unwrap_or(why) }
        }
        error => error,
    }
}

fn failure(error: &AskError, router: &Router) -> CliFailure {
    let code = match error {
        AskError::Invalid(_) => Code::Usage,
        AskError::TooLate { .. } | AskError::Busy { .. } => Code::Unavailable,
        AskError::NoRoute(no_route) if no_route.may_change() => Code::Unavailable,
        _ => Code::Refused,
    };
    let failure = CliFailure::new(code, error.to_string());
    if *error != AskError::NoRoute(NoRoute::UnknownMember) {
        return failure;
    }
    let view = router.observer().members();
    let known: Vec<_> = view.members().iter().take(NAMED_MAX).map(|member| member.instance_id.as_str()).collect();
    failure.and(format_args!("the members are: {}", known.join(", ")))
}
