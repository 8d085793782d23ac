//! Users and groups, and permission checks (fs(8), users(6)).
//!
//! In: the text of /adm/users, one line `id:name:leader:members` for each, and the console's `newuser`. Out: names and
//! numbers, memberships, and whether a user may read, write or search a file. Always holds: numbers and names are
//! unique, and no name looks like a number.
//!
//! Numbers are those of Linux, for users and groups alike. A user without a line has the number as name. Names with a
//! meaning have it whatever their numbers are: `none` has only the permissions of all others, and members of `noworld`
//! have less than these. `adm` is -1 in the text, as in Ken's, and `none` is -2; no user of Linux has these numbers.

use std::collections::{HashMap, HashSet};
use std::fmt;

use nine_io::server::acl::{AclClient, PosixAcl};
use nine_proto::{NOUID, Names, Numeric, mode};

/// The number of `adm`, -1 in the text. A client cannot use it as a number.
pub(crate) const ADM: u32 = NOUID - 1;

/// The number of `none`, -2 in the text. A client cannot use it as a number.
pub(crate) const NONE: u32 = ADM - 1;

/// The number of `none` in the tables of older archives. In Linux it is `nobody`, a user that owns files.
const OLD_NONE: u32 = 65534;

/// Maximum number of lines of the table.
const USERS_MAX: usize = 1 << 16;

/// Maximum bytes of a name.
const USER_NAME_MAX: usize = 255;

/// The first number for a new user, and the first for a new group.
const NEW_USER: u32 = 1000;
const NEW_GROUP: u32 = 10_000;

const DEFAULT: &str = "\
-1:adm:adm:
-2:none::
0:root:root:
10000:sys::
9999:noworld::
";

const FORMS: &str =
    "newuser NAME, or NAME and one of `:` (a group) `?` `=LEADER` `=` `+MEMBER` `-MEMBER` `NEWNAME`";

/// The table of users and groups.
#[derive(Clone, Debug)]
pub(crate) struct UserTable {
    /// In the order of the lines.
    list: Vec<UserRecord>,
    ids: HashMap<u32, usize>,
    names: HashMap<Box<str>, usize>,
}

#[derive(Clone, Debug)]
struct UserRecord {
    id: u32,
    name: Box<str>,
    leader: Option<u32>,
    members: Vec<u32>,
}

