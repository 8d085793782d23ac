//! `diff`: shows the changes between a dump and now, or another dump.
//!
//! In: the two trees, compared name by name. Out: a line for each name that differs, or the changed lines of texts in
//! the form of diff(1) and patch(1).
//!
//! Always holds: lines are only compared in texts of at most [`TEXT`] bytes. If a comparison takes longer than
//! [`PATIENCE`], its result is coarser.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nine_proto::Time;
use serde_json::{Map, json};
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};

use super::past::Past;
use crate::cli::FsDiff;
use crate::config::Config;
use crate::copy::{Change, Comparison, Kind, Side, Steps, What};
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::{Output, date, put_text};

/// Longest text with lines shown, bytes.
const TEXT: u64 = 16 << 20;
/// Number of context lines.
const AROUND: usize = 3;
/// Time limit for a minimal difference.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: FsDiff, config: &Config) -> Result<Tally> {
    let FsDiff { date, path, to, unified, json, past } = args;
    let remote = config.remote(&past.remote)?;
    dial::run(remote.clone(), async |sessions| {
        let past = Past::of(&sessions, &path, &past, &remote).await?;
        let old = past.in_dump(past.dump(&date)?);
        let new = match &to {
            Some(date) => past.in_dump(past.dump(date)?),
            None => past.now()?,
        };
        let how = if unified {
            How::Unified
        } else if json {
            How::Json
        } else {
            How::Names
        };
        let (mut out, mut tally) = (Output::new(), Tally::default());
        show(&sessions, &old, &new, how, &mut out, &mut tally).await?;
        out.flush()?;
        Ok(tally)
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum How {
    Names,
    Json,
    Unified,
}

/// Writes the differences between `old` and `new`.
pub async fn show(
    sessions: &Sessions,
    old: &Place,
    new: &Place,
    how: How,
    out: &mut Output,
    tally: &mut Tally,
) -> Result<()> {
    let sides = (Side::at(sessions, old).await?, Side::at(sessions, new).await?);
    ensure!(sides.0.is_some() || sides.1.is_some(), "{old}: it is not there, and {new} is not, either");
    let heads = [("--- ", old), ("+++ ", new)];
    // If nothing differs, print nothing, as diff(1) does.
    let mut has_heads = how != How::Names;
    let steps = Steps::new(false, "files compared", None);
    let mut comparison = Comparison::new(sides.0, sides.1, true, &steps);
    while let Some(change) = comparison.next().await? {
        let at =
            |place: &Place| if change.path.is_empty() { place.clone() } else { place.below(&change.path) };
        let (old, new) = (at(old), at(new));
        if let What::Unknown(error) = change.what {
            tally.check(old, Err::<(), _>(error))?;
            continue;
        }
        if !std::mem::replace(&mut has_heads, true) {
            // Name the dumps that the dates stand for.
            for (sign, place) in heads {
                out.print(sign)?;
                out.name(&place.written())?;
                out.print("\n")?;
            }
        }
        match how {
            How::Names => names(&change, &old, &new, out)?,
            How::Json => json(&change, &old, &new, out)?,
            How::Unified => {
                let shown = unified(&change, &old, &new, out).await;
                tally.check(new, shown)?;
            }
        }
    }
    steps.end();
    Ok(())
}

fn is_dir(side: &Option<Side>) -> bool {
    side.as_ref().is_some_and(|side| side.meta.kind == Kind::Dir)
}

fn names(change: &Change, old: &Place, new: &Place, out: &mut Output) -> Result<()> {
    let mut line = |sign: &str, place: &Place, side: &Option<Side>| -> Result<()> {
        out.print(sign)?;
        out.name(&place.written())?;
        out.print(if is_dir(side) { "/\n" } else { "\n" })
    };
    match change.what {
        What::Added => line("+ ", new, &change.new),
        What::Removed => line("- ", old, &change.old),
        What::Content => line("~ ", new, &change.new),
        What::Attributes => line("m ", new, &change.new),
        What::Kind => {
            line("- ", old, &change.old)?;
            line("+ ", new, &change.new)
        }
        What::Unknown(_) => Ok(()),
    }
}

fn json(change: &Change, old: &Place, new: &Place, out: &mut Output) -> Result<()> {
    let word = match change.what {
        What::Added => "added",
        What::Removed => "removed",
        What::Content => "changed",
        What::Attributes => "attributes",
        What::Kind => "kind",
        What::Unknown(_) => return Ok(()),
    };
    let mut object = Map::new();
    object.insert("change".into(), json!(word));
    for (key, place, side) in [("old", old, &change.old), ("new", new, &change.new)] {
        if let Some(side) = side {
            put_text(&mut object, key, &place.written());
            object.insert(format!("{key}-size"), json!(side.meta.size));
            let Time { sec, nsec } = side.meta.mtime;
            object.insert(format!("{key}-mtime"), json!(format!("{sec}.{nsec:09}")));
        }
    }
    out.json(&object.into())
}

/// Writes the lines in which two texts differ; a missing text counts as empty.
async fn unified(change: &Change, old: &Place, new: &Place, out: &mut Output) -> Result<()> {
    let is_content = |side: &Option<Side>| {
        side.as_ref().is_none_or(|side| side.meta.kind == Kind::File && !side.meta.is_event)
    };
    if matches!(change.what, What::Attributes) {
        return Ok(());
    }
    if !is_content(&change.old) || !is_content(&change.new) {
        // Directories, links and devices have no lines, so only name them.
        return match (is_dir(&change.old), is_dir(&change.new), &change.what) {
            (_, true, What::Added) | (true, _, What::Removed) => Ok(()),
            _ => names(change, old, new, out),
        };
    }
    let text = async |side: &Option<Side>| match side {
        Some(side) => side.text(TEXT).await,
        None => Ok(Some(Vec::new())),
    };
    let (a, b) = (text(&change.old).await?, text(&change.new).await?);
    let (Some(a), Some(b)) = (&a, &b) else { return differ(old, new, "are long", out) };
    let is_text = |bytes: &[u8]| !bytes.iter().take(8000).any(|byte| *byte == 0);
    if !is_text(a) || !is_text(b) {
        return differ(old, new, "are no texts", out);
    }
    head("--- ", old, &change.old, out)?;
    head("+++ ", new, &change.new, out)?;
    hunks(a, b, |bytes| out.bytes(bytes))
}

fn differ(old: &Place, new: &Place, why: &str, out: &mut Output) -> Result<()> {
    out.name(&old.written())?;
    out.print(" and ")?;
    out.name(&new.written())?;
    out.print(format_args!(" differ, and {why}\n"))
}

fn head(sign: &str, place: &Place, side: &Option<Side>, out: &mut Output) -> Result<()> {
    out.print(sign)?;
    match side {
        Some(side) => {
            // Escape the name: it may contain a newline.
            out.print(nine_text::show_name(&place.written()))?;
            out.print(format_args!("\t{}\n", date(side.meta.mtime)))
        }
        None => out.print("/dev/null\n"),
    }
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

/// Writes the hunks of diff -u.
fn hunks(old: &[u8], new: &[u8], mut put: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let (a, b) = (lines(old), lines(new));
    let until = Instant::now().checked_add(PATIENCE).context("the clock is at its end")?;
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &a, &b, Some(until));
    let mut line = |sign: &[u8], line: &[u8]| -> Result<()> {
        put(sign)?;
        put(line)?;
        if line.ends_with(b"\n") { Ok(()) } else { put(b"\n\\ No newline at end of file\n") }
    };
    for group in group_diff_ops(ops, AROUND) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = |from: usize, to: usize| match to - from {
            1 => format!("{}", from + 1),
            0 => format!("{from},0"),
            n => format!("{},{n}", from + 1),
        };
        let olds = range(first.old_range().start, last.old_range().end);
        let news = range(first.new_range().start, last.new_range().end);
        line(b"", format!("@@ -{olds} +{news} @@\n").as_bytes())?;
        for op in group {
            let (olds, news) = (op.old_range(), op.new_range());
            if let DiffOp::Equal { .. } = op {
                a[olds].iter().try_for_each(|text| line(b" ", text))?;
                continue;
            }
            a[olds].iter().try_for_each(|text| line(b"-", text))?;
            b[news].iter().try_for_each(|text| line(b"+", text))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(old: &str, new: &str) -> String {
        let mut text = Vec::new();
        let put = |bytes: &[u8]| {
            text.extend_from_slice(bytes);
            Ok(())
        };
        hunks(old.as_bytes(), new.as_bytes(), put).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn hunks_are_those_of_diff() {
        let old: String = (1..=20).map(|n| format!("{n}\n")).collect();
        let new = old.replace("\n5\n", "\nfive\n").replace("19\n20\n", "19\n20");
        assert_eq!(
            shown(&old, &new),
            "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n\
             @@ -17,4 +17,4 @@\n 17\n 18\n 19\n-20\n+20\n\\ No newline at end of file\n"
        );
        assert_eq!(shown("", "a\nb\n"), "@@ -0,0 +1,2 @@\n+a\n+b\n");
        assert_eq!(shown("a\n", ""), "@@ -1 +0,0 @@\n-a\n");
        assert_eq!(shown("a", "a"), "");
    }
}
