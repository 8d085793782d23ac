//! A file read or written in order, over a connection of its own if possible (docs/protocol.md, "Streaming").

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use nine_io::client::{self, Direction, Error, File, Result};
use nine_proto::Errno;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::args;
use crate::error;
use crate::session::{Link, Ours, Pieces};
use crate::sys::Buffer;

/// A stream of a session's file. One thread reads or writes it at a time.
#[pyclass(frozen, module = "ninefold._native")]
pub struct Stream {
    link: Ours<Arc<Link>>,
    place: Ours<Arc<Mutex<Place>>>,
    path: Vec<u8>,
    writes: bool,
}

/// The state of a stream between calls.
enum Place {
    Here(Box<Open>),
    InUse,
    /// It failed, or a call was cancelled halfway: every later call returns this error.
    Broken(Error),
    Closed,
}

struct Open {
    stream: client::Stream<Arc<File>>,
    /// Data received but not taken yet.
    came: VecDeque<Bytes>,
}

/// The stream during a call. The drop puts it back, however the call ends.
struct Taken {
    place: Arc<Mutex<Place>>,
    open: Option<Box<Open>>,
    /// The error for a drop at this point: with unknown progress, the stream is broken.
    torn: Option<Error>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        // If it was closed meanwhile, it stays closed.
        if let (Place::InUse, Some(open)) = (&*place, self.open.take()) {
            *place = self.torn.take().map_or(Place::Here(open), Place::Broken);
        }
    }
}

impl Taken {
    fn open(&mut self) -> &mut Open {
        self.open.as_mut().expect("taken until it is dropped")
    }

    /// Returns `most` bytes, fewer only at the end. A cancelled call takes no bytes.
    async fn pieces(&mut self, most: usize) -> Result<Vec<Bytes>> {
        let open = self.open();
        let mut len: usize = open.came.iter().map(Bytes::len).sum();
        while len < most
            && let Some(piece) = open.stream.next().await.transpose()?
        {
            len += piece.len();
            open.came.push_back(piece);
        }
        let (mut pieces, mut left) = (Vec::new(), most);
        while left > 0 && !open.came.is_empty() {
            let piece = open.split(left);
            left -= piece.len();
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Fills `buf` and returns the number of bytes, fewer than `buf` has only at the end.
    async fn fill(&mut self, buf: &mut [u8]) -> Result<usize> {
        self.torn = Some(given_up());
        let open = self.open();
        let mut done = 0;
        while done < buf.len() && !open.came.is_empty() {
            let piece = open.split(buf.len() - done);
            buf[done..done + piece.len()].copy_from_slice(&piece);
            done += piece.len();
        }
        while done < buf.len() {
            match open.stream.sread(&mut buf[done..]).await {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) => {
                    self.torn = Some(error.clone());
                    return Err(error);
                }
            }
        }
        self.torn = None;
        Ok(done)
    }

    async fn write(&mut self, data: Bytes) -> Result<usize> {
        self.torn = Some(given_up());
        let (len, pushed) = (data.len(), self.open().stream.push(data).await);
        self.torn = pushed.as_ref().err().cloned();
        pushed.map(|()| len)
    }
}

/// Puts bytes back that were taken but not delivered; the next read returns them.
fn put_back(place: &Mutex<Place>, pieces: Vec<Bytes>) {
    if let Place::Here(open) = &mut *place.lock().unwrap_or_else(PoisonError::into_inner) {
        pieces.into_iter().rev().for_each(|piece| open.came.push_front(piece));
    }
}

/// The error of a cancelled call. Not EINTR: Python's buffered files would retry after it.
fn given_up() -> Error {
    let text = "a read or write was given up, and nobody knows how far it came";
    Error::Refused(nine_proto::Error::new(Errno::ECANCELED, text))
}

impl Open {
    /// Takes at most `most` bytes of the received data.
    fn split(&mut self, most: usize) -> Bytes {
        let Some(first) = self.came.front_mut() else { return Bytes::new() };
        let piece = first.split_to(most.min(first.len()));
        if first.is_empty() {
            self.came.pop_front();
        }
        piece
    }
}

impl Stream {
    pub fn new(
        link: Arc<Link>,
        file: Arc<File>,
        offset: u64,
        end: u64,
        direction: Direction,
        path: Vec<u8>,
    ) -> Self {
        let stream = client::Stream::begin(file, offset, end, direction);
        let place = Place::Here(Box::new(Open { stream, came: VecDeque::new() }));
        let writes = direction == Direction::Write;
        Self { link: Ours::new(link), place: Ours::new(Arc::new(Mutex::new(place))), path, writes }
    }

