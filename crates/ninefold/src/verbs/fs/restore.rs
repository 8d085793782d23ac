//! `restore` and `yesterday`: restore files from a dump, or print where they are in a dump.

use std::ffi::OsString;

use anyhow::{Result, bail};

use super::date::is_date;
use super::diff::{self, How};
use super::past::Past;
use crate::cli::{FsRestore, FsYesterday};
use crate::config::Config;
use crate::copy::{Restored, Restoring, Side};
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::{Operand, Place};
use crate::output::Output;

pub fn run(args: FsRestore, config: &Config) -> Result<Tally> {
    let FsRestore { date, path, to, force, quiet, past } = args;
    let remote = config.remote(&past.remote)?;
    let to = to.map(|to| Operand::parse(&to, &remote)).transpose()?;
    dial::run_tidy(remote.clone(), quiet, async |sessions| {
        let past = Past::of(&sessions, &path, &past, &remote).await?;
        let from = past.in_dump(past.dump(&date)?);
        let (mut out, mut tally) = (Output::new(), Tally::default());
        let restoring = Restoring { sessions: &sessions, force, quiet };
        let (place, done) = match &to {
            Some(to) => (to.to_string(), restoring.elsewhere(&from, to, &mut tally).await?),
            None => {
                let now = past.now()?;
                (now.to_string(), restoring.back(&from, &now, &mut tally).await?)
            }
        };
        out.print(said(&from, &place, &done))?;
        out.flush()?;
        Ok(tally)
    })
}

/// Formats a line about a restore.
fn said(from: &Place, to: &str, done: &Restored) -> String {
    let Restored { files, dressed, kept, newer, failed } = *done;
    let count = |n: u64, one: &str, more: &str| match n {
        1 => format!("1 {one}"),
        n => format!("{n} {more}"),
    };
    let mut text = match (files, dressed, failed) {
        (0, 0, 0) => format!("{to}: all of {from} is there"),
        (0, 0, _) => format!("{from} -> {to}: nothing is back"),
        _ => format!("{from} -> {to}: {}", count(files, "file is back", "files are back")),
    };
    if dressed > 0 {
        text += &format!(
            ", {}",
            count(dressed, "has its mode, owner and time again", "have mode, owner and time again")
        );
    }
    if kept > 0 {
        let (one, more) =
            ("has another mode, owner or time, which stays", "have other modes, owners or times, which stay");
        text += &format!("; {}", count(kept, one, more));
    }
    if newer > 0 {
        text += &format!("; {}", count(newer, "that has come since stays", "that have come since stay"));
    }
    if failed > 0 {
        text += &format!("; {failed} failed");
    }
    text + "\n"
}

pub fn yesterday(args: FsYesterday, config: &Config) -> Result<Tally> {
    let FsYesterday { diff, copy, number, date, words, past } = args;
    let remote = config.remote(&past.remote)?;
    let (date, files) = match (number, date) {
        (Some(0), _) => ("today".into(), &words[..]),
        (Some(days), _) => (format!("{days} days ago"), &words[..]),
        (None, Some(date)) => (date, &words[..]),
        (None, None) => dated(&words)?,
    };
    dial::run_tidy(remote.clone(), false, async |sessions| {
        let (mut out, mut tally) = (Output::new(), Tally::default());
        for file in files {
            let of = async {
                let past = Past::of(&sessions, file, &past, &remote).await?;
                let from = past.in_dump(past.dump(&date)?);
                if diff {
                    return diff::show(&sessions, &from, &past.now()?, How::Unified, &mut out, &mut tally)
                        .await;
                }
                if Side::at(&sessions, &from).await?.is_none() {
                    bail!("{from}: it is not in this dump");
                }
                if copy {
                    return bring(&sessions, &from, &past.now()?, &mut out, &mut tally).await;
                }
                out.name(&from.written())?;
                out.print("\n")
            };
            let done = of.await;
            tally.check(nine_text::show_name(std::os::unix::ffi::OsStrExt::as_bytes(&**file)), done)?;
        }
        out.flush()?;
        Ok(tally)
    })
}

async fn bring(
    sessions: &Sessions,
    from: &Place,
    now: &Place,
    out: &mut Output,
    tally: &mut Tally,
) -> Result<()> {
    let restoring = Restoring { sessions, force: true, quiet: false };
    let done = restoring.back(from, now, tally).await?;
    out.print(said(from, &now.to_string(), &done))
}

/// Splits words into a date, if the first one of several looks like a date, and files.
fn dated(words: &[OsString]) -> Result<(String, &[OsString])> {
    Ok(match words {
        [date, files @ ..] if date.to_str().is_some_and(is_date) => {
            if files.is_empty() {
                bail!(
                    "which files of {}? A file that is called like a date is written with a / before it",
                    date.display()
                );
            }
            (date.to_string_lossy().into_owned(), files)
        }
        files => ("yesterday".into(), files),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_may_be_a_date() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let of = |list: &[&str]| dated(&words(list)).map(|(date, files)| (date, files.len())).ok();
        assert_eq!(of(&["/a", "/b"]), Some(("yesterday".into(), 2)));
        assert_eq!(of(&["3 days ago", "/b"]), Some(("3 days ago".into(), 1)));
        assert_eq!(of(&["2026-13-01", "/b"]), Some(("2026-13-01".into(), 1)));
        assert_eq!(of(&["2026/1121"]), None);
        assert_eq!(of(&["/2026/1121"]), Some(("yesterday".into(), 1)));
    }
}
