//! `write`: writes the standard input to a file of a server, in place, so that it also works for control files.

use std::io::{Read, stdin};

use anyhow::{Context, Result};
use bytes::Bytes;
use nine_io::client::{File, Writer};
use nine_proto::{GetMask, OpenFlags};

use super::own_umask;
use crate::cli;
use crate::config::Config;
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;

/// Size of one read of the standard input, bytes.
const PIECE: usize = 256 * 1024;

pub fn run(args: cli::Write, config: &Config) -> Result<Tally> {
    let mut remote = config.remote(&args.remote)?;
    // Most refused writes are lines for control files, so errors with texts are preferred. Only 9P2000.L appends even
    // if others write meanwhile, and creates a file with the requested mode.
    if !args.append && !args.create {
        remote = remote.with_error_texts();
    }
    let place = Place::parse(&args.path, &remote)?;
    dial::run(remote, async |sessions| {
        let mut tally = Tally::default();
        let written = write(&sessions, &place, &args).await;
        tally.check(&place, written)?;
        Ok(tally)
    })
}

async fn write(sessions: &Sessions, place: &Place, args: &cli::Write) -> Result<()> {
    let file = open(sessions, place, args).await?;
    let begin = if args.append { file.getattr(GetMask::SIZE).await.map_or(0, |attr| attr.size) } else { 0 };
    let mut input = stdin().lock();
    // Input from a terminal or pipe is passed on as it arrives: nothing else runs while we wait for more.
    let is_whole =
        rustix::fs::fstat(&input).is_ok_and(|st| rustix::fs::FileType::from_raw_mode(st.st_mode).is_file());
    let mut writer = Writer::new(&file, begin);
    loop {
        let mut piece = vec![0; PIECE];
        let n = input.read(&mut piece).context("standard input")?;
        if n == 0 {
            break;
        }
        piece.truncate(n);
        writer.push(Bytes::from(piece)).await?;
        if !is_whole {
            writer.finish().await?;
        }
    }
    writer.finish().await?;
    drop(writer);
    Ok(file.close().await?)
}

async fn open(sessions: &Sessions, place: &Place, args: &cli::Write) -> Result<File> {
    let flags = OpenFlags::WRITE | if args.append { OpenFlags::APPEND } else { OpenFlags::TRUNC };
    if args.create && sessions.walk(place, true).await.is_err() {
        let (parent, name) = sessions.parent(place).await?;
        return Ok(parent.open_or_create(name, flags, 0o666 & !own_umask()).await?);
    }
    Ok(sessions.walk(place, true).await?.open_here(flags).await?)
}
