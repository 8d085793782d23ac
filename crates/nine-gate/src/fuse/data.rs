//! File data: READ and WRITE.
//!
//! In: a request's fields. Out: data, or the number of bytes that the server has taken.

use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nine_io::Payload;
use nine_proto::{Errno, OpenFlags, SetAttr};

use super::abi::{self, AnswerBuffer, FuseFields, FuseHeader};
use super::ops::{SHORT_OF_FIELDS, done, errno, without_set_id};
use super::running::RequestWork;
use super::*;

impl MountState {
    /// Answers a READ without a future if its bytes are available at once. Returns `false` if they are not.
    pub(super) fn read_at_once(&self, head: FuseHeader, mut f: FuseFields<'_>) -> bool {
        let (Some(handle), Some(offset), Some(size)) = (f.u64(), f.u64(), f.u32()) else { return false };
        let handles = self.handles.borrow();
        let Some(OpenHandle::File(open)) = handles.get(&handle).map(|handle| &**handle) else { return false };
        if open.is_event || !open.file.is_called() {
            return false;
        }
        open.node.has_pages.set(true);
        let mut bytes = self.scratch.borrow_mut();
        let (mut n, size) = (0, (size as usize).min(DATA));
        bytes.resize(DATA, 0);
        while n < size {
            let payload = match open.file.read_now(offset + n as u64, (size - n) as u32) {
                Some(Ok(payload)) if payload.is_empty() => break,
                Some(Ok(payload)) => payload,
                _ => return false,
            };
            let end = n + payload.len().min(size - n);
            if payload.len() > size - n || payload.copy_to(&mut bytes[n..end]).is_err() {
                return false;
            }
            n = end;
        }
        self.send(head.unique, 0, &bytes[..n]);
        true
    }

    /// Starts a WRITE. Takes its buffer, or gives it back.
    pub(super) fn write_request(
        self: &Rc<Self>,
        len: usize,
        buffer: BytesMut,
        buffers: &RequestBuffers,
    ) -> RequestWork {
        let mut f = FuseFields(&buffer[abi::IN..len]);
        let fields = (|| {
            let (handle, offset, size, flags) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
            let (_, open_flags) = (f.u64()?, f.u32()?);
            (len == abi::IN + abi::WRITE_IN + size as usize).then_some((handle, offset, flags, open_flags))
        })();
        let at = abi::IN + abi::WRITE_IN..len;
        let Some((handle, offset, flags, open_flags)) = fields else {
            buffers.give(buffer);
            return RequestWork { future: Box::pin(async { Err(SHORT_OF_FIELDS) }), grace: GRACE };
        };
        let written = if at.len() <= COPIED {
            let data = Bytes::copy_from_slice(&buffer[at]);
            buffers.give(buffer);
            WriteData { data, whole: None }
        } else {
            let whole = buffer.freeze();
            WriteData { data: whole.slice(at), whole: Some((whole, buffers.clone())) }
        };
        let handle = self.handle(handle);
        let is_event = matches!(handle.as_deref(), Ok(OpenHandle::File(open)) if open.is_event);
        let grace = if is_event { Duration::ZERO } else { GRACE };
        let gate = self.clone();
        let future = Box::pin(async move { write(&gate, handle?, offset, flags, open_flags, written).await });
        RequestWork { future, grace }
    }
}

impl FileHandle {
    /// Returns the file opened for writing, with `APPEND` if `appends`. Opens it the first time.
    async fn other(&self, gate: &MountState, appends: bool) -> Result<Rc<File>, Errno> {
        if let Some(other) = self.other.borrow().clone() {
            return Ok(other);
        }
        let file = gate.file_of(&self.node).await?;
        let append = if appends { OpenFlags::APPEND.0 } else { 0 };
        let flags = OpenFlags(OpenFlags::WRITE.0 | append);
        let other = Rc::new(file.open("", flags).await.map_err(errno)?);
        self.other.replace(Some(other.clone()));
        Ok(other)
    }
}

