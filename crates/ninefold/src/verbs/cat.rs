//! `cat`: files to the standard output, read ahead where their length is known.

use anyhow::{Result, bail};
use nine_io::client::Reader;
use nine_proto::{GetMask, OpenFlags};

use crate::cli;
use crate::config::Config;
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::Output;

pub fn run(args: cli::Cat, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let places = Place::all(&args.paths, &remote)?;
    dial::run(remote, async |sessions| {
        let mut tally = Tally::default();
        let mut out = Output::new();
        for place in &places {
            let result = cat(&sessions, place, &mut out).await;
            tally.check(place, result)?;
        }
        out.flush()?;
        Ok(tally)
    })
}

async fn cat(sessions: &Sessions, place: &Place, out: &mut Output) -> Result<()> {
    let file = sessions.walk(place, true).await?;
    if file.qid().is_dir() {
        bail!("Is a directory");
    }
    // A file that has no length to tell is read piece by piece.
    let size = file.getattr(GetMask::SIZE).await.map_or(0, |attr| attr.size);
    let file = file.open_here(OpenFlags::READ).await?;
    let mut reader = Reader::new(&file, 0, size);
    while let Some(data) = reader.next().await {
        out.bytes(&data?)?;
        if size == 0 {
            // Events shall be seen when they happen.
            out.flush()?;
        }
    }
    Ok(())
}
