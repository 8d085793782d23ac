//! The environment of a partition (docs/guest.md, "What a machine is served"): its arguments, name space, input and
//! output, and exit status. It works with any way to wait; machines are one.
//!
//! In: a client of `self`, and a name space. Out: the values that a `main` asks for. Files are opened when they are
//! needed, except those for the last message and the exit status.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Display, Write as _};
use core::time::Duration;

use nine_proto::{Errno, Error, OpenFlags, Result};

use crate::client::Client;
use crate::line::Line;
use crate::space::{FileLocation, How, Opened, Shared, Space};
use crate::words::words;

/// A partition, as its main sees it.
pub struct Partition<L: Line> {
    /// The arguments, with the name first.
    pub args: Vec<String>,
    /// The environment variables, as names and values.
    pub env: Vec<(String, String)>,
    /// The name space: the channel `root` is mounted at `/`, if there is one, and `self` at [`OWN`].
    pub space: Space<L>,
    /// The standard input.
    pub stdin: Input<L>,
    /// The standard output, written line by line.
    pub stdout: Output<L>,
    /// The standard error, written line by line.
    pub stderr: Output<L>,
    last: Rc<Last<L>>,
    clock: OwnFile<L>,
    /// The channels joined so far, by their names.
    joined: Vec<(String, Shared<L>)>,
    join: Box<Join<L>>,
}

/// Joins a further channel by its name. It is called once for each name.
pub type Join<L> = dyn FnMut(&str) -> Result<Client<L>>;

/// The directory of a partition's own files.
pub const OWN: &str = "/self";

/// The host's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The time since 1970.
    pub since_1970: Duration,
    /// The time of a clock that never goes back.
    pub steady: Duration,
}

/// Files for the end of a partition. They are open from the start, since nothing else may work any more at the end.
pub struct Last<L: Line> {
    stderr: Opened<L>,
    exit: Opened<L>,
}

/// The input of a partition, in the pieces that arrive.
pub struct Input<L: Line> {
    file: OwnFile<L>,
    /// Received input; the part before `at` has been returned.
    come: Vec<u8>,
    at: usize,
}

/// The output of a partition. A message is written for complete lines, at 4 KiB, or at a flush.
pub struct Output<L: Line> {
    file: OwnFile<L>,
    /// Buffered output.
    waits: Vec<u8>,
    /// The error of a write, which [`fmt::Error`] cannot carry.
    failed: Option<Error>,
}

/// A file of `self`, opened when it is needed.
enum OwnFile<L: Line> {
    At(FileLocation<L>, OpenFlags),
    Open(Opened<L>),
}

/// The result of a main: nothing, a status, or an error, which is printed and gives status 1.
pub trait Outcome {
    /// Returns the status, or the error text to be printed.
    fn status(self) -> Result<u8, String>;
}

/// The maximum number of buffered bytes.
const BUFFERED_LEN_MAX: usize = 4096;
/// More than the longest message to a partition's own files that does not use the arena, in bytes.
const OWN_MESSAGE_LEN_MAX: usize = 256;
/// The maximum length of `argv`, of `env` and of an input line, in bytes.
const TEXT_LEN_MAX: usize = 1 << 20;

impl<L: Line + 'static> Partition<L> {
    /// Creates a partition. `own` serves its own files, `root` its name space. `join` joins further channels. `keep`
    /// receives the files for the end of the partition, before anything else is read from the host.
    pub fn new(
        own: Client<L>,
        root: Option<Client<L>>,
        join: Box<Join<L>>,
        keep: impl FnOnce(Rc<Last<L>>),
    ) -> Result<Self> {
        let mut own = own;
        // If memory runs out during a call, the panic must still be able to report the end.
        own.out.reserve(OWN_MESSAGE_LEN_MAX);
        let mut space = Space::new();
        let mut joined = Vec::new();
        for (name, at, client) in [("root", "/", root), ("self", OWN, Some(own))] {
            if let Some(client) = client {
                let client = Shared::new(client.into());
                space.mount(&client, "", at, How::Replace)?;
                joined.push((name.to_string(), client));
            }
        }
        let open = |path| space.open(path, OpenFlags::WRITE);
        let last = Rc::new(Last { stderr: open("/self/stderr")?, exit: open("/self/exit")? });
        keep(last.clone());
        let text = |name: &str| {
            let bytes = space.read(&[OWN, name].join("/"), TEXT_LEN_MAX)?;
            Ok::<_, Error>(words(&String::from_utf8_lossy(&bytes)))
        };
        let args = text("argv")?;
        let pair =
            |word: String| word.split_once('=').map(|(name, value)| (name.to_string(), value.to_string()));
        let env = text("env")?.into_iter().filter_map(pair).collect();
        let at = |path, flags| Ok::<_, Error>(OwnFile::At(space.place(path)?, flags));
        let (stdin, stdout) = (at("/self/stdin", OpenFlags::READ)?, at("/self/stdout", OpenFlags::WRITE)?);
        let (stderr, clock) = (at("/self/stderr", OpenFlags::WRITE)?, at("/self/clock", OpenFlags::READ)?);
        Ok(Self {
            stdin: Input { file: stdin, come: Vec::new(), at: 0 },
            stdout: Output::new(stdout),
            stderr: Output::new(stderr),
            space,
            args,
            env,
            last,
            clock,
            joined,
            join,
        })
    }

    /// Returns the partition's name.
    pub fn name(&self) -> &str {
        self.args.first().map_or("partition", String::as_str)
    }

    /// Mounts the channel of this name. It is joined at the first mount.
    pub fn mount(&mut self, channel: &str, at: &str, how: How) -> Result<()> {
        let n = match self.joined.iter().position(|(name, _)| name == channel) {
            Some(n) => n,
            None => {
                let client = Shared::new((self.join)(channel)?.into());
                self.joined.push((channel.to_string(), client));
                self.joined.len() - 1
            }
        };
        self.space.mount(&self.joined[n].1, "", at, how)
    }

    /// Returns the host's time.
    pub fn clock(&mut self) -> Result<Clock> {
        let mut text = [0; 64];
        let len = self.clock.open()?.read(0, &mut text)?;
        let text = core::str::from_utf8(&text[..len]).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok().map(Duration::from_nanos));
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(since_1970), Some(steady)) => Ok(Clock { since_1970, steady }),
            _ => Err(Error::new(Errno::EPROTO, "the host's clock tells no time")),
        }
    }

    /// Ends the partition with the result of its main: writes buffered output, then the status.
    pub fn end(&mut self, outcome: impl Outcome) -> Result<()> {
        let said = outcome.status();
        // A status of success requires that all output was written.
        let said = self.stdout.flush().map_err(|error| error.to_string()).and(said);
        let status = said.unwrap_or_else(|error| {
            let name = self.name().to_string();
            // If this fails, the status reports the error.
            let _ = writeln!(self.stderr, "{name}: {error}");
            1
        });
        let _ = self.stderr.flush();
        self.last.exit(status)
    }
}

