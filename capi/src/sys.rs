//! The C boundary: all functions of `include/ninefold_client.h`, and their callers' pointers.
//!
//! Each function checks its pointers, calls a safe function of this crate, and stores the result where the caller wants
//! it. All unsafe blocks rely on the rules that the header states for every caller. Texts end with a zero byte. Buffers
//! have the stated length, and no other thread uses them during the call. Every pointer is checked for NULL.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // The rules are the same for all functions and stated in the header.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::slice;
use std::sync::Arc;

use nine_io::client::Direction;
use nine_proto::{Attr, Errno, SetAttr, Time, TimeSet};

use crate::client::{Client, How};
use crate::fail::{self, Fail, answer};
use crate::mux::Mux;
use crate::table::{self, Object};

/// A client, file, directory, stream, mux or connection of a mux: a number that is never reused. 0 is no handle.
pub type Handle = u64;

/// NINE_MREPL: the mounted or bound tree hides what was there before.
pub const NINE_MREPL: c_int = 0;
/// NINE_MBEFORE: the tree becomes the first member of a union.
pub const NINE_MBEFORE: c_int = 1;
/// NINE_MAFTER: the tree becomes the last member of a union.
pub const NINE_MAFTER: c_int = 2;
/// NINE_MCREATE, with one of these: new files may be created in the tree.
pub const NINE_MCREATE: c_int = 4;

/// How to reach a server. Set all fields to zero first, and `size` to the struct's size. NULL or 0 means that an option
/// is not set. An option without effect is EINVAL: `ca`, `pin`, `cert` and `key` without TLS, `ca` together with `pin`,
/// and `cert` or `key` alone.
#[repr(C)]
pub struct NineOptions {
    /// sizeof(nine_options).
    pub size: usize,
    /// Token for a server that asks for one.
    pub token: *const c_char,
    /// User to attach as; NULL for this process's uid.
    pub user: *const c_char,
    /// Tree of the server to attach to.
    pub aname: *const c_char,
    /// TLS: a PEM file of the authority of the server's certificate.
    pub ca: *const c_char,
    /// TLS: the SHA-256 of the server's certificate, instead of `ca`.
    pub pin: *const c_char,
    /// TLS: our own certificate, a PEM file.
    pub cert: *const c_char,
    /// TLS: its key, a PEM file.
    pub key: *const c_char,
    /// Limit for the dial, its handshakes and the attach, in milliseconds; 0: 30,000.
    pub timeout_ms: u32,
}

/// Attributes of a file. Times are nanoseconds since 1970.
#[repr(C)]
pub struct NineStat {
    /// Type and permissions, as in stat(2).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type of its qid.
    pub qid_type: u32,
    /// Version of its qid.
    pub qid_version: u64,
    /// Path of its qid, which identifies the file on the server.
    pub qid_path: u64,
    /// Number of hard links.
    pub nlink: u64,
    /// Length in bytes.
    pub size: u64,
    /// Preferred size of reads and writes, bytes.
    pub blksize: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Time of the last read.
    pub atime: i64,
    /// Time of the last change of content.
    pub mtime: i64,
    /// Time of the last change of attributes.
    pub ctime: i64,
}

/// A name in a directory.
#[repr(C)]
pub struct NineDirent {
    /// Path of its qid.
    pub qid_path: u64,
    /// `d_type` of readdir(3): 4 directory, 8 file, 10 symbolic link, 0 unknown.
    pub d_type: u32,
    /// Length of the name, bytes.
    pub namelen: u32,
    /// The name, followed by a zero byte; never "." or "..".
    pub name: [c_char; 256],
}

/// Returns the version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn nine_version() -> *const c_char {
    static VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns the errno of this thread's latest failed call; 0 if no call has failed.
#[unsafe(no_mangle)]
pub extern "C" fn nine_errno() -> c_int {
    fail::errno()
}

/// Returns the text of that error: never NULL, and valid until this thread's next failed call.
#[unsafe(no_mangle)]
pub extern "C" fn nine_errstr() -> *const c_char {
    fail::text()
}

/// Closes a handle of any kind. Closing a client ends its session. Closing a mux ends it and all connections to it;
/// waiting calls there fail. Returns 0, or -1 if the handle is invalid or written data was lost.
#[unsafe(no_mangle)]
pub extern "C" fn nine_close(handle: Handle) -> c_int {
    answer(-1, || {
        match table::remove(handle)? {
            Object::Client(client) => client.close(),
            Object::File(file) => file.close()?,
            Object::Dir(_) => {}
            Object::Stream(stream) => drop(stream.close()?),
            Object::Mux(mux) => mux.close(),
            Object::Con(con) => con.close(),
        }
        Ok(0)
    })
}