pub(super) async fn read(gate: &MountState, handle: Rc<OpenHandle>, offset: u64, size: u32) -> FuseResult {
    let OpenHandle::File(open) = &*handle else { return Err(Errno::EISDIR) };
    gate.settle(&open.node).await?;
    if open.is_event {
        let offset = open.stream.as_ref().map_or(offset, |stream| stream.read.get());
        let bytes = open.file.read(offset, size).await.map_err(errno)?;
        if let Some(stream) = &open.stream {
            stream.has_read(offset, bytes.len());
        }
        return Ok(FuseReply { bytes: bytes.into(), ..FuseReply::default() });
    }
    open.node.has_pages.set(true);
    let mut bytes = vec![0; size as usize];
    // Beyond the known length, one short answer is the end of the file. It need not be asked for again.
    let rest = usize::try_from(open.node.size.get().saturating_sub(offset)).unwrap_or(usize::MAX);
    let n = match rest < bytes.len() {
        true => {
            let first = open.file.read(offset, size).await.map_err(errno)?;
            bytes[..first.len()].copy_from_slice(&first);
            first.len()
        }
        false => 0,
    };
    let is_whole = rest < bytes.len() && n >= rest;
    let n = match is_whole {
        true => n,
        false => n + open.file.read_at(offset + n as u64, &mut bytes[n..]).await.map_err(errno)?,
    };
    bytes.truncate(n);
    Ok(FuseReply { bytes, ..FuseReply::default() })
}

/// `open_flags`: those that are set now.
async fn write(
    gate: &MountState,
    handle: Rc<OpenHandle>,
    offset: u64,
    flags: u32,
    open_flags: u32,
    written: WriteData,
) -> FuseResult {
    let OpenHandle::File(open) = &*handle else { return Err(Errno::EISDIR) };
    let node = &open.node;
    let _change = gate.prefetcher.change_file(node);
    if flags & abi::WRITE_KILL_SUIDGID != 0 && node.mode.get() & 0o6000 != 0 {
        let mode = without_set_id(node.mode.get());
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        gate.file_of(node).await?.setattr(&set).await.map_err(errno)?;
        node.mode.set(node.mode.get() & !0o7777 | mode);
    }
    // Writes from the page cache keep their offsets even with O_APPEND.
    let appends = open_flags & OpenFlags::APPEND.0 != 0 && flags & abi::WRITE_CACHE == 0;
    let is_behind = flags & abi::WRITE_CACHE == 0 && gate.may_write_behind(open, open_flags);
    if is_behind {
        if gate.write_behind(open, offset, &written.data).await? {
            node.written.set(true);
            node.has_pages.set(true);
            return done(AnswerBuffer::default().u32(written.data.len() as u32).u32(0));
        }
    } else {
        gate.settle(node).await?;
        open.take_error()?;
    }
    let is_append = open.file.flags().is_some_and(|flags| flags.has(OpenFlags::APPEND));
    // With write-back the kernel itself places appended data.
    let is_other = is_append != appends && !open.is_event && !gate.options.write_back;
    let other = if is_other { Some(open.other(gate, appends).await?) } else { None };
    let file = other.as_deref().unwrap_or(&open.file);
    node.written.set(true);
    node.has_pages.set(true);
    let offset = open.stream.as_ref().map_or(offset, |stream| stream.write.get());
    let n = match file.write_now(offset, &Payload::Bytes(written.data.clone())) {
        Some(n) => n,
        None => {
            let begun = gate.clock.now();
            let n = file.write_at(offset, &written.data).await;
            if is_behind && let Ok(n) = n {
                gate.written_alone(open, offset + n as u64, gate.clock.now() - begun);
            }
            n
        }
    };
    let n = n.map_err(errno)?;
    if let Some(stream) = &open.stream {
        stream.has_written(offset, n);
    }
    done(AnswerBuffer::default().u32(n as u32).u32(0))
}
