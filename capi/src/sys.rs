//! The boundary: every function of `include/ninefold_client.h`, and the pointers of its callers.
//!
//! Each takes pointers apart, calls a function of this crate that knows none, and puts the answer where the caller
//! wants it. What the header asks of every caller is what each block of unsafe code rests on: texts end with a zero
//! byte, buffers are as long as is said, and nobody else uses them meanwhile. NULL is looked for everywhere.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // It is the same for all, and said in the header.

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

/// A client, file, directory, stream, mux or connection of a mux: a number, never used twice. 0 is none.
pub type Handle = u64;

/// NINE_MREPL: what is mounted or bound hides what was there.
pub const NINE_MREPL: c_int = 0;
/// NINE_MBEFORE: it is looked at first.
pub const NINE_MBEFORE: c_int = 1;
/// NINE_MAFTER: it is looked at last.
pub const NINE_MAFTER: c_int = 2;
/// NINE_MCREATE, with one of these: new files may be made in it.
pub const NINE_MCREATE: c_int = 4;

/// How a server is reached. What is NULL or 0 is not said; set all of it to zero first, and `size` to its size. What
/// would not be used is EINVAL: `ca`, `pin`, `cert` and `key` without TLS, `ca` with `pin`, `cert` or `key` alone.
#[repr(C)]
pub struct NineOptions {
    /// sizeof(nine_options).
    pub size: usize,
    /// Shown to a server that asks for a token.
    pub token: *const c_char,
    /// As whom to attach; NULL: by this process' number.
    pub user: *const c_char,
    /// Which tree of the server's.
    pub aname: *const c_char,
    /// TLS: a PEM file of the authority of the server's certificate.
    pub ca: *const c_char,
    /// TLS: the SHA-256 of the server's certificate, instead of `ca`.
    pub pin: *const c_char,
    /// TLS: our own certificate, a PEM file.
    pub cert: *const c_char,
    /// TLS: its key, a PEM file.
    pub key: *const c_char,
    /// For the dial, its handshakes and the attach, in milliseconds; 0: 30,000.
    pub timeout_ms: u32,
}

/// What is known about a file. Times are nanoseconds since 1970.
#[repr(C)]
pub struct NineStat {
    /// Type and permissions, as of stat(2).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Kind of its qid.
    pub qid_type: u32,
    /// Version of its qid.
    pub qid_version: u64,
    /// Path of its qid: which file of the server it is.
    pub qid_path: u64,
    /// Names that it has.
    pub nlink: u64,
    /// Length in bytes.
    pub size: u64,
    /// Preferred size of reads and writes, bytes.
    pub blksize: u64,
    /// Blocks of 512 bytes that it takes.
    pub blocks: u64,
    /// Last read.
    pub atime: i64,
    /// Last change of content.
    pub mtime: i64,
    /// Last change of what is known about it.
    pub ctime: i64,
}

/// A name in a directory.
#[repr(C)]
pub struct NineDirent {
    /// Path of its qid.
    pub qid_path: u64,
    /// `d_type` of readdir(3): 4 directory, 8 file, 10 symbolic link, 0 not known.
    pub d_type: u32,
    /// Bytes of the name.
    pub namelen: u32,
    /// The name, with a zero byte behind it; never "." or "..".
    pub name: [c_char; 256],
}

/// The version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn nine_version() -> *const c_char {
    static VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The errno of this thread's latest call that has failed; 0 before the first.
#[unsafe(no_mangle)]
pub extern "C" fn nine_errno() -> c_int {
    fail::errno()
}

/// What that was in words: never NULL, good until this thread's next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn nine_errstr() -> *const c_char {
    fail::text()
}

/// Lets go of a handle of any kind. Closing a client ends its session, and closing a mux ends it and all that is
/// connected to it: who waits there is told. 0, or -1: the handle is none, or something written was not kept.
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

/// A session with the server at an address: `9p://host:port`, `tcp!host!port`, `9p+tls://host`, `unix!/run/x.sock`,
/// `vsock!cid!port`. `options` may be NULL. 0: it has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_connect(server: *const c_char, options: *const NineOptions) -> Handle {
    answer(0, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (server, how) = unsafe { (utf8(server, "server")?, how(options)?) };
        let client = Client::connect(server, &how)?;
        Ok(table::insert(Object::Client(Arc::new(client))))
    })
}

