//! The text that a server prints at its start: the served tree, access rights, and commands to
//! reach it.

use std::fmt::{self, Write};

use nine_io::server::{Anonymous, Gate};
use nine_net::Addr;

use super::listen::Open;
use super::local;
use super::web;
use super::{Served, cec};
use crate::config::Serving;
use crate::log;

/// Returns the text; its last line is `ready`.
pub fn text(
    served: &Served,
    serving: &Serving,
    open: &[Open],
    webs: &[web::Open],
    consoles: &[cec::Open],
) -> String {
    let mut text = String::new();
    // The journal is kept and read by other users, so it gets no secrets.
    let secrets = !log::is_journal(std::io::stdout());
    // Writing to a String cannot fail.
    write(&mut text, (served, serving), open, webs, consoles, secrets).expect("memory");
    text
}

fn write(
    f: &mut String,
    (served, serving): (&Served, &Serving),
    open: &[Open],
    webs: &[web::Open],
    consoles: &[cec::Open],
    secrets: bool,
) -> fmt::Result {
    let read_only = if serving.read_only.unwrap_or(false) { ", read-only" } else { "" };
    writeln!(f, "ninefold {} serves {served}{read_only}", env!("CARGO_PKG_VERSION"))?;
    let limited = serving.exports.as_ref().map(|file| format!(", as far as {} lets them", file.display()));
    let limited = limited.unwrap_or_default();
    for Open { door, gate, certificates, data, .. } in open {
        let addr = door.listener.addr();
        let place = Place::new(addr, !serving.listen.is_empty());
        writeln!(
            f,
            "\n{addr}\n    {}{limited}",
            who(addr, gate, *certificates, serving.socket_mode.is_some())
        )?;
        writeln!(f, "    {}", place.command(None))?;
        match (&gate.token, &serving.token_file) {
            (Some(token), _) if secrets => writeln!(f, "    {}", place.command(Some(token)))?,
            (Some(_), Some(file)) => writeln!(f, "    the token is in {}", file.display())?,
            (Some(_), None) => {
                writeln!(f, "    the token is not shown here; --token-file FILE writes it to a file")?
            }
            (None, _) => {}
        }
        if let Some(data) = data {
            writeln!(f, "    streams come in at {}", data.listener.addr())?;
        }
        if let Some(mount) = place.mount(gate).filter(|_| secrets || gate.token.is_none()) {
            writeln!(f, "    {mount}")?;
        }
    }
    for web in webs {
        writeln!(f, "\n{}\n    {}", web.url(), web.who)?;
    }
    for console in consoles {
        let (at, says) = (&console.at, &console.says);
        writeln!(
            f,
            "\n{at}\n    {says}: clients with the password, which is sent in clear text, command the archives"
        )?;
    }
    writeln!(f, "\nready")
}

fn who(addr: &Addr, gate: &Gate, certificates: bool, shared: bool) -> String {
    let (reads, read) =
        if gate.read_only { ("reads", "read") } else { ("reads and writes", "read and write") };
    match (addr, gate.anonymous) {
        (Addr::Unix { .. } | Addr::Shm { .. }, _) if shared => {
            format!("users that the socket's mode admits {read}")
        }
        (Addr::Unix { .. } | Addr::Shm { .. }, _) => format!("this user, and root, {read}"),
        (_, Anonymous::Trusted) => format!("INSECURE: whoever reaches this address {reads} everything"),
        _ => local::readers(gate).unwrap_or_else(|| {
            let proof = match (certificates, gate.token.is_some()) {
                (true, true) => "a certificate or the token",
                (true, false) => "a certificate",
                (false, _) => "the token",
            };
            format!("clients with {proof} {read}")
        }),
    }
}

/// An address, as clients use it.
struct Place<'a> {
    addr: &'a Addr,
    /// Clients must name it, because it is not the default address.
    named: bool,
}

impl<'a> Place<'a> {
    fn new(addr: &'a Addr, named: bool) -> Self {
        Self { addr, named }
    }

    /// Returns the `ninefold` command that lists the root.
    fn command(&self, token: Option<&str>) -> String {
        let shown = token.map(|token| format!("{token}@")).unwrap_or_default();
        match self.addr {
            Addr::Unix { .. } if !self.named => "ninefold ls /".into(),
            Addr::Unix { path } => format!("ninefold ls unix:{}", path.display()),
            Addr::Shm { path } => format!("ninefold ls shm:{}", path.display()),
            Addr::Tcp { host, port } => format!("ninefold ls 9p://{shown}{}:{port}/", url_host(host)),
            Addr::Tls { host, port } => {
                format!("ninefold ls --ca FILE 9p+tls://{shown}{}:{port}/", url_host(host))
            }
            Addr::Vsock { cid, port } => format!("ninefold ls vsock://{shown}{cid}:{port}/"),
            Addr::Il { host, port } => {
                format!("ninefold ls 'il!{}!{port}/'", if host == "*" { "HOST" } else { host })
            }
        }
    }

    /// Returns the command that mounts it with the Linux kernel's client, if that supports the
    /// address.
    fn mount(&self, gate: &Gate) -> Option<String> {
        let aname = gate.token.as_ref().map(|token| format!(",aname=token:{token}")).unwrap_or_default();
        match self.addr {
            Addr::Unix { path } => Some(format!(
                "sudo mount -t 9p -o trans=unix,version=9p2000.L,uname=$USER,msize=1048576 {} /mnt",
                path.display()
            )),
            Addr::Tcp { host, port } => {
                let host = if host == "*" { "HOST" } else { host };
                Some(format!(
                    "sudo mount -t 9p -o trans=tcp,port={port},version=9p2000.L,msize=1048576{aname} {host} /mnt"
                ))
            }
            Addr::Shm { .. } | Addr::Tls { .. } | Addr::Vsock { .. } | Addr::Il { .. } => None,
        }
    }
}

/// Returns the host as a URL has it.
pub fn url_host(host: &str) -> String {
    match host {
        "*" => "HOST".into(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.into(),
    }
}
