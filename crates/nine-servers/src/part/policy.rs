//! The policy of sessions: their users and limits, as a text file; and lists of processors in it and in ctls.
//!
//! In: lines (docs/part.md, "Policy"). Out: a [`Policy`]; lists of processors; the [`SessionRules`] of the file's
//! present version.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use nine_io::quote;
use nine_io::server::Who;
use nine_net::lock::{Mutex, lock};
use nine_net::{FileStamp, read_rights};
use nine_proto::{Errno, Error, Result};

/// See the module.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(super) allowed: Vec<PermittedUser>,
    /// The user that programs run as.
    pub(super) user: Option<String>,
    pub(super) limits: SessionLimits,
    /// The maximum number of sessions.
    pub(super) number: usize,
    /// The maximum number of sessions of one user.
    each: Option<usize>,
    /// `None`: all that are online.
    pub(super) cpus: Option<BTreeSet<usize>>,
    pub(super) programs: Vec<String>,
    pub(super) reads: Vec<String>,
    pub(super) network: bool,
    /// Servers to which programs may be sent (`clone`).
    pub(super) nodes: Vec<String>,
    /// The directory of the sessions' directories.
    pub(super) fs: Option<String>,
    pub(super) strict: bool,
    /// The file, and its stamp when it was read.
    file: Option<(PathBuf, Option<FileStamp>)>,
}

/// The limits of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionLimits {
    /// Memory in bytes.
    pub(super) memory: u64,
    /// CPU time in seconds.
    pub(super) cpu: Option<u64>,
    pub(super) processes: u64,
}

/// A user who may run programs.
#[derive(Clone, Debug)]
pub(super) struct PermittedUser {
    name: String,
    /// The uid of this name on this machine.
    uid: Option<u32>,
}

impl PermittedUser {
    /// Matches a client by its uid if it has one, else by its name.
    fn is(&self, who: &Who) -> bool {
        match who.uid {
            Some(uid) => self.uid == Some(uid),
            None => *self.name == *who.name,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            allowed: Vec::new(),
            user: None,
            limits: SessionLimits { memory: 1 << 30, cpu: None, processes: 256 },
            number: 64,
            each: None,
            cpus: None,
            programs: PROGRAMS.map(Into::into).into(),
            reads: Vec::new(),
            network: false,
            nodes: Vec::new(),
            fs: None,
            strict: false,
            file: None,
        }
    }
}

impl Policy {
    /// Reads a policy file. Waits for the disk.
    ///
    /// # Errors
    /// The file cannot be read, other users can change it ([`read_rights`]), or lines are invalid.
    pub fn read(file: &Path) -> std::result::Result<Self, String> {
        // The stamp is taken first: changes during the read are seen at the next check.
        let stamp = FileStamp::of(file);
        Ok(Self { file: Some((file.into(), stamp)), ..read_rights(file)?.parse()? })
    }

    /// Returns the maximum number of sessions of a user other than the owner.
    pub(super) fn each(&self) -> usize {
        self.each.unwrap_or(self.number / 2).max(1)
    }

    /// Checks that this client may create sessions.
    pub(super) fn may(&self, who: &Who) -> Result<()> {
        if who.read_only {
            return Err(Error::new(Errno::EACCES, "permission denied: you may change nothing here"));
        }
        let is_proven = who.is_proven();
        if who.owner || is_proven && self.allowed.iter().any(|user| user.is(who)) {
            return Ok(());
        }
        let text = match is_proven {
            true => format!("the policy of this server does not allow {} to run programs", who.name),
            false => "permission denied: that you are who you say is not proven".into(),
        };
        Err(Error::new(Errno::EACCES, text))
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut policy = Self::default();
        for (n, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let wrong = |why: String| format!("line {n}: {why}");
            let words = quote::words(line).map_err(|error| wrong(error.to_string()))?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            policy.line(&words).map_err(wrong)?;
        }
        Ok(policy)
    }
}