/// Opens a session with the server at an address: `9p://host:port`, `tcp!host!port`, `9p+tls://host`,
/// `unix!/run/x.sock`, `vsock!cid!port`. `options` may be NULL. Returns 0 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_connect(server: *const c_char, options: *const NineOptions) -> Handle {
    answer(0, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (server, how) = unsafe { (utf8(server, "server")?, how(options)?) };
        let client = Client::connect(server, &how)?;
        Ok(table::insert(Object::Client(Arc::new(client))))
    })
}

/// Opens a file with flags of open(2). O_CREAT creates it with the permissions `mode`. With O_NOFOLLOW, a link fails
/// with ELOOP. Returns 0 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_open(client: Handle, path: *const c_char, flags: c_int, mode: u32) -> Handle {
    answer(0, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        let file = table::client(client)?.open(path, flags, mode)?;
        Ok(table::insert(Object::File(Arc::new(file))))
    })
}

/// Reads up to `count` bytes at `offset`. Returns the number of bytes, smaller only near the end of the file and 0 at
/// the end, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_read(file: Handle, buf: *mut c_void, count: usize, offset: u64) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's buffer has `count` bytes for our exclusive use.
        let buf = unsafe { room(buf, count)? };
        Ok(table::file(file)?.read(offset, buf)? as i64)
    })
}

/// Writes `count` bytes at `offset`. Returns the number of bytes that the server has accepted. It is smaller only
/// before an error, which the next write returns. Returns -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_write(file: Handle, buf: *const c_void, count: usize, offset: u64) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's buffer has `count` bytes.
        let data = unsafe { bytes(buf, count)? };
        Ok(table::file(file)?.write(offset, data)? as i64)
    })
}

/// Waits until written data is on stable storage; with `datasync`, only the content. Returns 0 or -1.
#[unsafe(no_mangle)]
pub extern "C" fn nine_fsync(file: Handle, datasync: c_int) -> c_int {
    answer(-1, || table::file(file)?.fsync(datasync != 0).map(|()| 0))
}

/// Gets the attributes of an open file. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_fstat(file: Handle, out: *mut NineStat) -> c_int {
    answer(-1, || {
        let attr = table::file(file)?.stat()?;
        // SAFETY: the caller's memory has room for one value.
        unsafe { put(out, stat_of(&attr)) }
    })
}

/// Gets the attributes of the file at a path; with `follow`, follows a link at its end. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_stat(
    client: Handle,
    path: *const c_char,
    follow: c_int,
    out: *mut NineStat,
) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        let attr = table::client(client)?.stat(path, follow != 0)?;
        // SAFETY: the caller's memory has room for one value.
        unsafe { put(out, stat_of(&attr)) }
    })
}

/// Creates a directory with the permissions `mode`. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mkdir(client: Handle, path: *const c_char, mode: u32) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        table::client(client)?.mkdir(path, mode).map(|()| 0)
    })
}

/// Removes a file or link. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_remove(client: Handle, path: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        table::client(client)?.unlink(path, false).map(|()| 0)
    })
}

/// Removes an empty directory. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_rmdir(client: Handle, path: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        table::client(client)?.unlink(path, true).map(|()| 0)
    })
}

/// Renames a file. An existing file `new` is replaced if the dialect allows it (9P2000.L). Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_rename(client: Handle, old: *const c_char, new: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (old, new) = unsafe { (text(old, "old name")?, text(new, "new name")?) };
        table::client(client)?.rename(old, new).map(|()| 0)
    })
}

/// Creates a symbolic link at `path`. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_symlink(client: Handle, target: *const c_char, path: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (target, path) = unsafe { (text(target, "target")?, text(path, "path")?) };
        table::client(client)?.symlink(target, path).map(|()| 0)
    })
}

/// Reads the target of a symbolic link. `buf` gets its first `count` bytes, without a zero byte. Returns the length of
/// the whole target, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_readlink(
    client: Handle,
    path: *const c_char,
    buf: *mut c_char,
    count: usize,
) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's text ends with a zero byte, and the buffer has `count` bytes for our exclusive use.
        let (path, buf) = unsafe { (text(path, "path")?, room(buf.cast(), count)?) };
        let target = table::client(client)?.readlink(path)?;
        let len = target.len().min(buf.len());
        buf[..len].copy_from_slice(&target[..len]);
        Ok(target.len() as i64)
    })
}