impl UserTable {
    /// Parses the text. Blank lines and lines that begin with `#` are ignored. A line may end after any field but the
    /// first.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut users = Self { list: Vec::new(), ids: HashMap::new(), names: HashMap::new() };
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines: Vec<(usize, &str)> =
            lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
        for (number, line) in &lines {
            users.enter(line).map_err(|wrong| format!("line {number}: {wrong}"))?;
        }
        // Users may be referred to before their own lines.
        for (i, (number, line)) in lines.iter().enumerate() {
            users.relate(i, line).map_err(|wrong| format!("line {number}: {wrong}"))?;
        }
        Ok(users)
    }

    /// Returns the number of a name. A name that is not in the table, but is a number, stands for that number.
    pub(crate) fn id(&self, name: &str) -> Option<u32> {
        self.names.get(name).map(|i| self.list[*i].id).or_else(|| number(name))
    }

    /// Returns the name of a number, if it has one.
    pub(crate) fn name(&self, id: u32) -> Option<&str> {
        self.find(id).map(|user| &*user.name)
    }

    /// Returns whether a user is a member of a group. Each user is a member of the group with the same number. `none`
    /// is in no group.
    pub(crate) fn is_member(&self, user: u32, group: u32) -> bool {
        let listed = || self.find(group).is_some_and(|group| group.members.contains(&user));
        !self.is_none(user) && (user == group || listed())
    }

    /// Returns whether a user leads a group. A group without a leader is led by each member. A group without a line is
    /// led by the user with its number. `none` leads no group.
    pub(crate) fn leads(&self, user: u32, group: u32) -> bool {
        let leader = self.find(group).map_or(Some(group), |group| group.leader);
        !self.is_none(user) && leader.map_or_else(|| self.is_member(user, group), |leader| leader == user)
    }

    /// Returns whether this is the number of `none`.
    pub(crate) fn is_none(&self, id: u32) -> bool {
        id == NOUID || id == NONE || self.known("none") == Some(id)
    }

    /// Returns whether a user is a member of `noworld`.
    pub(crate) fn in_noworld(&self, id: u32) -> bool {
        self.known("noworld").is_some_and(|group| self.is_member(id, group))
    }

    /// Runs the console's `newuser` command; `line` is its arguments. Returns the new line of the user. If it fails,
    /// nothing has changed.
    pub(crate) fn newuser(&mut self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let i = match *words.as_slice() {
            [name] => self.add(name, NEW_USER)?,
            [name, ":"] => self.add(name, NEW_GROUP)?,
            [name, change] => {
                let i = *self.names.get(name).ok_or_else(|| format!("no user `{name}`"))?;
                self.change(i, change)?;
                i
            }
            _ => return Err(format!("usage: {FORMS}")),
        };
        Ok(self.line(i))
    }

    fn find(&self, id: u32) -> Option<&UserRecord> {
        self.ids.get(&id).map(|i| &self.list[*i])
    }

    /// Returns the number of a name in the table.
    fn known(&self, name: &str) -> Option<u32> {
        self.names.get(name).map(|i| self.list[*i].id)
    }

    /// Adds the number and the name of a line.
    fn enter(&mut self, line: &str) -> Result<(), String> {
        let fields: Vec<&str> = line.split(':').map(str::trim).collect();
        let &[id, name, ..] = fields.as_slice() else {
            return Err(format!("`{line}` has no name; write id:name:leader:members"));
        };
        if fields.len() > 4 {
            return Err(format!("{} fields; write id:name:leader:members", fields.len()));
        }
        let wrong = || format!("`{id}` is no number: -1, -2, or 0 to {}", NONE - 1);
        let id = match id {
            "-1" => ADM,
            "-2" => NONE,
            id => number(id).ok_or_else(wrong)?,
        };
        let id = if (id, name) == (OLD_NONE, "none") { NONE } else { id };
        if let Some(other) = self.name(id) {
            return Err(format!("{} is `{other}` already", TextId(id)));
        }
        self.push(id, name, None)
    }

    /// Sets the leader and the members of a line, when all lines have been added.
    fn relate(&mut self, i: usize, line: &str) -> Result<(), String> {
        let mut fields = line.split(':').map(str::trim).skip(2);
        let leader = fields.next().filter(|leader| !leader.is_empty());
        let leader = leader.map(|name| self.id(name).ok_or_else(|| format!("no leader `{name}`")));
        let members = fields.next().filter(|members| !members.is_empty());
        let mut seen = HashSet::new();
        let member = |name: &str| {
            let id = self.id(name.trim()).ok_or_else(|| format!("no member `{}`", name.trim()))?;
            seen.insert(id).then_some(id).ok_or_else(|| format!("`{}` is a member twice", name.trim()))
        };
        let members = members.into_iter().flat_map(|members| members.split(',')).map(member);
        let (members, leader) = (members.collect::<Result<_, _>>()?, leader.transpose()?);
        (self.list[i].members, self.list[i].leader) = (members, leader);
        Ok(())
    }

    fn push(&mut self, id: u32, name: &str, leader: Option<u32>) -> Result<(), String> {
        self.free(name)?;
        if self.list.len() == USERS_MAX {
            return Err(format!("more than {USERS_MAX} users"));
        }
        self.ids.insert(id, self.list.len());
        self.names.insert(name.into(), self.list.len());
        self.list.push(UserRecord { id, name: name.into(), leader, members: Vec::new() });
        Ok(())
    }

    /// Checks that a name is valid and not in use.
    fn free(&self, name: &str) -> Result<(), String> {
        check(name)?;
        self.known(name).map_or(Ok(()), |id| Err(format!("there is a `{name}` already: {}", TextId(id))))
    }

    /// Adds a user, or a group. A user is the leader of its own group; a group is led by each member.
    fn add(&mut self, name: &str, from: u32) -> Result<usize, String> {
        // There are more numbers than users.
        let id = (from..NONE).find(|id| !self.ids.contains_key(id)).ok_or("no number is free")?;
        self.push(id, name, (from == NEW_USER).then_some(id))?;
        Ok(self.list.len() - 1)
    }

    fn change(&mut self, i: usize, change: &str) -> Result<(), String> {
        let of = |name: &str| self.id(name).ok_or_else(|| format!("no user `{name}`"));
        let place = |id| self.list[i].members.iter().position(|member| *member == id);
        let group = self.list[i].name.clone();
        match change.split_at_checked(1) {
            Some(("?", "")) => {}
            Some(("=", "")) => self.list[i].leader = None,
            Some(("=", leader)) => self.list[i].leader = Some(of(leader)?),
            Some(("+", member)) => {
                let id = of(member)?;
                if place(id).is_some() {
                    return Err(format!("`{member}` is a member of `{group}` already"));
                }
                self.list[i].members.push(id);
            }
            Some(("-", member)) => {
                let place =
                    place(of(member)?).ok_or_else(|| format!("`{member}` is no member of `{group}`"))?;
                self.list[i].members.remove(place);
            }
            _ if matches!(&*group, "adm" | "none" | "noworld") => {
                return Err(format!("`{group}` means something by its name, and keeps it"));
            }
            _ => {
                self.free(change)?;
                self.names.remove(&group);
                self.names.insert(change.into(), i);
                self.list[i].name = change.into();
            }
        }
        Ok(())
    }

    /// Formats a line of the text.
    fn line(&self, i: usize) -> String {
        let UserRecord { id, name, leader, members } = &self.list[i];
        let leader = leader.map(|id| self.user(id)).unwrap_or_default();
        let members: Vec<String> = members.iter().map(|id| self.user(*id)).collect();
        format!("{}:{name}:{leader}:{}", TextId(*id), members.join(","))
    }
}

