//! Which addresses clients may dial and announce: the device server is a gateway, and must not be one for everybody.
//!
//! In: the text of a policy file. Out: yes or no for a place, after names have been looked up.
//!
//! ```text
//! # allow|deny  dial|announce|any  NETWORK!ADDRESS!PORTS  [USER ...]
//! allow dial     tcp!10.0.0.0/8!80        # a network and a port
//! deny  dial     *!192.168.1.1!*
//! allow announce tcp!*!8000-8999 glenda   # one user
//! allow dial     unix!/run/app/*          # a path, or all that begin so
//! allow dial     'unix!/run/my app/s'     # quoted as in a ctl
//! ```
//! The first line that fits decides; where none does the answer is no. Without a file `any *!loopback!*` is allowed,
//! and nothing else: no unix sockets, and no names but `localhost` are looked up. Paths are judged where they really
//! lead. A user is a name of this machine or a number: of who comes with a number that counts, not the name beside it.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nine_io::server::Who;
use nine_net::Clock;
use nine_net::lock::{Mutex, lock};
use nine_proto::{Errno, Error, Result};

use super::quote;
use super::stack::Place;

/// See the module.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<Rule>,
    /// Where they have come from, and are read again when it has changed.
    file: Option<(PathBuf, Option<Stamp>)>,
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// To call somebody.
    Dial,
    /// To be called.
    Announce,
}

#[derive(Clone, Debug)]
struct Rule {
    allows: bool,
    /// `None`: both.
    want: Option<Want>,
    /// `None`: every network.
    network: Option<String>,
    places: Places,
    /// Empty: everybody.
    users: Vec<User>,
}

/// Somebody whom a rule is about.
#[derive(Clone, Debug)]
struct User {
    name: String,
    /// The number of this name on this machine.
    uid: Option<u32>,
}

impl User {
    /// A client with a number is who has that number: it may call itself anything beside.
    fn is(&self, who: &Who) -> bool {
        match who.uid {
            Some(uid) => self.uid == Some(uid),
            None => *self.name == *who.name,
        }
    }
}

#[derive(Clone, Debug)]
enum Places {
    All,
    Loopback(Ports),
    Net { ip: IpAddr, bits: u8, ports: Ports },
    Any(Ports),
    Path { path: String, below: bool },
}

#[derive(Clone, Copy, Debug)]
struct Ports(u16, u16);

impl Default for Policy {
    fn default() -> Self {
        let loopback = Rule {
            allows: true,
            want: None,
            network: None,
            places: Places::Loopback(Ports(0, u16::MAX)),
            users: Vec::new(),
        };
        Self { rules: vec![loopback], file: None }
    }
}

impl Policy {
    /// What this file says, now and when it has changed: it is looked at again when somebody dials or announces, once a
    /// second at most. One that is wrong then, or gone, changes nothing, and the log says so. Waits for the disk.
    ///
    /// # Errors
    /// It cannot be read, or lines are wrong.
    pub fn read(file: &Path) -> std::result::Result<Self, String> {
        let stamp = Stamp::of(file);
        let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
        Ok(Self { file: Some((file.into(), stamp)), ..text.parse()? })
    }

    /// Whether names may be looked up for clients: not where the loopback is all they may reach, as a look-up goes out.
    pub(super) fn check_name(&self, text: &str) -> Result<()> {
        let host = text.split('!').next().unwrap_or_default();
        let is_known = host.parse::<IpAddr>().is_ok() || matches!(host, "" | "*" | "localhost");
        let goes_out = |rule: &Rule| {
            rule.allows
                && !matches!(rule.places, Places::Loopback(_) | Places::Path { .. })
                && rule.want != Some(Want::Announce)
        };
        if is_known || host.starts_with('/') || !text.contains('!') || self.rules.iter().any(goes_out) {
            return Ok(());
        }
        let text = format!("the policy of this server allows the loopback alone: {host} is not looked up");
        Err(Error::new(Errno::EACCES, text))
    }