/// Changes permissions. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_chmod(client: Handle, path: *const c_char, mode: u32) -> c_int {
    let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
    // SAFETY: the caller's text ends with a zero byte.
    unsafe { setattr(client, path, &set) }
}

/// Sets the length of a file: cuts it, or extends it with zeros. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_truncate(client: Handle, path: *const c_char, size: u64) -> c_int {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    // SAFETY: the caller's text ends with a zero byte.
    unsafe { setattr(client, path, &set) }
}

/// Sets the times of the last read and change, nanoseconds since 1970. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_utime(client: Handle, path: *const c_char, atime: i64, mtime: i64) -> c_int {
    let time = |ns: i64| {
        let (sec, nsec) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000) as u32);
        Some(TimeSet::To(Time { sec, nsec }))
    };
    let set = SetAttr { atime: time(atime), mtime: time(mtime), ..SetAttr::default() };
    // SAFETY: the caller's text ends with a zero byte.
    unsafe { setattr(client, path, &set) }
}

/// Opens a directory for nine_readdir(). Returns 0 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_opendir(client: Handle, path: *const c_char) -> Handle {
    answer(0, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        let dir = table::client(client)?.opendir(path)?;
        Ok(table::insert(Object::Dir(Arc::new(dir))))
    })
}

/// Reads the next name of a directory. Returns 1, 0 at the end, or -1 on failure. A name of more than 255 bytes is
/// ENAMETOOLONG, and the next call continues after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_readdir(dir: Handle, out: *mut NineDirent) -> c_int {
    answer(-1, || {
        let Some(entry) = table::dir(dir)?.next()? else { return Ok(0) };
        let mut name = [0; 256];
        if entry.name.len() >= name.len() {
            return Err(Fail::new(Errno::ENAMETOOLONG, "a name of more than 255 bytes is passed over"));
        }
        for (to, from) in name.iter_mut().zip(&*entry.name) {
            *to = *from as c_char;
        }
        let (d_type, namelen) = (entry.ty.into(), entry.name.len() as u32);
        // SAFETY: the caller's memory has room for one value.
        unsafe { put(out, NineDirent { qid_path: entry.qid.path, d_type, namelen, name }) }?;
        Ok(1)
    })
}

/// Opens a file as a stream from `offset` on: for nine_sread() if `isread`, else for nine_swrite(). If the server
/// supports streams and there is enough data, it moves over a connection of its own. Returns 0 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn nine_stream(file: Handle, offset: u64, isread: c_int) -> Handle {
    answer(0, || {
        let direction = if isread != 0 { Direction::Read } else { Direction::Write };
        let stream = table::file(file)?.stream(offset, direction);
        Ok(table::insert(Object::Stream(Arc::new(stream))))
    })
}

/// Reads the next available bytes of a stream, at most `count`. Returns their number, 0 at the end, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_sread(stream: Handle, buf: *mut c_void, count: usize) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's buffer has `count` bytes for our exclusive use.
        let buf = unsafe { room(buf, count)? };
        Ok(table::stream(stream)?.read(buf)? as i64)
    })
}

/// Writes all `count` bytes to a stream. An error may be returned by a later call, at the latest by nine_sclose().
/// Returns -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_swrite(stream: Handle, buf: *const c_void, count: usize) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's buffer has `count` bytes.
        let data = unsafe { bytes(buf, count)? };
        Ok(table::stream(stream)?.write(data)? as i64)
    })
}

/// Returns 1 if a connection of its own carries the stream now, 0 if not, -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn nine_sconnected(stream: Handle) -> c_int {
    answer(-1, || Ok(table::stream(stream)?.has_connection().into()))
}

/// Ends a stream and closes its handle. On success the server has accepted all written data. Returns the number of
/// bytes moved, or -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn nine_sclose(stream: Handle) -> i64 {
    answer(-1, || {
        let found = table::stream(stream)?;
        table::remove(stream)?;
        Ok(found.close()? as i64)
    })
}

/// Creates a mux with an empty in-memory tree as its name space, where missing mount points are created (muxalloc). The
/// mux has a thread of its own until it is closed. Returns 0 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn nine_mux_alloc() -> Handle {
    answer(0, || Ok(table::insert(Object::Mux(Arc::new(Mux::alloc()?)))))
}