impl Default for UserTable {
    /// adm, none, root, sys and noworld.
    fn default() -> Self {
        Self::parse(DEFAULT).expect("it is right, as a test says")
    }
}

impl fmt::Display for UserTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.list.len()).try_for_each(|i| writeln!(f, "{}", self.line(i)))
    }
}

impl Names for UserTable {
    fn user(&self, uid: u32) -> String {
        self.name(uid).map_or_else(|| Numeric.user(uid), str::to_string)
    }

    fn group(&self, gid: u32) -> String {
        self.user(gid)
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        self.id(str::from_utf8(name).ok()?)
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        self.uid(name)
    }
}

/// A number as it is in the text.
struct TextId(u32);

impl fmt::Display for TextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ADM => f.write_str("-1"),
            NONE => f.write_str("-2"),
            id => id.fmt(f),
        }
    }
}

/// Parses a number in its canonical form.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id: &u32| *id < NONE && id.to_string() == text)
}

/// Checks that a name is valid.
fn check(name: &str) -> Result<(), String> {
    let bad = |c: char| "?=+-/:,".contains(c) || c.is_whitespace() || c.is_control();
    let wrong = if name.is_empty() || name.len() > USER_NAME_MAX {
        format!("a name of {} bytes; it has 1 to {USER_NAME_MAX}", name.len())
    } else if name.contains(bad) {
        format!("the name {name:?} has one of ? = + - / : , or a blank or a control character")
    } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("the name `{name}` would be a number")
    } else if matches!(name, "." | "..") {
        format!("`{name}` is the name of a directory")
    } else {
        return Ok(());
    };
    Err(wrong)
}

/// Permission to read.
pub(crate) const READ: u8 = 4;
/// Permission to write.
pub(crate) const WRITE: u8 = 2;
/// Permission to execute, or to search a directory.
pub(crate) const EXECUTE: u8 = 1;

/// The owner and the permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileMode {
    /// Type and permissions as in stat(2).
    pub(crate) mode: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
}

/// The user of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PermissionUser<'a> {
    /// The user ID; without one the user has the permissions of `none`.
    pub(crate) id: Option<u32>,
    /// The table.
    pub(crate) users: &'a UserTable,
    /// May do everything: the console, and users that it has allowed.
    pub(crate) power: bool,
}

