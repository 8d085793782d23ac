//! Attach rights: the file of `--exports`, and whether the certificates of connected clients are still valid.
//!
//! ```text
//! # allow WHO TREE ro|rw        deny WHO
//! allow cert:glenda     /      rw
//! allow cert:*@lab      /pub   ro
//! allow unix:rob        guests rw
//! allow token           *      rw
//! deny  cert:mallory
//! allow anyone          /pub   ro
//! ```
//!
//! In: the exports file, and the files of certificates. Out: a [`Policy`] for the gates of all listeners, updated when
//! the files change.
//!
//! Always holds: the first line that matches decides; if no line matches, the attach is refused. An invalid file is
//! logged and ignored, and the previous rules stay in effect. The server's own user, and root, may always attach by a
//! unix socket: the files are theirs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use arc_swap::ArcSwap;
use nine_io::server::{Asks, Core, Policy, Right};
use nine_io::{audit, near};
use nine_net::{ClientJudge, Env, FileStamp, Proof, ServerTls, read_rights_of, rt};
use nine_proto::{Errno, Error};
use nine_text::show_name;

use super::listen;
use crate::config::Serving;

/// The policy from the exports file and the certificates.
#[derive(Debug)]
pub struct Exports {
    file: Option<Followed>,
    certificates: Option<Certificates>,
    /// The cores that check their clients again after a change.
    cores: Mutex<Vec<Core>>,
    /// User id of this process.
    own: u32,
}

impl Exports {
    /// Loads the policy. Returns `None` if neither an exports file nor a client CA is configured.
    pub fn of(env: &rt::Real, serving: &Serving) -> Result<Option<Arc<Self>>> {
        let file = serving.exports.as_deref().map(Followed::open).transpose()?;
        let tls = match serving.client_ca {
            Some(_) => listen::certificate(env, serving)?,
            None => None,
        };
        let certificates = tls.map(Certificates::of);
        if file.is_none() && certificates.is_none() {
            return Ok(None);
        }
        let own = rustix::process::geteuid().as_raw();
        Ok(Some(Arc::new(Self { file, certificates, cores: Mutex::default(), own })))
    }

    /// Registers a core: its clients are checked again when something has changed.
    pub fn judges(&self, core: Core) {
        lock(&self.cores).push(core);
    }

    /// Checks the files every second, as long as it is polled.
    pub async fn follow(self: Arc<Self>, env: rt::Real) {
        loop {
            env.sleep_until(env.now() + LOOK_EVERY).await;
            self.look(&env);
        }
    }

    /// Checks the files. After a change, all clients are checked against the new rules.
    pub fn look(&self, env: &rt::Real) {
        let mut changed = self.file.as_ref().is_some_and(Followed::look);
        changed |= self.certificates.as_ref().is_some_and(|certificates| certificates.look(env));
        if changed {
            lock(&self.cores).iter().for_each(Core::judge_again);
        }
    }
}

impl Policy for Exports {
    fn judge(&self, asks: &Asks<'_>) -> nine_proto::Result<Right> {
        let Some(file) = &self.file else { return Ok(Right::Write) };
        match asks.proof {
            Proof::Unix { uid, .. } if *uid == 0 || *uid == self.own => Ok(Right::Write),
            _ => file.rules.load().judge(asks),
        }
    }

    fn has_trees(&self) -> bool {
        self.file.is_some()
    }

    fn knows(&self, certificates: &[&[u8]]) -> nine_proto::Result<()> {
        let Some(Certificates { judge, .. }) = &self.certificates else { return Ok(()) };
        let judged = judge.load().judge(certificates, rt::Real.wall());
        judged.map_err(|why| Error::new(Errno::EACCES, format!("it has shown a certificate that {why}")))
    }
}

/// Checks the syntax of an exports file. Its owner is not checked here, because another user may serve with it.
pub fn check(path: &Path) -> Result<()> {
    let name = path.display().to_string();
    Rules::parse(&name, &text(path, None)?).map(drop).map_err(|wrong| anyhow!(wrong))
}

