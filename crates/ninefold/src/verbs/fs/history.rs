//! `history`: all versions of a file, newest first.
//!
//! In: the file's attributes in every dump, many requested at once. Out: a row for each run of dumps with the same
//! version, as it is found. Only rows are held in memory.
//!
//! Always holds: at most [`ASKED`] dumps are queried at once. Content is read only if length and modification time are
//! equal but the qid's version or the attribute change time is not.

use std::cell::Cell;

use anyhow::Result;
use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt};
use nine_io::client::File;
use nine_proto::{Attr, GetMask, Time};
use serde_json::{Map, json};

use super::date::Day;
use super::past::{Past, there};
use crate::cli::FsHistory;
use crate::config::Config;
use crate::copy::{Kind, Steps};
use crate::dial;
use crate::fail::{self, Tally};
use crate::operand::Place;
use crate::output::{Output, date, kind, put_text, table};

/// Limit of dumps that are queried at once.
const ASKED: usize = 256;
/// Size of one read when two versions are compared, bytes.
const PIECE: u32 = 1 << 20;

pub fn run(args: FsHistory, config: &Config) -> Result<Tally> {
    let FsHistory { json, quiet, path, past } = args;
    let remote = config.remote(&past.remote)?;
    dial::run(remote.clone(), async |sessions| {
        let past = Past::of(&sessions, &path, &past, &remote).await?;
        let mut out = Output::new();
        let mut rows = vec![["FIRST", "LAST", "CHANGED", "SIZE", "OWNER", "WHAT"].map(String::from).to_vec()];
        let (ever, unknown) = (Cell::new(false), Cell::new(0));
        let shown = versions(&past, quiet, |run| {
            ever.set(true);
            unknown.set(unknown.get() + usize::from(matches!(run.is, Is::Unknown(_))));
            if json {
                return out.json(&object(&past, &run));
            }
            rows.push(row(&past, &run));
            Ok(())
        });
        shown.await?;
        if !ever.get() {
            anyhow::bail!(
                "{}: neither is it there, nor is it in any of {} dumps",
                past.named(),
                past.dumps.len()
            );
        }
        if !json {
            out.print(table(&rows))?;
        }
        out.flush()?;
        let mut tally = Tally::default();
        tally.add(unknown.get());
        Ok(tally)
    })
}

/// Consecutive dumps with the same version.
struct Run {
    /// The newest dump; `None` for the live file.
    last: Option<Day>,
    first: Option<Day>,
    dumps: usize,
    is: Is,
}

enum Is {
    /// The file does not exist.
    Absent,
    There(Box<Attr>),
    Unknown(String),
}

/// Reports all versions, newest first, and the gaps in which the file did not exist.
async fn versions(past: &Past, quiet: bool, mut tell: impl FnMut(Run) -> Result<()>) -> Result<()> {
    let steps = Steps::new(quiet, "dumps", Some(past.dumps.len() as u64));
    let now = past.now().ok();
    let days = past.dumps.iter().rev().map(|dump| Some(dump.day));
    let all: Vec<Option<Day>> = now.is_some().then_some(None).into_iter().chain(days).collect();
    let look = |day: Option<Day>| {
        let place = match (day, &now) {
            (Some(day), _) => past.in_dump(day),
            (None, Some(now)) => now.clone(),
            (None, None) => unreachable!("it is not asked for"),
        };
        let steps = &steps;
        async move {
            let found = match past.root.walk_attr(&place.path, GetMask::ALL).await {
                Err(error) => Err(dial::why_absent(&past.root, &place.path, error).await),
                found => found,
            };
            steps.one();
            let is = match there(found) {
                Ok(Some((file, attr))) => (Is::There(Box::new(attr)), Some(file)),
                Ok(None) => (Is::Absent, None),
                Err(error) if fail::is_final(&error) => return Err(error),
                Err(error) => (Is::Unknown(error.to_string()), None),
            };
            Ok((day, is.0, is.1))
        }
    };
    let mut found = stream::iter(all).map(look).buffered(ASKED);
    let mut run: Option<(Run, Option<File>)> = None;
    while let Some(next) = found.next().await {
        let (day, is, file) = next?;
        match &mut run {
            Some((run, newer)) if is_same(&run.is, newer.as_ref(), &is, file.as_ref()).await? => {
                run.first = day;
                run.dumps += 1;
                // The live file is the same as in a dump. Show the dump's attributes, because a dump is a lasting name.
                if run.last.is_none() && matches!(run.is, Is::There(_)) {
                    run.is = is;
                }
                continue;
            }
            _ => {}
        }
        let new = Run { last: day, first: day, dumps: day.is_some().into(), is };
        if let Some((ended, _)) = run.replace((new, file)) {
            tell(ended)?;
        }
    }
    steps.end();
    // A time before the file first existed is not a version.
    match run {
        Some((run, _)) if !matches!(run.is, Is::Absent) => tell(run),
        _ => Ok(()),
    }
}

