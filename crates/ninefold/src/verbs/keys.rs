//! `keys`: creates, lists, renews and revokes certificates of a private authority, and explains how to use them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nine_net::{Certificate, Env, Revocations, rt};
use nine_proto::Time;
use rustls_pki_types::pem::{self, PemObject, SectionKind};
use serde_json::json;

use crate::cli::{Keys as Args, KeysVerb};
use crate::keys::{AUTHORITY, CERT, Holder, KEY, Keys, Kind, REVOKED, default_dir, own_name};
use crate::output::{Output, date, table};

pub fn run(args: Args) -> Result<()> {
    let dir = || args.dir.clone().map_or_else(default_dir, Ok);
    let mut out = Output::new();
    match args.verb {
        KeysVerb::Init { name, days } => {
            let name = name.unwrap_or_else(own_name);
            let keys = Keys::init(&dir()?, &name, days)?;
            let (at, until) = (keys.path("").display().to_string(), day(keys.authority.until));
            out.print(format_args!(
                "{at} is the authority `{name}`, until {until}.\n\
                 Whoever reads its authority.key can be anybody: it stays there, and in a backup.\n\
                 \n\
                 Now a certificate for the server, with every name by which it is dialled, and one for each user:\n\
                 \x20 ninefold keys server fs.lab 192.0.2.7\n\
                 \x20 ninefold keys client glenda\n"
            ))?;
        }
        KeysVerb::Server { names, days } => {
            let keys = Keys::open(&dir()?)?;
            let made = keys.server(&names, days)?;
            made_server(&mut out, &keys, made)?;
        }
        KeysVerb::Client { user, days } => {
            let keys = Keys::open(&dir()?)?;
            let made = keys.client(&user, days)?;
            made_client(&mut out, &keys, made)?;
        }
        KeysVerb::Renew { name, days } => {
            let keys = Keys::open(&dir()?)?;
            let made = keys.renew(&name, days)?;
            let of = format!("{}/{}", made.kind.dir(), made.name);
            match made.kind {
                Kind::Server => made_server(&mut out, &keys, made)?,
                Kind::Client => made_client(&mut out, &keys, made)?,
            }
            out.print(format_args!(
                "\nThe certificate before it is good until it ends. Once the new one is where it is used:\n\
                 \x20 ninefold keys revoke --old {of}\n"
            ))?;
        }
        KeysVerb::Revoke { name, old } => {
            let keys = Keys::open(&dir()?)?;
            let come = keys.revoke(&name, old)?;
            if come.is_empty() {
                out.print(format_args!("{name}: nothing that is not revoked already\n"))?;
            }
            for Certificate { serial, .. } in &come {
                out.print(format_args!("{name}: revoked: {serial}\n"))?;
            }
            let list = keys.path(REVOKED);
            out.print(format_args!(
                "\nServers that read this list (`serve --crl {0}`) refuse it within two seconds, and end its \
                 connections.\nCopy it to the others: {0}\n",
                list.display()
            ))?;
        }
        KeysVerb::List { json } => list(&mut out, &Keys::open(&dir()?)?, json)?,
        KeysVerb::Show { files } => files.iter().try_for_each(|file| show(&mut out, file))?,
    }
    out.flush()
}

fn made_server(out: &mut Output, keys: &Keys, made: Holder) -> Result<()> {
    let (says, dir) = (made.says?, made.dir.display());
    let (names, until) = (says.names.join(", "), day(says.until));
    let list = keys.path(REVOKED);
    let list = list.display();
    out.print(format_args!(
        "{dir} is for {names}, until {until}.\n\
         \n\
         Serve with it, here:\n\
         \x20 ninefold serve --listen 'tls!*!5640' --cert {dir}/{CERT} --key {dir}/{KEY} --client-ca \
         {dir}/{AUTHORITY} --crl {list}\n\
         or copy that directory and {list} to the server, for the user who serves alone to read, and name\n\
         them there. Users with a certificate may then do everything; --exports FILE says who may do what.\n"
    ))
}

fn made_client(out: &mut Output, keys: &Keys, made: Holder) -> Result<()> {
    let (says, dir, name) = (made.says?, made.dir.display(), &made.name);
    let until = day(says.until);
    let server = keys.holders()?.into_iter().find(|holder| holder.kind == Kind::Server && !holder.old);
    let server = server.map_or("SERVER".into(), |holder| match holder.name.contains(':') {
        true => format!("[{}]", holder.name),
        false => holder.name,
    });
    out.print(format_args!(
        "{dir} is for {name}, until {until}.\n\
         \n\
         Copy that directory to {name}'s machine, as ~/.config/ninefold/id, by a way on which nobody else reads\n\
         (scp -r). There:\n\
         \x20 cd ~/.config/ninefold/id && ninefold ls --ca {AUTHORITY} --cert {CERT} --key {KEY} 9p+tls://{server}/\n\
         and for good, with whole paths, in ~/.config/ninefold/config.toml:\n\
         \x20 [client]\n\
         \x20 server = \"9p+tls://{server}/\"\n\
         \x20 ca = \"/home/{name}/.config/ninefold/id/{AUTHORITY}\"\n\
         \x20 cert = \"/home/{name}/.config/ninefold/id/{CERT}\"\n\
         \x20 key = \"/home/{name}/.config/ninefold/id/{KEY}\"\n"
    ))
}