/// The authorities and revocation lists by which certificates are checked again.
#[derive(Debug)]
struct Certificates {
    /// Locked only to read the files, never to check a certificate.
    files: Mutex<(ServerTls, u64)>,
    judge: ArcSwap<ClientJudge>,
}

impl Certificates {
    fn of(tls: ServerTls) -> Self {
        let judge = ArcSwap::from_pointee(tls.judge());
        Self { files: Mutex::new((tls, 1)), judge }
    }

    /// Reloads the files if they have changed. Returns whether new ones are in use.
    fn look(&self, env: &rt::Real) -> bool {
        let (tls, known) = &mut *lock(&self.files);
        let version = tls.look(env.now(), env.wall());
        let changed = std::mem::replace(known, version) != version;
        if changed {
            self.judge.store(Arc::new(tls.judge()));
        }
        changed
    }
}

/// A file that is reloaded when it changes.
#[derive(Debug)]
struct Followed {
    path: PathBuf,
    stamp: Mutex<Option<FileStamp>>,
    rules: ArcSwap<Rules>,
}

impl Followed {
    fn open(path: &Path) -> Result<Self> {
        let stamp = FileStamp::of(path);
        let text = text(path, Some(rustix::process::geteuid().as_raw()))?;
        let rules = Rules::parse(&path.display().to_string(), &text).map_err(|wrong| anyhow!(wrong))?;
        Ok(Self { path: path.into(), stamp: Mutex::new(stamp), rules: ArcSwap::from_pointee(rules) })
    }

    /// Reloads the file if it has changed. Returns whether new rules are in use.
    fn look(&self) -> bool {
        // Take the stamp before the read: a change during the read is then seen the next time.
        let found = FileStamp::of(&self.path);
        if std::mem::replace(&mut *lock(&self.stamp), found) == found {
            return false;
        }
        match self.again() {
            Ok(rules) => {
                tracing::info!("{}: the exports have changed, and are followed", self.path.display());
                self.rules.store(Arc::new(rules));
                true
            }
            Err(why) => {
                tracing::error!("the exports stay as they were: {why:#}");
                false
            }
        }
    }

    fn again(&self) -> Result<Rules> {
        let name = self.path.display().to_string();
        let text = text(&self.path, Some(rustix::process::geteuid().as_raw()))?;
        // A writer may have truncated the file and not finished. Such rules would cut off all clients.
        if !text.ends_with('\n') {
            bail!("{name}: its last line has no end");
        }
        Rules::parse(&name, &text).map_err(|wrong| anyhow!(wrong))
    }
}

/// Reads the text of a file that only root and this user, if one is given, can change.
fn text(path: &Path, own: Option<u32>) -> Result<String> {
    read_rights_of(path, own).map_err(|why| anyhow!("{}: {why}", path.display()))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Rules(Vec<Rule>);

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    who: Whom,
    /// `None`: access is denied.
    gives: Option<(Tree, Right)>,
}

/// The clients that a line is about.
#[derive(Debug, PartialEq, Eq)]
enum Whom {
    /// Every client, with any proof or none.
    Anyone,
    Token,
    /// A certificate name as in [`Proof::Certificate`], perhaps with one `*`.
    Certificate(String),
    /// A user of this machine; `None` for all users.
    Unix(Option<u32>),
}

/// The trees that a line gives access to.
#[derive(Debug, PartialEq, Eq)]
enum Tree {
    All,
    /// This tree and everything below it.
    At(Place),
}

/// An aname split into its parts: `/a/b` begins with a slash, `NAME/a` is in a name space.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    rooted: bool,
    names: Vec<Vec<u8>>,
}

impl Rules {
    /// Parses the file. On failure, returns all errors, each as `FILE:LINE:COLUMN: error; expectation`.
    fn parse(file: &str, text: &str) -> Result<Self, String> {
        let (mut rules, mut wrong) = (Vec::new(), Vec::new());
        for (n, line) in (1..).zip(text.lines()) {
            if rules.len() == LINES_MAX {
                wrong.push(format!("{file}:{n}:1: too long; at most {LINES_MAX} lines say something"));
                break;
            }
            match rule(line) {
                Ok(rule) => rules.extend(rule),
                Err((column, what)) => wrong.push(format!("{file}:{n}:{column}: {what}")),
            }
            if wrong.len() == WRONG_MAX {
                break;
            }
        }
        if wrong.is_empty() { Ok(Self(rules)) } else { Err(wrong.join("\n")) }
    }

