//! `mux`: the name space of a running server, shown and changed through the files in its /mux.
//!
//! In: /mux/mounts, /mux/servers/N/status, /mux/clients. Out: tables for people, or one JSON object; with a statement
//! after the verb: a line written to /mux/ctl.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use nine_io::client::{Error, File};
use nine_mux::script::{self, Alone, Statement};
use nine_mux::{MAIN, Order};
use nine_net::Env;
use nine_proto::{Errno, OpenFlags, Time};
use serde_json::{Map, Value, json};

use super::{sorted, text};
use crate::cli::{self, MuxVerb};
use crate::config::{Config, DialectChoice};
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::{Output, date, table};

/// Between two looks of --watch.
const SECOND: Duration = Duration::from_secs(1);

pub fn run(args: cli::Mux, config: &Config) -> Result<Tally> {
    let mut remote = config.remote(&args.remote)?;
    let line = args.verb.as_ref().map(line).transpose()?;
    if line.is_some() && remote.dialect.is_none() {
        // .L has no room for what is wrong with a line.
        remote.dialect = Some(DialectChoice::U);
    }
    let place = Place::parse(args.addr.as_deref().unwrap_or(OsStr::new("/")), &remote)?.below(b"mux");
    dial::run(remote, async |sessions| {
        match line {
            Some(line) => say(&sessions, &place, &line).await?,
            None => show(&sessions, &place, &args).await?,
        }
        Ok(Tally::default())
    })
}

/// The line that the words after the verb are, as ctl wants it.
fn line(verb: &MuxVerb) -> Result<String> {
    let (verb, words) = match verb {
        MuxVerb::Mount(cli::Words { words }) => ("mount", words),
        MuxVerb::Bind(cli::Words { words }) => ("bind", words),
        MuxVerb::Unmount(cli::Words { words }) => ("unmount", words),
        MuxVerb::Hangup(cli::Words { words }) => ("hangup", words),
        MuxVerb::Push(cli::Words { words }) => ("push", words),
        MuxVerb::Pop(cli::Words { words }) => ("pop", words),
    };
    let is_flag =
        |word: &str| word.strip_prefix('-').is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_alphabetic()));
    let written = |word: &String| {
        if is_flag(word) { word.clone() } else { script::quote(word).to_string() }
    };
    let line: Vec<String> = [verb.into()].into_iter().chain(words.iter().map(written)).collect();
    let line = line.join(" ");
    match &*script::parse("", &line, &mut Alone).wrong {
        [] => Ok(line),
        [wrong, ..] => bail!("{}", wrong.what),
    }
}

async fn say(sessions: &Sessions, place: &Place, line: &str) -> Result<()> {
    let mux = dir(sessions, place).await?;
    let ctl = mux.open("ctl", OpenFlags::WRITE).await.map_err(|error| match error.errno() {
        Errno::EACCES | Errno::EROFS | Errno::EPERM => anyhow!(
            "only its owner changes this name space: over the unix socket as the user who serves, or with the token"
        ),
        _ => error.into(),
    })?;
    ctl.write(0, line.as_bytes()).await?;
    Ok(ctl.close().await?)
}

/// The directory of the files.
async fn dir(sessions: &Sessions, place: &Place) -> Result<File> {
    match sessions.walk(place, true).await {
        Err(error) if error.downcast_ref().is_some_and(|e: &Error| e.errno() == Errno::ENOENT) => {
            bail!("there is no {place}: it serves no name space file, or that says nomux")
        }
        other => other,
    }
}

async fn show(sessions: &Sessions, place: &Place, args: &cli::Mux) -> Result<()> {
    let mux = dir(sessions, place).await?;
    let mut out = Output::new();
    loop {
        let seen = Seen::read(&mux).await?;
        if args.json {
            out.json(&seen.json())?;
        } else {
            out.print(if args.watch && out.is_terminal() { CLEAR } else { "" })?;
            out.print(seen.tables())?;
        }
        out.flush()?;
        if !args.watch {
            return Ok(());
        }
        let env = sessions.env();
        env.sleep_until(env.now() + SECOND).await;
        out.print(if args.json || out.is_terminal() { "" } else { "\n" })?;
    }
}

/// What the files say at one time.
struct Seen {
    mounts: Vec<script::Line>,
    /// By number: keys and values.
    servers: BTreeMap<u64, Row>,
    clients: Vec<Row>,
}

type Row = Vec<(String, String)>;

