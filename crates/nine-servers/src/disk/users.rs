//! The names of users and groups, for dialects that use text.
//!
//! In: /etc/passwd and /etc/group, read at the start and again at an attach if they have changed. Out: answers from
//! memory. Users that only a directory service has appear as numbers.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::SystemTime;

use nine_proto::{Names, Numeric};

/// See the module.
pub(super) struct UserDatabase {
    tables: RwLock<[UserNameTable; 2]>,
}

const FILES: [&str; 2] = ["/etc/passwd", "/etc/group"];
/// The largest file that is read, in bytes. Users of a larger file appear as numbers.
const FILE_MAX: u64 = 16 << 20;

#[derive(Default)]
struct UserNameTable {
    read: Option<SystemTime>,
    names: HashMap<u32, Box<str>>,
    ids: HashMap<Box<[u8]>, u32>,
}

impl UserDatabase {
    /// Reads the files. Waits for the disk.
    pub(super) fn load() -> Self {
        Self { tables: RwLock::new(FILES.map(|path| UserNameTable::read(path.as_ref()))) }
    }

    /// Reads the files again if they have changed. Waits for the disk.
    pub(super) fn refresh(&self) {
        for (i, path) in FILES.iter().enumerate() {
            if changed(path.as_ref()) != self.tables()[i].read {
                let table = UserNameTable::read(path.as_ref());
                self.tables.write().unwrap_or_else(PoisonError::into_inner)[i] = table;
            }
        }
    }

    fn tables(&self) -> RwLockReadGuard<'_, [UserNameTable; 2]> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names for UserDatabase {
    fn user(&self, uid: u32) -> String {
        self.tables()[0].names.get(&uid).map_or_else(|| Numeric.user(uid), |name| name.to_string())
    }

    fn group(&self, gid: u32) -> String {
        self.tables()[1].names.get(&gid).map_or_else(|| Numeric.group(gid), |name| name.to_string())
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        self.tables()[0].ids.get(name).copied().or_else(|| Numeric.uid(name))
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        self.tables()[1].ids.get(name).copied().or_else(|| Numeric.gid(name))
    }
}

impl UserNameTable {
    fn read(path: &Path) -> Self {
        let mut table = Self { read: changed(path), ..Self::default() };
        let small = fs::metadata(path).is_ok_and(|meta| meta.len() <= FILE_MAX);
        let text = if small { fs::read_to_string(path).unwrap_or_default() } else { String::new() };
        for line in text.lines() {
            // `name:password:number:...` in both files; of several entries the first is used.
            let mut fields = line.split(':');
            let (Some(name), Some(id)) = (fields.next(), fields.nth(1)) else { continue };
            let Ok(id) = id.parse() else { continue };
            table.names.entry(id).or_insert_with(|| name.into());
            table.ids.entry(name.as_bytes().into()).or_insert(id);
        }
        table
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_users_have_names_and_others_numbers() {
        let users = UserDatabase::load();
        assert_eq!((users.user(0).as_str(), users.group(0).as_str()), ("root", "root"));
        assert_eq!((users.uid(b"root"), users.gid(b"root")), (Some(0), Some(0)));
        assert_eq!(users.user(4_000_000), "4000000");
        assert_eq!(users.uid(b"4000000"), Some(4_000_000));
        assert_eq!(users.uid(b"no such user"), None);
    }
}
