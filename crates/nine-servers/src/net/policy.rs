//! The policy: which addresses clients may dial and announce. The server is a gateway, and must not be an open one.
//!
//! In: the text of a policy file. Out: a decision for a place, after names were looked up.
//!
//! ```text
//! # allow|deny  dial|announce|any  NETWORK!ADDRESS!PORTS  [USER ...]
//! allow dial     tcp!10.0.0.0/8!80        # a network and a port
//! deny  dial     *!192.168.1.1!*
//! allow announce tcp!*!8000-8999 glenda   # one user
//! allow dial     unix!/run/app/*          # a path, or all with this prefix
//! allow dial     'unix!/run/my app/s'     # quoted as in a ctl
//! ```
//! The first matching line decides; without one the request is refused. Without a file only the owner of the server
//! may use the network, as by `allow any *!loopback!*` alone: no unix sockets, and no names but `localhost`. Paths
//! are checked as written and with their links resolved. A user is a user name or a uid of this machine. For a client
//! with a uid, the uid counts and not its name.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nine_io::quote;
use nine_io::server::Who;
use nine_net::lock::{Mutex, lock};
use nine_net::{Clock, FileStamp, read_rights};
use nine_proto::{Errno, Error, Result};

use super::stack::Place;

/// See the module.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<NetPolicyRule>,
    /// Only the server's owner is served.
    owner_only: bool,
    /// The file of the rules. It is read again when it has changed.
    file: Option<(PathBuf, Option<FileStamp>)>,
}

/// A client's intention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// To make a call.
    Dial,
    /// To accept calls.
    Announce,
}

#[derive(Clone, Debug)]
struct NetPolicyRule {
    allows: bool,
    /// `None`: both.
    want: Option<Want>,
    /// `None`: every network.
    network: Option<String>,
    places: AddressPattern,
    /// Empty: all users.
    users: Vec<RuleUser>,
}

impl NetPolicyRule {
    /// Returns whether the line applies to a client. An allow line for a user requires authentication. For a deny
    /// line an unauthenticated name is enough.
    fn is_of(&self, who: &Who) -> bool {
        let is_user = || self.users.iter().any(|user| user.is(who));
        self.users.is_empty() || (who.is_proven() || !self.allows) && is_user()
    }
}

/// A user in a rule.
#[derive(Clone, Debug)]
struct RuleUser {
    name: String,
    /// The uid of this name on this machine.
    uid: Option<u32>,
}

impl RuleUser {
    /// Matches a client by its uid if it has one, else by its name.
    fn is(&self, who: &Who) -> bool {
        match who.uid {
            Some(uid) => self.uid == Some(uid),
            None => *self.name == *who.name,
        }
    }
}

#[derive(Clone, Debug)]
enum AddressPattern {
    All,
    Loopback(PortRange),
    Net { ip: IpAddr, bits: u8, ports: PortRange },
    Any(PortRange),
    Path { path: String, below: bool },
}

#[derive(Clone, Copy, Debug)]
struct PortRange(u16, u16);

impl Default for Policy {
    /// The owner of the server may use the loopback. All other clients are refused: services at the loopback trust
    /// the users of this machine, and clients need not be among them.
    fn default() -> Self {
        Self { owner_only: true, ..Self::loopback() }
    }
}

impl Policy {
    /// Allows every client the loopback, and nothing else.
    pub fn loopback() -> Self {
        let loopback = NetPolicyRule {
            allows: true,
            want: None,
            network: None,
            places: AddressPattern::Loopback(PortRange(0, u16::MAX)),
            users: Vec::new(),
        };
        Self { rules: vec![loopback], owner_only: false, file: None }
    }

    /// Reads a policy file. The file is checked for changes when a client dials or announces, at most once a second.
    /// A new version that is missing or invalid is logged and ignored. Waits for the disk.
    ///
    /// # Errors
    /// The file cannot be read, other users can change it ([`read_rights`]), or lines are invalid.
    pub fn read(file: &Path) -> std::result::Result<Self, String> {
        let stamp = FileStamp::of(file);
        Ok(Self { file: Some((file.into(), stamp)), ..read_rights(file)?.parse()? })
    }

