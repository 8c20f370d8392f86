//! What must hold for any text that comes out of the file, out of `/proc/self/mountinfo` or out of the settings, for the package `fuzz`. No
//! part of the interface.

use std::path::Path;

use shardwise_core::StoreId;

use crate::LocalConfig;
use crate::claim_statements::{decode_changes, decode_held, encode, encode_held};
use crate::store_file::file_system_of;

/// Samples for `claims`. Behind a line feed stands what has ended.
pub const CLAIMS: &[&[u8]] = &[
    br#"[[7,1],["a \"name\"",9007199254740991]]"#,
    b"[[65536,1]]",
    br#"[[7,-1],[1.5,2],[null,3],["",4]]"#,
    b"[[\"w\",\"00000000000000ff\",[[7,1],[\"n\",2]]]]\n[1,\"x\",null,-1]",
    b"[[\"w\",\"+0000000000000ff\",[]],[\"\",\"00000000000000ff\",[[18446744073709551615,0]]]]\n[]",
];

/// Samples for `mounts`: a path and, behind a line feed, the table.
pub const MOUNTS: &[&[u8]] = &[
    b"/srv/team data/a.db\n27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n30 27 0:40 / /srv/team\\040data rw - nfs4 files:/export rw",
    b"/mnt/a.db\n32 27 0:42 / /mnt rw - ext4 /dev/vdc rw\n33 32 0:43 / /mnt rw - fuse.sshfs me@there: rw\n - \n34 27 -",
];

/// Samples for `paths`.
pub const PATHS: &[&[u8]] = &[b"shardwise.db", b"/run/a b/\xc3\xbc.db", b":memory:", b"sqlite:x", b"../x/", b"x\0y", b"", b"/."];

/// Lists of claims as a statement returns them: accepted ones survive a round trip, and refusals are one line.
pub fn claims(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match decode_held(text) {
        Ok(held) => {
            assert_eq!(decode_held(&encode_held(&held)).as_ref(), Ok(&held));
        }
        Err(why) => assert!(!why.is_empty() && !why.contains('\n'), "{why:?}"),
    }
    let (held, ended) = text.split_once('\n').unwrap_or((text, "[]"));
    if let Ok(changes) = decode_changes(held, ended) {
        let again = decode_changes("[]", &encode(&changes.ended)).map(|changes| changes.ended);
        assert_eq!(again.as_ref(), Ok(&changes.ended));
        assert!(changes.held.iter().all(|(_, claim)| !claim.holder.instance_id.as_str().is_empty()));
    }
    if let Some(id) = StoreId::from_hex(text) {
        assert_eq!(id.to_string(), text.to_ascii_lowercase());
    }
}

/// The kernel's table of mounts, whatever stands in it: only a file system that it names is found.
pub fn mounts(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (path, table) = text.split_once('\n').unwrap_or(("/srv/a.db", text));
    if let Some(kind) = file_system_of(table, Path::new(path)) {
        assert!(!kind.contains([' ', '\n']) && table.contains(&format!(" - {kind}")), "{kind:?}");
    }
}

/// Paths of the settings: one that is taken is absolute, and taken as it is.
pub fn paths(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let absolute = |path: &Path| LocalConfig { path: path.to_owned() }.absolute();
    match absolute(Path::new(text)) {
        Ok(path) => {
            assert!(path.is_absolute() && !text.contains('\0'));
            assert_eq!(absolute(&path).ok(), Some(path));
        }
        Err(failure) => assert!(!failure.to_string().is_empty()),
    }
}
