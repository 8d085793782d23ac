//! One connection: requests in, answers out, in order.
//!
//! Always holds: an answer has exactly the announced length, or the connection is cut. A connection without a request
//! owns no buffer. A connection that misses a deadline ends.

mod dirs;
mod send;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use nine_io::Payload;
use nine_io::client::{Error, File, Incoming};
use nine_proto::{Errno, OpenFlags};

use super::answer::{self, AfterAnswer};
use super::body::{self, Passing};
use super::count;
use super::files::{FileLookup, OpenFiles};
use super::head::{self, Body, Head, Method, Parsed};
use super::list;
use super::log;
use super::order::OrderCard;
use super::past;
use super::path;
use super::status::Status;
use super::turns::ClientName;
use super::{STOP_GRACE, SiteState};

/// Bytes of one read of a connection.
const READ: u32 = 16 << 10;
/// Maximum number of bytes in a remote address.
const REMOTE: u32 = 256;
/// Answers to pipelined requests are gathered up to this many bytes.
const GATHER: usize = 64 << 10;

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum HttpEnd {
    /// In the normal way.
    Closed,
    /// A deadline passed.
    Late,
    /// The client closed or lost the connection.
    Gone(Error),
    /// An answer could not be completed.
    Cut(String),
}

impl From<Error> for HttpEnd {
    fn from(error: Error) -> Self {
        Self::Gone(error)
    }
}

/// See the module.
pub(super) struct HttpConnection {
    site: Rc<SiteState>,
    number: usize,
    card: Rc<OrderCard>,
    data: File,
    /// The connection's directory in the network.
    dir: Option<File>,
    /// The client has not authenticated yet, but may.
    unproven: bool,
    /// The client's name for `ClientTurns`; `None` until it first needs a permit.
    client: Option<ClientName>,
    /// The client is another local user than that of this process.
    is_other: bool,
    /// The files that the client sees, if any.
    files: Option<Rc<OpenFiles>>,
    /// Unparsed input.
    input: Vec<u8>,
    /// Unsent output.
    out: Vec<Payload>,
    after: AfterAnswer,
    /// The client's address; empty if nothing needs it.
    remote: String,
    /// The status of the latest answer.
    status: u16,
    /// Bytes sent so far.
    sent: u64,
}

/// Accepts a call and serves it.
pub(super) async fn converse(site: Rc<SiteState>, number: usize, card: Rc<OrderCard>, incoming: Incoming) {
    card.due(site.now() + site.options.patience);
    let accepting = pin!(async {
        let dialled = incoming.accept().await?;
        if let Some(module) = &site.options.push {
            dialled.ctl.write(0, format!("push {module}").as_bytes()).await?;
        }
        let users = site.options.local_users.as_ref();
        let caller = match site.options.log.is_some() || users.is_some() {
            true => dialled.remote().await?,
            false => String::new(),
        };
        let is_other = match users {
            Some(users) => !(users.is_owner)(&dialled.local().await?, &caller),
            None => false,
        };
        let remote = caller.split('!').next().unwrap_or_default().to_owned();
        Ok::<_, Error>((dialled, remote, is_other))
    });
    let (dialled, remote, is_other) = match timely(&card, accepting).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => return site.counts.ended(&HttpEnd::Gone(error)),
        Err(end) => return site.counts.ended(&end),
    };
    // The connection lives while one of its files is open.
    let data = dialled.data;
    let (dir, unproven, client) = (Some(dialled.dir), site.options.trees.is_some(), None);
    let files = if is_other { site.others.clone() } else { site.files.clone() };
    drop(dialled.ctl);
    let (input, out, after) = (Vec::new(), Vec::new(), AfterAnswer::Stays);
    let (status, sent) = (0, 0);
    let mut conn = HttpConnection {
        site: site.clone(),
        number,
        card,
        data,
        dir,
        unproven,
        client,
        is_other,
        files,
        input,
        out,
        after,
        remote,
        status,
        sent,
    };
    let end = conn.run().await;
    site.counts.ended(&end);
    match end {
        HttpEnd::Closed | HttpEnd::Late => {}
        HttpEnd::Gone(error) => tracing::debug!("http: a client has gone: {error}"),
        HttpEnd::Cut(why) => tracing::warn!("http: an answer was cut off: {why}"),
    }
}