    /// Checks that this user may have conversations and make queries at all.
    pub(super) fn check_user(&self, who: &Who) -> Result<()> {
        if self.owner_only && !who.owner {
            let text =
                "permission denied: without a policy only the owner of this server may use its network";
            return Err(Error::new(Errno::EACCES, text));
        }
        Ok(())
    }

    /// Checks that a name may be looked up for this user, on this network if one is given. A lookup leaves the
    /// machine, so it is refused if the user may only dial the loopback.
    pub(super) fn check_name(&self, host: &str, network: Option<&str>, who: &Who) -> Result<()> {
        self.check_user(who)?;
        let is_his = |rule: &&NetPolicyRule| {
            let of = rule.network.as_deref();
            let is_of = of.is_none() || network.is_none() || of == network;
            is_of && of != Some("unix") && rule.want != Some(Want::Announce) && rule.is_of(who)
        };
        // Lines after one that denies everything are never reached.
        let reached = self.rules.iter().filter(is_his).take_while(|rule| {
            rule.allows
                || rule.network.as_deref() != network && rule.network.is_some()
                || !rule.places.are_all()
        });
        if host == "localhost" || reached.into_iter().any(|rule| rule.allows && rule.places.go_out()) {
            return Ok(());
        }
        let by = network.map(|name| format!(" by {name}")).unwrap_or_default();
        let text = format!(
            "the policy of this server lets you call nothing beyond the loopback{by}: {host} is not looked up"
        );
        Err(Error::new(Errno::EACCES, text))
    }

    /// Checks that the policy allows this.
    pub(super) fn check(&self, want: Want, network: &str, place: &Place, who: &Who) -> Result<()> {
        self.check_user(who)?;
        self.says(want, network, place, who)
            .filter(|&allows| allows)
            .map(drop)
            .ok_or_else(|| no(want, network, place))
    }

    /// Checks an announced port 0 after the kernel has chosen the port: no line may deny it.
    pub(super) fn check_chosen(&self, network: &str, place: &Place, who: &Who) -> Result<()> {
        self.check_user(who)?;
        match self.says(Want::Announce, network, place, who) {
            Some(false) => Err(no(Want::Announce, network, place)),
            _ => Ok(()),
        }
    }

    /// Returns the decision of the first matching line.
    fn says(&self, want: Want, network: &str, place: &Place, who: &Who) -> Option<bool> {
        let fits = |rule: &&NetPolicyRule| {
            rule.want.is_none_or(|of| of == want)
                && rule.network.as_deref().is_none_or(|of| of == network)
                && rule.places.has(place, rule.allows)
                && rule.is_of(who)
        };
        self.rules.iter().find(fits).map(|rule| rule.allows)
    }
}

pub(super) fn no(want: Want, network: &str, place: &Place) -> Error {
    let text = format!("the policy of this server does not allow to {want} {network}!{place}");
    Error::new(Errno::EACCES, text)
}

/// A policy with its file, read again after changes.
pub(super) struct WatchedNetPolicy(Mutex<NetPolicyWatch>);

struct NetPolicyWatch {
    policy: Arc<Policy>,
    /// The time of the next check.
    next: Duration,
}

impl WatchedNetPolicy {
    pub(super) fn new(policy: Policy) -> Self {
        Self(Mutex::new(NetPolicyWatch { policy: Arc::new(policy), next: Duration::ZERO }))
    }

    /// Returns the known policy, without a check of the file.
    pub(super) fn known(&self) -> Arc<Policy> {
        lock(&self.0).policy.clone()
    }

    /// Returns whether the file is due for a check.
    pub(super) fn is_due(&self, clock: &dyn Clock) -> bool {
        let watch = lock(&self.0);
        watch.policy.file.is_some() && clock.now() >= watch.next
    }