    fn judge(&self, asks: &Asks<'_>) -> nine_proto::Result<Right> {
        let no = |why: String| Err(Error::new(Errno::EACCES, why));
        let place = match asks.aname.map(Place::of) {
            Some(None) => {
                return no("an aname with `.` or `..` in it is not let in; write the path itself".into());
            }
            Some(place) => place,
            None => None,
        };
        let mut others = Vec::new();
        for rule in self.0.iter().filter(|rule| rule.who.is(asks)) {
            match &rule.gives {
                None => return no(format!("the exports of this server give nothing to {asks}")),
                Some((tree, right)) if place.as_ref().is_none_or(|place| tree.has(place)) => {
                    return Ok(*right);
                }
                Some((tree, _)) => others.push(tree.to_string()),
            }
        }
        // This text goes to a client, the log and the audit log.
        let asked = asks.aname.map(audit::line).filter(|aname| !aname.is_empty());
        let asked = asked.unwrap_or_else(|| "/".into());
        others.dedup();
        match others.len() {
            0 => no(format!("no line in the exports of this server is about {asks}")),
            n => {
                others.truncate(TOLD);
                let more = if n > TOLD { " and others" } else { "" };
                let others = others.join(", ");
                no(format!("{asks} may not attach to {asked}, but to {others}{more}: say so with --aname"))
            }
        }
    }
}

impl Whom {
    fn is(&self, asks: &Asks<'_>) -> bool {
        match (self, asks.proof) {
            (Self::Anyone, _) => true,
            (Self::Token, _) => asks.token,
            (Self::Certificate(of), Proof::Certificate { name, .. }) => match of.split_once('*') {
                Some((begin, end)) => {
                    name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end)
                }
                None => of == name,
            },
            (Self::Unix(of), Proof::Unix { uid, .. }) => of.is_none_or(|of| of == *uid),
            _ => false,
        }
    }
}

