//! Command line of `mount`, `unmount` and `ns`, which make a server's files visible to other programs (docs/mount.md);
//! and the form in which mount(8) calls this program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use nine_gate::fuse::{Cache, MountOptions};
use nine_io::near;

use crate::config::{DialectChoice, Remote};

/// Mount a server on a directory, for every program (FUSE)
///
/// Without SERVER and DIR: lists your mounts, with the server and the options of each.
///
/// Runs in the background once the server has answered and the directory is mounted; `ninefold unmount DIR`,
/// `fusermount3 -u DIR` or SIGTERM ends it. If the server goes away, requests wait until it is back, and open files are
/// opened again; you can interrupt a waiting program. docs/mount.md describes what the kernel caches, and for how long.
#[derive(Debug, Args)]
#[command(after_help = MOUNTS, mut_arg("patience", |arg| arg.hide_short_help(false).help(PATIENCE)))]
pub struct Mount {
    /// The server: an address with an optional path; equal servers with commas between; `:` or `:/path` for the default
    /// server; or an argument of `serve`, which this command then serves by itself
    #[arg(value_name = "SERVER", requires = "dir")]
    pub what: Option<OsString>,
    /// A directory on this machine
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Stay in the foreground, and log to the standard error
    #[arg(short, long)]
    pub foreground: bool,
    /// Mount read-only
    #[arg(short, long)]
    pub read_only: bool,
    /// Options of mount(8): ro, nosuid, nodev, noexec, suid, dev, sync, nonempty, max_read=BYTES, allow_other,
    /// default_permissions; and those of this command: cache=, write_back, patience=, wait=, passthrough=,
    /// no_read_ahead, uname=, aname=, dialect=, msize=, timeout=, ca=, pin=, cert=, key=, token_file=
    #[arg(short, value_name = "OPTION", value_delimiter = ',')]
    pub options: Vec<String>,
    /// How long names and attributes are cached: seconds, `never`, or `auto`: an hour if the server reports changes,
    /// else a second
    #[arg(long, value_name = "TIME", default_value = "auto", value_parser = cache)]
    pub cache: Cache,
    /// Keep writes in the kernel's cache for a while: faster if small, seen late by other clients, lost in a crash
    #[arg(long)]
    pub write_back: bool,
    /// Let other users use the mount, too, as far as the modes of the files allow
    #[arg(long)]
    pub allow_other: bool,
    /// Seconds that a request waits for a server that is away; 0: for one attempt [default: until it is back]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=86_400))]
    pub wait: Option<u32>,
    /// Do not read ahead in files that are read sequentially
    #[arg(long)]
    pub no_read_ahead: bool,
    /// Whether the kernel itself reads and writes the files of `disk:`
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub passthrough: Passthrough,
    #[command(flatten)]
    pub remote: Remote,
    /// As for mount(8): nothing is mounted
    #[arg(skip)]
    pub fake: bool,
    /// As for mount(8): what is not known is passed over
    #[arg(skip)]
    pub sloppy: bool,
}

/// Unmount a directory that `mount` has mounted
#[derive(Debug, Args)]
pub struct Unmount {
    /// The directory
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Detach the directory although it is in use; the mount ends with its last open file
    #[arg(short, long)]
    pub lazy: bool,
}