/// An upstream does not answer.
struct LateUpstream;

fn late() -> Error {
    Error::Remote(Errno::ETIMEDOUT.into())
}

/// Waits for `future` until the card is late. A result that is ready when this is noticed still counts.
async fn timely<F: Future + Unpin>(card: &OrderCard, mut future: F) -> Result<F::Output, HttpEnd> {
    poll_fn(|cx| match Pin::new(&mut future).poll(cx) {
        Poll::Pending if card.late.get() => Poll::Ready(Err(HttpEnd::Late)),
        polled => polled.map(Ok),
    })
    .await
}

impl HttpConnection {
    async fn run(&mut self) -> HttpEnd {
        loop {
            match self.request().await {
                Ok(()) => {}
                Err(end) => {
                    if let HttpEnd::Cut(_) = end {
                        // Answers before this one are complete. This one ends before its announced length.
                        let _ = self.flush().await;
                    }
                    return end;
                }
            }
        }
    }

    /// Reads one request and answers it.
    async fn request(&mut self) -> Result<(), HttpEnd> {
        // The arrival of the request's first byte.
        let mut begun = self.site.now();
        let head = loop {
            if !self.input.is_empty() {
                match head::parse(&self.input) {
                    Parsed::Whole(head) => break head,
                    Parsed::Wrong(status, what) => return self.refuse(status, what).await,
                    Parsed::Part => {}
                }
            }
            self.flush().await?;
            // Empty lines before a request are ignored (RFC 9112, 2.2).
            if self.input.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
                self.input.clear();
            }
            let is_new = self.input.is_empty();
            match is_new {
                // A request may have been sent before the stop.
                true if self.site.is_stopping() => self.due(STOP_GRACE),
                // With a pushed module, the client must negotiate or authenticate at once.
                true if self.sent == 0 && self.site.options.push.is_some() => {
                    self.due(self.site.options.patience)
                }
                true => self.due(self.site.options.idle),
                false => self.card.due(begun + self.site.options.patience),
            }
            self.card.idle.set(is_new);
            let came = self.read().await;
            self.card.idle.set(false);
            match came {
                Ok(true) if is_new => begun = self.site.now(),
                Ok(true) => {}
                Ok(false) if is_new => return Err(HttpEnd::Closed),
                Ok(false) => return self.refuse(Status::BAD_REQUEST, "the request has no end").await,
                // The client owed nothing.
                Err(HttpEnd::Late) if is_new => return Err(HttpEnd::Closed),
                Err(HttpEnd::Late) => return self.refuse(Status::TIMEOUT, LATE).await,
                Err(end) => return Err(end),
            }
        };
        self.card.since.set(self.site.now());
        self.after = match (head.keep, head.chunks) {
            (false, _) => AfterAnswer::Closed,
            (true, true) => AfterAnswer::Stays,
            (true, false) => AfterAnswer::Kept,
        };
        let input = std::mem::take(&mut self.input);
        let before = self.sent + self.waits() as u64;
        let rest = self.pass_body(&head, &input).await?;
        if self.site.is_stopping() && rest.is_empty() {
            // Close only if no further request has arrived, so that each one is answered.
            self.after = AfterAnswer::Closed;
        }
        let answered = self.answer(&head, &input).await;
        if !is_asked_by_page(&head, &input) {
            self.log(Some(&head), &input, before);
        }
        self.input = rest;
        answered?;
        self.card.left.set(0);
        let closes = self.after == AfterAnswer::Closed;
        if closes || self.input.is_empty() || self.has_file() || self.waits() > GATHER {
            self.flush().await?;
        }
        self.site.counts.took(self.site.clock.now().saturating_sub(self.card.since.get()));
        if closes {
            return Err(HttpEnd::Closed);
        }
        if !self.input.is_empty() {
            self.site.threads.pass(self.number).await;
        }
        Ok(())
    }

    /// Skips the body. Returns the input after it.
    async fn pass_body(&mut self, head: &Head, input: &[u8]) -> Result<Vec<u8>, HttpEnd> {
        let behind = &input[head.len..];
        if head.body == Body::Bytes(0) {
            return Ok(behind.to_vec());
        }
        if head.expects {
            // The body is not requested, and the client may or may not send it.
            self.after = AfterAnswer::Closed;
            return Ok(Vec::new());
        }
        if matches!(head.body, Body::Bytes(n) if n > body::MOST) {
            self.input = input.to_vec();
            self.refuse(Status::TOO_LARGE, LARGE).await?;
        }
        let until = self.site.now() + self.site.options.patience;
        let mut passing = Passing::new(head.body);
        let mut came = behind.to_vec();
        loop {
            let wrong = match passing.pass(&came) {
                Ok(n) if passing.is_over() => return Ok(came.split_off(n)),
                Ok(_) => {
                    self.flush().await?;
                    self.card.due(until);
                    match self.read().await {
                        Ok(true) => {
                            came = std::mem::take(&mut self.input);
                            continue;
                        }
                        Ok(false) => return Err(HttpEnd::Closed),
                        Err(HttpEnd::Late) => (Status::TIMEOUT, LATE),
                        Err(end) => return Err(end),
                    }
                }
                Err(body::Bad::Chunks) => (Status::BAD_REQUEST, "the chunks of the body are malformed"),
                Err(body::Bad::Large) => (Status::TOO_LARGE, LARGE),
            };
            self.input = input.to_vec();
            self.refuse(wrong.0, wrong.1).await?;
        }
    }

    async fn answer(&mut self, head: &Head, input: &[u8]) -> Result<(), HttpEnd> {
        match head.method {
            Method::Get | Method::Head => {}
            Method::Options => {
                let mut text = self.begin(Status::NO_CONTENT);
                answer::line(&mut text, "Allow", ALLOWED);
                return self.send_head(text);
            }
            Method::Known => {
                self.say(head, Status::NOT_ALLOWED, "files are read here", &[("Allow", ALLOWED)]);
                return Ok(());
            }
            Method::Other => {
                self.say(head, Status::NOT_IMPLEMENTED, "this method is not known", &[]);
                return Ok(());
            }
        }
        if !self.site.is_us(&input[head.host.clone()]) {
            self.say(head, Status::MISDIRECTED, "this server is not known by that name", &[]);
            return Ok(());
        }
        let path = match path::decode(&input[head.path.clone()]) {
            Ok(path) if self.site.is_hidden(&path.names) => {
                return self.fails(head, &Error::Remote(Errno::ENOENT.into()));
            }
            Ok(path) => path,
            Err(path::Wrong::Malformed) => {
                self.say(head, Status::BAD_REQUEST, "the path is malformed", &[]);
                return Ok(());
            }
            Err(path::Wrong::Nowhere) => return self.fails(head, &Error::Remote(Errno::ENOENT.into())),
        };
        if self.unproven
            && let Some(dir) = self.dir.take()
        {
            let proven = self.prove(&dir).await?;
            self.dir = Some(dir);
            self.unproven = proven.is_err();
            if let Err(error) = proven {
                return self.fails(head, &error);
            }
        }
        if self.files.is_none() {
            let why = match &self.site.options.trees {
                Some(_) => "show a certificate that this server knows",
                None => "other users of this machine see nothing here (--local-users)",
            };
            self.say(head, Status::FORBIDDEN, why, &[]);
            return Ok(());
        }
        if &*path.names == b"metrics" && !path.is_dir {
            let text = self.metrics().await?;
            self.page(head.is_whole(), Status::OK, "text/plain; version=0.0.4", text.into_bytes(), &[]);
            return Ok(());
        }
        if asked(&input[head.query.clone()], "versions").is_some()
            && let Some(past) = past::of(&self.site.archives(), &path.names)
        {
            return self.versions(head, input, &path.names, past).await;
        }
        let found = self.find(head, &path.names).await?;
        match found {
            Ok(FileLookup::File(entry)) if !path.is_dir => self.file(head, input, entry).await,
            // A file has no files below it.
            Ok(FileLookup::File(_)) => self.fails(head, &Error::Remote(Errno::ENOTDIR.into())),
            Ok(FileLookup::Other) => self.fails(head, &Error::Remote(Errno::EACCES.into())),
            Ok(FileLookup::Dir(_)) if !path.is_dir => {
                let names: Vec<String> = path.names.split(|b| *b == b'/').map(path::encode).collect();
                let query = String::from_utf8_lossy(&input[head.query.clone()]);
                let mark = if query.is_empty() { "" } else { "?" };
                let place = format!("/{}/{mark}{query}", names.join("/"));
                self.say(head, Status::MOVED, "it is a directory", &[("Location", place.as_bytes())]);
                Ok(())
            }
            Ok(FileLookup::Dir(dir)) => self.directory(head, input, &path.names, dir).await,
            Err(error) => self.fails(head, &error),
        }
    }

    /// Our metrics and the mux's. If the mux does not answer, a comment says so. Authenticated clients and other users
    /// of this machine see their own part of the mux's metrics.
    async fn metrics(&mut self) -> Result<String, HttpEnd> {
        let (site, files) = (self.site.clone(), self.files.clone());
        let mut text = site.metrics();
        let Some(mux) = &site.options.mux else { return Ok(text) };
        let own =
            files.as_deref().filter(|_| self.is_other || site.options.trees.is_some()).map(OpenFiles::root);
        match self.wait(pin!(count::of_mux(own, mux))).await? {
            Ok(Ok(said)) => text.push_str(&said),
            Ok(Err(error)) => {
                text.push_str(&format!("# the mux: {}\n", error.to_string().replace('\n', " ")))
            }
            Err(LateUpstream) => text.push_str("# the mux does not answer\n"),
        }
        Ok(text)
    }

    /// Looks up a path; the wait for an upstream has a limit.
    async fn find(&mut self, head: &Head, names: &[u8]) -> Result<Result<FileLookup, Error>, HttpEnd> {
        let Some(files) = self.files.clone() else { return Ok(Err(Error::Remote(Errno::EACCES.into()))) };
        let now = self.site.now();
        // With If-Range the client joins parts with older ones, so the tag must be the present one.
        let anew = !head.if_range.is_empty();
        Ok(self.wait(pin!(files.find(names, now, anew))).await?.unwrap_or_else(|LateUpstream| Err(late())))
    }

    /// Finds the tree of an authenticated client. Its identity is known after its first bytes.
    async fn prove(&mut self, dir: &File) -> Result<Result<(), Error>, HttpEnd> {
        let site = self.site.clone();
        let Some(trees) = site.options.trees.as_deref() else { return Ok(Ok(())) };
        let new = |root: File| site.options.files(root.into(), &site.kept);
        let proven = self.wait(pin!(site.proven.files(dir, trees, new))).await?;
        Ok(proven.unwrap_or_else(|LateUpstream| Err(late())).map(|files| {
            if files.is_some() {
                self.files = files;
            }
        }))
    }

    /// Logs an answer. `before`: bytes of output before it; `input`: starts with its request.
    fn log(&self, head: Option<&Head>, input: &[u8], before: u64) {
        let Some(log) = &self.site.options.log else { return };
        let said = |what: fn(&Head) -> &Range<usize>| head.map_or(&[][..], |head| &input[what(head).clone()]);
        let line = input.split(|byte| matches!(byte, b'\r' | b'\n')).find(|line| !line.is_empty());
        log(&log::Entry {
            remote: &self.remote,
            wall: self.site.clock.wall(),
            line: line.unwrap_or_default(),
            status: self.status,
            bytes: self.sent + self.waits() as u64 - before,
            referer: said(|head| &head.referer),
            agent: said(|head| &head.agent),
        });
    }

    fn begin(&mut self, status: Status) -> Vec<u8> {
        let mut text = Vec::with_capacity(384);
        self.says(status);
        answer::begin(&mut text, status, &self.site.date, self.site.clock.wall(), self.after);
        text
    }

    /// Counts an answer by its status.
    fn says(&mut self, status: Status) {
        self.status = status.number();
        self.site.counts.answered(status);
    }

    /// Sends a head without a body.
    fn send_head(&mut self, mut text: Vec<u8>) -> Result<(), HttpEnd> {
        answer::end(&mut text);
        self.out.push(Payload::from(text));
        Ok(())
    }

    /// Sends a generated page: all of it, or only its head.
    fn page(&mut self, all: bool, status: Status, kind: &str, page: Vec<u8>, lines: &[(&str, &[u8])]) {
        let mut text = self.begin(status);
        answer::line(&mut text, "Content-Type", kind.as_bytes());
        answer::line(&mut text, "X-Content-Type-Options", b"nosniff");
        answer::line(&mut text, "Cache-Control", b"no-cache");
        lines.iter().for_each(|(name, value)| answer::line(&mut text, name, value));
        answer::length(&mut text, page.len() as u64);
        answer::end(&mut text);
        self.out.push(Payload::from(text));
        if all {
            self.out.push(Payload::from(page));
        }
    }

    /// Sends a page with one message.
    fn note(&mut self, all: bool, status: Status, what: &str, lines: &[(&str, &[u8])]) {
        let page = list::note(status.number(), status.text(), what);
        let lines: Vec<_> = lines.iter().copied().chain([SAFE]).collect();
        self.page(all, status, HTML, page, &lines);
    }

    fn say(&mut self, head: &Head, status: Status, what: &str, lines: &[(&str, &[u8])]) {
        self.note(head.is_whole(), status, what, lines);
    }

    /// Answers with the error of a file.
    fn fails(&mut self, head: &Head, error: &Error) -> Result<(), HttpEnd> {
        let (status, what) = match error.errno() {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ENAMETOOLONG => {
                (Status::NOT_FOUND, "there is no such file")
            }
            Errno::EACCES | Errno::EPERM | Errno::ELOOP => (Status::FORBIDDEN, "this is not shown here"),
            Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN | Errno::ENOMEM => {
                (Status::UNAVAILABLE, "this server has no room left for now")
            }
            Errno::ETIMEDOUT => (Status::GATEWAY_TIMEOUT, "the server that has this file does not answer"),
            _ if error.is_disconnect() => (Status::BAD_GATEWAY, "the server that has this file is not there"),
            _ => (Status::INTERNAL, "this file cannot be read"),
        };
        if status.number() >= 500 {
            tracing::warn!("http: {}: {error}", status.number());
        }
        self.say(head, status, what, &[]);
        Ok(())
    }

    /// Answers input that is not a valid request. Later input cannot be parsed, so the connection closes.
    async fn refuse(&mut self, status: Status, what: &str) -> Result<(), HttpEnd> {
        self.after = AfterAnswer::Closed;
        let before = self.sent + self.waits() as u64;
        self.note(true, status, what, &[]);
        self.log(None, &self.input, before);
        self.flush().await?;
        Err(HttpEnd::Closed)
    }

    fn waits(&self) -> usize {
        self.out.iter().map(Payload::len).sum()
    }

    /// Whether a range of a file is pending. Its resident pages may be evicted during a wait.
    fn has_file(&self) -> bool {
        self.out.iter().any(|part| matches!(part, Payload::File { .. }))
    }

    /// Waits for a future that may take as long as an upstream may. If it is not ready at once, sends the pending
    /// output before the wait.
    async fn wait<F: Future + Unpin>(
        &mut self,
        mut future: F,
    ) -> Result<Result<F::Output, LateUpstream>, HttpEnd> {
        let mut first = None;
        poll_fn(|cx| {
            if let Poll::Ready(done) = Pin::new(&mut future).poll(cx) {
                first = Some(done);
            }
            Poll::Ready(())
        })
        .await;
        if let Some(done) = first {
            return Ok(Ok(done));
        }
        self.flush().await?;
        self.due(self.site.options.stall);
        Ok(timely(&self.card, future).await.map_err(|_| LateUpstream))
    }

    /// Sends the pending output, then waits for a future that takes turns and sets its deadlines itself.
    async fn wait_in_turn<F: Future + Unpin>(
        &mut self,
        future: F,
    ) -> Result<Result<F::Output, LateUpstream>, HttpEnd> {
        self.flush().await?;
        Ok(timely(&self.card, future).await.map_err(|_| LateUpstream))
    }

    /// The client's name for sharing: its address, or its connection if the address is unknown.
    async fn client(&mut self) -> Result<ClientName, HttpEnd> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let mut remote = std::mem::take(&mut self.remote);
        if remote.is_empty()
            && let Some(dir) = self.dir.take()
        {
            let read = async {
                let file = dir.open("remote", OpenFlags::READ).await?;
                file.read(0, REMOTE).await
            };
            if let Ok(Ok(read)) = self.wait(pin!(read)).await? {
                let text = String::from_utf8_lossy(&read);
                remote = text.split('!').next().unwrap_or_default().trim().to_owned();
            }
            self.dir = Some(dir);
        }
        let client: ClientName = match &*remote {
            "" => format!("#{}", self.number).into(),
            remote => remote.into(),
        };
        self.remote = remote;
        self.client = Some(client.clone());
        Ok(client)
    }

    /// Runs long work on a worker thread when the client has a permit.
    async fn work<T, F>(&mut self, job: F) -> Result<T, HttpEnd>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (site, client) = (self.site.clone(), self.client().await?);
        self.card.due(Duration::MAX);
        let _turn = site.working.turn(&client).await;
        site.work.run(job).await.ok_or_else(|| HttpEnd::Cut("its work failed".into()))
    }

    /// Sends the pending output.
    async fn flush(&mut self) -> Result<(), HttpEnd> {
        while !self.out.is_empty() {
            self.due(self.site.options.stall);
            let mut writing = pin!(self.data.write_some(0, &mut self.out));
            let sent = timely(&self.card, writing.as_mut()).await??;
            self.sent += sent;
            self.site.counts.sent(sent);
        }
        Ok(())
    }

    /// Sets the deadline of the next wait.
    fn due(&self, within: Duration) {
        self.card.due(self.site.now() + within);
    }

    /// Reads more input. Returns `false` at the end of the client's data.
    async fn read(&mut self) -> Result<bool, HttpEnd> {
        let mut reading = pin!(self.data.read_payload(0, READ));
        let came = timely(&self.card, reading.as_mut()).await??;
        let Payload::Bytes(bytes) = came else { return Err(HttpEnd::Cut("a connection is no file".into())) };
        let is_end = bytes.is_empty();
        match self.input.is_empty() {
            true => self.input = bytes.into(),
            false => self.input.extend_from_slice(&bytes),
        }
        Ok(!is_end)
    }
}