impl Policy {
    fn line(&mut self, words: &[&str]) -> std::result::Result<(), String> {
        let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match words {
            [] => {}
            ["allow", users @ ..] if !users.is_empty() => {
                self.allowed.extend(users.iter().map(|name| PermittedUser {
                    name: (*name).into(),
                    uid: name.parse().ok().or(passwd(name).map(|(uid, _)| uid)),
                }));
            }
            ["user", name] => self.user = Some((*name).into()),
            ["memory", word] => self.limits.memory = size(word)?,
            ["cpu", word] => self.limits.cpu = Some(seconds(word)?),
            ["processes", word] => self.limits.processes = processes(word)?,
            ["number", word] => match count(word)? {
                number @ 1..=NUMBER_MAX => self.number = number as usize,
                _ => return Err(format!("`{word}`: sessions at once are 1 to {NUMBER_MAX}")),
            },
            ["each", word] => match count(word)? {
                number @ 1..=NUMBER_MAX => self.each = Some(number as usize),
                _ => return Err(format!("`{word}`: sessions of one user are 1 to {NUMBER_MAX}")),
            },
            ["cpus", list] => self.cpus = Some(cpus(list)?),
            ["programs", paths @ ..] if !paths.is_empty() => self.programs = texts(absolute(paths)?),
            ["reads", paths @ ..] if !paths.is_empty() => self.reads.extend(texts(absolute(paths)?)),
            ["fs", dir] => self.fs = Some(absolute(&[dir])?[0].into()),
            ["nodes", all @ ..] if !all.is_empty() => self.nodes.extend(texts(all)),
            ["network"] => self.network = true,
            ["strict"] => self.strict = true,
            _ => return Err(format!("`{}`: write {KNOWN}", words.join(" "))),
        }
        Ok(())
    }
}

/// The rules for new sessions.
pub(super) struct SessionRules {
    pub(super) policy: Policy,
    /// Processors that sessions may use.
    pub(super) online: BTreeSet<usize>,
}

impl SessionRules {
    /// # Errors
    /// The policy names processors that do not exist.
    pub(super) fn new(policy: Policy) -> std::result::Result<Self, String> {
        let online = online(&policy)?;
        Ok(Self { policy, online })
    }

    /// Reads the file again. `user` and `fs` cannot change after the start.
    fn again(&self, file: &Path) -> std::result::Result<Self, String> {
        let text = read_rights(file)?;
        // The file may be in the middle of a write.
        if !text.ends_with('\n') {
            return Err("its last line has no end".into());
        }
        let policy: Policy = text.parse()?;
        if (&policy.user, &policy.fs) != (&self.policy.user, &self.policy.fs) {
            return Err("`user` and `fs` are followed by a server that starts, and by no other".into());
        }
        Self::new(policy)
    }
}

/// The rules with their file, read again after changes.
pub(super) struct WatchedSessionRules(Mutex<Arc<SessionRules>>);

impl WatchedSessionRules {
    pub(super) fn new(rules: SessionRules) -> Self {
        Self(Mutex::new(Arc::new(rules)))
    }

    /// Returns the rules without a check of the file.
    pub(super) fn known(&self) -> Arc<SessionRules> {
        lock(&self.0).clone()
    }

    /// Returns the rules after a check of the file. An invalid new version is logged and ignored. Waits for the disk.
    pub(super) fn now(&self) -> Arc<SessionRules> {
        let known = self.known();
        let Some((file, stamp)) = &known.policy.file else { return known };
        let found = FileStamp::of(file);
        if found == *stamp {
            return known;
        }
        let mut rules = match known.again(file) {
            Ok(rules) => {
                tracing::info!("{}: the policy has changed, and is followed", file.display());
                rules
            }
            Err(why) => {
                tracing::warn!("{}: the policy stays as it was: {why}", file.display());
                SessionRules { policy: known.policy.clone(), online: known.online.clone() }
            }
        };
        rules.policy.file = Some((file.clone(), found));
        let rules = Arc::new(rules);
        *lock(&self.0) = rules.clone();
        rules
    }
}