/// Run a command that sees the tree of a name space file
///
/// The command and its children see the mounts and binds of the file's main name space at their paths, and the rest of
/// this machine unchanged; other processes see no change. A line for `/` makes the tree the root. Needs no privilege if
/// the kernel allows user namespaces. Inside, no other user exists, and set-user-ID programs have no effect.
/// docs/mount.md has the details.
///
/// Exit status: that of the command, or 128 and the number of the signal that ended it; 127 no such program, 126 the
/// program cannot be run, 125 the name space cannot be created.
#[derive(Debug, Args)]
#[command(after_help = SPACES)]
pub struct Ns {
    /// A name space file; its lines about listeners do not count here
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Make the tree read-only
    #[arg(short, long)]
    pub read_only: bool,
    /// How long names and attributes are cached: seconds, `never` or `auto`
    #[arg(long, value_name = "TIME", default_value = "auto", value_parser = cache)]
    pub cache: Cache,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Whether the kernel itself reads and writes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Passthrough {
    /// If it can
    Auto,
    /// Never: the server answers all requests
    Never,
}

impl Mount {
    /// Applies the words of `-o`; each word is also an option of that name.
    pub fn take_options(&mut self, to: &mut MountOptions) -> Result<(), String> {
        for option in std::mem::take(&mut self.options) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name.replace('-', "_"), Some(value)),
                None => (option.replace('-', "_"), None),
            };
            // Options for other programs, which mount(8) passes on.
            let is_comment = name.starts_with("x_") || name.starts_with("X_") || name == "comment";
            if is_comment || name.is_empty() || value.is_none() && to.set(&option) {
                continue;
            }
            match self.take(&name, value, to) {
                Ok(true) => {}
                Ok(false) if self.sloppy => {}
                Ok(false) => {
                    let word = option.split('=').next().unwrap_or_default();
                    return Err(match KNOWN.contains(&&*name) {
                        true if value.is_some() => format!("-o {option}: it takes no value"),
                        true => format!("-o {option}: it needs a value: {word}=..."),
                        false => match near::near(word, KNOWN) {
                            Some(near) => format!("-o {option}: unknown option; did you mean `{near}`?"),
                            None => format!("-o {option}: unknown option; {MORE}"),
                        },
                    });
                }
                Err(why) => return Err(format!("-o {option}: {why}")),
            }
        }
        to.others |= self.allow_other;
        if self.read_only {
            to.set("ro");
        }
        self.read_only |= to.is_read_only();
        Ok(())
    }

    /// Applies a word that is one of our options. Returns `false` for all others.
    fn take(&mut self, name: &str, value: Option<&str>, to: &mut MountOptions) -> Result<bool, String> {
        let remote = &mut self.remote;
        match (name, value) {
            ("allow_other", None) => self.allow_other = true,
            ("default_permissions", None) => to.checked = true,
            ("nonempty", None) => to.nonempty = true,
            ("write_back", None) => self.write_back = true,
            ("read_ahead", None) => self.no_read_ahead = false,
            ("no_read_ahead", None) => self.no_read_ahead = true,
            ("max_read", Some(text)) => to.max_read = Some(number(text)?),
            ("cache", Some(text)) => self.cache = cache(text)?,
            ("wait", Some(text)) => self.wait = Some(number(text)?),
            ("passthrough", Some(text)) => self.passthrough = Passthrough::from_str(text, true)?,
            ("patience", Some(text)) => remote.patience = Some(number(text)?),
            ("timeout", Some(text)) => remote.timeout = Some(number(text)?),
            ("msize", Some(text)) => remote.msize = Some(number(text)?),
            ("dialect", Some(text)) => remote.dialect = Some(DialectChoice::from_str(text, true)?),
            ("uname", Some(text)) => remote.user = Some(text.into()),
            ("aname", Some(text)) => remote.aname = Some(text.into()),
            ("ca", Some(text)) => remote.ca = Some(text.into()),
            ("cert", Some(text)) => remote.cert = Some(text.into()),
            ("key", Some(text)) => remote.key = Some(text.into()),
            ("token_file", Some(text)) => remote.token_file = Some(text.into()),
            ("pin", Some(text)) => remote.pin = Some(text.parse()?),
            ("token", _) => return Err("everybody can read it there; write token_file=FILE".into()),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Words of `-o`, to suggest one for an unknown word.
const KNOWN: [&str; 40] = [
    "allow_other",
    "aname",
    "atime",
    "ca",
    "cache",
    "cert",
    "default_permissions",
    "dev",
    "dialect",
    "dirsync",
    "exec",
    "key",
    "max_read",
    "msize",
    "no_read_ahead",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "noexec",
    "nofail",
    "nonempty",
    "nosuid",
    "nosymfollow",
    "passthrough",
    "patience",
    "pin",
    "read_ahead",
    "relatime",
    "ro",
    "rw",
    "strictatime",
    "suid",
    "sync",
    "timeout",
    "token_file",
    "uname",
    "users",
    "wait",
    "write_back",
];

/// For the error about an unknown word.
const MORE: &str = "`ninefold mount --help` lists all, from ro and allow_other to cache=TIME";

/// Translates a call by mount(8), `/sbin/mount.TYPE SOURCE DIR [-sfnvrw] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]`, into a
/// command line of ours and flags for the rest. Returns `None` if this program was not called under such a name.
pub fn helper(words: &[OsString]) -> Option<Helper> {
    let (name, words) = words.split_first()?;
    let name = Path::new(name).file_name()?;
    if !HELPERS.iter().any(|known| name == *known) {
        return None;
    }
    let mut helper = Helper { line: vec!["ninefold".into(), "mount".into()], fake: false, sloppy: false };
    let mut words = words.iter();
    let (mut operands, mut options) = (Vec::new(), vec![OsString::from("nonempty")]);
    while let Some(word) = words.next() {
        match word.to_str().and_then(|word| word.strip_prefix('-')) {
            None | Some("") => operands.push(word.clone()),
            Some("o") => options.extend(words.next().cloned()),
            Some("t" | "N") => drop(words.next()),
            Some(flags) => {
                helper.fake |= flags.contains('f');
                helper.sloppy |= flags.contains('s');
                options.extend(flags.contains('r').then(|| "ro".into()));
                options.extend(flags.contains('w').then(|| "rw".into()));
            }
        }
    }
    for option in options {
        helper.line.extend(["-o".into(), option]);
    }
    helper.line.push("--".into());
    helper.line.extend(operands);
    Some(helper)
}

/// See [`helper`].
pub struct Helper {
    pub line: Vec<OsString>,
    pub fake: bool,
    pub sloppy: bool,
}

const HELPERS: [&str; 2] = ["mount.fuse.ninefold", "mount.ninefold"];

fn cache(text: &str) -> Result<Cache, String> {
    match text {
        "auto" => Ok(Cache::Told),
        "never" => Ok(Cache::Never),
        _ => match text.parse::<f64>().ok().and_then(|time| Duration::try_from_secs_f64(time).ok()) {
            Some(Duration::ZERO) => Ok(Cache::Never),
            Some(time) => Ok(Cache::For(time)),
            None => Err("write seconds, `never` or `auto`".into()),
        },
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

const PATIENCE: &str = "Seconds after which a program that is interrupted or killed is released, even if the server is \
                        silent [default: 5]";

const MOUNTS: &str = "\
Examples:
  ninefold mount                                    # list your mounts
  ninefold mount 9p+tls://files.lab/home /n/home
  ninefold mount tcp!one.lab!564,tcp!two.lab!564 /n/pkg -o ro
  ninefold mount home.ns /n
  ninefold mount disk:/srv /mnt --allow-other
  ninefold unmount /n/home
In /etc/fstab, where /sbin/mount.fuse.ninefold is a link to this program:
  9p+tls://files.lab/home /n/home fuse.ninefold _netdev,nofail,ca=/etc/lab.pem,token_file=/etc/lab.token 0 0";

const SPACES: &str = "\
Examples:
  ninefold ns home.ns -- ls /n/lab
  ninefold ns old.ns -- make                 # old.ns: mount fs: /dump dump
                                             #         bind /dump/2026/1121/include /usr/include
  ninefold ns root.ns -- /bin/sh             # root.ns: mount disk:/srv/debian /";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        mount: Mount,
    }

    fn taken(options: &str) -> Result<(Mount, MountOptions), String> {
        let mut mount = Line::parse_from(["mount", "tcp!h!1", "/n", "-o", options]).mount;
        let mut to = MountOptions::default();
        mount.take_options(&mut to).map(|()| (mount, to))
    }

    #[test]
    fn options_are_ours_or_those_of_mount() {
        let (mount, to) =
            taken("rw,noexec,_netdev,x-systemd.automount,cache=2.5,uname=rob,wait=0,allow_other").unwrap();
        assert_eq!(mount.cache, Cache::For(Duration::from_millis(2500)));
        assert_eq!((mount.remote.user.as_deref(), mount.wait), (Some("rob"), Some(0)));
        assert!(to.others && !to.is_read_only() && !mount.read_only);
        assert!(taken("ro").unwrap().0.read_only);
        assert_eq!(taken("token-file=/x").unwrap().0.remote.token_file, Some("/x".into()));
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (option, why) in [
            ("bogus", "-o bogus: unknown option; `ninefold mount --help` lists all"),
            ("alow_other", "-o alow_other: unknown option; did you mean `allow_other`?"),
            ("cahce=5", "-o cahce=5: unknown option; did you mean `cache`?"),
            ("cache=x", "-o cache=x: write seconds"),
            ("msize=x", "-o msize=x: `x` is no number"),
            ("token=abc", "-o token=abc: everybody can read it there"),
            ("cache", "-o cache: it needs a value: cache=..."),
            ("ro=1", "-o ro=1: it takes no value"),
        ] {
            let said = taken(option).unwrap_err();
            assert!(said.starts_with(why), "{said}");
        }
    }

    #[test]
    fn mount_calls_us_in_its_own_way() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let helper = |text| helper(&words(text)).map(|helper| (helper.line, helper.fake, helper.sloppy));
        assert_eq!(helper("ninefold mount a b"), None);
        let line = "ninefold mount -o nonempty -o ro -o rw,dev -- tcp!h!1 /n";
        assert_eq!(
            helper("/sbin/mount.fuse.ninefold tcp!h!1 /n -sr -t fuse.ninefold -o rw,dev"),
            Some((words(line), false, true))
        );
    }
}
