//! The parameter `instance` in the query of a request to any member: the member that is to answer.

use axum::extract::Query;
use axum::http::Uri;

use crate::problem::{BAD_REQUEST, Result};

const NAME: &str = "instance";

/// Takes the parameter out of the query and returns its value, decoded. The other bytes of the query stay as they are.
pub(crate) fn take_instance(query: &mut Option<String>) -> Result<Option<String>> {
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for parameter in query.iter().flat_map(|query| query.split('&')) {
        match value(parameter) {
            Some(instance) => named.push(instance),
            None => others.push(parameter),
        }
    }
    if named.len() > 1 {
        return Err(BAD_REQUEST.because("the query has the parameter instance more than once; name one member"));
    }
    let rest = others.join("&");
    if !named.is_empty() {
        *query = (!rest.is_empty()).then_some(rest);
    }
    Ok(named.pop())
}

/// The value of this one parameter; `None` if it has another name.
fn value(parameter: &str) -> Option<String> {
    let uri: Uri = format!("/?{parameter}").parse().ok()?;
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&uri).ok()?;
    pairs.into_iter().find(|(name, _)| name == NAME).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(query: &str) -> Result<(Option<String>, Option<String>)> {
        let mut query = Some(query.to_owned());
        take_instance(&mut query).map(|instance| (instance, query))
    }

    #[test]
    fn the_parameter_is_taken_out_and_nothing_else_is_changed() {
        for (query, instance, rest) in [
            ("instance=worker-1", Some("worker-1"), None),
            ("instance=", Some(""), None),
            ("instance", Some(""), None),
            ("%69nstance=w%C3%B6rker%2F1", Some("wörker/1"), None),
            ("instance=a+b&c", Some("a b"), Some("c")),
            ("a=%2f&instance=x&b=1&b=2", Some("x"), Some("a=%2f&b=1&b=2")),
            ("a=1&&b", None, Some("a=1&&b")),
            ("Instance=x&instances=y&a=instance", None, Some("Instance=x&instances=y&a=instance")),
            ("", None, Some("")),
            ("&", None, Some("&")),
        ] {
            let wanted = (instance.map(str::to_owned), rest.map(str::to_owned));
            assert_eq!(taken(query).map_err(|problem| problem.detail().to_owned()), Ok(wanted), "{query}");
        }
        assert_eq!(take_instance(&mut None).map_err(|problem| problem.detail().to_owned()), Ok(None));
    }

    #[test]
    fn two_instances_are_refused() {
        for query in ["instance=a&instance=b", "instance=a&x&instance=a"] {
            assert_eq!(taken(query).unwrap_err().status(), 400, "{query}");
        }
    }
}
