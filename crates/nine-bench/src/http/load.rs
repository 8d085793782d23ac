//! Clients of a web server: a number of connections driven by one thread; each requests again as soon as it has its
//! answer.
//!
//! [`super::check`] compares them with wrk on the same server and file.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::set::RequestMix;

/// The results of all clients.
#[derive(Debug, Default)]
pub struct LoadResult {
    pub requests: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// Response times up to the last byte, microseconds.
    pub times: Vec<f64>,
}

impl LoadResult {
    /// Returns the answers per second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

struct LoadClient {
    stream: TcpStream,
    asked: Instant,
    /// Received part of the head.
    head: Vec<u8>,
    /// Bytes of the answer still to come, once its head is complete.
    left: Option<usize>,
    wanted: usize,
    request: Vec<u8>,
    said: usize,
}

/// Runs `clients` clients with the requests of `mix` for this long.
pub fn run(addr: SocketAddr, clients: usize, mix: &mut RequestMix, time: Duration) -> io::Result<LoadResult> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut all = Vec::with_capacity(clients);
    for n in 0..clients {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&poll, &stream, epoll::EventData::new_u64(n as u64), flags)?;
        let (head, request) = (Vec::new(), Vec::new());
        all.push(LoadClient { stream, asked: Instant::now(), head, left: None, wanted: 0, request, said: 0 });
    }
    let mut seen = LoadResult::default();
    let begun = Instant::now();
    let mut buf = vec![0; 256 << 10];
    for client in &mut all {
        client.ask(mix)?;
    }
    let mut events = Vec::with_capacity(1024);
    while begun.elapsed() < time {
        events.clear();
        let limit = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&limit))?;
        if events.is_empty() {
            return Err(io::Error::other("no answer for 5 s"));
        }
        for event in &events {
            let client = &mut all[event.data.u64() as usize];
            client.say()?;
            while client.hear(&mut buf, &mut seen)? {
                client.ask(mix)?;
            }
        }
    }
    seen.seconds = begun.elapsed().as_secs_f64();
    Ok(seen)
}

/// Opens a connection and receives one answer.
pub fn one(addr: SocketAddr, mix: &mut RequestMix) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    let (head, request) = (Vec::new(), Vec::new());
    let mut client =
        LoadClient { stream, asked: Instant::now(), head, left: None, wanted: 0, request, said: 0 };
    client.ask(mix)?;
    while !client.hear(&mut [0; 4096], &mut LoadResult::default())? {}
    Ok(client.stream)
}

impl LoadClient {
    fn ask(&mut self, mix: &mut RequestMix) -> io::Result<()> {
        let (path, size) = mix.next();
        self.request.clear();
        write!(self.request, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        (self.wanted, self.said, self.left) = (size, 0, None);
        self.asked = Instant::now();
        self.say()
    }

    fn say(&mut self) -> io::Result<()> {
        while self.said < self.request.len() {
            match self.stream.write(&self.request[self.said..]) {
                Ok(n) => self.said += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads. Returns whether the answer is complete.
    fn hear(&mut self, buf: &mut [u8], seen: &mut LoadResult) -> io::Result<bool> {
        loop {
            let n = match self.stream.read(buf) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            seen.bytes += n as u64;
            let left = match self.left {
                Some(left) => left.checked_sub(n).ok_or_else(|| io::Error::other("more than an answer"))?,
                None => {
                    self.head.extend_from_slice(&buf[..n]);
                    let Some(end) = self.head.windows(4).position(|part| part == b"\r\n\r\n") else {
                        continue;
                    };
                    let body = self.head.len() - end - 4;
                    let left = length(&self.head[..end])?;
                    if left != self.wanted || body > left {
                        return Err(io::Error::other(format!("{left} bytes for {}", self.wanted)));
                    }
                    self.head.clear();
                    left - body
                }
            };
            self.left = Some(left);
            if left == 0 {
                seen.requests += 1;
                seen.times.push(self.asked.elapsed().as_secs_f64() * 1e6);
                return Ok(true);
            }
        }
    }
}

/// Returns the content length of a successful answer.
fn length(head: &[u8]) -> io::Result<usize> {
    let head = std::str::from_utf8(head).map_err(io::Error::other)?;
    let wrong = || io::Error::other(format!("an answer that is none: {head}"));
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(wrong());
    }
    let line =
        head.lines().find(|line| line.len() > 16 && line[..16].eq_ignore_ascii_case("content-length: "));
    line.and_then(|line| line[16..].trim().parse().ok()).ok_or_else(wrong)
}
