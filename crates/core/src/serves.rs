//! What a group serves. Members that do different work must not share a ring: each would own slots whose work it never does.

use std::fmt;

/// The work that the members of a group share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Serves {
    /// The keys of the application.
    Keys,
    /// The events of one outbox.
    Outbox {
        /// The random id that `outbox init` wrote into the outbox's store. It alone identifies the outbox.
        id: String,
        /// The outbox's name in the settings of that member, for messages.
        name: String,
    },
}

impl Serves {
    /// [`Serves::Keys`] as text. The id of an outbox is never this word.
    pub const KEYS: &'static str = "keys";

    /// `keys`, or the id of the outbox; members compare it.
    pub fn id(&self) -> &str {
        match self {
            Self::Keys => Self::KEYS,
            Self::Outbox { id, .. } => id,
        }
    }

    /// The inverse of [`Serves::id`], with the outbox's name.
    pub fn from_parts(id: String, name: Option<String>) -> Self {
        if id == Self::KEYS { Self::Keys } else { Self::Outbox { id, name: name.unwrap_or_default() } }
    }

    /// The outbox's name; `None` for keys.
    pub fn outbox(&self) -> Option<&str> {
        match self {
            Self::Keys => None,
            Self::Outbox { name, .. } => Some(name),
        }
    }

    /// Whether both are the same work, even if the outbox has different names.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl fmt::Display for Serves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys => f.write_str("keys"),
            // Escaped: a name and an id come from another member's record.
            Self::Outbox { id, name } => write!(f, "outbox {name:?} (store id {id:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_is_its_id_whatever_it_is_called() {
        let outbox = |id: &str, name: &str| Serves::from_parts(id.into(), Some(name.into()));
        assert!(outbox("1f", "orders").is_same_as(&outbox("1f", "payments")));
        assert!(!outbox("1f", "orders").is_same_as(&outbox("2e", "orders")));
        assert!(!outbox("1f", "orders").is_same_as(&Serves::Keys));
        assert_eq!(Serves::from_parts("keys".into(), Some("orders".into())), Serves::Keys);
        assert_eq!((outbox("1f", "orders").outbox(), Serves::Keys.outbox()), (Some("orders"), None));
    }

    #[test]
    fn a_name_from_another_machine_stays_on_its_line() {
        let forged = Serves::from_parts("a\nb".into(), Some("x\u{1b}[2J".into()));
        assert_eq!(forged.to_string(), r#"outbox "x\u{1b}[2J" (store id "a\nb")"#);
    }
}