/// Opens a file, with flags of open(2); O_CREAT makes it with the permissions `mode`, and O_NOFOLLOW opens no link
/// (ELOOP). 0: it has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_open(client: Handle, path: *const c_char, flags: c_int, mode: u32) -> Handle {
    answer(0, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        let file = table::client(client)?.open(path, flags, mode)?;
        Ok(table::insert(Object::File(Arc::new(file))))
    })
}

/// Reads up to `count` bytes at `offset`: fewer at the end of the file, where it is 0. -1: it has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_read(file: Handle, buf: *mut c_void, count: usize, offset: u64) -> i64 {
    answer(-1, || {
        // SAFETY: the caller has `count` bytes there, for us alone.
        let buf = unsafe { room(buf, count)? };
        Ok(table::file(file)?.read(offset, buf)? as i64)
    })
}

/// Writes `count` bytes at `offset`; says how many the server has taken, fewer only before an error, which the next
/// write meets. -1: it has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_write(file: Handle, buf: *const c_void, count: usize, offset: u64) -> i64 {
    answer(-1, || {
        // SAFETY: the caller has `count` bytes there.
        let data = unsafe { bytes(buf, count)? };
        Ok(table::file(file)?.write(offset, data)? as i64)
    })
}

/// Waits until what was written is on stable storage; `datasync`: its content only. 0 or -1.
#[unsafe(no_mangle)]
pub extern "C" fn nine_fsync(file: Handle, datasync: c_int) -> c_int {
    answer(-1, || table::file(file)?.fsync(datasync != 0).map(|()| 0))
}

/// What is known about an open file. 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_fstat(file: Handle, out: *mut NineStat) -> c_int {
    answer(-1, || {
        let attr = table::file(file)?.stat()?;
        // SAFETY: the caller has room for one.
        unsafe { put(out, stat_of(&attr)) }
    })
}

/// What is known about the file at a path; `follow`: a link at its end is followed. 0 or -1.
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
        // SAFETY: the caller has room for one.
        unsafe { put(out, stat_of(&attr)) }
    })
}

/// Makes a directory with the permissions `mode`. 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mkdir(client: Handle, path: *const c_char, mode: u32) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        table::client(client)?.mkdir(path, mode).map(|()| 0)
    })
}

/// Removes a file or link. 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_remove(client: Handle, path: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        table::client(client)?.unlink(path, false).map(|()| 0)
    })
}

/// Removes an empty directory. 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_rmdir(client: Handle, path: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        table::client(client)?.unlink(path, true).map(|()| 0)
    })
}

/// Gives a file another name; what has it is replaced where the server's dialect can (9P2000.L). 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_rename(client: Handle, old: *const c_char, new: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (old, new) = unsafe { (text(old, "old name")?, text(new, "new name")?) };
        table::client(client)?.rename(old, new).map(|()| 0)
    })
}

/// Makes a symbolic link at `path`. 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_symlink(client: Handle, target: *const c_char, path: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (target, path) = unsafe { (text(target, "target")?, text(path, "path")?) };
        table::client(client)?.symlink(target, path).map(|()| 0)
    })
}

/// Where a symbolic link leads, with no zero byte behind it; says how many bytes that are, of which `buf` has the first
/// `count`. -1: it has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_readlink(
    client: Handle,
    path: *const c_char,
    buf: *mut c_char,
    count: usize,
) -> i64 {
    answer(-1, || {
        // SAFETY: the caller's text ends with a zero byte; he has `count` bytes there, for us alone.
        let (path, buf) = unsafe { (text(path, "path")?, room(buf.cast(), count)?) };
        let target = table::client(client)?.readlink(path)?;
        let len = target.len().min(buf.len());
        buf[..len].copy_from_slice(&target[..len]);
        Ok(target.len() as i64)
    })
}

/// Changes permissions. 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_chmod(client: Handle, path: *const c_char, mode: u32) -> c_int {
    let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
    // SAFETY: the caller's text ends with a zero byte.
    unsafe { setattr(client, path, &set) }
}

/// Cuts a file, or makes it longer with zeros. 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_truncate(client: Handle, path: *const c_char, size: u64) -> c_int {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    // SAFETY: the caller's text ends with a zero byte.
    unsafe { setattr(client, path, &set) }
}

/// Sets the times of the last read and change, nanoseconds since 1970. 0 or -1.
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

/// Opens a directory, to be read by nine_readdir(). 0: it has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_opendir(client: Handle, path: *const c_char) -> Handle {
    answer(0, || {
        // SAFETY: the caller's text ends with a zero byte.
        let path = unsafe { text(path, "path")? };
        let dir = table::client(client)?.opendir(path)?;
        Ok(table::insert(Object::Dir(Arc::new(dir))))
    })
}