    /// Whether this user may; if not, an error that says so.
    pub(super) fn check(&self, want: Want, network: &str, place: &Place, who: &Who) -> Result<()> {
        self.says(want, network, place, who)
            .filter(|&allows| allows)
            .map(drop)
            .ok_or_else(|| no(want, network, place))
    }

    /// The same for a place whose port the kernel has chosen, where port 0 may be announced: no line may forbid it.
    pub(super) fn check_chosen(&self, network: &str, place: &Place, who: &Who) -> Result<()> {
        match self.says(Want::Announce, network, place, who) {
            Some(false) => Err(no(Want::Announce, network, place)),
            _ => Ok(()),
        }
    }

    /// What the first line says that fits.
    fn says(&self, want: Want, network: &str, place: &Place, who: &Who) -> Option<bool> {
        let fits = |rule: &&Rule| {
            rule.want.is_none_or(|of| of == want)
                && rule.network.as_deref().is_none_or(|of| of == network)
                && rule.places.has(place)
                && (rule.users.is_empty() || rule.users.iter().any(|user| user.is(who)))
        };
        self.rules.iter().find(fits).map(|rule| rule.allows)
    }
}

fn no(want: Want, network: &str, place: &Place) -> Error {
    let text = format!("the policy of this server does not allow to {want} {network}!{place}");
    Error::new(Errno::EACCES, text)
}

/// By what a file is known to have changed: its number, its length, and its times, seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(u64, u64, [(i64, i64); 2]);

impl Stamp {
    fn of(file: &Path) -> Option<Self> {
        let meta = fs::metadata(file).ok()?;
        let times = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
        Some(Self(meta.ino(), meta.len(), times))
    }
}

/// A policy as its file has it now.
pub(super) struct Watched(Mutex<Watch>);

struct Watch {
    policy: Arc<Policy>,
    /// When the file is looked at again.
    next: Duration,
}

impl Watched {
    pub(super) fn new(policy: Policy) -> Self {
        Self(Mutex::new(Watch { policy: Arc::new(policy), next: Duration::ZERO }))
    }

    /// Without a look at the file: for what is carried.
    pub(super) fn known(&self) -> Arc<Policy> {
        lock(&self.0).policy.clone()
    }

    /// The file is looked at, if its time has come.
    pub(super) fn now(&self, clock: &dyn Clock) -> Arc<Policy> {
        let mut watch = lock(&self.0);
        let now = clock.now();
        let Some((file, stamp)) = watch.policy.file.clone().filter(|_| now >= watch.next) else {
            return watch.policy.clone();
        };
        watch.next = now + LOOKED_AT;
        let known = watch.policy.clone();
        // Nobody else looks before that: others need not wait for the disk.
        drop(watch);
        // Before it is read: what is written while it is read is read the next time.
        let found = Stamp::of(&file);
        if found == stamp {
            return known;
        }
        let rules = match again(&file) {
            Ok(rules) => {
                tracing::info!("{}: the policy has changed, and is followed", file.display());
                rules
            }
            Err(why) => {
                tracing::warn!("{}: the policy stays as it was: {why}", file.display());
                known.rules.clone()
            }
        };
        let policy = Arc::new(Policy { rules, file: Some((file, found)) });
        lock(&self.0).policy = policy.clone();
        policy
    }
}

/// The rules of a file that somebody may be writing. One whose lines are whole is never too lenient for want of those
/// that follow: without them the answer is no.
fn again(file: &Path) -> std::result::Result<Vec<Rule>, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    match text.is_empty() || text.ends_with('\n') {
        true => text.parse().map(|policy: Policy| policy.rules),
        false => Err("its last line has no end".into()),
    }
}

/// A changed file is followed after so long at the latest.
const LOOKED_AT: Duration = Duration::from_secs(1);

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dial => "dial",
            Self::Announce => "announce",
        })
    }
}