impl Tree {
    fn has(&self, place: &Place) -> bool {
        match self {
            Self::All => true,
            Self::At(at) => at.rooted == place.rooted && place.names.starts_with(&at.names),
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::At(Place { rooted, names }) = self else { return f.write_str("*") };
        let path = names.join(&b'/');
        write!(f, "{}{}", if *rooted { "/" } else { "" }, show_name(&path))
    }
}

impl Place {
    /// Parses an aname. Returns `None` if it contains `.` or `..`.
    fn of(aname: &[u8]) -> Option<Self> {
        let names: Vec<_> = aname.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
        let is_plain = names.iter().all(|&name| name != b"." && name != b"..");
        let rooted = aname.first().is_none_or(|&byte| byte == b'/');
        is_plain.then(|| Self { rooted, names: names.into_iter().map(Into::into).collect() })
    }
}

/// An error and the column of the character where it is.
type Wrong = (usize, String);

/// Parses a line. Returns `None` for an empty line or a comment.
fn rule(line: &str) -> Result<Option<Rule>, Wrong> {
    let words = words(line)?;
    let end = line.chars().count() + 1;
    let due =
        |n: usize, what: &str| words.get(n).ok_or_else(|| (end, format!("{what} is due; write: {FORM}")));
    let Some((at, verb)) = words.first() else { return Ok(None) };
    let much = |n: usize| match words.get(n) {
        Some((at, word)) => Err((*at, format!("`{word}` is too much; write: {FORM}"))),
        None => Ok(()),
    };
    match &**verb {
        "allow" => {
            let (who_at, who) = due(1, "who is allowed")?;
            let (tree_at, tree) = due(2, "a tree")?;
            let (right_at, right) = due(3, "`ro` or `rw`")?;
            much(4)?;
            let right = match &**right {
                "ro" => Right::Read,
                "rw" => Right::Write,
                other => {
                    let hint = near::hint(other, ["ro", "rw"]);
                    return Err((
                        *right_at,
                        format!("`{other}`: `ro` (reads) or `rw` (changes) is due{hint}"),
                    ));
                }
            };
            let who = whom(who).map_err(|what| (*who_at, what))?;
            let tree = match &**tree {
                "*" => Tree::All,
                path => {
                    let place = Place::of(path.as_bytes()).filter(|_| !path.is_empty());
                    let what =
                        || format!("`{path}`: *, /, /DIR, NAME or NAME/DIR is due, without `.` and `..`");
                    Tree::At(place.ok_or_else(|| (*tree_at, what()))?)
                }
            };
            Ok(Some(Rule { who, gives: Some((tree, right)) }))
        }
        "deny" => {
            let (who_at, who) = due(1, "who is not allowed")?;
            // `deny` takes no tree: a part of a granted tree would be reachable by walking anyway.
            much(2)?;
            Ok(Some(Rule { who: whom(who).map_err(|what| (*who_at, what))?, gives: None }))
        }
        other => {
            let hint = near::hint(other, ["allow", "deny"]);
            Err((*at, format!("`{other}` is not known; a line begins with allow or deny{hint}")))
        }
    }
}

fn whom(word: &str) -> Result<Whom, String> {
    let (kind, name) = word.split_once(':').unwrap_or((word, ""));
    match (kind, name) {
        ("anyone", _) if kind == word => Ok(Whom::Anyone),
        ("token", _) if kind == word => Ok(Whom::Token),
        ("cert", name) if !name.is_empty() && name.matches('*').count() < 2 => {
            Ok(Whom::Certificate(name.into()))
        }
        ("cert", _) => {
            Err(format!("`{word}`: the name of a certificate is due, with one `*` at most: cert:*@lab"))
        }
        ("unix", "*") => Ok(Whom::Unix(None)),
        ("unix", name) if !name.is_empty() => {
            let uid = name.parse().ok().or_else(|| nine_servers::disk::names().uid(name.as_bytes()));
            uid.map(|uid| Whom::Unix(Some(uid)))
                .ok_or_else(|| format!("`{word}`: no user of this machine is called so; a number would do"))
        }
        ("unix", _) => Err(format!("`{word}`: a user is due: unix:glenda, unix:1000, unix:*")),
        _ => {
            let hint = near::hint(kind, ["cert", "unix", "token", "anyone"]);
            Err(format!("`{word}` is nobody; write cert:NAME, unix:USER, token or anyone{hint}"))
        }
    }
}

/// Splits a line into words with their columns, from 1. `'...'` quotes a word, and a quote in it is doubled. `#` in
/// place of a word begins a comment.
fn words(line: &str) -> Result<Vec<(usize, String)>, Wrong> {
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut letters = (1..).zip(line.chars()).peekable();
    let (mut inside, mut quote) = (false, None);
    while let Some((at, c)) = letters.next() {
        if c.is_control() && c != '\t' {
            return Err((at, "a control character; text is due".into()));
        }
        let blank = matches!(c, ' ' | '\t') && quote.is_none();
        match c {
            _ if blank => inside = false,
            '#' if !inside => break,
            _ => {
                if !std::mem::replace(&mut inside, true) {
                    words.push((at, String::new()));
                }
                let word = &mut words.last_mut().expect("it has just begun").1;
                match c {
                    '\'' if quote.is_some() && letters.next_if(|(_, c)| *c == '\'').is_some() => {
                        word.push('\'')
                    }
                    '\'' => quote = if quote.is_some() { None } else { Some(at) },
                    c => word.push(c),
                }
            }
        }
    }
    match quote {
        Some(at) => Err((at, "this quote is not closed".into())),
        None => Ok(words),
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const FORM: &str = "allow WHO TREE ro|rw, or deny WHO";
/// Limit of rules in a file.
const LINES_MAX: usize = 10_000;
/// Limit of errors in one report.
const WRONG_MAX: usize = 20;
/// Limit of trees that a refusal lists.
const TOLD: usize = 5;
/// Interval of the checks of all files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs;

    use nine_net::{ClientAuth, TlsFiles};

    use super::*;

    fn rules(text: &str) -> Rules {
        Rules::parse("exports", text).unwrap()
    }

    fn cert(name: &str) -> Proof {
        Proof::Certificate { name: name.into(), fingerprint: [0; 32] }
    }

    fn judge(rules: &Rules, proof: &Proof, token: bool, aname: &str) -> Result<Right, String> {
        let asks = Asks { proof, token, aname: Some(aname.as_bytes()) };
        rules.judge(&asks).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_line_that_fits_decides_and_without_one_the_answer_is_no() {
        let rules = rules(
            "# a comment\n\
             deny  cert:mallory@lab\n\
             allow cert:glenda /pub/in rw # she writes there\n\
             allow cert:glenda /pub ro\n\
             allow cert:*@lab  guests ro\n\
             allow unix:4711   'a b' rw\n\
             allow token       * rw\n\
             allow anyone      /open ro\n",
        );
        let is = |proof: &Proof, token, aname: &str| judge(&rules, proof, token, aname).ok();
        let (read, write) = (Some(Right::Read), Some(Right::Write));
        let glenda = cert("glenda");
        assert_eq!(is(&glenda, false, "/pub/in"), write);
        assert_eq!(is(&glenda, false, "//pub//in/deep"), write);
        assert_eq!((is(&glenda, false, "/pub"), is(&glenda, false, "/public")), (read, None));
        assert_eq!((is(&glenda, false, "/pub/../x"), is(&glenda, false, "/pub/.")), (None, None));
        // Without a leading slash, this is a different tree on some servers.
        assert_eq!((is(&glenda, false, "pub"), is(&glenda, false, "")), (None, None));
        assert_eq!((is(&glenda, false, "/open"), is(&glenda, true, "")), (read, write));
        assert_eq!(
            (is(&cert("rob@lab"), false, "guests/x"), is(&cert("@lab"), false, "guests")),
            (read, read)
        );
        assert_eq!(
            (is(&cert("rob@lab.org"), false, "guests"), is(&cert("mallory@lab"), false, "/open")),
            (None, None)
        );
        let unix = |uid| Proof::Unix { uid, gid: 0 };
        assert_eq!((is(&unix(4711), false, "a b/c"), is(&unix(4712), false, "a b")), (write, None));
        assert_eq!((is(&Proof::None, false, "/open"), is(&Proof::None, false, "/")), (read, None));
        assert_eq!(judge(&Rules::default(), &glenda, true, "/").ok(), None);
    }

    #[test]
    fn who_is_refused_hears_why_and_what_he_may_have() {
        let rules = rules("deny cert:mallory\nallow cert:* /pub ro\nallow cert:glenda guests rw\n");
        for (name, aname, said) in [
            ("mallory", "/", "the exports of this server give nothing to cert:mallory"),
            ("glenda", "", "cert:glenda may not attach to /, but to /pub, guests: say so with --aname"),
            ("rob", "/x\u{7}", "cert:rob may not attach to /x\\u{7}, but to /pub: say so with --aname"),
            ("rob", "/..", "an aname with `.` or `..` in it is not let in; write the path itself"),
        ] {
            assert_eq!(judge(&rules, &cert(name), false, aname), Err(said.into()));
        }
        let said = judge(&rules, &cert("rob"), false, &"\u{1}".repeat(4096)).unwrap_err();
        assert!(said.len() < 400, "{said}");
        let said = judge(&rules, &Proof::None, false, "/").unwrap_err();
        assert_eq!(said, "no line in the exports of this server is about anyone");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_what_was_meant() {
        for (line, at, said) in [
            (
                "alow cert:x / ro",
                1,
                "`alow` is not known; a line begins with allow or deny; did you mean `allow`?",
            ),
            ("allow  crt:x / ro", 8, "did you mean `cert`?"),
            ("allow tokn / ro", 7, "did you mean `token`?"),
            ("allow cert: / ro", 7, "the name of a certificate is due"),
            ("allow cert:*a* / ro", 7, "one `*` at most"),
            ("allow unix:nobody-at-all / ro", 7, "no user of this machine"),
            ("allow cert:x ../y ro", 14, "*, /, /DIR, NAME or NAME/DIR is due"),
            ("allow cert:x '' ro", 14, "*, /, /DIR, NAME or NAME/DIR is due"),
            ("allow cert:x / r", 16, "`ro` (reads) or `rw` (changes) is due"),
            ("allow cert:x /", 15, "`ro` or `rw` is due; write: allow WHO TREE ro|rw"),
            ("allow", 6, "who is allowed is due"),
            ("allow cert:x / ro now", 19, "`now` is too much"),
            ("deny cert:x /pub", 13, "`/pub` is too much"),
            ("deny", 5, "who is not allowed is due"),
            ("allow cert:x 'a ro", 14, "this quote is not closed"),
            ("allow\u{1} cert:x / ro", 6, "a control character"),
        ] {
            let wrong = Rules::parse("exports", &format!("\n{line}\n")).unwrap_err();
            assert!(
                wrong.starts_with(&format!("exports:2:{at}: ")) && wrong.contains(said),
                "{line}: {wrong}"
            );
        }
        let wrong = Rules::parse("e", &"x\n".repeat(100)).unwrap_err();
        assert_eq!(wrong.lines().count(), WRONG_MAX);
        let long = "deny token\n".repeat(LINES_MAX + 1);
        assert!(Rules::parse("e", &long).unwrap_err().contains("e:10001:1: too long"));
    }

    #[test]
    fn who_judges_does_not_wait_for_who_reads_files() {
        let dir = tempfile::tempdir().unwrap();
        let keys = crate::keys::Keys::init(&dir.path().join("keys"), "lab", 10).unwrap();
        let made = keys.server(&["fs.lab".into()], 5).unwrap();
        let files = TlsFiles {
            cert: made.dir.join("cert.pem"),
            key: made.dir.join("key.pem"),
            client_ca: Some(keys.path("authority.pem")),
            crl: Some(keys.path("revoked.pem")),
        };
        let wall = rt::Real.wall();
        let tls = ServerTls::new(files, ClientAuth::Optional, Duration::ZERO, wall).unwrap();
        let certificates = Some(Certificates::of(tls));
        let exports = Exports { file: None, certificates, cores: Mutex::default(), own: 0 };
        let _reads = lock(&exports.certificates.as_ref().unwrap().files);
        let error = exports.knows(&[b"none"]).unwrap_err().to_string();
        assert!(error.contains("it has shown a certificate that") && !exports.has_trees(), "{error}");
    }

    #[test]
    fn a_file_that_others_can_change_is_refused_and_a_wrong_one_changes_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("exports");
        let write = |text: &str, mode| {
            // Create a new file each time, as editors do.
            let other = dir.path().join("new");
            fs::write(&other, text).unwrap();
            fs::set_permissions(&other, fs::Permissions::from_mode(mode)).unwrap();
            fs::rename(&other, &path).unwrap();
        };
        write("allow token * rw\n", 0o666);
        let error = Followed::open(&path).unwrap_err().to_string();
        assert!(error.contains("others can change who may do what; try: chmod go-w"), "{error}");
        write("allow token * rw\n", 0o644);
        let file = Followed::open(&path).unwrap();
        let is = || judge(&file.rules.load(), &Proof::None, true, "/").ok();
        assert!(is() == Some(Right::Write) && !file.look());
        for wrong in ["allow nobody * rw\n", "deny token", ""] {
            write(wrong, 0o644);
            assert!(!file.look() && is() == Some(Right::Write), "{wrong}");
        }
        write("deny token\n", 0o622);
        assert!(!file.look() && is() == Some(Right::Write));
        fs::remove_file(&path).unwrap();
        assert!(!file.look() && is() == Some(Right::Write));
        // A FIFO without a writer.
        let mode = rustix::fs::Mode::from(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(!file.look() && is() == Some(Right::Write));
        let error = Followed::open(&path).unwrap_err().to_string();
        assert!(error.contains("a regular file is due"), "{error}");
        write("allow token * ro\n", 0o644);
        assert!(file.look() && is() == Some(Right::Read) && !file.look());
    }
}