/// Counts itself in a cell while it exists.
struct CellCount(Rc<SiteState>, fn(&SiteState) -> &Cell<usize>);

impl CellCount {
    fn more(site: &Rc<SiteState>, count: fn(&SiteState) -> &Cell<usize>) -> Self {
        count(site).set(count(site).get() + 1);
        Self(site.clone(), count)
    }
}

impl Drop for CellCount {
    fn drop(&mut self) {
        let count = self.1(&self.0);
        count.set(count.get() - 1);
    }
}

/// Whether one of our own pages polls the metrics by itself: no user did anything.
fn is_asked_by_page(head: &Head, input: &[u8]) -> bool {
    &input[head.path.clone()] == b"/metrics" && &input[head.query.clone()] == b"live"
}

/// The value of `name` in a query (`name=VALUE`); empty for a bare `name`.
fn asked<'q>(query: &'q [u8], name: &str) -> Option<&'q [u8]> {
    query.split(|byte| *byte == b'&').find_map(|part| match part.strip_prefix(name.as_bytes())? {
        [] => Some(&b""[..]),
        [b'=', value @ ..] => Some(value),
        _ => None,
    })
}

const LARGE: &str = "nobody wants so large a body";
const LATE: &str = "the request did not come in time";
const ALLOWED: &[u8] = b"GET, HEAD, OPTIONS";
const HTML: &str = "text/html; charset=utf-8";
/// The content policy of our pages without scripts.
const SAFE: (&str, &[u8]) = (
    "Content-Security-Policy",
    b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
);