/// Returns the processors that sessions may use.
fn online(policy: &Policy) -> std::result::Result<BTreeSet<usize>, String> {
    let may = rustix::thread::sched_getaffinity(None).map_err(|error| error.to_string())?;
    let may: BTreeSet<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| may.is_set(cpu)).collect();
    let Some(cpus) = &policy.cpus else { return Ok(may) };
    match cpus.difference(&may).next() {
        Some(cpu) => Err(format!("cpus: processor {cpu} is not there: {} are", cpu_list(&may))),
        None => Ok(cpus.clone()),
    }
}

fn absolute<'a, 'b>(paths: &'a [&'b str]) -> std::result::Result<&'a [&'b str], String> {
    match paths.iter().find(|path| !path.starts_with('/')) {
        Some(path) => Err(format!("`{path}`: a path that begins with / is due")),
        None => Ok(paths),
    }
}

fn count(word: &str) -> std::result::Result<u64, String> {
    let number = word.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| format!("`{word}` is no number above 0"))
}

fn most(word: &str, most: u64) -> std::result::Result<u64, String> {
    match count(word)? {
        number if number <= most => Ok(number),
        _ => Err(format!("`{word}`: it is at most {most}")),
    }
}

/// Parses seconds of CPU time.
pub(super) fn seconds(word: &str) -> std::result::Result<u64, String> {
    most(word, SECONDS_MAX)
}

/// Parses a number of processes and threads.
pub(super) fn processes(word: &str) -> std::result::Result<u64, String> {
    most(word, PROCESSES_MAX)
}

/// Parses bytes of memory, at least one.
pub(super) fn size(word: &str) -> std::result::Result<u64, String> {
    match nine_text::parse_size(word).map_err(|error| error.to_string())? {
        0 => Err("a size of 0 leaves no memory at all".into()),
        bytes => Ok(bytes),
    }
}

/// Parses processors as the kernel lists them: `0-3,8`.
pub(super) fn cpus(list: &str) -> std::result::Result<BTreeSet<usize>, String> {
    let bad = || format!("`{list}` is no list of processors, like 0-3,8");
    let mut all = BTreeSet::new();
    for part in list.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |word: &str| word.parse::<usize>().map_err(|_| bad());
        let (from, to) = (number(from)?, number(to)?);
        if from > to || to > CPU_MAX {
            return Err(bad());
        }
        all.extend(from..=to);
    }
    Ok(all)
}

/// Formats processors as a list.
pub(super) fn cpu_list(cpus: &BTreeSet<usize>) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the uid and gid of a user name or uid on this machine.
pub(super) fn passwd(name: &str) -> Option<(u32, u32)> {
    let text = fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let (of, _, uid, gid) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        (of == name || uid == name).then_some((uid.parse().ok()?, gid.parse().ok()?))
    })
}

const KNOWN: &str = "allow USER..., user NAME, memory SIZE, cpu SECONDS, number N, each N, processes N, cpus LIST, \
     programs PATH..., reads PATH..., nodes ADDR..., network, fs DIR or strict";
