//! `cat`: writes files to the standard output. Reads ahead if a file's length is known, and opens the next files
//! meanwhile.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use anyhow::{Result, bail};
use futures_util::future::try_join;
use futures_util::lock::Mutex;
use futures_util::stream::{StreamExt, iter};
use nine_io::client::{Direction, File, Options, Reader, Stream, WORTH};
use nine_proto::{GetMask, OpenFlags, Qid};

use crate::cli;
use crate::config::Config;
use crate::dial::{self, Found, Sessions};
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::Output;

/// Number of files opened in advance. If such a file has a length, its first piece is also requested.
const AHEAD: usize = 8;

pub fn run(args: cli::Cat, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let places = Place::all(&args.paths, &remote)?;
    dial::run(remote, async |sessions| {
        let mut tally = Tally::default();
        let mut out = Output::new();
        let dialling = Mutex::new(());
        let dialling = (places.len() > 1).then_some(&dialling);
        let open = async |place| (place, open(&sessions, dialling, place).await);
        let mut files = iter(&places).map(open).buffered(AHEAD);
        let mut next = files.next().await;
        while let Some((place, file)) = next {
            let print = async {
                let printed = async { print(file?, &mut out).await };
                tally.check(place, printed.await).map(drop)
            };
            // A final error ends the verb at once, without waiting for the open of the next file.
            ((), next) = try_join(print, async { Ok(files.next().await) }).await?;
        }
        out.flush()?;
        Ok(tally)
    })
}

/// An open file.
struct Opened {
    file: Rc<File>,
    /// Its length; 0 if it does not report one.
    size: u64,
    /// The reader that has requested the first piece, if any.
    begun: Option<Reader<Rc<File>>>,
}

async fn open(sessions: &Sessions, dialling: Option<&Mutex<()>>, place: &Place) -> Result<Opened> {
    if let Some(dialling) = dialling {
        // One at a time, so that each server is dialled only once.
        let alone = dialling.lock().await;
        sessions.root(place).await?;
        drop(alone);
    }
    let found = sessions.find(place, true, GetMask::SIZE).await;
    // A file that does not report a length is read piece by piece.
    let (file, size) = match found {
        Ok(Found { file, attr, .. }) => (file, attr.size),
        Err(_) => (sessions.walk(place, true).await?, 0),
    };
    if file.qid().is_dir() {
        bail!("Is a directory");
    }
    let file = Rc::new(file.open_here(OpenFlags::READ).await?);
    let at_once = (1..WORTH).contains(&size) && file.qid().ty & (Qid::APPEND | Qid::EXCL) == 0;
    let mut begun = at_once.then(|| Reader::new(file.clone(), 0, size));
    if let Some(reader) = &mut begun {
        reader.set_window(0);
        poll_fn(|cx| {
            reader.begin(cx);
            Poll::Ready(())
        })
        .await;
    }
    Ok(Opened { file, size, begun })
}

async fn print(Opened { file, size, begun }: Opened, out: &mut Output) -> Result<()> {
    if let Some(mut reader) = begun {
        reader.set_window(Options::default().window);
        while let Some(data) = reader.next().await {
            out.bytes(&data?)?;
        }
        return Ok(());
    }
    let mut stream = Stream::begin(file, 0, size, Direction::Read);
    while let Some(data) = stream.next().await {
        out.bytes(&data?)?;
        if size == 0 {
            // Show events as they happen.
            out.flush()?;
        }
    }
    Ok(())
}