    /// Returns the policy, after a check of the file if it is due.
    pub(super) fn now(&self, clock: &dyn Clock) -> Arc<Policy> {
        let mut watch = lock(&self.0);
        let now = clock.now();
        let Some((file, stamp)) = watch.policy.file.clone().filter(|_| now >= watch.next) else {
            return watch.policy.clone();
        };
        watch.next = now + LOOKED_AT;
        let known = watch.policy.clone();
        // The next check is later, so that no other thread waits for the disk here.
        drop(watch);
        // The stamp is taken first: changes during the read are seen at the next check.
        let found = FileStamp::of(&file);
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
        let policy = Arc::new(Policy { rules, owner_only: false, file: Some((file, found)) });
        lock(&self.0).policy = policy.clone();
        policy
    }
}

/// Reads the rules of a file that may be in the middle of a write. If its last line is complete, a truncated file is
/// never too permissive, since the default is to refuse.
fn again(file: &Path) -> std::result::Result<Vec<NetPolicyRule>, String> {
    let text = read_rights(file)?;
    match text.is_empty() || text.ends_with('\n') {
        true => text.parse().map(|policy: Policy| policy.rules),
        false => Err("its last line has no end".into()),
    }
}

/// The networks a line can name.
const NETWORKS: [&str; 4] = ["tcp", "udp", "il", "unix"];

/// The interval between checks of the file.
const LOOKED_AT: Duration = Duration::from_secs(1);

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dial => "dial",
            Self::Announce => "announce",
        })
    }
}

impl AddressPattern {
    /// Returns whether a line matches a place. An unspecified address stands for many: an allow line must cover all
    /// of them, and a deny line only one.
    fn has(&self, place: &Place, allows: bool) -> bool {
        match (self, place) {
            (Self::All, _) => true,
            (Self::Path { path, below }, Place::Path(at)) => {
                let at = at.as_os_str().as_bytes();
                if *below { at.starts_with(path.as_bytes()) } else { at == path.as_bytes() }
            }
            (Self::Path { .. }, Place::Ip(_)) | (_, Place::Path(_)) => false,
            (Self::Loopback(ports) | Self::Any(ports) | Self::Net { ports, .. }, Place::Ip(at)) => {
                let ip = at.ip().to_canonical();
                ports.has(at.port())
                    && if ip.is_unspecified() { self.has_any(ip, allows) } else { self.has_one(ip) }
            }
        }
    }

    /// Returns whether one address is among these.
    fn has_one(&self, ip: IpAddr) -> bool {
        match self {
            Self::Loopback(_) => ip.is_loopback(),
            Self::Net { ip: net, bits, .. } => is_in(ip, *net, *bits),
            Self::Any(_) | Self::All => true,
            Self::Path { .. } => false,
        }
    }

    /// Returns whether these cover all addresses that an announcement of `any` accepts calls at, or with `!allows` at
    /// least one. `::` stands for both families, `0.0.0.0` for IPv4. A line with that very address covers all of
    /// them.
    fn has_any(&self, any: IpAddr, allows: bool) -> bool {
        match self {
            Self::Loopback(_) => !allows,
            Self::Net { ip: net, .. } if !allows => any.is_ipv6() || net.is_ipv4(),
            Self::Net { ip: net, bits: 0, .. } => any.is_ipv4() && net.is_ipv4(),
            Self::Net { ip: net, bits, .. } => *net == any && *bits == width(any),
            Self::Any(_) | Self::All => true,
            Self::Path { .. } => false,
        }
    }

    /// Returns whether these are all addresses with all ports.
    fn are_all(&self) -> bool {
        matches!(self, Self::All | Self::Any(PortRange(0, u16::MAX)))
    }

    /// Returns whether any of these is beyond the loopback.
    fn go_out(&self) -> bool {
        match self {
            Self::All | Self::Any(_) => true,
            Self::Net { ip: net @ IpAddr::V4(_), bits, .. } => !(net.is_loopback() && *bits >= 8),
            Self::Net { ip: net, bits, .. } => !(net.is_loopback() && *bits == 128),
            Self::Loopback(_) | Self::Path { .. } => false,
        }
    }
}

/// Returns the number of bits of an address.
fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

impl PortRange {
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

