//! What a server says at its start: what it serves, who may do what, and lines to paste that reach it.

use std::fmt::{self, Write};

use nine_io::server::{Anonymous, Gate};
use nine_net::Addr;

use super::export::Export;
use super::listen::Open;
use crate::config::Serving;

/// All of it; the last line is `ready`.
pub fn text(export: &Export, serving: &Serving, open: &[Open]) -> String {
    let mut text = String::new();
    // A String takes whatever is written to it.
    write(&mut text, export, serving, open).expect("memory");
    text
}

fn write(f: &mut String, export: &Export, serving: &Serving, open: &[Open]) -> fmt::Result {
    let read_only = if serving.read_only.unwrap_or(false) { ", read-only" } else { "" };
    writeln!(f, "ninefold {} serves {export}{read_only}", env!("CARGO_PKG_VERSION"))?;
    for Open { door, gate } in open {
        let addr = door.listener.addr();
        let place = Place::new(addr, !serving.listen.is_empty());
        writeln!(f, "\n{addr}\n    {}", who(addr, gate, serving.socket_mode.is_some()))?;
        writeln!(f, "    {}", place.command(None))?;
        if let Some(token) = &gate.token {
            writeln!(f, "    {}", place.command(Some(token)))?;
        }
        if let Some(mount) = place.mount(gate) {
            writeln!(f, "    {mount}")?;
        }
    }
    writeln!(f, "\nready")
}

fn who(addr: &Addr, gate: &Gate, shared: bool) -> &'static str {
    let everything = if gate.read_only { "reads everything" } else { "reads and writes" };
    match (addr, gate.anonymous, gate.token.is_some()) {
        (Addr::Unix { .. }, ..) if shared && gate.read_only => "whom the socket's mode lets in reads",
        (Addr::Unix { .. }, ..) if shared => "whom the socket's mode lets in reads and writes",
        (Addr::Unix { .. }, ..) if gate.read_only => "this user, and root, read",
        (Addr::Unix { .. }, ..) => "this user, and root, read and write",
        (_, Anonymous::Trusted, _) if gate.read_only => {
            "INSECURE: whoever reaches this address reads everything"
        }
        (_, Anonymous::Trusted, _) => "INSECURE: whoever reaches this address reads and writes everything",
        (_, Anonymous::ReadOnly, true) if !gate.read_only => {
            "this machine reads; who shows the token writes, too"
        }
        (_, Anonymous::ReadOnly, _) => "this machine reads",
        (_, Anonymous::Refused, true) if everything.ends_with("writes") => {
            "who shows a certificate or the token reads and writes"
        }
        (_, Anonymous::Refused, true) => "who shows a certificate or the token reads",
        (_, Anonymous::Refused, false) if everything.ends_with("writes") => {
            "who shows a certificate reads and writes"
        }
        (_, Anonymous::Refused, false) => "who shows a certificate reads",
    }
}

/// An address, seen from where it can be reached.
struct Place<'a> {
    addr: &'a Addr,
    /// It is not where clients look by themselves.
    named: bool,
}

impl<'a> Place<'a> {
    fn new(addr: &'a Addr, named: bool) -> Self {
        Self { addr, named }
    }

    /// How `ninefold` lists the root.
    fn command(&self, token: Option<&str>) -> String {
        let shown = token.map(|token| format!("{token}@")).unwrap_or_default();
        match self.addr {
            Addr::Unix { .. } if !self.named => "ninefold ls /".into(),
            Addr::Unix { path } => format!("ninefold ls unix:{}", path.display()),
            Addr::Tcp { host, port } => format!("ninefold ls 9p://{shown}{}:{port}/", url_host(host)),
            Addr::Tls { host, port } => {
                format!("ninefold ls --ca FILE 9p+tls://{shown}{}:{port}/", url_host(host))
            }
            Addr::Vsock { cid, port } => format!("ninefold ls vsock://{shown}{cid}:{port}/"),
        }
    }

    /// How the Linux kernel mounts it, where it can.
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
            Addr::Tls { .. } | Addr::Vsock { .. } => None,
        }
    }
}

fn url_host(host: &str) -> String {
    match host {
        "*" => "HOST".into(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.into(),
    }
}