/// Mounts the server at the other end of a connected stream socket on `old` (muxmount). The mux keeps a duplicate of
/// `fd`. The socket becomes non-blocking, and the caller must no longer read or write it. If the connection is lost,
/// the mount fails. Returns the mount's number, or -1 on failure (EPROTOTYPE: not a stream socket; ENOTCONN: not
/// connected).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_mount(mux: Handle, fd: c_int, old: *const c_char, flag: c_int) -> i64 {
    answer(-1, || {
        if fd < 0 {
            return Err(Fail::new(Errno::EBADF, format!("{fd} is no descriptor")));
        }
        // SAFETY: the caller's text ends with a zero byte.
        let old = unsafe { utf8(old, "old")? };
        // SAFETY: `fd` is not -1. If it is not open, the first system call on it fails.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(table::mux(mux)?.mount(socket, old, flag)? as i64)
    })
}

/// Mounts the server at an address (TCP, unix, vsock) on `old`. The mux redials after a lost connection. Returns the
/// mount's number, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_mount_at(
    mux: Handle,
    server: *const c_char,
    old: *const c_char,
    flag: c_int,
) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (server, old) = unsafe { (utf8(server, "server")?, utf8(old, "old")?) };
        Ok(table::mux(mux)?.mount_at(server, old, flag)? as i64)
    })
}

/// Binds the tree at `new` to `old` (muxbind). Returns the mount's number, or -1 on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_bind(
    mux: Handle,
    new: *const c_char,
    old: *const c_char,
    flag: c_int,
) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (new, old) = unsafe { (utf8(new, "new")?, utf8(old, "old")?) };
        Ok(table::mux(mux)?.bind(new, old, flag)? as i64)
    })
}

/// Unmounts `new` from `old`, or everything on `old` if `new` is NULL. Returns 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_unmount(mux: Handle, new: *const c_char, old: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (new, old) = unsafe { (said(new, "new")?, utf8(old, "old")?) };
        table::mux(mux)?.unmount(Some(new).filter(|new| !new.is_empty()), old).map(|()| 0)
    })
}

/// Opens a session with the mux's name space, like one with a server. Returns 0 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn nine_mux_client(mux: Handle) -> Handle {
    answer(0, || {
        let client = table::mux(mux)?.client()?;
        Ok(table::insert(Object::Client(Arc::new(client))))
    })
}

/// Opens a connection for messages to the mux (muxattach). Returns 0 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn nine_mux_attach(mux: Handle) -> Handle {
    answer(0, || {
        let con = table::mux(mux)?.attach()?;
        Ok(table::insert(Object::Con(Arc::new(con))))
    })
}

/// Sends one T-message, which begins with `size[4]`; never blocks (muxsend). The caller chooses tags and fids. Returns
/// 0, or -1 on failure. EAGAIN means that too many messages are queued, and that the caller should receive first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_send(con: Handle, message: *const c_void, count: usize) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's buffer has `count` bytes.
        let message = unsafe { bytes(message, count)? };
        table::con(con)?.send(message).map(|()| 0)
    })
}

/// Waits for the next R-message (muxrecv). Returns its length, or -1 on failure. EMSGSIZE means that it is longer than
/// `count`; then it stays queued.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_recv(con: Handle, buf: *mut c_void, count: usize) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's buffer has `count` bytes for our exclusive use.
        let buf = unsafe { room(buf, count)? };
        Ok(table::con(con)?.receive(buf)? as i64)
    })
}

/// Like nine_mux_recv(), but does not wait: returns 0 if there is no message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_tryrecv(con: Handle, buf: *mut c_void, count: usize) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's buffer has `count` bytes for our exclusive use.
        let buf = unsafe { room(buf, count)? };
        Ok(table::con(con)?.try_receive(buf)?.unwrap_or(0) as i64)
    })
}

/// # Safety
/// `path` is NULL or ends with a zero byte.
unsafe fn setattr(client: Handle, path: *const c_char, set: &SetAttr<'_>) -> c_int {
    answer(-1, || {
        // SAFETY: as for this function.
        let path = unsafe { text(path, "path")? };
        table::client(client)?.setattr(path, set).map(|()| 0)
    })
}

fn stat_of(attr: &Attr) -> NineStat {
    let ns = |time: Time| time.sec.saturating_mul(1_000_000_000).saturating_add(time.nsec as i64);
    NineStat {
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        qid_type: attr.qid.ty.into(),
        qid_version: attr.qid.vers.into(),
        qid_path: attr.qid.path,
        nlink: attr.nlink,
        size: attr.size,
        blksize: attr.blksize,
        blocks: attr.blocks,
        atime: ns(attr.atime),
        mtime: ns(attr.mtime),
        ctime: ns(attr.ctime),
    }
}

