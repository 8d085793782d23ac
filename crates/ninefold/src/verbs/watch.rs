//! `watch`: prints the changes below a directory of a server, line by line (docs/changes.md).

use std::time::Duration;

use anyhow::{Context, Result};
use nine_io::changes::{Change, Cursor, Line, Watch};
use nine_io::client::Error;
use nine_net::Env;
use nine_proto::Errno;
use serde_json::{Map, Value, json};

use crate::cli;
use crate::config::{Config, Remote};
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::{Output, put_text};

/// Interval of attempts to reach a lost server.
const AGAIN: Duration = Duration::from_secs(1);

pub fn run(args: cli::Watch, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let place = Place::parse(&args.path, &remote)?;
    let from = args.from.as_ref().map(|from| {
        Cursor::parse(from.as_bytes()).with_context(|| format!("{from}: a place is written EPOCH.N"))
    });
    let from = from.transpose()?;
    dial::run_waiting(remote.clone(), async |sessions| {
        let mut tally = Tally::default();
        let watched = watch(sessions, &remote, &place, from, args.json).await;
        tally.check(&place, watched)?;
        Ok(tally)
    })
}

/// Runs until the server refuses, and reconnects after a lost connection.
async fn watch(
    sessions: Sessions,
    remote: &Remote,
    place: &Place,
    mut from: Option<Cursor>,
    json: bool,
) -> Result<()> {
    let (env, base) = (sessions.env(), place.names_path());
    let mut out = Output::new();
    let mut first = Some(sessions);
    let mut had = false;
    loop {
        let sessions = first.take().unwrap_or_else(|| Sessions::new(remote.clone(), env));
        let told = tell(&sessions, place, &base, &mut from, &mut out, json).await;
        had |= from.is_some();
        match told {
            // Wait only for a server that was reached once.
            Err(error) if had && is_away(&error) => tracing::debug!("{place}: {error:#}"),
            other => return other,
        }
        env.sleep_until(env.now() + AGAIN).await;
    }
}

/// Prints changes until the connection is lost.
async fn tell(
    sessions: &Sessions,
    place: &Place,
    base: &[u8],
    from: &mut Option<Cursor>,
    out: &mut Output,
    json: bool,
) -> Result<()> {
    let root = sessions.root(place).await?;
    let mut watch = Watch::open(&root, from.as_ref()).await.map_err(|error| match error {
        Error::Walk { .. } => anyhow::anyhow!("this server does not tell changes: {error}"),
        error => error.into(),
    })?;
    loop {
        for line in watch.next().await? {
            if !matches!(&line, Line::Change(_, change) if change.seen_from(base).is_none()) {
                show(&line, out, json)?;
            }
        }
        // Show changes as they happen.
        out.flush()?;
        *from = watch.cursor().cloned();
    }
}

fn show(line: &Line, out: &mut Output, json: bool) -> Result<()> {
    if json {
        return out.json(&object(line));
    }
    let mut text = Vec::new();
    line.encode(&mut text);
    out.name(&text[..text.len() - 1])?;
    out.print('\n')
}

fn object(line: &Line) -> Value {
    let mut object = Map::new();
    let (number, word, paths) = match line {
        Line::Here(Cursor { epoch, next }) => {
            return json!({ "change": "here", "epoch": **epoch, "number": next });
        }
        Line::Change(number, change) => match change {
            Change::Create(path) => (number, "create", [Some(path), None]),
            Change::Remove(path) => (number, "remove", [Some(path), None]),
            Change::Write(path) => (number, "write", [Some(path), None]),
            Change::Attr(path) => (number, "attr", [Some(path), None]),
            Change::Move(old, new) => (number, "move", [Some(old), Some(new)]),
            Change::Blind(path) => (number, "blind", [Some(path), None]),
            Change::Sees(path) => (number, "sees", [Some(path), None]),
            Change::Lost(from) => return json!({ "change": "lost", "number": number, "from": from }),
        },
    };
    object.insert("change".into(), word.into());
    object.insert("number".into(), json!(number));
    for (key, path) in ["path", "to"].into_iter().zip(paths) {
        path.into_iter().for_each(|path| put_text(&mut object, key, path));
    }
    object.into()
}

/// Returns whether the server may come back later.
fn is_away(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_none_or(|error| error.is_disconnect() || error.errno() == Errno::ESTALE)
}