/// The default of `programs`.
pub(super) const PROGRAMS: [&str; 7] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache"];
/// The highest value for `number`.
const NUMBER_MAX: u64 = 1024;
/// A hundred years; in microseconds it still fits the integer.
const SECONDS_MAX: u64 = 3_155_760_000;
/// The kernel's maximum.
const PROCESSES_MAX: u64 = 4 << 20;
/// The highest processor number in the kernel's CPU set.
const CPU_MAX: usize = 1023;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use nine_net::Proof;

    use super::*;

    fn who(name: &str, uid: Option<u32>, proof: Proof) -> Who {
        Who { name: name.into(), uid, ..Who::none(proof) }
    }

    #[test]
    fn a_policy_is_its_lines_or_what_is_wrong_with_them() {
        let policy: Policy =
            "# ours\nallow 4711 lab.example.org\nmemory 64M # each\ncpu 3\nnumber 2\ncpus 0-1,3\n\
             programs /bin '/opt/a b'\nstrict\n"
                .parse()
                .unwrap();
        assert_eq!(policy.limits, SessionLimits { memory: 64 << 20, cpu: Some(3), processes: 256 });
        assert_eq!((policy.number, policy.strict, policy.network), (2, true, false));
        assert_eq!(policy.cpus, Some([0, 1, 3].into()));
        assert_eq!(policy.programs, ["/bin", "/opt/a b"]);
        for (line, said) in [
            ("allow", "write allow USER"),
            ("memory much", "invalid size `much`"),
            ("memory 99999999999G", "invalid size `99999999999G`"),
            ("cpu 0", "is no number above 0"),
            ("cpu 18446744073709551615", "at most 3155760000"),
            ("processes 99999999", "at most 4194304"),
            ("number 5000", "1 to 1024"),
            ("each 0", "is no number above 0"),
            ("cpus 3-1", "no list of processors"),
            ("cpus 5000", "no list of processors"),
            ("programs bin", "begins with /"),
            ("fs 'x", "quote"),
            ("strict please", "write allow"),
        ] {
            let why = format!("\n{line}").parse::<Policy>().unwrap_err();
            assert!(why.starts_with("line 2: ") && why.contains(said), "{line}: {why}");
        }
    }

    #[test]
    fn who_may_is_proven_and_named_or_the_owner() {
        let policy: Policy = "allow 4711 lab.example.org".parse().unwrap();
        let unix = Proof::Unix { uid: 4711, gid: 1 };
        let may = |who: &Who| policy.may(who).is_ok();
        assert!(may(&who("glenda", Some(4711), unix.clone())));
        assert!(!may(&who("glenda", Some(4711), Proof::None)), "it is only claimed");
        assert!(!may(&who("lab.example.org", Some(1), unix.clone())), "the number counts");
        assert!(may(&who("lab.example.org", None, unix.clone())));
        assert!(may(&Who { owner: true, ..who("rob", Some(1), Proof::None) }));
        assert!(!may(&Who { owner: true, read_only: true, ..who("rob", Some(1), unix) }));
    }

    #[test]
    fn one_user_has_half_of_what_there_is_if_nobody_says() {
        for (lines, each) in [("", 32), ("number 1", 1), ("number 9", 4), ("each 3\nnumber 2", 3)] {
            assert_eq!(lines.parse::<Policy>().unwrap().each(), each, "{lines}");
        }
    }

    #[test]
    fn a_policy_is_followed_when_its_file_changes_and_never_half() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy");
        let put = |text: &str| {
            // Another file replaces it, as recommended.
            fs::write(dir.path().join("new"), text).unwrap();
            fs::rename(dir.path().join("new"), &file).unwrap();
        };
        put("user nobody\nnumber 3\n");
        let rules = WatchedSessionRules::new(SessionRules::new(Policy::read(&file).unwrap()).unwrap());
        let number = || rules.now().policy.number;
        assert_eq!(number(), 3);
        put("user nobody\nnumber 4\n");
        assert_eq!(number(), 4);
        for text in
            ["", "user nobody\nnumber 9", "user nobody\nnumber much\n", "user root\nnumber 9\n", "number 9\n"]
        {
            put(text);
            assert_eq!(number(), 4, "{text:?}");
        }
        put("user nobody\nnumber 9\n");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(number(), 4, "others can change it");
        assert!(Policy::read(&file).unwrap_err().contains("others can change who may do what"));
        fs::remove_file(&file).unwrap();
        assert_eq!(number(), 4);
        put("user nobody\nnumber 5\n");
        assert_eq!(number(), 5);
    }

    #[test]
    fn a_list_of_processors_is_read_and_written() {
        assert_eq!(cpu_list(&cpus("0-2,7\n").unwrap()), "0,1,2,7");
        assert!(["", "a", "1-", "-1", "1,,2"].iter().all(|list| cpus(list).is_err()));
    }
}
