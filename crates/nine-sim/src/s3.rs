//! An S3 server in memory, with the subset of S3 that Ninefold uses and with injected faults.
//!
//! In: HTTP/1.1 on loopback, one thread per connection. Out: answers, or the effects of a bad network. Signatures are
//! not checked; third-party servers do that (`cargo xtask stores`).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is executed and answered.
    Good,
    /// It is not executed, and the answer is 503.
    Busy,
    /// It is executed, but the answer is 500.
    Broken,
    /// It is executed, and the connection is closed without an answer.
    Unheard,
    /// It is executed, and the connection is closed in the middle of the answer's body.
    Short,
    /// It is not executed, and the answer is 403.
    Denied,
}

type Decides = Box<dyn FnMut(&str, &str) -> Fate + Send>;

/// A server. Clones share it.
#[derive(Clone)]
pub struct Server {
    /// TCP port on 127.0.0.1.
    pub port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, (Vec<u8>, u64)>,
    versions: u64,
    fate: Option<Decides>,
    requests: u64,
    head: BTreeMap<String, String>,
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    head: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Reply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Server {
    /// Starts a server with the bucket `attic`, on a free port.
    ///
    /// # Panics
    /// Panics if no port is free.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = Self { port: listener.local_addr().expect("its address").port(), state: Arc::default() };
        let state = server.state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = state.clone();
                // A connection that the client breaks off is not a fault of the server.
                std::thread::spawn(move || drop(serve(stream, &state)));
            }
        });
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Sets a function that decides the outcome of each request, from its method and object name.
    pub fn decided_by(&self, fate: impl FnMut(&str, &str) -> Fate + Send + 'static) {
        self.state().fate = Some(Box::new(fate));
    }

    /// Removes that function: all requests succeed.
    pub fn heal(&self) {
        self.state().fate = None;
    }

    /// Returns the names of all objects.
    pub fn names(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    /// Creates an empty object, as another client would.
    pub fn put(&self, name: &str) {
        self.state().objects.insert(name.into(), (Vec::new(), 0));
    }

    /// Removes an object.
    pub fn remove(&self, name: &str) {
        self.state().objects.remove(name);
    }

    /// Returns the number of received requests.
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// Returns a header field of the last request. `name` is in lower case.
    pub fn head(&self, name: &str) -> Option<String> {
        self.state().head.get(name).cloned()
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut from = BufReader::new(stream.try_clone()?);
    let mut to = stream;
    while let Some(request) = read(&mut from)? {
        let name = request.path.trim_start_matches("/attic/").to_string();
        let fate = {
            let mut state = state.lock().unwrap();
            state.requests += 1;
            state.head.clone_from(&request.head);
            state.fate.as_mut().map_or(Fate::Good, |fate| fate(&request.method, &name))
        };
        let error = |status, code: &str| Reply {
            status,
            head: String::new(),
            body: format!("<Error><Code>{code}</Code><Message>by a test</Message></Error>").into(),
        };
        let reply = match fate {
            Fate::Busy => error(503, "SlowDown"),
            Fate::Denied => error(403, "AccessDenied"),
            _ => answer(&mut state.lock().unwrap(), &request, &name),
        };
        let reply = if fate == Fate::Broken { error(500, "InternalError") } else { reply };
        if fate == Fate::Unheard {
            return Ok(());
        }
        let Reply { status, head, body } = reply;
        let len = body.len();
        to.write_all(format!("HTTP/1.1 {status} x\r\nContent-Length: {len}\r\n{head}\r\n").as_bytes())?;
        if fate == Fate::Short {
            return to.write_all(&body[..len / 2]);
        }
        to.write_all(&body)?;
    }
    Ok(())
}

fn read(from: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap().to_string(), words.next().unwrap().to_string());
    let mut head = BTreeMap::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        head.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    let len = head.get("content-length").map_or(0, |len| len.parse().unwrap());
    let mut body = vec![0; len];
    from.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(name, value)| (name.to_string(), plain(value))).collect();
    Ok(Some(Request { method, path: plain(path), query, head, body }))
}

/// Decodes percent-encoding.
fn plain(text: &str) -> String {
    let mut parts = text.split('%');
    let mut plain = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        plain.push(u8::from_str_radix(&part[..2], 16).unwrap());
        plain.extend(&part.as_bytes()[2..]);
    }
    String::from_utf8(plain).unwrap()
}

fn answer(state: &mut State, request: &Request, name: &str) -> Reply {
    let error = |status, code: &str| Reply {
        status,
        head: String::new(),
        body: format!("<Error><Code>{code}</Code></Error>").into(),
    };
    if !request.path.starts_with("/attic") {
        return error(404, "NoSuchBucket");
    }
    let etag = |version: u64| format!("\"v{version}\"");
    let there = state.objects.get(name).map(|(_, version)| etag(*version));
    match request.method.as_str() {
        "PUT" => {
            let is_new = request.head.get("if-none-match").is_some_and(|is| is == "*");
            let is_this = request.head.get("if-match");
            if is_new && there.is_some() || is_this.is_some_and(|is| Some(is) != there.as_ref()) {
                return error(412, "PreconditionFailed");
            }
            state.versions += 1;
            state.objects.insert(name.into(), (request.body.clone(), state.versions));
            Reply { status: 200, head: format!("ETag: {}\r\n", etag(state.versions)), body: Vec::new() }
        }
        "GET" if request.query.contains_key("list-type") => list(state, &request.query),
        "GET" => {
            let Some((bytes, version)) = state.objects.get(name) else { return error(404, "NoSuchKey") };
            let date = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
            let head = format!("ETag: {}\r\n{date}", etag(*version));
            let Some(range) = request.head.get("range").and_then(|range| range.strip_prefix("bytes=")) else {
                return Reply { status: 200, head, body: bytes.clone() };
            };
            let (from, to) = range.split_once('-').unwrap();
            let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
            let to = (to + 1).min(bytes.len());
            if from >= to {
                return error(416, "InvalidRange");
            }
            let range = format!("Content-Range: bytes {from}-{}/{}\r\n", to - 1, bytes.len());
            Reply { status: 206, head: head + &range, body: bytes[from..to].to_vec() }
        }
        _ => error(405, "MethodNotAllowed"),
    }
}

/// Answers a list request, with at most seven names per page.
fn list(state: &State, query: &BTreeMap<String, String>) -> Reply {
    let of = |name: &str| query.get(name).map_or("", String::as_str);
    let after = of("start-after").max(of("continuation-token"));
    let all =
        state.objects.iter().filter(|(name, _)| name.starts_with(of("prefix")) && name.as_str() > after);
    let mut page: Vec<_> = all.take(8).collect();
    let more = page.len() == 8;
    page.truncate(7);
    let mut body = format!("<ListBucketResult><Name>attic</Name><IsTruncated>{more}</IsTruncated>");
    for (name, (bytes, version)) in &page {
        let (size, date) = (bytes.len(), "2026-01-01T00:00:00.000Z");
        body += &format!(
            "<Contents><Key>{name}</Key><LastModified>{date}</LastModified><ETag>v{version}</ETag>\
             <Size>{size}</Size></Contents>"
        );
    }
    if let (true, Some((name, _))) = (more, page.last()) {
        body += &format!("<NextContinuationToken>{name}</NextContinuationToken>");
    }
    Reply { status: 200, head: String::new(), body: (body + "</ListBucketResult>").into() }
}
