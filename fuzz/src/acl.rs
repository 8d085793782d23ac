//! Values of access control lists.

use nine_io::server::acl::{AclClient, ENTRIES_MAX, PosixAcl};

/// Any bytes parse as a list or are refused. An encoded list parses as the same list, its mode bits are those that were
/// set, and a new file inherits no more permissions than it asks for.
pub fn acl(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else { return };
    let Ok(Some(mut list)) = PosixAcl::parse(data) else { return };
    let value = list.encode();
    assert!(value.len() <= 4 + 8 * ENTRIES_MAX);
    assert_eq!(PosixAcl::parse(&value), Ok(Some(list.clone())));
    let mode = u32::from(first) << 1;
    let (new, given) = list.inherit(0o100_000 | mode);
    assert_eq!(given & !0o100_777 | given & !mode & 0o777, 0);
    assert_eq!(new.mode_bits(), given & 0o777);
    assert_eq!(PosixAcl::parse(&new.encode()), Ok(Some(new)));
    for want in 0..8 {
        let client = AclClient { uid: Some(u32::from(first)), is_member: |gid| gid & 1 == 0 };
        let _ = list.allows((1, 2), &client, 7, want);
    }
    list.set_mode(mode);
    assert_eq!(list.mode_bits(), mode);
}
