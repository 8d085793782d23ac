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
//! ```
//! The first line that fits decides; where none does the answer is no. Without a file `any *!loopback!*` is allowed,
//! and nothing else: no unix sockets, and no names but `localhost` are looked up. Paths are judged where they really
//! lead.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use nine_io::server::Who;
use nine_proto::{Errno, Error, Result};

use super::stack::Place;

/// See the module.
#[derive(Clone, Debug)]
pub struct Policy(Vec<Rule>);

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
    users: Vec<String>,
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
        Self(vec![Rule {
            allows: true,
            want: None,
            network: None,
            places: Places::Loopback(Ports(0, u16::MAX)),
            users: Vec::new(),
        }])
    }
}

impl Policy {
    /// Whether names may be looked up for clients: not where the loopback is all they may reach, as a look-up goes out.
    pub(super) fn check_name(&self, text: &str) -> Result<()> {
        let host = text.split('!').next().unwrap_or_default();
        let is_known = host.parse::<IpAddr>().is_ok() || matches!(host, "" | "*" | "localhost");
        let goes_out = |rule: &Rule| {
            rule.allows
                && !matches!(rule.places, Places::Loopback(_) | Places::Path { .. })
                && rule.want != Some(Want::Announce)
        };
        if is_known || host.starts_with('/') || !text.contains('!') || self.0.iter().any(goes_out) {
            return Ok(());
        }
        let text = format!("the policy of this server allows the loopback alone: {host} is not looked up");
        Err(Error::new(Errno::EACCES, text))
    }

    /// Whether this user may; if not, an error that says so.
    pub(super) fn check(&self, want: Want, network: &str, place: &Place, who: &Who) -> Result<()> {
        let fits = |rule: &&Rule| {
            rule.want.is_none_or(|of| of == want)
                && rule.network.as_deref().is_none_or(|of| of == network)
                && rule.places.has(place)
                && (rule.users.is_empty() || rule.users.iter().any(|user| **user == *who.name))
        };
        match self.0.iter().find(fits) {
            Some(rule) if rule.allows => Ok(()),
            _ => {
                let text = format!("the policy of this server does not allow to {want} {network}!{place}");
                Err(Error::new(Errno::EACCES, text))
            }
        }
    }
}

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
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            match rule(&words) {
                Ok(rule) => rules.push(rule),
                Err(why) => wrong.push(format!("line {number}: {why}")),
            }
        }
        if wrong.is_empty() { Ok(Self(rules)) } else { Err(wrong.join("\n")) }
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
    let users = users.iter().map(|user| (*user).to_owned()).collect();
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
