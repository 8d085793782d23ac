//! Receive buffers. A pool owned by the core's thread holds them; frames borrow them by reference count.
//!
//! A connection holds a buffer only while part of a frame is in it. A frame larger than a buffer moves into a buffer of
//! its own once half a buffer of it has arrived. A frame that outlives its batch is copied out unless it fills half of
//! its buffer. When the last frame of a buffer is dropped, on any thread, the buffer is free again.

use std::sync::Arc;

use bytes::Bytes;
use nine_net::Placed;

use crate::sync::{Mutex, lock};

/// Bytes that one read of a connection can take.
pub(crate) const READ_SIZE: usize = 64 * 1024;
/// A partial frame up to this size waits for the rest in a buffer of its exact size.
pub(crate) const PARTIAL_EXACT_MAX: usize = 4 * 1024;
/// The pool holds at most this many free buffers of each kind; the allocator gets the others back.
const POOL_FREE_MAX: usize = 16;

/// The free buffers of a core, shared by its connections: of [`READ_SIZE`], and larger ones for large frames.
#[derive(Clone, Default)]
pub struct FramePool {
    free: Arc<Mutex<[Vec<Vec<u8>>; 2]>>,
}

thread_local! {
    static HERE: FramePool = FramePool::default();
}

impl FramePool {
    /// Returns the pool of this core.
    pub(crate) fn here() -> Self {
        HERE.with(Clone::clone)
    }

    /// Returns a buffer of at least `len` bytes, with unspecified content.
    pub(crate) fn take(&self, len: usize) -> Arc<FrameBuffer> {
        let class = usize::from(len > READ_SIZE);
        let mut free = lock(&self.free);
        let fits = |b: &Vec<u8>| b.len() >= len && (class == 0 || b.len() / 2 <= len);
        let found = free[class].iter().rposition(fits).map(|i| free[class].swap_remove(i));
        drop(free);
        // The kernel zeroes a large new buffer page by page, as it fills.
        let bytes = found.unwrap_or_else(|| vec![0; len.max(READ_SIZE)]);
        Arc::new(FrameBuffer { bytes, pool: Some(self.clone()) })
    }
}

/// Memory that frames share. It is written to only while it has one owner.
pub(crate) struct FrameBuffer {
    pub(crate) bytes: Vec<u8>,
    pool: Option<FramePool>,
}

impl Drop for FrameBuffer {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            let mut free = lock(&pool.free);
            let list = &mut free[usize::from(self.bytes.len() > READ_SIZE)];
            if list.len() < POOL_FREE_MAX {
                list.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

/// One whole message. It holds its memory until it is dropped.
pub struct MessageFrame(FrameStorage);

enum FrameStorage {
    /// A part of a buffer.
    Part { buf: Arc<FrameBuffer>, start: u32, end: u32 },
    /// The bytes themselves, without an allocation.
    Tiny([u8; INLINE_FRAME_MAX], u8),
    /// The head of a write, with a count of zero, and its data where the client has placed it.
    Placed([u8; WRITE_HEAD], Placed),
}

/// `size[4] type[1] tag[2] fid[4] offset[8] count[4]`: the part of a write before its data.
pub(crate) const WRITE_HEAD: usize = 23;

/// Covers most forwarded requests: reads, getattrs, clunks, opens, walks to a short name.
const INLINE_FRAME_MAX: usize = 30;

impl MessageFrame {
    pub(crate) fn new(buf: Arc<FrameBuffer>, start: usize, end: usize) -> Self {
        Self(FrameStorage::Part { buf, start: start as u32, end: end as u32 })
    }

    /// A message in a buffer of its own.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self::new(Arc::new(FrameBuffer { bytes, pool: None }), 0, len)
    }

    /// A write whose data lies elsewhere. Until it is [gathered](MessageFrame::gather) it reads as a write of no bytes.
    pub(crate) fn placed(mut head: [u8; WRITE_HEAD], data: Placed) -> Self {
        head[..4].copy_from_slice(&(WRITE_HEAD as u32).to_le_bytes());
        head[WRITE_HEAD - 4..].fill(0);
        Self(FrameStorage::Placed(head, data))
    }

    /// Returns the data that lies elsewhere.
    pub(crate) fn data(&self) -> Option<&Placed> {
        match &self.0 {
            FrameStorage::Placed(_, data) => Some(data),
            _ => None,
        }
    }

    /// Copies data that lies elsewhere behind its head. From then on the client cannot change it.
    pub(crate) fn gather(&mut self, pool: &FramePool) {
        let FrameStorage::Placed(head, data) = &self.0 else { return };
        let len = WRITE_HEAD + data.len();
        let mut buf = pool.take(len);
        let bytes = &mut Arc::get_mut(&mut buf).expect("a fresh buffer is ours alone").bytes[..len];
        bytes[..WRITE_HEAD].copy_from_slice(head);
        bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
        bytes[WRITE_HEAD - 4..WRITE_HEAD].copy_from_slice(&(data.len() as u32).to_le_bytes());
        data.read(&mut bytes[WRITE_HEAD..]);
        *self = Self::new(buf, 0, len);
    }

    /// Returns a part of the frame without a copy where possible; the result holds the whole buffer.
    pub(crate) fn share(&self, part: &[u8]) -> Bytes {
        let start = part.as_ptr() as usize - self.as_ref().as_ptr() as usize;
        assert!(start + part.len() <= self.as_ref().len(), "a part of this frame");
        match &self.0 {
            FrameStorage::Part { buf, start: first, .. } => {
                let start = start + *first as usize;
                Bytes::from_owner(Self::new(buf.clone(), start, start + part.len()))
            }
            FrameStorage::Tiny(..) | FrameStorage::Placed(..) => Bytes::copy_from_slice(part),
        }
    }

    /// Copies a small frame out of its buffer, so that the frame does not hold the buffer.
    pub(crate) fn detach(&mut self) {
        let FrameStorage::Part { buf, .. } = &self.0 else { return };
        let bytes = self.as_ref();
        let len = bytes.len();
        if len <= INLINE_FRAME_MAX {
            let mut tiny = [0; INLINE_FRAME_MAX];
            tiny[..len].copy_from_slice(bytes);
            self.0 = FrameStorage::Tiny(tiny, len as u8);
        } else if len <= buf.bytes.len() / 2 {
            *self = Self::new(Arc::new(FrameBuffer { bytes: bytes.to_vec(), pool: None }), 0, len);
        }
    }
}

impl AsRef<[u8]> for MessageFrame {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            FrameStorage::Part { buf, start, end } => &buf.bytes[*start as usize..*end as usize],
            FrameStorage::Tiny(bytes, len) => &bytes[..usize::from(*len)],
            FrameStorage::Placed(head, _) => head,
        }
    }
}
