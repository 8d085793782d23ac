//! Moves the data of one file from its source to its sink.
//!
//! In: an open source, an open sink. Out: the offset at which the source ended, or an error and its side. Always holds:
//! each byte is counted and summed once, also when the sink's data connection breaks.

use std::os::fd::AsFd;

use anyhow::Result;
use bytes::Bytes;
use nine_io::client::{Direction, Stream};

use super::end::{FilePiece, HOLE_MIN, Sink, Source, zeros};
use super::sum::Sum;
use super::{remote, some_more};

/// Additional work of [`pump`].
pub struct Pumped<'a, F> {
    /// Called with the length of each piece.
    pub progress: F,
    /// Checksum over all moved data.
    pub sum: Option<&'a mut Sum>,
    /// The sink is a part: keep the data on failure, so that it can be continued.
    pub part: bool,
    /// Bytes before this place of the file have been counted and summed: 0.
    pub seen: u64,
}

/// An error of moving data, and its side.
#[derive(Debug)]
pub struct PumpError {
    pub at_sink: bool,
    pub error: anyhow::Error,
    /// Only the data connection of the sink broke: everything before this place of the file is stored.
    resume_at: Option<u64>,
}

impl From<anyhow::Error> for PumpError {
    /// Makes an error of the source.
    fn from(error: anyhow::Error) -> Self {
        Self { at_sink: false, error, resume_at: None }
    }
}

trait AtSink<T> {
    /// Marks an error as one of the sink.
    fn at_sink(self) -> Result<T, PumpError>;
}

impl<T, E: Into<anyhow::Error>> AtSink<T> for Result<T, E> {
    fn at_sink(self) -> Result<T, PumpError> {
        self.map_err(|error| PumpError { at_sink: true, error: error.into(), resume_at: None })
    }
}

/// A stream to a file of a server, from `start` on.
struct SinkStream<'f> {
    start: u64,
    stream: Stream<&'f nine_io::client::File>,
}

impl<'f> SinkStream<'f> {
    /// A part that may be continued is written in order, so that its length shows how far it came.
    fn new(temp: &'f remote::Temp, start: u64, end: u64, part: bool) -> Self {
        let begin = if part { Stream::straight } else { Stream::begin };
        Self { start, stream: begin(temp.file(), start, end, Direction::Write) }
    }

    /// Makes an error of the sink of an error of the stream.
    fn error(&self, error: nine_io::client::Error) -> PumpError {
        let broken = matches!(error, nine_io::client::Error::Stream { .. });
        let resume_at = broken.then(|| self.start + self.stream.moved());
        PumpError { at_sink: true, error: error.into(), resume_at }
    }
}

/// Moves all data from the source's offset on. Returns the offset at which the source ended. Data passes through this
/// program's memory only if a checksum is needed or one side has no faster method. When the sink's data connection
/// breaks, the copy continues behind the stored bytes.
pub async fn pump(
    source: &Source,
    sink: &Sink,
    also: Pumped<'_, impl FnMut(usize)>,
) -> Result<u64, PumpError> {
    let (mut also, mut from) = (also, source.at());
    let moved = loop {
        match move_all(source, sink, from, &mut also).await {
            Err(PumpError { error, resume_at: Some(at), .. }) => {
                tracing::warn!("{error}: writing on from byte {at}");
                from = at;
            }
            moved => break moved,
        }
    };
    // If one of the files could not be opened or created, that is the real cause.
    source.ready().await?;
    sink.ready().await.at_sink()?;
    moved
}

async fn move_all(
    source: &Source,
    sink: &Sink,
    from: u64,
    also: &mut Pumped<'_, impl FnMut(usize)>,
) -> Result<u64, PumpError> {
    let (mut reading, mut at) = (source.reading_from(from), from);
    match (sink, source) {
        _ if source.is_sparse() && sink.takes_holes() => return move_sparse(source, sink, from, also).await,
        (Sink::Local(temp), _) if also.sum.is_none() && temp.is_plain() => {
            // An error of the 9P client is about the source, any other about the local file that is written.
            let received = |error: anyhow::Error| {
                let at_sink = !error.is::<nine_io::client::Error>();
                PumpError { at_sink, error, resume_at: None }
            };
            while let Some(n) = reading.receive(temp, at).await.map_err(received)? {
                at += n as u64;
                also.moved(at, n);
                temp.stays.set(also.part);
            }
        }
        (Sink::Local(temp), _) => {
            while let Some(data) = reading.next().await? {
                temp.write(&data).at_sink()?;
                at += data.len() as u64;
                also.add(at, &data);
                temp.stays.set(also.part);
            }
        }
        (Sink::Remote(temp), _) => {
            let end = source.size();
            let mut sent = SinkStream::new(temp, at, end, also.part);
            let part = also.part;
            let stays = |sent: &SinkStream<'_>| {
                if part && sent.stream.moved() > 0 {
                    temp.stays.set(true);
                }
            };
            match source {
                Source::Local { file, .. } if also.sum.is_none() => loop {
                    let most = some_more(at, end).min(SENT) as usize;
                    let n = sent.stream.send(file.as_fd(), at, most).await;
                    stays(&sent);
                    let n = n.map_err(|error| sent.error(error))?;
                    if n == 0 {
                        break;
                    }
                    at += n as u64;
                    also.moved(at, n);
                },
                _ => {
                    while let Some(data) = reading.next().await? {
                        at += data.len() as u64;
                        also.add(at, &data);
                        let pushed = sent.stream.push(data).await;
                        stays(&sent);
                        pushed.map_err(|error| sent.error(error))?;
                    }
                }
            }
            sent.stream.finish().await.map_err(|error| sent.error(error))?;
        }
    }
    Ok(at)
}