    /// Parses a policy. The error lists every invalid line with its number.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (mut rules, mut wrong) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            // A `#` inside quotes starts no comment.
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
        if wrong.is_empty() {
            Ok(Self { rules, owner_only: false, file: None })
        } else {
            Err(wrong.join("\n"))
        }
    }
}

fn rule(words: &[&str]) -> std::result::Result<NetPolicyRule, String> {
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
    if network != "*" && !NETWORKS.contains(&network) {
        return Err(format!("`{network}` is no network: there are *, {}", NETWORKS.join(", ")));
    }
    let places = match (network, places) {
        // A deny for all addresses includes unix sockets. An allow must name them.
        ("*", "*" | "*!*") if !allows => AddressPattern::All,
        ("unix", places) => path(places)?,
        (_, places) => ip(places)?,
    };
    let network = (network != "*").then(|| network.to_owned());
    let names = (!users.is_empty()).then(crate::disk::names);
    let uid = |user: &str| names.as_ref().and_then(|names| names.uid(user.as_bytes()));
    let users = users.iter().map(|user| RuleUser { name: (*user).to_owned(), uid: uid(user) }).collect();
    Ok(NetPolicyRule { allows, want, network, places, users })
}

fn path(text: &str) -> std::result::Result<AddressPattern, String> {
    if text == "*" {
        return Ok(AddressPattern::All);
    }
    if !text.starts_with('/') {
        return Err(format!("`{text}` is no path: it begins with /"));
    }
    let (path, below) = text.strip_suffix('*').map_or((text, false), |path| (path, true));
    Ok(AddressPattern::Path { path: path.into(), below })
}