impl Places {
    fn has(&self, place: &Place) -> bool {
        match (self, place) {
            (Self::All, _) => true,
            (Self::Path { path, below }, Place::Path(at)) => match at.to_str() {
                Some(at) if *below => at.starts_with(path),
                at => at == Some(path),
            },
            (Self::Path { .. }, Place::Ip(_)) | (_, Place::Path(_)) => false,
            (Self::Loopback(ports), Place::Ip(at)) => {
                at.ip().to_canonical().is_loopback() && ports.has(at.port())
            }
            (Self::Any(ports), Place::Ip(at)) => ports.has(at.port()),
            (Self::Net { ip, bits, ports }, Place::Ip(at)) => {
                ports.has(at.port()) && is_in(at.ip().to_canonical(), *ip, *bits)
            }
        }
    }
}

impl Ports {
    fn has(self, port: u16) -> bool {
        (self.0..=self.1).contains(&port)
    }
}

fn is_in(ip: IpAddr, net: IpAddr, bits: u8) -> bool {
    match (ip, net) {
        (IpAddr::V4(ip), IpAddr::V4(net)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            (ip.to_bits() ^ net.to_bits()) & mask == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(net)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            (ip.to_bits() ^ net.to_bits()) & mask == 0
        }
        _ => false,
    }
}

impl FromStr for Policy {
    type Err = String;

    /// Every line that is wrong is told, with its number.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (mut rules, mut wrong) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            // What is quoted is no comment.
            let comment =
                line.match_indices('#').find(|&(at, _)| line[..at].matches('\'').count().is_multiple_of(2));
            let words = quote::words(&line[..comment.map_or(line.len(), |(at, _)| at)]);
            let rule = words.map_err(|error| error.to_string()).and_then(|words| {
                let words: Vec<&str> = words.iter().map(|word| &**word).collect();
                if words.is_empty() { Ok(None) } else { rule(&words).map(Some) }
            });
            match rule {
                Ok(rule) => rules.extend(rule),
                Err(why) => wrong.push(format!("line {number}: {why}")),
            }
        }
        if wrong.is_empty() { Ok(Self { rules, file: None }) } else { Err(wrong.join("\n")) }
    }
}

fn rule(words: &[&str]) -> std::result::Result<Rule, String> {
    let [verb, want, pattern, users @ ..] = words else {
        return Err("write allow|deny dial|announce|any NETWORK!ADDRESS!PORTS [USER ...]".into());
    };
    let allows = match *verb {
        "allow" => true,
        "deny" => false,
        other => return Err(format!("`{other}` is neither allow nor deny")),
    };
    let want = match *want {
        "dial" => Some(Want::Dial),
        "announce" => Some(Want::Announce),
        "any" => None,
        other => return Err(format!("`{other}` is neither dial, announce nor any")),
    };
    let (network, places) =
        pattern.split_once('!').ok_or_else(|| format!("`{pattern}` is no NETWORK!ADDRESS!PORTS"))?;
    let places = match (network, places) {
        // Whoever forbids everything forbids unix sockets, too; they are allowed by name alone.
        ("*", "*" | "*!*") if !allows => Places::All,
        ("unix", places) => path(places)?,
        (_, places) => ip(places)?,
    };
    let network = (network != "*").then(|| network.to_owned());
    let names = (!users.is_empty()).then(crate::disk::names);
    let uid = |user: &str| names.as_ref().and_then(|names| names.uid(user.as_bytes()));
    let users = users.iter().map(|user| User { name: (*user).to_owned(), uid: uid(user) }).collect();
    Ok(Rule { allows, want, network, places, users })
}

fn path(text: &str) -> std::result::Result<Places, String> {
    if text == "*" {
        return Ok(Places::All);
    }
    if !text.starts_with('/') {
        return Err(format!("`{text}` is no path: it begins with /"));
    }
    let (path, below) = text.strip_suffix('*').map_or((text, false), |path| (path, true));
    Ok(Places::Path { path: path.into(), below })
}