impl Seen {
    async fn read(mux: &File) -> Result<Self> {
        let mounts = script::parse("mounts", &text(mux, "mounts").await?, &mut Alone).lines;
        let mut servers = BTreeMap::new();
        let dir = mux.walk("servers").await?;
        for entry in sorted(&dir, None).await? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            // One that has gone meanwhile is not there.
            let (Ok(number), Ok(status)) = (name.parse(), text(&dir, &format!("{name}/status")).await) else {
                continue;
            };
            let row = status.lines().filter_map(|line| line.split_once(' '));
            servers.insert(number, row.map(|(key, value)| (key.into(), value.into())).collect());
        }
        let clients = text(mux, "clients").await?;
        let mut lines = clients.lines().map(|line| line.split('\t').map(String::from));
        let columns: Vec<String> = lines.next().map(Iterator::collect).unwrap_or_default();
        let clients = lines.map(|line| columns.iter().cloned().zip(line).collect()).collect();
        Ok(Self { mounts, servers, clients })
    }

    fn json(&self) -> Value {
        let object = |row: &Row| {
            let value = |text: &str| text.parse::<u64>().map_or_else(|_| json!(text), |n| json!(n));
            row.iter().map(|(key, text)| (key.clone(), value(text))).collect::<Map<_, _>>()
        };
        let mounts = self.mounts.iter().filter_map(|line| {
            let mut mount = match &line.statement {
                Statement::Mount(mount) => json!({
                    "old": mount.old, "mount": mount.server, "aname": mount.aname,
                    "order": order(mount.flags.order), "create": mount.flags.create,
                }),
                Statement::Bind { flags, new, old } => json!({
                    "old": old, "bind": new, "order": order(flags.order), "create": flags.create,
                }),
                _ => return None,
            };
            mount["space"] = json!(&*line.space);
            mount["line"] = json!(line.statement.to_string());
            Some(mount)
        });
        let servers = self.servers.iter().map(|(number, row)| {
            let mut server = object(row);
            server.insert("number".into(), json!(number));
            Value::Object(server)
        });
        json!({
            "mounts": mounts.collect::<Vec<_>>(),
            "servers": servers.collect::<Vec<_>>(),
            "clients": self.clients.iter().map(object).collect::<Vec<_>>(),
        })
    }

    fn tables(&self) -> String {
        let mut text = String::new();
        let mut space = MAIN;
        let mut mounts = vec![["AT", "WHAT", "HOW"].map(String::from).to_vec()];
        for line in &self.mounts {
            let (old, what, flags) = match &line.statement {
                Statement::Mount(m) => (&m.old, format!("{} {}", m.server, m.aname), m.flags),
                Statement::Bind { flags, new, old } => (old, new.clone(), *flags),
                _ => continue,
            };
            if *line.space != *space {
                space = &line.space;
                mounts.push(vec![format!("space {space}:"), String::new(), String::new()]);
            }
            let create = if flags.create { ", takes new files" } else { "" };
            mounts.push(vec![old.clone(), what.trim_end().into(), format!("{}{create}", order(flags.order))]);
        }
        text += &table(&mounts);
        const SERVERS: [&str; 10] = [
            "name",
            "dialect",
            "connections",
            "dials",
            "rtt-us",
            "in-flight",
            "orphans",
            "fids",
            "waiting",
            "away",
        ];
        let mut servers = vec![
            ["SERVER", "9P", "CONNS", "DIALS", "RTT/us", "IN FLIGHT", "ORPHANS", "FIDS", "WAITING", "AWAY"]
                .map(String::from)
                .to_vec(),
        ];
        servers.extend(self.servers.values().map(|row| cells(row, &SERVERS)));
        text += "\n";
        text += &table(&servers);
        let mut clients = vec![
            ["CLIENT", "ADDRESS", "USER", "9P", "SINCE", "REQUESTS", "IN FLIGHT", "FIDS"]
                .map(String::from)
                .to_vec(),
        ];
        clients.extend(self.clients.iter().map(|row| {
            let mut cells = cells(row, &nine_mux::CLIENTS);
            cells[4] = cells[4].parse().map_or("-".into(), |sec| date(Time { sec, nsec: 0 }));
            cells
        }));
        text += "\n";
        text += &table(&clients);
        text
    }
}

fn order(order: Order) -> &'static str {
    match order {
        Order::Replace => "alone",
        Order::Before => "before",
        Order::After => "after",
    }
}

fn cells(row: &Row, keys: &[&str]) -> Vec<String> {
    let value = |key: &str| row.iter().find(|(of, _)| of == key).map(|(_, value)| value.clone());
    keys.iter().map(|key| value(key).unwrap_or_else(|| "-".into())).collect()
}

/// The terminal is empty, and the cursor at its beginning.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[&str]) -> Result<String> {
        line(&MuxVerb::Mount(cli::Words { words: words.iter().map(|word| word.to_string()).collect() }))
    }

    #[test]
    fn words_of_a_shell_become_one_line() {
        assert_eq!(said(&["-a", "-c", "ram:", "/a b"]).unwrap(), "mount -a -c ram: '/a b'");
        assert_eq!(said(&["-n", "2", "tcp!h", "/x"]).unwrap(), "mount -n 2 tcp!h /x");
        assert_eq!(
            said(&["-n", "2", "-u", "a b", "-a", "ram:", "/x"]).unwrap(),
            "mount -n 2 -u 'a b' -a ram: /x"
        );
        assert!(said(&["-x", "ram:", "/a"]).unwrap_err().to_string().contains("`-x` is not known"));
        assert!(said(&["ram:"]).unwrap_err().to_string().contains("`mount` with one word"));
    }
}
