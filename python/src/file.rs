//! An open file: reads and writes at offsets, and streams.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use nine_io::client::{Direction, File, Result};
use nine_proto::{GetMask, SetAttr};
use pyo3::prelude::*;

use crate::args;
use crate::error;
use crate::session::{Link, Ours, Pieces};
use crate::stream::Stream;
use crate::sys::Buffer;

/// An open file of a session. Any number of threads may use it at once, because it has no position.
#[pyclass(frozen, module = "ninefold._native")]
pub struct Handle {
    link: Ours<Arc<Link>>,
    /// `None` after a close.
    file: Ours<Mutex<Option<Arc<File>>>>,
    path: Vec<u8>,
}

impl Handle {
    pub fn new(link: Arc<Link>, file: File, path: Vec<u8>) -> Self {
        let file = Ours::new(Mutex::new(Some(Arc::new(file))));
        Self { link: Ours::new(link), file, path }
    }

    fn file(&self) -> PyResult<Arc<File>> {
        let file = self.file.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        file.clone().ok_or_else(|| error::closed("file"))
    }

    fn call<'py, T, F>(
        &self,
        py: Python<'py>,
        call: impl FnOnce(Arc<File>) -> F,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        T: for<'p> IntoPyObject<'p> + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let file = self.file()?;
        self.link.get()?.waits.call(py, &self.path, call(file))
    }
}

#[pymethods]
impl Handle {
    /// Whether the file was closed.
    #[getter]
    fn closed(&self) -> PyResult<bool> {
        Ok(self.file.get()?.lock().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, async |file: Arc<File>| Ok(args::stat(&file.getattr(GetMask::BASIC).await?)))
    }

    /// Reads up to `count` bytes at `offset`; fewer at the end of the file, or if the file is not a sequence of bytes.
    fn pread<'py>(&self, py: Python<'py>, count: usize, offset: u64) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, async move |file: Arc<File>| {
            // Allocate piece by piece: not more than one piece beyond the received data.
            let end = offset.saturating_add(count as u64);
            let (mut pieces, mut at) = (Vec::new(), offset);
            while at < end {
                let piece = (end - at).min(PIECE as u64) as usize;
                let mut data = vec![0; piece];
                let n = file.read_at(at, &mut data).await?;
                data.truncate(n);
                at += n as u64;
                pieces.push(data.into());
                if n < piece {
                    break;
                }
            }
            Ok(Pieces(pieces))
        })
    }

    /// Reads into a buffer and returns the number of bytes. Blocks this thread.
    fn preadinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let (file, link, mut buffer) = (self.file()?, self.link.get()?, Buffer::of(buffer)?);
        link.waits.wait(py, &self.path, file.read_at(offset, buffer.bytes()))
    }

    /// Writes all of `data` at `offset` and returns its length.
    fn pwrite<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let data = args::data(data)?;
        self.call(py, async move |file: Arc<File>| {
            file.write_all_at(offset, &data).await?;
            Ok(data.len())
        })
    }

    fn truncate<'py>(&self, py: Python<'py>, size: u64) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, async move |file: Arc<File>| {
            file.setattr(&SetAttr { size: Some(size), ..SetAttr::default() }).await
        })
    }

    fn fsync<'py>(&self, py: Python<'py>, datasync: bool) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, async move |file: Arc<File>| file.fsync(datasync).await)
    }

    /// Opens a stream from `offset` on; for reading, `end` is the file's expected length.
    fn stream(&self, offset: u64, end: u64, write: bool) -> PyResult<Stream> {
        let (direction, end) = if write { (Direction::Write, u64::MAX) } else { (Direction::Read, end) };
        Ok(Stream::new(self.link.get()?.clone(), self.file()?, offset, end, direction, self.path.clone()))
    }

    /// Closes the file. An error may mean that written data was lost. A second close does nothing.
    fn close<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let file = self.file.get()?.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.link.get()?.waits.call(py, &self.path, async move {
            match file.map(Arc::try_unwrap) {
                Some(Ok(file)) => file.close().await,
                // Another call still uses the file, and its end closes it; or it is closed already.
                _ => Ok(()),
            }
        })
    }
}

/// Size of one piece of a read, bytes: limits the memory that is allocated before data arrives.
const PIECE: usize = 16 << 20;
