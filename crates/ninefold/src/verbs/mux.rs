//! `mux`: shows and changes the name space of a running server, through the files in its /mux.
//!
//! In: /mux/mounts, /mux/servers/N/status, /mux/clients. Out: tables for people, or one JSON object. With a statement
//! after the verb: a line written to /mux/ctl.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use nine_io::client::File;
use nine_io::near;
use nine_mux::script::{self, Alone, Statement};
use nine_mux::{AWAY, MAIN, Order, Wait};
use nine_net::Env;
use nine_proto::{Errno, OpenFlags, Time};
use serde_json::{Map, Value, json};

use super::{mux_files, sorted, text};
use crate::cli::{self, MuxVerb};
use crate::config::Config;
use crate::dial::{self, Sessions};
use crate::fail::{Program, Tally};
use crate::operand::Place;
use crate::output::{Output, date, table};

/// Interval of --watch.
const SECOND: Duration = Duration::from_secs(1);

pub fn run(args: cli::Mux, config: &Config) -> Result<Tally> {
    let mut remote = config.remote(&args.remote)?;
    if let Some(space) = &args.space {
        remote.aname = Some(space.clone());
    }
    if let Some(word) = args.addr.as_deref().filter(|_| args.verb.is_none()).map(OsStr::to_string_lossy) {
        match mistyped(&word) {
            Some(statement) => {
                bail!(
                    "`{word}` is no statement; did you mean `{statement}`? (a directory of that name: /{word})"
                )
            }
            None if !args.rest.is_empty() => {
                bail!("`{word}` is no statement; write one of: {}", STATEMENTS.join(", "))
            }
            None => {}
        }
    }
    let line = args.verb.as_ref().map(line).transpose()?;
    if line.is_some() {
        remote = remote.with_error_texts();
    }
    let place = Place::parse(args.addr.as_deref().unwrap_or(OsStr::new("/")), &remote)?;
    dial::run(remote, async |sessions| {
        match line {
            Some(line) => say(&sessions, &place, &line).await?,
            None => show(&sessions, &place, &args).await?,
        }
        Ok(Tally::default())
    })
}

/// The statements that the command line takes.
const STATEMENTS: [&str; 6] = ["mount", "bind", "unmount", "hangup", "push", "pop"];

/// Returns the statement that a word without a path or an address was meant to be.
fn mistyped(word: &str) -> Option<&'static str> {
    let is_word = word.bytes().all(|b| b.is_ascii_alphabetic());
    near::near(word, STATEMENTS).filter(|_| is_word)
}

/// Formats the words after the verb as a line for ctl.
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
    let mux = mux_files(sessions, place).await?;
    let ctl = mux.open("ctl", OpenFlags::RDWR).await.map_err(|error| match error.errno() {
        Errno::EACCES | Errno::EROFS | Errno::EPERM => anyhow!(
            "only its owner changes this name space: over the unix socket as the user who serves, or with the token"
        ),
        _ => error.into(),
    })?;
    ctl.write(0, line.as_bytes()).await?;
    let said = ctl.read(0, 64 * 1024).await?;
    ctl.close().await?;
    if let Some(why) = String::from_utf8_lossy(&said).strip_prefix(AWAY) {
        let error = Some(format!("mounted, but away: {}", why.trim_end()));
        return Err(Program { status: MOUNTED_AWAY, error }.into());
    }
    Ok(())
}

/// Exit status if a mounted server does not answer.
const MOUNTED_AWAY: u8 = 3;

async fn show(sessions: &Sessions, place: &Place, args: &cli::Mux) -> Result<()> {
    let mux = mux_files(sessions, place).await?;
    let mut out = Output::new();
    loop {
        let mut seen = Seen::read(&mux).await?;
        if let Some(space) = &args.space {
            seen.mounts.retain(|line| *line.space == **space);
        }
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

/// The content of the files at one time.
struct Seen {
    mounts: Vec<script::Line>,
    /// Lines that wait for a server, each with the reason.
    pending: Vec<(String, String)>,
    /// Servers by number: keys and values.
    servers: BTreeMap<u64, Row>,
    clients: Vec<Row>,
}

type Row = Vec<(String, String)>;

impl Seen {
    async fn read(mux: &File) -> Result<Self> {
        let mounts = script::parse("mounts", &text(mux, "mounts").await?, &mut Alone).lines;
        let pending = text(mux, "pending").await.unwrap_or_default();
        let pending = pending.lines().filter_map(|line| line.rsplit_once(" # "));
        let pending: Vec<_> = pending.map(|(line, why)| (line.into(), why.into())).collect();
        let mut servers = BTreeMap::new();
        let dir = mux.walk("servers").await?;
        for entry in sorted(&dir, None).await? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            // The server was removed meanwhile.
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
        Ok(Self { mounts: shown(mounts, &pending), pending, servers, clients })
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
            "pending": self.pending.iter().map(|(line, why)| json!({"line": line, "why": why})).collect::<Vec<_>>(),
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
            let how = format!("{}{create}{}", order(flags.order), options(&line.statement));
            mounts.push(vec![old.clone(), what.trim_end().into(), how]);
        }
        text += &table(&mounts);
        if !self.pending.is_empty() {
            let mut pending = vec![["NOT YET", "WHY"].map(String::from).to_vec()];
            pending.extend(self.pending.iter().map(|(line, why)| vec![line.clone(), why.clone()]));
            text += "\n";
            text += &table(&pending);
        }
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

/// Returns the executed lines, without temporary mounts that exist only until the following bind.
fn shown(lines: Vec<script::Line>, pending: &[(String, String)]) -> Vec<script::Line> {
    let mut shown: Vec<script::Line> = Vec::new();
    for line in lines {
        if let Statement::Unmount { new: Some(new), old } = &line.statement {
            let at = shown.iter().rposition(|line| match &line.statement {
                Statement::Mount(mount) => mount.server == *new && mount.old == *old,
                _ => false,
            });
            at.map(|at| shown.remove(at));
        } else if pending.iter().all(|(waits, _)| *waits != line.statement.to_string()) {
            shown.push(line);
        }
    }
    shown
}

/// Formats further options of a mount.
fn options(statement: &Statement) -> String {
    let Statement::Mount(mount) = statement else { return String::new() };
    let mut text = String::new();
    match mount.wait {
        Some(Wait::Ever) => text += ", comes back",
        Some(Wait::AtMost(limit)) => text += &format!(", comes back, waits {} s", limit.as_secs()),
        None => {}
    }
    if mount.ahead {
        text += ", reads ahead";
    }
    if mount.lanes > 1 {
        text += &format!(", {} connections", mount.lanes);
    }
    match &mount.user {
        Some(script::User::Client) => text += ", as each client",
        Some(script::User::Name(name)) => text += &format!(", as {name}"),
        None => {}
    }
    text
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

/// Escape sequences that clear the terminal and move the cursor to the top.
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
        for (word, meant) in [
            ("mont", Some("mount")),
            ("umount", Some("unmount")),
            ("psuh", Some("push")),
            ("main", None),
            ("/mont", None),
            ("mont:", None),
        ] {
            assert_eq!(mistyped(word), meant, "{word}");
        }
        assert!(said(&["ram:"]).unwrap_err().to_string().contains("`mount` with one word"));
    }
}