impl<L: Line> Last<L> {
    /// Prints a message and ends with this status, unless the channel is in use. Returns whether that worked.
    pub fn say(&self, words: &str, status: u8) -> bool {
        self.exit.is_idle() && {
            let said = self.stderr.write_all(0, words.as_bytes());
            self.exit(status).and(said).is_ok()
        }
    }

    fn exit(&self, status: u8) -> Result<()> {
        let digits = [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit);
        let zeros = digits[..2].iter().take_while(|digit| **digit == b'0').count();
        self.exit.write_all(0, &digits[zeros..])
    }
}

impl<L: Line> Input<L> {
    /// Reads available input. Returns the number of bytes; 0 at the end.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if self.at == self.come.len() {
            return self.file.open()?.read(0, into);
        }
        let len = into.len().min(self.come.len() - self.at);
        into[..len].copy_from_slice(&self.come[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }

    /// Returns the next line, with its newline if it has one. `None` at the end. `EFBIG`: it is longer than 1 MiB.
    pub fn line(&mut self) -> Result<Option<String>> {
        let mut seen = 0;
        loop {
            let rest = &self.come[self.at..];
            if let Some(end) = rest[seen..].iter().position(|&byte| byte == b'\n') {
                return Ok(self.take(seen + end + 1));
            }
            seen = rest.len();
            if seen > TEXT_LEN_MAX {
                return Err(Errno::EFBIG.into());
            }
            self.come.drain(..self.at);
            self.at = 0;
            self.come.resize(seen + BUFFERED_LEN_MAX, 0);
            let came = self.file.open().and_then(|file| file.read(0, &mut self.come[seen..]));
            self.come.truncate(seen + *came.as_ref().unwrap_or(&0));
            if came? == 0 {
                return Ok(self.take(seen));
            }
        }
    }

    fn take(&mut self, len: usize) -> Option<String> {
        let line = &self.come[self.at..self.at + len];
        self.at += len;
        (len > 0).then(|| String::from_utf8_lossy(line).into_owned())
    }
}

impl<L: Line> Output<L> {
    fn new(file: OwnFile<L>) -> Self {
        Self { file, waits: Vec::new(), failed: None }
    }

    /// Writes bytes: at once up to the last newline; the rest is buffered.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let lines = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let (lines, rest) = bytes.split_at(lines);
        if !lines.is_empty() {
            self.add(lines)?;
            self.flush()?;
        }
        self.add(rest)
    }

    /// Writes buffered output.
    pub fn flush(&mut self) -> Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.waits.is_empty() {
            return Ok(());
        }
        let done = self.file.open().and_then(|file| file.write_all(0, &self.waits));
        self.waits.clear();
        done
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        if self.waits.len() + bytes.len() <= BUFFERED_LEN_MAX {
            self.waits.extend_from_slice(bytes);
            return Ok(());
        }
        self.flush()?;
        let whole = bytes.len() - bytes.len() % BUFFERED_LEN_MAX;
        if whole > 0 {
            self.file.open()?.write_all(0, &bytes[..whole])?;
        }
        self.waits.extend_from_slice(&bytes[whole..]);
        Ok(())
    }
}

impl<L: Line> fmt::Write for Output<L> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write(text.as_bytes()).map_err(|error| {
            self.failed = Some(error);
            fmt::Error
        })
    }
}

impl<L: Line> OwnFile<L> {
    fn open(&mut self) -> Result<&Opened<L>> {
        if let Self::At(place, flags) = self {
            *self = Self::Open(place.open(*flags)?);
        }
        match self {
            Self::Open(file) => Ok(file),
            Self::At(..) => unreachable!("it was opened"),
        }
    }
}

impl Outcome for () {
    fn status(self) -> Result<u8, String> {
        Ok(0)
    }
}

impl Outcome for u8 {
    fn status(self) -> Result<u8, String> {
        Ok(self)
    }
}

impl<T: Outcome, E: Display> Outcome for core::result::Result<T, E> {
    fn status(self) -> Result<u8, String> {
        self.map_err(|error| error.to_string()).and_then(T::status)
    }
}