    fn take(&self) -> PyResult<Taken> {
        let shared = self.place.get()?;
        let mut place = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *place, Place::InUse) {
            Place::Here(open) => Ok(Taken { place: shared.clone(), open: Some(open), torn: None }),
            Place::InUse => Err(error::busy()),
            Place::Broken(why) => {
                let said = error::of(&why, &self.path);
                *place = Place::Broken(why);
                Err(said)
            }
            Place::Closed => {
                *place = Place::Closed;
                Err(error::closed("stream"))
            }
        }
    }
}

#[pymethods]
impl Stream {
    /// Reads the next `count` bytes, fewer only at the end; a negative count means all.
    fn read<'py>(&self, py: Python<'py>, count: isize) -> PyResult<Bound<'py, PyAny>> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (mut taken, link) = (self.take()?, self.link.get()?);
        if link.waits.is_async() {
            let place = taken.place.clone();
            let next = async move { taken.pieces(count).await.map(Pieces) };
            return link.waits.keep(py, &self.path, next, |Pieces(pieces)| {
                let pieces = pieces.clone();
                Box::new(move || put_back(&place, pieces))
            });
        }
        if count > STRAIGHT {
            let pieces = link.waits.wait(py, &self.path, taken.pieces(count))?;
            return Pieces(pieces).into_bound_py_any(py);
        }
        // Read directly into the final object.
        let mut done = 0;
        let bytes = PyBytes::new_with(py, count, |buf| {
            done = link.waits.wait(py, &self.path, taken.fill(buf))?;
            Ok(())
        })?;
        if done == count {
            return Ok(bytes.into_any());
        }
        Ok(PyBytes::new(py, &bytes.as_bytes()[..done]).into_any())
    }

    /// Puts back data that was read but not delivered; the next read returns it.
    fn put_back(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        put_back(self.place.get()?, vec![args::data(data)?]);
        Ok(())
    }

    /// Reads the next bytes into a buffer; fills it except at the end. Blocks this thread.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = Buffer::of(buffer)?;
        let (mut taken, link) = (self.take()?, self.link.get()?);
        link.waits.wait(py, &self.path, taken.fill(buffer.bytes()))
    }

    /// Writes `data`. The amount in flight is limited; an error may be raised by a later call.
    fn write<'py>(&self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (mut taken, data) = (self.take()?, args::data(data)?);
        self.link.get()?.waits.call(py, &self.path, async move { taken.write(data).await })
    }

    /// Whether a data connection carries bytes now.
    #[getter]
    fn has_connection(&self) -> PyResult<bool> {
        Ok(self.take()?.open().stream.has_connection())
    }

    /// Ends the stream. On success the server has accepted all written data. Returns the number of bytes moved; 0 on a
    /// second close.
    fn close<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let open = {
            let mut place = self.place.get()?.lock().unwrap_or_else(PoisonError::into_inner);
            match std::mem::replace(&mut *place, Place::Closed) {
                Place::Here(open) => Some(open),
                Place::Broken(why) if self.writes => return Err(error::of(&why, &self.path)),
                // The call that uses the stream drops it. For a broken reader the error is known already.
                Place::InUse | Place::Broken(_) | Place::Closed => None,
            }
        };
        let link = self.link.get()?;
        match open {
            Some(open) => link.waits.call(py, &self.path, async move {
                let unread = open.came.iter().map(|piece| piece.len() as u64).sum::<u64>();
                open.stream.sclose().await.map(|moved| moved.saturating_sub(unread))
            }),
            None if link.waits.is_async() => link.waits.call(py, &self.path, async { Ok(0_u64) }),
            None => 0_u64.into_bound_py_any(py),
        }
    }
}

/// Largest read directly into the final object, bytes: this memory is allocated before data arrives.
const STRAIGHT: usize = 16 << 20;