fn list(out: &mut Output, keys: &Keys, json: bool) -> Result<()> {
    let revoked = keys.revoked()?.revoked;
    let mut rows = vec![["KIND", "NAME", "FOR", "UNTIL", "STATE", "SERIAL"].map(String::from).to_vec()];
    let own = [("authority", keys.authority.name.clone(), false, Ok(&keys.authority))];
    let holders = keys.holders()?;
    let others = holders.iter().map(|of| (of.kind.word(), of.name.clone(), of.old, of.says.as_ref()));
    for (kind, name, old, says) in own.into_iter().chain(others) {
        let says = match says {
            Ok(says) => says,
            Err(error) => {
                crate::fail::note(format_args!("{kind} {name}: {error:#}"));
                continue;
            }
        };
        let state = state(says, old, &revoked);
        if json {
            let at = |time: Duration| date(Time { sec: time.as_secs() as i64, nsec: 0 });
            out.json(&json!({
                "kind": kind, "name": name, "names": says.names, "serial": says.serial, "state": state,
                "from": at(says.from), "until": at(says.until), "fingerprint": hex(&says.fingerprint),
            }))?;
            continue;
        }
        let names = if says.names.is_empty() { "-".into() } else { says.names.join(",") };
        rows.push(vec![kind.into(), name, names, day(says.until), state, says.serial.clone()]);
    }
    if !json {
        out.print(table(&rows))?;
    }
    Ok(())
}

/// Returns `good`, `good, 20 days left`, `old`, `expired` or `revoked`.
fn state(says: &Certificate, old: bool, revoked: &[(String, Duration)]) -> String {
    let now = rt::Real.wall();
    let left = says.until.saturating_sub(now).as_secs() / 86_400;
    let state = match (revoked.iter().any(|(serial, _)| *serial == says.serial), old) {
        (true, _) => "revoked",
        (false, _) if says.until < now => "expired",
        (false, true) => "old, good still",
        (false, false) if left < SOON => return format!("good, {left} days left"),
        (false, false) => "good",
    };
    state.into()
}

/// Shows all sections of a PEM file.
fn show(out: &mut Output, path: &Path) -> Result<()> {
    let shown = path.display().to_string();
    let text = std::fs::read(path).with_context(|| shown.clone())?;
    let sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(&text).collect::<Result<Vec<_>, pem::Error>>();
    let sections = sections.with_context(|| format!("{shown}: no PEM"))?;
    if sections.is_empty() {
        bail!("{shown}: no certificate, key or list of revoked certificates in PEM is in this file");
    }
    for (kind, der) in sections {
        out.print(format_args!("{shown}: "))?;
        match kind {
            SectionKind::Certificate => match Certificate::of(&der) {
                Some(says) => certificate(out, &says)?,
                None => bail!("{shown}: this certificate cannot be read"),
            },
            SectionKind::Crl => match Revocations::of(&der) {
                Some(says) => revocations(out, &says)?,
                None => bail!("{shown}: this list cannot be read"),
            },
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                out.print(format_args!("a private key, which is not shown\n"))?;
            }
            other => out.print(format_args!("{other:?}: nothing that is used here\n"))?,
        }
    }
    Ok(())
}

fn certificate(out: &mut Output, says: &Certificate) -> Result<()> {
    let what = match (says.authority, says.server, says.client) {
        (true, ..) => "an authority's certificate",
        (_, true, true) => "a certificate for a server or a client",
        (_, true, false) => "a server's certificate",
        (_, false, true) => "a client's certificate",
        (_, false, false) => "a certificate for something else",
    };
    let rows = [
        ("name", says.name.clone()),
        ("for", says.names.join(", ")),
        ("signed by", says.issuer.clone()),
        ("serial", says.serial.clone()),
        ("from", date(time(says.from))),
        ("until", format!("{} ({})", date(time(says.until)), state(says, false, &[]))),
        ("sha-256", hex(&says.fingerprint)),
    ];
    out.print(format_args!("{what}\n"))?;
    let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
    let rows: Vec<_> = rows.map(|(key, value)| vec![format!("    {key}"), value]).collect();
    out.print(table(&rows))
}

fn revocations(out: &mut Output, says: &Revocations) -> Result<()> {
    let Revocations { issuer, made, revoked } = says;
    let (n, made, issuer) = (revoked.len(), date(time(*made)), nine_text::show_name(issuer.as_bytes()));
    out.print(format_args!("the list of certificates that `{issuer}` has revoked: {n}, made {made}\n"))?;
    let rows: Vec<_> =
        revoked.iter().map(|(serial, at)| vec![format!("    {serial}"), date(time(*at))]).collect();
    if rows.is_empty() { Ok(()) } else { out.print(table(&rows)) }
}

fn time(at: Duration) -> Time {
    Time { sec: at.as_secs() as i64, nsec: 0 }
}

fn day(at: Duration) -> String {
    date(time(at)).split(' ').next().unwrap_or_default().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The remaining days are shown if there are at most this many.
const SOON: u64 = 30;