fn ip(text: &str) -> std::result::Result<Places, String> {
    let (address, ports) = text.split_once('!').unwrap_or((text, "*"));
    let ports = match ports.split_once('-') {
        _ if ports == "*" => Ok(Ports(0, u16::MAX)),
        None => ports.parse().map(|port| Ports(port, port)),
        Some((from, to)) => from.parse().and_then(|from| to.parse().map(|to| Ports(from, to))),
    };
    let ports = ports.map_err(|_| format!("`{text}`: ports are a number, FROM-TO, or *"))?;
    Ok(match address.split_once('/') {
        None if address == "*" => Places::Any(ports),
        None if address == "loopback" => Places::Loopback(ports),
        split => {
            let (ip, bits) = split.map_or((address, None), |(ip, bits)| (ip, Some(bits)));
            let ip: IpAddr = ip.parse().map_err(|_| format!("`{ip}` is no IP address, loopback or *"))?;
            let most = if ip.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Ok(most), str::parse).ok().filter(|&bits| bits <= most);
            let bits = bits.ok_or_else(|| format!("`{address}`: a network has 0 to {most} bits"))?;
            match (ip.to_canonical(), ip) {
                // Places are told by their IPv4 addresses.
                (v4 @ IpAddr::V4(_), IpAddr::V6(_)) if bits >= 96 => {
                    Places::Net { ip: v4, bits: bits - 96, ports }
                }
                _ => Places::Net { ip, bits, ports },
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nine_net::Proof;

    fn who(name: &str) -> Who {
        Who { name: name.into(), uid: None, proof: Proof::None, read_only: false, owner: false, seat: 0 }
    }

    fn ip(text: &str) -> Place {
        Place::Ip(text.parse().unwrap())
    }

    #[test]
    fn without_a_file_only_the_loopback_may_be_used() {
        let policy = Policy::default();
        for (place, allowed) in [
            (ip("127.0.0.1:80"), true),
            (ip("127.8.9.1:0"), true),
            (ip("[::1]:80"), true),
            (ip("[::ffff:127.0.0.1]:80"), true),
            (ip("0.0.0.0:80"), false),
            (ip("[::]:80"), false),
            (ip("10.0.0.1:80"), false),
            (ip("[::ffff:10.0.0.1]:80"), false),
            (Place::Path("/run/docker.sock".into()), false),
        ] {
            for want in [Want::Dial, Want::Announce] {
                let said = policy.check(want, "tcp", &place, &who("glenda"));
                assert_eq!(said.is_ok(), allowed, "{want} {place}: {said:?}");
            }
        }
        let said = policy.check(Want::Dial, "tcp", &ip("10.0.0.1:80"), &who("glenda")).unwrap_err();
        assert_eq!(said.errno, Errno::EACCES);
        assert!(said.to_string().contains("does not allow to dial tcp!10.0.0.1!80"), "{said}");
    }

    #[test]
    fn the_first_line_that_fits_decides() {
        let policy: Policy = "
            deny  dial tcp!10.0.0.1!*   # not that one
            allow dial tcp!10.0.0.0/8!80-81
            allow dial *!2001:db8::/32 glenda
            allow announce udp!*!53
            allow any unix!/run/app/*
            allow dial unix!/run/one
        "
        .parse()
        .unwrap();
        for (want, network, place, user, allowed) in [
            (Want::Dial, "tcp", ip("10.0.0.1:80"), "x", false),
            (Want::Dial, "tcp", ip("10.0.0.2:80"), "x", true),
            (Want::Dial, "tcp", ip("10.0.0.2:82"), "x", false),
            (Want::Dial, "il", ip("10.0.0.2:80"), "x", false),
            (Want::Announce, "tcp", ip("10.0.0.2:80"), "x", false),
            (Want::Dial, "il", ip("[2001:db8::7]:9"), "glenda", true),
            (Want::Dial, "il", ip("[2001:db8::7]:9"), "x", false),
            (Want::Dial, "il", ip("[2001:db9::7]:9"), "glenda", false),
            (Want::Announce, "udp", ip("[::]:53"), "x", true),
            (Want::Announce, "unix", Place::Path("/run/app/a".into()), "x", true),
            (Want::Dial, "unix", Place::Path("/run/one".into()), "x", true),
            (Want::Dial, "unix", Place::Path("/run/one2".into()), "x", false),
            (Want::Dial, "tcp", ip("127.0.0.1:80"), "x", false),
        ] {
            let said = policy.check(want, network, &place, &who(user));
            assert_eq!(said.is_ok(), allowed, "{want} {network}!{place} by {user}: {said:?}");
        }
    }

    #[test]
    fn who_has_a_number_is_known_by_it_whatever_he_calls_himself() {
        let policy: Policy = "deny dial *!10.0.0.1!* 77\nallow dial *!*!* root 77".parse().unwrap();
        let may =
            |name, uid, place| policy.check(Want::Dial, "tcp", &ip(place), &Who { uid, ..who(name) }).is_ok();
        assert!(may("root", None, "10.0.0.1:1"));
        assert!(may("anybody", Some(0), "10.0.0.1:1"));
        assert!(!may("root", Some(1000), "10.0.0.1:1"), "a name is not a proof");
        assert!(may("x", Some(77), "10.0.0.2:1") && !may("x", Some(77), "10.0.0.1:1"));
        assert!(!may("x", Some(78), "10.0.0.2:1"));
    }

    /// A clock that is set.
    struct Set(Mutex<Duration>);

    impl Clock for Set {
        fn now(&self) -> Duration {
            *lock(&self.0)
        }

        fn wall(&self) -> Duration {
            self.now()
        }

        fn sleep_until(&self, _: Duration) -> nine_net::Timer {
            unreachable!("nobody waits for a policy")
        }

        fn entropy(&self, _: &mut [u8]) {}
    }

    #[test]
    fn a_changed_file_is_followed_and_a_wrong_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy");
        let clock = Set(Mutex::default());
        let later = || *lock(&clock.0) += LOOKED_AT;
        let write = |text: &str| fs::write(&file, text).unwrap();
        write("allow dial tcp!10.0.0.1!80\n");
        let watched = Watched::new(Policy::read(&file).unwrap());
        let may = |place| watched.now(&clock).check(Want::Dial, "tcp", &ip(place), &who("x")).is_ok();
        assert!(may("10.0.0.1:80") && !may("10.0.0.22:80"));
        write("allow dial tcp!10.0.0.22!80\n");
        assert!(may("10.0.0.1:80"), "it has been looked at a moment ago");
        later();
        assert!(may("10.0.0.22:80") && !may("10.0.0.1:80"));
        // Wrong, half of a line, or gone: as it was.
        for text in ["allow all of it, please\n", "allow dial tcp!10.0.0.1"] {
            write(text);
            later();
            assert!(may("10.0.0.22:80") && !may("10.0.0.1:80"), "{text}");
        }
        fs::remove_file(&file).unwrap();
        later();
        assert!(may("10.0.0.22:80"));
        // Another file in its place.
        fs::write(dir.path().join("new"), "allow dial tcp!10.0.0.1!80\n").unwrap();
        fs::rename(dir.path().join("new"), &file).unwrap();
        later();
        assert!(may("10.0.0.1:80") && !may("10.0.0.22:80"));
        // An empty one allows nothing.
        write("");
        later();
        assert!(!may("10.0.0.1:80"));
        assert!(Policy::read(&file.join("no")).is_err());
    }

    #[test]
    fn every_wrong_line_is_told() {
        let said =
            "allow\nallow dial tcp!x!1\npermit dial *\n\nallow call *!*\nallow dial tcp!1.2.3.0/33!1\n\
                    allow dial tcp!*!a-b\nallow dial unix!run\nallow dial tcp"
                .parse::<Policy>()
                .unwrap_err();
        let lines: Vec<&str> = said.lines().collect();
        let starts =
            ["line 1: write", "line 2: `x`", "line 3: `permit`", "line 5: `call`", "line 6: `1.2.3.0/33`"];
        assert_eq!(lines.len(), 8, "{said}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }
}
