//! `stat`: shows a file's attributes, for people or as JSON.

use anyhow::Result;
use nine_proto::{Attr, GetMask, mode};
use nine_text::show_name;

use super::is_link;
use crate::cli;
use crate::config::Config;
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::{self, Output, date};

pub fn run(args: cli::Stat, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let places = Place::all(&args.paths, &remote)?;
    dial::run(remote, async |sessions| {
        let mut tally = Tally::default();
        let mut out = Output::new();
        for place in &places {
            let known = known(&sessions, place).await;
            let Some((attr, target)) = tally.check(place, known)? else { continue };
            if args.json {
                out.json(&output::object(place.to_string().as_bytes(), &attr, target.as_deref()))?;
            } else {
                out.print(text(place, &attr, target.as_deref()))?;
            }
        }
        out.flush()?;
        Ok(tally)
    })
}

async fn known(sessions: &Sessions, place: &Place) -> Result<(Attr, Option<Box<[u8]>>)> {
    let file = sessions.walk(place, false).await?;
    let attr = file.getattr(GetMask::ALL).await?;
    let target = if is_link(attr.mode) { Some(file.readlink().await?) } else { None };
    Ok((attr, target))
}

fn text(place: &Place, attr: &Attr, target: Option<&[u8]>) -> String {
    let mut lines = vec![match target {
        Some(target) => format!("  File: {place} -> {}", show_name(target)),
        None => format!("  File: {place}"),
    }];
    lines.push(format!("  Type: {}", output::kind(attr.mode)));
    if matches!(attr.mode & mode::S_IFMT, mode::S_IFBLK | mode::S_IFCHR) {
        let (major, minor) = (rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev));
        lines.push(format!("Device: {major},{minor}"));
    }
    lines.push(format!("  Size: {} bytes in {} blocks", attr.size, attr.blocks));
    lines.push(format!("  Mode: {:04o} {}", attr.mode & 0o7777, output::letters(attr.mode)));
    lines.push(format!(" Owner: {} group {}", attr.uid, attr.gid));
    lines.push(format!(" Links: {}", attr.nlink));
    lines.push(format!("   Qid: {}", attr.qid));
    for (what, bit, time) in [
        ("Access", GetMask::ATIME, attr.atime),
        ("Modify", GetMask::MTIME, attr.mtime),
        ("Change", GetMask::CTIME, attr.ctime),
        (" Birth", GetMask::BTIME, attr.btime),
    ] {
        if attr.valid.has(bit) {
            lines.push(format!("{what}: {}", date(time)));
        }
    }
    lines.join("\n") + "\n"
}