/// Returns whether a user has all permissions in `want`, a set of [`READ`], [`WRITE`] and [`EXECUTE`].
///
/// As in Plan 9 permissions add up: those of the owner, if the user is the owner; those of the group, if the user is a
/// member; and those of all others. Linux uses only the first class that matches, and checks it before it asks this
/// server. `none` has the permissions of all others. Members of `noworld` do not have these, except for searching
/// directories.
///
/// A file with an access control list is different: the first entry that applies decides (acl(5)), because a list is
/// also used to exclude users.
pub(crate) fn may(file: &FileMode, acl: Option<&PosixAcl>, who: PermissionUser<'_>, want: u8) -> bool {
    let bits = |class: u32| (file.mode >> class) as u8 & (READ | WRITE | EXECUTE);
    let is_dir = file.mode & mode::S_IFMT == mode::S_IFDIR;
    let uid = who.id.filter(|id| !who.users.is_none(*id));
    let of_others = match uid {
        Some(id) if who.users.in_noworld(id) => bits(0) & if is_dir { EXECUTE } else { 0 },
        _ => bits(0),
    };
    if who.power {
        return true;
    }
    if let Some(acl) = acl {
        let is_member = |gid| uid.is_some_and(|id| who.users.is_member(id, gid));
        let client = AclClient { uid, is_member };
        return acl.allows((file.uid, file.gid), &client, of_others, want);
    }
    let mut has = of_others;
    if let Some(id) = uid {
        if id == file.uid {
            has |= bits(6);
        }
        if who.users.is_member(id, file.gid) {
            has |= bits(3);
        }
    }
    want & !has == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: &str = "\
-1:adm:adm:ken
-2:none::
0:root:root:
1000:ken:ken:
1001:rob:rob:
1002:eve:eve:
10000:sys::ken,rob
10001:doc:rob:rob,eve
9999:noworld::eve
";

    fn some() -> UserTable {
        UserTable::parse(SOME).unwrap()
    }

    #[test]
    fn the_table_of_a_new_file_system() {
        let users = UserTable::default();
        let text = "-1:adm:adm:\n-2:none::\n0:root:root:\n10000:sys::\n9999:noworld::\n";
        assert_eq!(users.to_string(), text);
        assert_eq!(users.id("adm"), Some(0xffff_fffe));
        assert_eq!(
            (users.id("none"), users.id("root"), users.id("sys")),
            (Some(NONE), Some(0), Some(10_000))
        );
        assert!(users.is_none(NONE) && users.is_none(NOUID) && !users.is_none(0) && !users.is_none(65534));
    }

    #[test]
    fn it_is_written_as_it_was_read() {
        assert_eq!(some().to_string(), SOME);
        let loose = "# who\n\n  1000 : ken : ken \r\n\t# more\n10000:sys:: ken , 1500\n1001:rob";
        let users = UserTable::parse(loose).unwrap();
        assert_eq!(users.to_string(), "1000:ken:ken:\n10000:sys::ken,1500\n1001:rob::\n");
        assert_eq!(UserTable::parse(&users.to_string()).unwrap().to_string(), users.to_string());
        assert_eq!(UserTable::parse("").unwrap().to_string(), "");
    }

    #[test]
    fn kens_table_is_understood() {
        let ken = "-1:adm:adm:\n0:none:adm:\n1:tor:tor:\n10000:sys::\n\
            10001:map:map:\n10005:bootes:bootes:\n9999:noworld::\n";
        let users = UserTable::parse(ken).unwrap();
        assert_eq!(users.to_string(), ken);
        assert!(users.is_none(0) && !users.is_none(65534));
        assert!(!may(
            &FileMode { mode: 0o700, uid: 0, gid: 0 },
            None,
            PermissionUser { id: Some(0), users: &users, power: false },
            4
        ));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let long = format!("1:{}", "a".repeat(256));
        let directory = "`..` is the name of a directory";
        let character = |name: &str| {
            format!("the name {name:?} has one of ? = + - / : , or a blank or a control character")
        };
        for (text, wrong) in [
            ("1000:ken\n\n# x\n1000:rob", "line 4: 1000 is `ken` already".into()),
            ("-1:adm\n-1:boss", "line 2: -1 is `adm` already".into()),
            ("1000:ken\n1001:ken", "line 2: there is a `ken` already: 1000".into()),
            ("1000", "line 1: `1000` has no name; write id:name:leader:members".into()),
            ("1000:ken:ken::", "line 1: 5 fields; write id:name:leader:members".into()),
            ("ken:1000", "line 1: `ken` is no number: -1, -2, or 0 to 4294967292".into()),
            (":ken", "line 1: `` is no number: -1, -2, or 0 to 4294967292".into()),
            ("-3:ken", "line 1: `-3` is no number: -1, -2, or 0 to 4294967292".into()),
            ("+2:ken", "line 1: `+2` is no number: -1, -2, or 0 to 4294967292".into()),
            ("007:ken", "line 1: `007` is no number: -1, -2, or 0 to 4294967292".into()),
            ("4294967293:ken", "line 1: `4294967293` is no number: -1, -2, or 0 to 4294967292".into()),
            ("4294967294:ken", "line 1: `4294967294` is no number: -1, -2, or 0 to 4294967292".into()),
            ("4294967295:ken", "line 1: `4294967295` is no number: -1, -2, or 0 to 4294967292".into()),
            ("4294967296:ken", "line 1: `4294967296` is no number: -1, -2, or 0 to 4294967292".into()),
            ("1000:ken:rob:", "line 1: no leader `rob`".into()),
            ("1000:ken\n10000:sys::ken,rob", "line 2: no member `rob`".into()),
            ("1000:ken\n10000:sys::ken,", "line 2: no member ``".into()),
            ("1000:ken\n10000:sys::ken,1000", "line 2: `1000` is a member twice".into()),
            ("1::", "line 1: a name of 0 bytes; it has 1 to 255".into()),
            (&long, "line 1: a name of 256 bytes; it has 1 to 255".into()),
            ("1:1500", "line 1: the name `1500` would be a number".into()),
            ("1:..", format!("line 1: {directory}")),
            ("1:a b", format!("line 1: {}", character("a b"))),
            ("1:a\u{a0}b", format!("line 1: {}", character("a\u{a0}b"))),
            ("1:a\0b", format!("line 1: {}", character("a\0b"))),
            ("1:a,b", format!("line 1: {}", character("a,b"))),
        ] {
            assert_eq!(UserTable::parse(text).unwrap_err(), wrong);
        }
        for c in "?=+-/".chars() {
            assert_eq!(
                UserTable::parse(&format!("1:a{c}")).unwrap_err(),
                format!("line 1: {}", character(&format!("a{c}")))
            );
        }
        assert!(UserTable::parse(&long[..257]).is_ok());
    }

    #[test]
    fn there_are_65536_users_and_no_more() {
        let mut text: String = (0..65536).map(|id| format!("{id}:u{id}\n")).collect();
        let mut users = UserTable::parse(&text).unwrap();
        assert_eq!(users.newuser("more").unwrap_err(), "more than 65536 users");
        assert_eq!(users.to_string().lines().count(), 65536);
        text.push_str("65536:more\n");
        assert_eq!(UserTable::parse(&text).unwrap_err(), "line 65537: more than 65536 users");
    }

    #[test]
    fn names_are_numbers_and_numbers_names() {
        let users = some();
        assert_eq!((users.id("ken"), users.name(1000)), (Some(1000), Some("ken")));
        assert_eq!((users.id("1500"), users.name(1500)), (Some(1500), None));
        for name in ["adm", "none", "ken", "sys", "1500", "4294967292"] {
            let id = users.uid(name.as_bytes()).unwrap();
            assert_eq!(users.gid(name.as_bytes()), Some(id));
            assert_eq!((users.user(id), users.group(id)), (name.into(), name.into()));
        }
        assert_eq!(users.id("1000"), Some(1000));
        for name in [
            &b""[..],
            b"nobody",
            b"+5",
            b"05",
            b"-1",
            b"-2",
            b"4294967293",
            b"4294967294",
            b"4294967295",
            b"\xff",
        ] {
            assert_eq!(users.uid(name), None, "{name:?}");
        }
        assert_eq!(users.user(NOUID), "none");
    }

    #[test]
    fn groups_have_members_and_leaders() {
        let users = some();
        let [ken, rob, eve, sys, doc, none] =
            ["ken", "rob", "eve", "sys", "doc", "none"].map(|n| users.id(n).unwrap());
        assert!(users.is_member(ken, sys) && users.is_member(rob, sys) && !users.is_member(eve, sys));
        assert!(users.is_member(ken, ken) && !users.is_member(ken, rob) && !users.is_member(sys, ken));
        assert!(users.is_member(1500, 1500) && !users.is_member(1500, 1501));
        assert!(!users.is_member(none, none) && !users.is_member(NOUID, NOUID));
        // Without a leader each member leads.
        assert!(users.leads(ken, sys) && users.leads(rob, sys) && !users.leads(eve, sys));
        assert!(users.leads(rob, doc) && !users.leads(eve, doc));
        assert!(users.leads(ken, ken) && !users.leads(rob, ken));
        assert!(users.leads(1500, 1500) && !users.leads(ken, 1500) && !users.leads(none, none));
        assert!(
            users.in_noworld(eve)
                && users.in_noworld(9999)
                && !users.in_noworld(ken)
                && !users.in_noworld(none)
        );
        let listed = UserTable::parse("700:none\n10000:sys::none").unwrap();
        assert!(!listed.is_member(700, 10_000) && !listed.leads(700, 10_000) && !listed.in_noworld(0));
    }

    #[test]
    fn the_console_makes_and_changes_users() {
        let mut users = UserTable::default();
        for (line, answer) in [
            ("ken", "1000:ken:ken:"),
            ("rob", "1001:rob:rob:"),
            ("doc :", "10001:doc::"),
            (" doc \t +rob ", "10001:doc::rob"),
            ("doc +ken", "10001:doc::rob,ken"),
            ("doc =ken", "10001:doc:ken:rob,ken"),
            ("doc +1500", "10001:doc:ken:rob,ken,1500"),
            ("doc -rob", "10001:doc:ken:ken,1500"),
            ("doc -1500", "10001:doc:ken:ken"),
            ("ken kenneth", "1000:kenneth:kenneth:"),
            ("doc ?", "10001:doc:kenneth:kenneth"),
            ("doc =", "10001:doc::kenneth"),
            ("adm +kenneth", "-1:adm:adm:kenneth"),
            ("ken", "1002:ken:ken:"),
        ] {
            assert_eq!(users.newuser(line).as_deref(), Ok(answer), "{line}");
        }
        assert_eq!((users.id("kenneth"), users.id("ken")), (Some(1000), Some(1002)));
        let before = users.to_string();
        for (line, wrong) in [
            ("", format!("usage: {FORMS}")),
            ("ken + rob", format!("usage: {FORMS}")),
            ("ken rob", "there is a `rob` already: 1001".into()),
            ("ken", "there is a `ken` already: 1002".into()),
            ("doc :", "there is a `doc` already: 10001".into()),
            ("tom ?", "no user `tom`".into()),
            ("doc =tom", "no user `tom`".into()),
            ("doc +tom", "no user `tom`".into()),
            ("doc +", "no user ``".into()),
            ("doc +kenneth", "`kenneth` is a member of `doc` already".into()),
            ("doc -rob", "`rob` is no member of `doc`".into()),
            ("none nobody", "`none` means something by its name, and keeps it".into()),
            ("ken 1234", "the name `1234` would be a number".into()),
            ("1234", "the name `1234` would be a number".into()),
        ] {
            assert_eq!(users.newuser(line), Err(wrong), "{line}");
        }
        for line in ["+ken", "a:b", "ken a/b", "ken ä?", "ken ä=", "ken ::"] {
            assert!(users.newuser(line).is_err(), "{line}");
        }
        assert_eq!(users.to_string(), before);
        assert_eq!(UserTable::parse(&before).unwrap().to_string(), before);
        let taken = UserTable::parse("1000:a\n1002:b\n10000:c\n10001:d");
        let mut taken = taken.unwrap();
        assert_eq!(taken.newuser("x").as_deref(), Ok("1001:x:x:"));
        assert_eq!(taken.newuser("y").as_deref(), Ok("1003:y:y:"));
        assert_eq!(taken.newuser("z :").as_deref(), Ok("10002:z::"));
    }

    /// Each user has exactly these permissions, for a file of ken and sys with each of the 512 modes.
    #[test]
    fn permissions_add_up() {
        let users = some();
        let person = |id| PermissionUser { id, users: &users, power: false };
        for bits in 0..0o1000_u32 {
            for kind in [mode::S_IFREG, mode::S_IFDIR] {
                let file = FileMode { mode: kind | bits, uid: 1000, gid: 10_000 };
                let (owner, group, other) = ((bits >> 6) as u8, (bits >> 3 & 7) as u8, (bits & 7) as u8);
                let search = if kind == mode::S_IFDIR { other & EXECUTE } else { 0 };
                for (id, has) in [
                    // ken: owner, and member of the group.
                    (Some(1000), owner | group | other),
                    // rob: member.
                    (Some(1001), group | other),
                    // The group itself is its member.
                    (Some(10_000), group | other),
                    // root has no special permissions here.
                    (Some(0), other),
                    // An unknown user.
                    (Some(5000), other),
                    // none, and no number.
                    (Some(NONE), other),
                    (Some(NOUID), other),
                    // Linux' nobody is an ordinary user.
                    (Some(65534), other),
                    (None, other),
                    // eve: in noworld.
                    (Some(1002), search),
                ] {
                    for want in 0..8 {
                        assert_eq!(
                            may(&file, None, person(id), want),
                            has & want == want,
                            "{bits:o}, {id:?}, {want}"
                        );
                        assert!(may(&file, None, PermissionUser { power: true, ..person(id) }, want));
                    }
                }
            }
        }
    }

    #[test]
    fn who_is_in_noworld_has_what_is_his() {
        let users = some();
        let eve = PermissionUser { id: Some(1002), users: &users, power: false };
        assert!(may(&FileMode { mode: 0o100_600, uid: 1002, gid: 0 }, None, eve, READ | WRITE));
        assert!(may(&FileMode { mode: 0o100_040, uid: 0, gid: 10_001 }, None, eve, READ));
        assert!(!may(&FileMode { mode: 0o100_007, uid: 0, gid: 0 }, None, eve, EXECUTE));
        assert!(may(&FileMode { mode: 0o040_001, uid: 0, gid: 0 }, None, eve, EXECUTE));
        assert!(!may(&FileMode { mode: 0o040_007, uid: 0, gid: 0 }, None, eve, READ));
    }

    #[test]
    fn none_owns_nothing() {
        let users = some();
        let none = PermissionUser { id: Some(NONE), users: &users, power: false };
        assert!(!may(&FileMode { mode: 0o100_770, uid: NONE, gid: NONE }, None, none, READ));
        assert!(may(&FileMode { mode: 0o100_774, uid: NONE, gid: NONE }, None, none, READ));
    }

    #[test]
    fn nobody_of_linux_owns_files_and_is_no_none() {
        let old =
            "-1:adm:adm:\n65534:none::\n0:root:root:\n10000:sys::none,ken\n1000:ken:ken:\n9999:noworld::\n";
        let users = UserTable::parse(old).unwrap();
        assert_eq!((users.id("none"), users.id("65534")), (Some(NONE), Some(65534)));
        assert_eq!(users.to_string(), old.replace("65534", "-2"));
        let nobody = PermissionUser { id: Some(65534), users: &users, power: false };
        assert!(may(&FileMode { mode: 0o100_600, uid: 65534, gid: 0 }, None, nobody, READ | WRITE));
        assert!(may(&FileMode { mode: 0o100_060, uid: 0, gid: 65534 }, None, nobody, READ | WRITE));
        assert!(!may(&FileMode { mode: 0o100_770, uid: NONE, gid: 10_000 }, None, nobody, READ));
        // Another user may have the former number of `none`.
        let named = UserTable::parse(&format!("{old}65534:nobody:nobody:")).unwrap();
        assert_eq!((named.id("nobody"), named.name(65534)), (Some(65534), Some("nobody")));
        // If a table gives `none` another number, that number has no permissions.
        assert!(UserTable::parse("700:none::").unwrap().is_none(700));
    }
}