/// Like [`move_all`], for a source that may have holes and a sink without data after the offset. Zeros are skipped, and
/// the length is set at the end.
async fn move_sparse(
    source: &Source,
    sink: &Sink,
    from: u64,
    also: &mut Pumped<'_, impl FnMut(usize)>,
) -> Result<u64, PumpError> {
    let (mut reading, mut at, part) = (source.reading_from(from), from, also.part);
    // Everything before this offset is written.
    let mut written = at;
    let mut sent = match sink {
        Sink::Local(_) => None,
        Sink::Remote(temp) => Some(SinkStream::new(temp, at, source.size(), part)),
    };
    loop {
        let pieces = reading.next_sparse(at).await?;
        if pieces.is_empty() {
            break;
        }
        for piece in pieces {
            let from = at;
            at += piece.len();
            let data = match piece {
                FilePiece::Hole(len) => {
                    also.zeros(at, len);
                    continue;
                }
                FilePiece::Data(data) => data,
            };
            also.add(at, &data);
            match (sink, &mut sent) {
                (Sink::Remote(temp), Some(sent)) => {
                    if from - written >= HOLE_MIN {
                        sent.stream.finish().await.map_err(|error| sent.error(error))?;
                        *sent = SinkStream::new(temp, from, source.size(), part);
                    } else {
                        for zeros in zeros(from - written) {
                            sent.stream.push(zeros).await.map_err(|error| sent.error(error))?;
                        }
                    }
                    let pushed = sent.stream.push(data).await;
                    if part && sent.stream.moved() > 0 {
                        temp.stays.set(true);
                    }
                    pushed.map_err(|error| sent.error(error))?;
                }
                (Sink::Local(temp), _) => {
                    temp.write_at(&data, from).at_sink()?;
                    temp.stays.set(part);
                }
                (Sink::Remote(_), None) => unreachable!("made above"),
            }
            written = at;
        }
    }
    if let Some(sent) = &mut sent {
        sent.stream.finish().await.map_err(|error| sent.error(error))?;
    }
    match sink {
        _ if written == at => {}
        Sink::Local(temp) => temp.set_len(at).at_sink()?,
        Sink::Remote(temp) => temp.set_len(at).await.at_sink()?,
    }
    Ok(at)
}

impl<F: FnMut(usize)> Pumped<'_, F> {
    /// The `len` bytes before `at` are zeros.
    fn zeros(&mut self, at: u64, len: u64) {
        let new = self.new_before(at, len);
        (self.progress)(usize::try_from(new).unwrap_or(usize::MAX));
        if let Some(sum) = &mut self.sum {
            zeros(new).for_each(|zeros| sum.add(&zeros));
        }
    }

    /// The bytes before `at` are `data`.
    fn add(&mut self, at: u64, data: &Bytes) {
        let new = self.new_before(at, data.len() as u64) as usize;
        (self.progress)(new);
        if let Some(sum) = &mut self.sum {
            sum.add(&data[data.len() - new..]);
        }
    }

    /// `n` bytes before `at` were moved, and need not be summed.
    fn moved(&mut self, at: u64, n: usize) {
        let new = self.new_before(at, n as u64) as usize;
        (self.progress)(new);
    }

    /// How many of the `n` bytes before `at` are seen for the first time.
    fn new_before(&mut self, at: u64, n: u64) -> u64 {
        let new = n.min(at.saturating_sub(self.seen));
        self.seen = self.seen.max(at);
        new
    }
}

/// Bytes sent from a file in one call; then progress is shown.
const SENT: u64 = 1 << 20;