/// The next name of a directory: 1, 0 at its end, -1: it has failed. A name of more than 255 bytes is ENAMETOOLONG, and
/// the next call goes on behind it.
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
        // SAFETY: the caller has room for one.
        unsafe { put(out, NineDirent { qid_path: entry.qid.path, d_type, namelen, name }) }?;
        Ok(1)
    })
}

/// A file in order, from `offset` on: to be read by nine_sread() if `isread`, else to be written by nine_swrite().
/// Where the server has streams and there is enough to be moved, over a connection of its own. 0: it has failed.
#[unsafe(no_mangle)]
pub extern "C" fn nine_stream(file: Handle, offset: u64, isread: c_int) -> Handle {
    answer(0, || {
        let direction = if isread != 0 { Direction::Read } else { Direction::Write };
        let stream = table::file(file)?.stream(offset, direction);
        Ok(table::insert(Object::Stream(Arc::new(stream))))
    })
}

/// The next bytes of a stream, at most `count`, as many as have come; 0 at the end. -1: it has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_sread(stream: Handle, buf: *mut c_void, count: usize) -> i64 {
    answer(-1, || {
        // SAFETY: the caller has `count` bytes there, for us alone.
        let buf = unsafe { room(buf, count)? };
        Ok(table::stream(stream)?.read(buf)? as i64)
    })
}

/// Writes `count` bytes next, all of them. An error may show in a later call, at the latest in nine_sclose(). -1: it
/// has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_swrite(stream: Handle, buf: *const c_void, count: usize) -> i64 {
    answer(-1, || {
        // SAFETY: the caller has `count` bytes there.
        let data = unsafe { bytes(buf, count)? };
        Ok(table::stream(stream)?.write(data)? as i64)
    })
}

/// 1 if a connection of its own carries the stream now, 0 if not, -1: it has failed.
#[unsafe(no_mangle)]
pub extern "C" fn nine_sconnected(stream: Handle) -> c_int {
    answer(-1, || Ok(table::stream(stream)?.has_connection().into()))
}

/// Ends a stream and lets go of it; what was written, the server has taken then. Says how many bytes were moved; -1: it
/// has failed.
#[unsafe(no_mangle)]
pub extern "C" fn nine_sclose(stream: Handle) -> i64 {
    answer(-1, || {
        let found = table::stream(stream)?;
        table::remove(stream)?;
        Ok(found.close()? as i64)
    })
}

/// A mux whose name space is an empty tree in memory, in which missing mount points are made (muxalloc). It has a
/// thread of its own until it is closed. 0: it has failed.
#[unsafe(no_mangle)]
pub extern "C" fn nine_mux_alloc() -> Handle {
    answer(0, || Ok(table::insert(Object::Mux(Arc::new(Mux::alloc()?)))))
}

/// Mounts the server at the other end of a connected stream socket on `old` (muxmount). The mux keeps a duplicate of
/// `fd`, which is non-blocking from then on, and nobody else's to read or write; when the connection goes, the mount
/// fails. Says the mount's number; -1: it has failed (EPROTOTYPE: no stream socket, ENOTCONN: not connected).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_mount(mux: Handle, fd: c_int, old: *const c_char, flag: c_int) -> i64 {
    answer(-1, || {
        if fd < 0 {
            return Err(Fail::new(Errno::EBADF, format!("{fd} is no descriptor")));
        }
        // SAFETY: the caller's text ends with a zero byte.
        let old = unsafe { utf8(old, "old")? };
        // SAFETY: it is not -1; that it is open, the first call on it finds out.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(table::mux(mux)?.mount(socket, old, flag)? as i64)
    })
}

/// Mounts the server at an address (TCP, unix, vsock) on `old`; it is dialled again when it goes. Says the mount's
/// number; -1: it has failed.
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

/// Makes what is at `new` be seen at `old`, too (muxbind). Says the mount's number; -1: it has failed.
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

/// Takes away what was mounted or bound on `old`: `new`, or everything if that is NULL. 0 or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_unmount(mux: Handle, new: *const c_char, old: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's texts end with a zero byte.
        let (new, old) = unsafe { (said(new, "new")?, utf8(old, "old")?) };
        table::mux(mux)?.unmount(Some(new).filter(|new| !new.is_empty()), old).map(|()| 0)
    })
}