/// Returns whether two consecutive dumps have the same version.
async fn is_same(newer: &Is, file: Option<&File>, older: &Is, other: Option<&File>) -> Result<bool> {
    let (a, b) = match (newer, older) {
        (Is::There(a), Is::There(b)) => (a, b),
        (Is::Absent, Is::Absent) => return Ok(true),
        (Is::Unknown(a), Is::Unknown(b)) => return Ok(a == b),
        _ => return Ok(false),
    };
    let seen = |attr: &Attr| (attr.mode, attr.uid, attr.gid, attr.size, attr.mtime);
    if seen(a) != seen(b) {
        return Ok(false);
    }
    let knows = |attr: &Attr| attr.valid.has(GetMask::CTIME);
    let is_sure = knows(a) && knows(b) && (a.ctime, a.qid.vers) == (b.ctime, b.qid.vers);
    let (Some(file), Some(other), false) = (file, other, is_sure) else { return Ok(true) };
    let alike = match Kind::of(a.mode) {
        Kind::File if !a.qid.is_event() => reads_alike(file, other, a.size).await,
        Kind::Link => lead_alike(file, other).await,
        _ => Ok(true),
    };
    // If the content cannot be read, count it as different.
    alike.or_else(|error| if fail::is_final(&error) { Err(error) } else { Ok(false) })
}

async fn lead_alike(a: &File, b: &File) -> Result<bool> {
    let (a, b) = try_join(a.readlink(), b.readlink()).await?;
    Ok(a == b)
}

async fn reads_alike(a: &File, b: &File, size: u64) -> Result<bool> {
    let open = async |file: &File| file.open("", nine_proto::OpenFlags::READ).await;
    let (a, b) = try_join(open(a), open(b)).await?;
    let (mut mine, mut other) = (vec![0; PIECE as usize], vec![0; PIECE as usize]);
    let mut at = 0;
    while at < size {
        let (n, m) = try_join(a.read_at(at, &mut mine), b.read_at(at, &mut other)).await?;
        if n != m || mine[..n] != other[..m] {
            return Ok(false);
        }
        if n == 0 {
            break;
        }
        at += n as u64;
    }
    Ok(true)
}

impl Run {
    fn named(day: Option<Day>) -> String {
        day.map_or("now".into(), |day| day.to_string())
    }

    fn what(&self) -> String {
        match &self.is {
            Is::Absent => "removed".into(),
            Is::There(attr) => kind(attr.mode).into(),
            Is::Unknown(why) => why.clone(),
        }
    }

    fn place(&self, past: &Past) -> Option<Place> {
        match self.first {
            Some(day) => Some(past.in_dump(day)),
            None => past.now().ok(),
        }
    }
}

fn row(past: &Past, run: &Run) -> Vec<String> {
    let none = || "-".to_string();
    let [time, size, owner] = match &run.is {
        Is::There(attr) => {
            let size = if attr.qid.is_dir() { none() } else { attr.size.to_string() };
            [date(attr.mtime), size, past.user(attr.uid)]
        }
        _ => [none(), none(), none()],
    };
    vec![Run::named(run.first), Run::named(run.last), time, size, owner, run.what()]
}

fn object(past: &Past, run: &Run) -> serde_json::Value {
    let mut object = Map::new();
    let day = |day: Option<Day>| day.map(|day| day.to_string());
    object.insert("first".into(), json!(day(run.first)));
    object.insert("last".into(), json!(day(run.last)));
    object.insert("dumps".into(), json!(run.dumps));
    object.insert("now".into(), json!(run.last.is_none()));
    object.insert("type".into(), json!(run.what()));
    if let Is::There(attr) = &run.is {
        let Time { sec, nsec } = attr.mtime;
        object.insert("mtime".into(), json!(format!("{sec}.{nsec:09}")));
        object.insert("size".into(), json!(attr.size));
        object.insert("mode".into(), json!(format!("{:04o}", attr.mode & 0o7777)));
        object.insert("uid".into(), json!(attr.uid));
        object.insert("gid".into(), json!(attr.gid));
        object.insert("owner".into(), json!(past.user(attr.uid)));
        if let Some(place) = run.place(past) {
            put_text(&mut object, "path", &place.written());
        }
    }
    object.into()
}