fn null(what: &str) -> Fail {
    Fail::new(Errno::EFAULT, format!("{what} is NULL"))
}

/// # Safety
/// `from` is NULL or ends with a zero byte, and its bytes do not change during `'a`.
unsafe fn text<'a>(from: *const c_char, what: &str) -> Result<&'a [u8], Fail> {
    if from.is_null() {
        return Err(null(what));
    }
    // SAFETY: it is not NULL, so it ends with a zero byte.
    Ok(unsafe { CStr::from_ptr(from) }.to_bytes())
}

/// # Safety
/// As for [`text`].
unsafe fn utf8<'a>(from: *const c_char, what: &str) -> Result<&'a str, Fail> {
    // SAFETY: as for this function.
    let text = unsafe { text(from, what)? };
    std::str::from_utf8(text).map_err(|_| Fail::new(Errno::EINVAL, format!("{what} is not UTF-8")))
}

/// Like [`utf8`], but returns an empty text for NULL.
///
/// # Safety
/// As for [`text`].
unsafe fn said<'a>(from: *const c_char, what: &str) -> Result<&'a str, Fail> {
    if from.is_null() {
        return Ok("");
    }
    // SAFETY: as for this function.
    unsafe { utf8(from, what) }
}

/// # Safety
/// `options` is NULL, or has as many bytes as its first field states, and its texts end with a zero byte.
unsafe fn how<'a>(options: *const NineOptions) -> Result<How<'a>, Fail> {
    if options.is_null() {
        return Ok(How::default());
    }
    // SAFETY: every version of the struct begins with this field.
    let size = unsafe { ptr::read(options.cast::<usize>()) };
    // The struct of another version is longer or shorter by whole fields.
    if size < size_of::<usize>() || !size.is_multiple_of(align_of::<NineOptions>()) {
        let text = format!("options.size is {size}: set it to sizeof(nine_options)");
        return Err(Fail::new(Errno::EINVAL, text));
    }
    let mut own = MaybeUninit::<NineOptions>::zeroed();
    // SAFETY: both have at least `len` bytes. Zeros and whole fields are valid values of our struct, which consists of
    // numbers and pointers.
    let options = unsafe {
        let len = size.min(size_of::<NineOptions>());
        ptr::copy_nonoverlapping(options.cast::<u8>(), own.as_mut_ptr().cast::<u8>(), len);
        own.assume_init()
    };
    // SAFETY: its texts end with a zero byte.
    unsafe {
        Ok(How {
            token: said(options.token, "token")?,
            user: said(options.user, "user")?,
            aname: said(options.aname, "aname")?,
            ca: said(options.ca, "ca")?,
            pin: said(options.pin, "pin")?,
            cert: said(options.cert, "cert")?,
            key: said(options.key, "key")?,
            timeout_ms: options.timeout_ms,
        })
    }
}

/// # Safety
/// `from` is NULL or has `count` bytes, which do not change during `'a`.
unsafe fn bytes<'a>(from: *const c_void, count: usize) -> Result<&'a [u8], Fail> {
    match count {
        0 => Ok(&[]),
        _ if from.is_null() => Err(null("the buffer")),
        _ if count > isize::MAX as usize => Err(too_long(count)),
        // SAFETY: it is not NULL, so it has `count` bytes, and a slice may have that many.
        _ => Ok(unsafe { slice::from_raw_parts(from.cast(), count) }),
    }
}

/// # Safety
/// `to` is NULL or has `count` bytes for our exclusive use during `'a`.
unsafe fn room<'a>(to: *mut c_void, count: usize) -> Result<&'a mut [u8], Fail> {
    match count {
        0 => Ok(&mut []),
        _ if to.is_null() => Err(null("the buffer")),
        _ if count > isize::MAX as usize => Err(too_long(count)),
        // SAFETY: it is not NULL, so it has `count` bytes, and a slice may have that many. The bytes may be
        // uninitialised: bytes have no invalid values, and we only write to them.
        _ => Ok(unsafe { slice::from_raw_parts_mut(to.cast(), count) }),
    }
}

fn too_long(count: usize) -> Fail {
    Fail::new(Errno::EINVAL, format!("{count} bytes are more than any buffer has"))
}

/// # Safety
/// `out` is NULL or has room for one value.
unsafe fn put<T>(out: *mut T, value: T) -> Result<c_int, Fail> {
    if out.is_null() {
        return Err(null("where the answer goes"));
    }
    // SAFETY: it is not NULL, so it has room. The old value is not dropped, because it may be uninitialised.
    unsafe { ptr::write(out, value) };
    Ok(0)
}
