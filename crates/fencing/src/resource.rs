//! A resource as text in the table, the same in every language.

use shardwise_core::Resource;

/// `slot/17` for a slot, `name/` and the name for a name.
///
/// ```
/// use shardwise_fencing::{ClaimName, Resource, resource_text};
///
/// assert_eq!(resource_text(&Resource::Slot(17)), "slot/17");
/// assert_eq!(resource_text(&Resource::Name(ClaimName::new("daemon/3")?)), "name/daemon/3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn resource_text(resource: &Resource) -> String {
    match resource {
        Resource::Slot(slot) => format!("slot/{slot}"),
        Resource::Name(name) => format!("name/{}", name.as_str()),
    }
}