/// A session with the mux' name space, as one with a server. 0: it has failed.
#[unsafe(no_mangle)]
pub extern "C" fn nine_mux_client(mux: Handle) -> Handle {
    answer(0, || {
        let client = table::mux(mux)?.client()?;
        Ok(table::insert(Object::Client(Arc::new(client))))
    })
}

/// A connection to the mux, for messages (muxattach). 0: it has failed.
#[unsafe(no_mangle)]
pub extern "C" fn nine_mux_attach(mux: Handle) -> Handle {
    answer(0, || {
        let con = table::mux(mux)?.attach()?;
        Ok(table::insert(Object::Con(Arc::new(con))))
    })
}

/// Sends one T-message, `size[4]` first; never waits (muxsend). Tags and fids are the caller's. 0; -1: it has failed:
/// EAGAIN says that much waits already, and that messages should be received first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_send(con: Handle, message: *const c_void, count: usize) -> c_int {
    answer(-1, || {
        // SAFETY: the caller has `count` bytes there.
        let message = unsafe { bytes(message, count)? };
        table::con(con)?.send(message).map(|()| 0)
    })
}

/// Waits for the next R-message (muxrecv), and says how many bytes it has. -1: it has failed; EMSGSIZE: it has more
/// than `count`, and stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_recv(con: Handle, buf: *mut c_void, count: usize) -> i64 {
    answer(-1, || {
        // SAFETY: the caller has `count` bytes there, for us alone.
        let buf = unsafe { room(buf, count)? };
        Ok(table::con(con)?.receive(buf)? as i64)
    })
}

/// The same without waiting: 0, if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nine_mux_tryrecv(con: Handle, buf: *mut c_void, count: usize) -> i64 {
    answer(-1, || {
        // SAFETY: the caller has `count` bytes there, for us alone.
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
/// `from` is NULL or ends with a zero byte, and stays as it is for `'a`.
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

/// Empty where it is not said.
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
/// `options` is NULL, or has as many bytes as its first field says, and its texts end with a zero byte.
unsafe fn how<'a>(options: *const NineOptions) -> Result<How<'a>, Fail> {
    if options.is_null() {
        return Ok(How::default());
    }
    // SAFETY: the field is there in every version.
    let size = unsafe { ptr::read(options.cast::<usize>()) };
    // That of another version is longer or shorter by whole fields.
    if size < size_of::<usize>() || !size.is_multiple_of(align_of::<NineOptions>()) {
        let text = format!("options.size is {size}: set it to sizeof(nine_options)");
        return Err(Fail::new(Errno::EINVAL, text));
    }
    let mut own = MaybeUninit::<NineOptions>::zeroed();
    // SAFETY: both are as long as that; zeros and whole fields are good for ours, numbers and pointers.
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
/// `from` is NULL or has `count` bytes, which nobody changes for `'a`.
unsafe fn bytes<'a>(from: *const c_void, count: usize) -> Result<&'a [u8], Fail> {
    match count {
        0 => Ok(&[]),
        _ if from.is_null() => Err(null("the buffer")),
        _ if count > isize::MAX as usize => Err(too_long(count)),
        // SAFETY: it is not NULL, so it has `count` bytes, which are no more than a slice may have.
        _ => Ok(unsafe { slice::from_raw_parts(from.cast(), count) }),
    }
}

/// # Safety
/// `to` is NULL or has `count` bytes, which are ours alone for `'a`.
unsafe fn room<'a>(to: *mut c_void, count: usize) -> Result<&'a mut [u8], Fail> {
    match count {
        0 => Ok(&mut []),
        _ if to.is_null() => Err(null("the buffer")),
        _ if count > isize::MAX as usize => Err(too_long(count)),
        // SAFETY: it is not NULL, so it has `count` bytes, which are no more than a slice may have. They may never have
        // been written: bytes have no wrong values, and we only write there.
        _ => Ok(unsafe { slice::from_raw_parts_mut(to.cast(), count) }),
    }
}

fn too_long(count: usize) -> Fail {
    Fail::new(Errno::EINVAL, format!("{count} bytes are more than any buffer has"))
}

/// # Safety
/// `out` is NULL or has room for one.
unsafe fn put<T>(out: *mut T, value: T) -> Result<c_int, Fail> {
    if out.is_null() {
        return Err(null("where the answer goes"));
    }
    // SAFETY: it is not NULL, so it has room; what was there is not dropped, for it may never have been one.
    unsafe { ptr::write(out, value) };
    Ok(0)
}
