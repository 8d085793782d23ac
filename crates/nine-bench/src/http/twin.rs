//! The same service by direct system calls. One form uses blocking threads, as Hickey's `httpd` beside `uhttpd`
//! (section 6.2.1). The other uses one event-driven thread: it is our server without the files between it and the
//! kernel.
//!
//! Both parse requests with our server's own code, cache open files and the answers of small ones like it, and send the
//! same head.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nine_gate::http::head::{HEAD, Parsed, parse};
use nine_gate::http::path::decode;
use rustix::event::epoll;

/// Files of this size and more are sent by sendfile, as by our server.
const SENDFILE: u64 = 16 << 10;

/// Open files with their heads.
struct OpenFileCache {
    dir: PathBuf,
    open: Mutex<HashMap<Box<[u8]>, Arc<FileEntry>>>,
}

struct FileEntry {
    file: File,
    size: u64,
    /// The head, and for a small file also its content.
    head: Vec<u8>,
}

/// The progress of an answer.
struct FileSendProgress {
    entry: Arc<FileEntry>,
    /// Bytes sent, of head and file.
    sent: u64,
}

impl OpenFileCache {
    fn find(&self, path: &[u8]) -> io::Result<Arc<FileEntry>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = open.get(path) {
            return Ok(entry.clone());
        }
        let name = std::str::from_utf8(path).map_err(io::Error::other)?;
        let file = File::open(self.dir.join(name))?;
        let size = file.metadata()?.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\nServer: twin\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
             Content-Type: application/octet-stream\r\nETag: \"20000009940ba-faf1ca2c-6-18ea56e409f981db\"\r\n\
             Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nAccept-Ranges: bytes\r\nContent-Length: {size}\r\n\r\n"
        );
        let mut head = head.into_bytes();
        if size < SENDFILE {
            let begin = head.len();
            head.resize(begin + size as usize, 0);
            file.read_exact_at(&mut head[begin..], 0)?;
        }
        let entry = Arc::new(FileEntry { file, size, head });
        open.insert(path.into(), entry.clone());
        Ok(entry)
    }

    /// Parses a request. Returns its answer and its length.
    fn asked(&self, bytes: &[u8]) -> io::Result<Option<(FileSendProgress, usize)>> {
        match parse(bytes) {
            Parsed::Part => Ok(None),
            Parsed::Wrong(status, _) => Err(io::Error::other(status.text())),
            Parsed::Whole(head) => {
                let path = decode(&bytes[head.path.clone()]).map_err(|_| io::ErrorKind::InvalidInput)?;
                Ok(Some((FileSendProgress { entry: self.find(&path.names)?, sent: 0 }, head.len)))
            }
        }
    }
}

impl FileSendProgress {
    /// Sends a part of the answer. Returns whether all is sent.
    fn send(&mut self, mut stream: &TcpStream) -> io::Result<bool> {
        let FileEntry { file, size, head } = &*self.entry;
        let is_small = *size < SENDFILE;
        let all = head.len() as u64 + if is_small { 0 } else { *size };
        while self.sent < all {
            let begun = self.sent < head.len() as u64;
            if is_small {
                self.sent += stream.write(&head[self.sent as usize..])? as u64;
            } else if begun {
                let rest = &head[self.sent as usize..];
                let flags = rustix::net::SendFlags::MORE | rustix::net::SendFlags::NOSIGNAL;
                self.sent += rustix::net::send(stream, rest, flags)? as u64;
            } else {
                let mut at = self.sent - head.len() as u64;
                let left = (all - self.sent) as usize;
                match rustix::fs::sendfile(stream, file, Some(&mut at), left)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => self.sent += n as u64,
                }
            }
        }
        Ok(true)
    }
}

fn files(dir: &Path) -> Arc<OpenFileCache> {
    Arc::new(OpenFileCache { dir: dir.into(), open: Mutex::default() })
}

/// Serves each connection on a thread of its own.
pub fn threads(dir: &Path, listener: &TcpListener) -> io::Result<()> {
    let files = files(dir);
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let files = files.clone();
        // A client that disconnects early must not stop the server.
        thread::Builder::new().stack_size(128 << 10).spawn(move || drop(converse(&files, &stream)))?;
    }
}

fn converse(files: &OpenFileCache, mut stream: &TcpStream) -> io::Result<()> {
    let (mut bytes, mut buf) = (Vec::new(), vec![0; HEAD]);
    loop {
        while let Some((mut answer, len)) = files.asked(&bytes)? {
            bytes.drain(..len);
            answer.send(stream)?;
        }
        match stream.read(&mut buf)? {
            0 => return Ok(()),
            n => bytes.extend_from_slice(&buf[..n]),
        }
    }
}

struct TwinConnection {
    stream: TcpStream,
    bytes: Vec<u8>,
    answer: Option<FileSendProgress>,
}

/// Serves all connections on one thread.
pub fn events(dir: &Path, listener: &TcpListener) -> io::Result<()> {
    let files = files(dir);
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    listener.set_nonblocking(true)?;
    epoll::add(&poll, listener, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN)?;
    let mut conns: Vec<Option<TwinConnection>> = Vec::new();
    let (mut events, mut buf) = (Vec::with_capacity(1024), vec![0; HEAD]);
    loop {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let number = event.data.u64();
            if number == u64::MAX {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
                epoll::add(&poll, &stream, epoll::EventData::new_u64(conns.len() as u64), flags)?;
                conns.push(Some(TwinConnection { stream, bytes: Vec::new(), answer: None }));
                continue;
            }
            let place = &mut conns[number as usize];
            if place.as_mut().is_some_and(|conn| conn.turn(&files, &mut buf).is_err()) {
                *place = None;
            }
        }
    }
}

impl TwinConnection {
    fn turn(&mut self, files: &OpenFileCache, buf: &mut [u8]) -> io::Result<()> {
        loop {
            if let Some(answer) = &mut self.answer {
                match answer.send(&self.stream) {
                    Ok(_) => self.answer = None,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            if let Some((answer, len)) = files.asked(&self.bytes)? {
                self.bytes.drain(..len);
                self.answer = Some(answer);
                continue;
            }
            match (&self.stream).read(buf) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.bytes.extend_from_slice(&buf[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}