fn ip(text: &str) -> std::result::Result<AddressPattern, String> {
    let (address, ports) = text.split_once('!').unwrap_or((text, "*"));
    let ports = match ports.split_once('-') {
        _ if ports == "*" => Ok(PortRange(0, u16::MAX)),
        None => ports.parse().map(|port| PortRange(port, port)),
        Some((from, to)) => from.parse().and_then(|from| to.parse().map(|to| PortRange(from, to))),
    };
    if let Ok(PortRange(from, to)) = ports
        && from > to
    {
        return Err(format!("`{text}`: the ports from {from} to {to} are none"));
    }
    let ports = ports.map_err(|_| format!("`{text}`: ports are a number, FROM-TO, or *"))?;
    Ok(match address.split_once('/') {
        None if address == "*" => AddressPattern::Any(ports),
        None if address == "loopback" => AddressPattern::Loopback(ports),
        split => {
            let (ip, bits) = split.map_or((address, None), |(ip, bits)| (ip, Some(bits)));
            let ip: IpAddr = ip.parse().map_err(|_| format!("`{ip}` is no IP address, loopback or *"))?;
            let most = width(ip);
            let bits = bits.map_or(Ok(most), str::parse).ok().filter(|&bits| bits <= most);
            let bits = bits.ok_or_else(|| format!("`{address}`: a network has 0 to {most} bits"))?;
            match (ip.to_canonical(), ip) {
                // Places have canonical IPv4 addresses.
                (v4 @ IpAddr::V4(_), IpAddr::V6(_)) if bits >= 96 => {
                    AddressPattern::Net { ip: v4, bits: bits - 96, ports }
                }
                _ => AddressPattern::Net { ip, bits, ports },
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use nine_net::Proof;

    fn who(name: &str) -> Who {
        Who { name: name.into(), ..Who::none(Proof::Unix { uid: 4711, gid: 4711 }) }
    }

    fn ip(text: &str) -> Place {
        Place::Ip(text.parse().unwrap())
    }

    #[test]
    fn without_a_file_nobody_but_the_owner_is_served() {
        let policy = Policy::default();
        let owner = Who { owner: true, ..who("glenda") };
        assert!(policy.check_user(&owner).is_ok());
        assert!(policy.check(Want::Dial, "tcp", &ip("127.0.0.1:80"), &owner).is_ok());
        for want in [Want::Dial, Want::Announce] {
            let said = policy.check(want, "tcp", &ip("127.0.0.1:80"), &who("glenda")).unwrap_err();
            assert!(said.errno == Errno::EACCES && said.to_string().contains("without a policy"), "{said}");
        }
        assert_eq!(policy.check_user(&who("glenda")).unwrap_err().errno, Errno::EACCES);
        assert!(policy.check_name("localhost", None, &who("glenda")).is_err());
        assert!(policy.check_chosen("tcp", &ip("127.0.0.1:80"), &who("glenda")).is_err());
        let file: Policy = "allow any *!loopback!*".parse().unwrap();
        assert!(file.check_user(&who("glenda")).is_ok());
    }

    #[test]
    fn loopback_is_the_loopback_alone() {
        let policy = Policy::loopback();
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
    fn every_address_is_allowed_as_a_whole_and_denied_by_any_part_of_it() {
        for (line, v6, v4) in [
            ("allow announce tcp!*!80", true, true),
            ("allow announce tcp!::!80", true, false),
            ("allow announce tcp!0.0.0.0!80", false, true),
            ("allow announce tcp!0.0.0.0/0!80", false, true),
            ("allow announce tcp!::/0!80", false, false),
            ("allow announce tcp!10.0.0.0/8!80", false, false),
            ("allow announce tcp!loopback!80", false, false),
            ("deny announce tcp!10.0.0.1!80", false, false),
            ("deny announce tcp!10.0.0.1!81", true, true),
            ("deny announce tcp!fe80::1!80", false, true),
            ("deny announce tcp!loopback!80", false, false),
            ("deny announce tcp!0.0.0.0!80", false, false),
            ("deny announce tcp!::!80", false, true),
        ] {
            let rest = if line.starts_with("deny") { "\nallow announce *!*!*" } else { "" };
            let policy: Policy = format!("{line}{rest}").parse().unwrap();
            let may = |at| policy.check(Want::Announce, "tcp", &ip(at), &who("x")).is_ok();
            assert_eq!((may("[::]:80"), may("0.0.0.0:80")), (v6, v4), "{line}");
            assert_eq!(may("[::ffff:0.0.0.0]:80"), v4, "{line}");
        }
    }

    #[test]
    fn names_are_looked_up_for_who_may_call_beyond_the_loopback() {
        for (policy, by_tcp, by_any) in [
            ("allow any *!loopback!*", false, false),
            ("allow any unix!*\nallow any *!127.0.0.0/8!*\nallow any *!::1!*", false, false),
            ("allow announce tcp!*!*", false, false),
            ("allow dial tcp!*!* 77", false, false),
            ("allow dial tcp!*!* 78", true, true),
            ("deny dial *!*!*\nallow dial tcp!*!*", false, false),
            ("deny any tcp!*!*\nallow dial *!*!*", false, true),
            ("deny any tcp!*!* 77\ndeny any *!*!80\ndeny any unix!*\nallow dial *!*!*", true, true),
            ("allow dial il!10.0.0.0/8!*", false, true),
            ("allow dial tcp!10.0.0.1!80", true, true),
            ("allow dial *!::/0!*", true, true),
        ] {
            let rules: Policy = policy.parse().unwrap();
            let asks = Who { uid: Some(78), ..who("glenda") };
            let may = |host, network| rules.check_name(host, network, &asks).is_ok();
            assert_eq!(
                (may("far.invalid", Some("tcp")), may("far.invalid", None)),
                (by_tcp, by_any),
                "{policy}"
            );
            assert!(may("localhost", Some("tcp")) && may("localhost", None));
            assert_eq!(may("", None), by_any);
        }
    }

    #[test]
    fn paths_are_bytes() {
        use std::ffi::OsStr;
        let policy: Policy = "deny any unix!/run/app/*\nallow any unix!*".parse().unwrap();
        let may = |path: &[u8]| {
            let place = Place::Path(OsStr::from_bytes(path).into());
            policy.check(Want::Dial, "unix", &place, &who("x")).is_ok()
        };
        assert!(may(b"/run/\xff") && !may(b"/run/app/\xff"));
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

    #[test]
    fn a_line_allows_nothing_to_a_user_who_is_only_claimed() {
        let policy: Policy =
            "deny dial *!10.0.0.1!* 78\nallow dial *!10.0.0.0/8!* root 77 78\nallow dial *!192.0.2.1!*"
                .parse()
                .unwrap();
        let may = |who: &Who, place| policy.check(Want::Dial, "tcp", &ip(place), who).is_ok();
        for (name, uid) in [("root", None), ("x", Some(0)), ("x", Some(77))] {
            let proven = Who { uid, ..who(name) };
            let claimed = Who { proof: Proof::None, ..proven.clone() };
            assert_eq!((may(&proven, "10.0.0.2:1"), may(&claimed, "10.0.0.2:1")), (true, false), "{name}");
            // Lines for all users still apply.
            assert!(may(&claimed, "192.0.2.1:1"), "{name}");
            // With the token the client is the owner.
            assert!(may(&Who { owner: true, ..claimed }, "10.0.0.2:1"), "{name}");
        }
        let banned = Who { uid: Some(78), proof: Proof::None, ..who("x") };
        assert!(!may(&banned, "10.0.0.1:1"));
    }

    /// A clock set by the test.
    struct SettableClock(Mutex<Duration>);

    impl Clock for SettableClock {
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
        let clock = SettableClock(Mutex::default());
        let later = || *lock(&clock.0) += LOOKED_AT;
        let write = |text: &str| fs::write(&file, text).unwrap();
        write("allow dial tcp!10.0.0.1!80\n");
        let watched = WatchedNetPolicy::new(Policy::read(&file).unwrap());
        let may = |place| watched.now(&clock).check(Want::Dial, "tcp", &ip(place), &who("x")).is_ok();
        assert!(may("10.0.0.1:80") && !may("10.0.0.22:80"));
        write("allow dial tcp!10.0.0.22!80\n");
        assert!(may("10.0.0.1:80"), "it has been looked at a moment ago");
        later();
        assert!(may("10.0.0.22:80") && !may("10.0.0.1:80"));
        // If the file is invalid, incomplete or missing, the policy stays.
        for text in ["allow all of it, please\n", "allow dial tcp!10.0.0.1"] {
            write(text);
            later();
            assert!(may("10.0.0.22:80") && !may("10.0.0.1:80"), "{text}");
        }
        // So it does if other users can change the file, or if it is not a regular file.
        write("allow dial tcp!10.0.0.1!80\n");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        later();
        assert!(may("10.0.0.22:80") && !may("10.0.0.1:80"));
        assert!(Policy::read(&file).unwrap_err().contains("others can change who may do what"));
        fs::remove_file(&file).unwrap();
        later();
        assert!(may("10.0.0.22:80"));
        // Another file replaces it.
        fs::write(dir.path().join("new"), "allow dial tcp!10.0.0.1!80\n").unwrap();
        fs::rename(dir.path().join("new"), &file).unwrap();
        later();
        assert!(may("10.0.0.1:80") && !may("10.0.0.22:80"));
        // An empty file allows nothing.
        write("");
        later();
        assert!(!may("10.0.0.1:80"));
        assert!(Policy::read(&file.join("no")).is_err());
    }

    #[test]
    fn every_wrong_line_is_told() {
        let said =
            "allow\nallow dial tcp!x!1\npermit dial *\n\nallow call *!*\nallow dial tcp!1.2.3.0/33!1\n\
                    allow dial tcp!*!a-b\nallow dial unix!run\nallow dial tcp\n\
                    allow dial tpc!*!1\nallow dial tcp!*!81-80"
                .parse::<Policy>()
                .unwrap_err();
        let lines: Vec<&str> = said.lines().collect();
        let starts =
            ["line 1: write", "line 2: `x`", "line 3: `permit`", "line 5: `call`", "line 6: `1.2.3.0/33`"];
        assert_eq!(lines.len(), 10, "{said}");
        assert!(lines[8].starts_with("line 10: `tpc` is no network: there are *, tcp, udp"), "{said}");
        assert!(lines[9].starts_with("line 11: `*!81-80`"), "{said}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }
}
