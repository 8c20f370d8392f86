//! Which start of the machine the boot clock counts from.

use crate::error::Failure;

/// A name for this boot: deadlines written under another one are of another clock, and their members are dead.
///
/// Elsewhere than on Linux there is no such name that can be read without unsafe code; see `docs.md` for what follows.
#[cfg(not(target_os = "linux"))]
pub(crate) fn identity() -> Result<String, Failure> {
    Ok("no boot id on this system".to_owned())
}

/// A name for this boot: deadlines written under another one are of another clock, and their members are dead.
#[cfg(target_os = "linux")]
pub(crate) fn identity() -> Result<String, Failure> {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(BOOT_ID).map_err(|source| Failure::NoBootId { file: BOOT_ID, source })?;
    // Kernels without time namespaces have no such file.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    if boot_clock_is_shifted(&offsets) {
        return Err(Failure::TimeNamespace);
    }
    Ok(id.trim().to_owned())
}

/// Inside a time namespace the boot clock may be shifted, and its moments cannot be compared with those of other processes.
#[cfg(any(test, target_os = "linux"))]
fn boot_clock_is_shifted(offsets: &str) -> bool {
    let boot = offsets.lines().find_map(|line| line.trim_start().strip_prefix("boottime"));
    boot.is_some_and(|numbers| numbers.split_whitespace().any(|number| number != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shifted_boot_clock_is_noticed() {
        assert!(!boot_clock_is_shifted(""));
        assert!(!boot_clock_is_shifted("monotonic           0         0\nboottime            0         0\n"));
        assert!(!boot_clock_is_shifted("monotonic           7         0\nboottime            0         0\n"));
        assert!(boot_clock_is_shifted("monotonic           0         0\nboottime       -86400         0\n"));
    }

    #[test]
    fn one_boot_has_one_name() {
        let name = identity().unwrap();
        assert!(!name.is_empty() && !name.contains('\n'));
        assert_eq!(identity().unwrap(), name);
    }
}
