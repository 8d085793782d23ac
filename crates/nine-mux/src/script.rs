//! The name space file: lines that mount, bind and listen (namespace(6), with servers and listeners added).
//!
//! In: text, and a [`World`] that supplies included files and environment variables. Out: a [`Script`] of lines with
//! their positions, and all errors, not only the first. The parser executes nothing. It does not check SERVER words and
//! addresses: the program that executes a line reports their errors ([`Line::wrong`]).
//!
//! Always holds: a file that includes itself, directly or not, is an error. Exceeding a limit below is an error, too. A
//! [`Statement`] is displayed as a line that parses to the same statement.

mod words;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nine_io::near;
use words::{ScriptWord, WordKind, words};

use crate::keep::Wait;
use crate::space::{Flags, Order};

pub use words::quote;

/// The external data that a script may use while it is parsed.
pub trait World {
    /// Returns the text of the file `name`, resolved relative to the file `from`, and its name for messages.
    fn include(&mut self, name: &str, from: &str) -> io::Result<(Arc<str>, String)>;

    /// Returns the value of a variable that the script does not set itself.
    fn variable(&self, name: &str) -> Option<String>;
}

/// An empty world, for a single line.
pub struct Alone;

impl World for Alone {
    fn include(&mut self, _: &str, _: &str) -> io::Result<(Arc<str>, String)> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "only a file includes others"))
    }

    fn variable(&self, _: &str) -> Option<String> {
        None
    }
}

/// The result of parsing a script.
#[derive(Debug, Default)]
pub struct Script {
    /// The valid lines in order, including those of included files.
    pub lines: Vec<Line>,
    /// The errors in order. Empty if the script is correct.
    pub wrong: Vec<Wrong>,
}

/// A statement and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The position.
    pub at: At,
    /// The name space that it applies to.
    pub space: Arc<str>,
    /// The line as it was written.
    pub text: Arc<str>,
    /// The parsed statement.
    pub statement: Statement,
}

/// A position in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The file's name in messages.
    pub file: Arc<str>,
    /// The line number, from 1.
    pub line: u32,
}

/// The meaning of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// `mount [-abcdrP] [-t SECONDS] [-n N] [-u USER] SERVER OLD [ANAME]`
    Mount(Mount),
    /// `bind [-abcd] NEW OLD`
    Bind {
        /// Order and options.
        flags: Flags,
        /// The path of the file to bind.
        new: String,
        /// The mount point.
        old: String,
    },
    /// `unmount [NEW] OLD`
    Unmount {
        /// The mounted or bound file to remove. `None` removes everything.
        new: Option<String>,
        /// The mount point.
        old: String,
    },
    /// `listen ADDR [-insecure] [-poll|-interrupt|-adaptive]`
    Listen {
        /// The address to listen on.
        addr: String,
        /// Whether any client that reaches the address is trusted.
        insecure: bool,
        /// The wait mode of its channels, without the hyphen.
        waits: Option<String>,
    },
    /// `listen http!HOST!PORT [-insecure] [...]`: serves browsers.
    Web {
        /// The address and its options, separated by blanks.
        listener: String,
    },
    /// `listen cec!IFACE -password FILE [...]`: serves a console on an Ethernet.
    Console {
        /// The interface and its options, separated by blanks.
        listener: String,
    },
    /// `space NAME [USER...]`: the lines after it apply to this name space.
    Space {
        /// Its users. If there are none, any user may attach to it by its name.
        users: Vec<String>,
    },
    /// `nomux`: do not serve /mux.
    NoMux,
    /// `nolisten`: listen only on the `listen` lines, without the owner's socket.
    NoListen,
    /// `hangup SERVER`: closes its connections.
    Hangup {
        /// The server's address.
        server: String,
    },
    /// `push SERVER MODULE [ARGUMENTS]`: pushes a module on the server's connections, or in a file, on those that a
    /// listener accepts.
    Push {
        /// The address of the server or listener.
        server: String,
        /// `NAME ARGUMENTS`.
        module: String,
    },
    /// `pop SERVER`: pops the module that was pushed last.
    Pop {
        /// The server's address.
        server: String,
    },
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Order and options.
    pub flags: Flags,
    /// Maximum number of connections.
    pub lanes: u16,
    /// Whether its files are read ahead.
    pub ahead: bool,
    /// How long requests wait while the server is away. Its files are then restored after a reconnection.
    pub wait: Option<Wait>,
    /// The user to attach with. `None` leaves it to the program that runs the mux.
    pub user: Option<User>,
    /// One word: an address or `kind:argument`.
    pub server: String,
    /// SERVER as it was written. `server` differs if this is a path relative to the file.
    pub word: String,
    /// The mount point.
    pub old: String,
    /// The tree of the server.
    pub aname: String,
}

/// The user with which a server is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// `.`: each client as itself.
    Client,
    /// All clients as this user.
    Name(String),
}

/// An error in a script, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The position.
    pub at: At,
    /// The column of the word that caused the error, in characters from 1. If there is none, the column of the first
    /// word.
    pub column: u32,
    /// The error, and the expected input.
    pub what: String,
}

impl Line {
    /// Creates an error for this line, found after parsing.
    pub fn wrong(&self, what: impl Into<String>) -> Wrong {
        Wrong::new(self.at.clone(), &self.text, what.into())
    }
}

impl Wrong {
    fn new(at: At, line: &str, what: String) -> Self {
        let column = about(line, &what).unwrap_or(line.len() - line.trim_start().len());
        let column = line[..column].chars().count() + 1;
        Self { at, column: u32::try_from(column).unwrap_or(u32::MAX), what }
    }
}

/// Returns the byte offset of the word that a message is about. It is the first word of the line that the message has
/// in backquotes or before its first colon. Whole words are preferred to parts.
fn about(line: &str, what: &str) -> Option<usize> {
    let quoted = what.split('`').skip(1).step_by(2).map(|word| word.split(' ').next().unwrap_or(word));
    let named: Vec<&str> = quoted.chain(what.split_once(": ").map(|(word, _)| word)).collect();
    let is_edge = |c: Option<char>| c.is_none_or(|c| c.is_whitespace() || c == '\'');
    let whole = |word: &&str| {
        line.match_indices(*word).map(|(at, _)| at).find(|&at| {
            is_edge(line[..at].chars().next_back()) && is_edge(line[at + word.len()..].chars().next())
        })
    };
    let named = || named.iter().copied().filter(|word| !word.is_empty());
    named().find_map(|word| whole(&word)).or_else(|| named().find_map(|word| line.find(word)))
}

/// Parses a script. `file` is its name in messages.
pub fn parse(file: &str, text: &str, world: &mut dyn World) -> Script {
    let mut parser = ScriptParser {
        world,
        open: Vec::new(),
        included: 0,
        set: Vec::new(),
        space: crate::MAIN.into(),
        out: Script::default(),
    };
    parser.file(file.into(), text);
    parser.out
}

struct ScriptParser<'w> {
    world: &'w mut dyn World,
    /// The files that are being parsed, the outermost first.
    open: Vec<Arc<str>>,
    /// Number of files that were included.
    included: usize,
    set: Vec<(String, String)>,
    space: Arc<str>,
    out: Script,
}

impl ScriptParser<'_> {
    fn file(&mut self, file: Arc<str>, text: &str) {
        self.open.push(file.clone());
        for (n, line) in (1..).zip(text.lines()) {
            let at = At { file: file.clone(), line: n };
            if self.out.lines.len() >= LINES_MAX {
                self.wrong(at, "", format!("too long; a name space has at most {LINES_MAX} lines"));
                break;
            }
            if let Err(what) = self.line(&at, line) {
                self.wrong(at, line, what);
            }
            if self.out.wrong.len() >= WRONG_MAX {
                break;
            }
        }
        self.open.pop();
    }

    fn line(&mut self, at: &At, line: &str) -> Result<(), String> {
        let (set, world) = (&self.set, &*self.world);
        let variable = |name: &str| {
            let own = set.iter().rev().find(|(of, _)| of == name);
            own.map(|(_, value)| value.clone()).or_else(|| world.variable(name))
        };
        let words = words(line, &variable)?;
        let Some((first, rest)) = words.split_first() else { return Ok(()) };
        if let WordKind::Assignment(name) = &first.sort {
            if let Some(more) = rest.first() {
                return Err(format!("`{}` after a value; a value is one word: NAME='two words'", more.text));
            }
            self.set.retain(|(of, _)| of != name);
            self.set.push((name.clone(), first.text.clone()));
            return Ok(());
        }
        if first.text == "." {
            let [file] = rest else { return Err("`.` takes one word; write `. FILE`".into()) };
            return self.include(at, &file.text);
        }
        let statement = statement(&first.text, rest, &mut self.space)?;
        let (at, space) = (at.clone(), self.space.clone());
        self.out.lines.push(Line { at, space, text: line.into(), statement });
        Ok(())
    }

    fn include(&mut self, at: &At, name: &str) -> Result<(), String> {
        if self.open.len() >= DEPTH_MAX {
            return Err(format!(
                "`. {name}` goes too deep; files include each other at most {DEPTH_MAX} deep"
            ));
        }
        self.included += 1;
        if self.included > FILES_MAX {
            return Err(format!("`. {name}` is one file too many; {FILES_MAX} may be included in all"));
        }
        let (file, text) = self.world.include(name, &at.file).map_err(|e| format!("`. {name}`: {e}"))?;
        if self.open.contains(&file) {
            return Err(format!("`. {name}` leads round in a circle; {file} is being read already"));
        }
        self.file(file, &text);
        Ok(())
    }

    fn wrong(&mut self, at: At, line: &str, what: String) {
        if self.out.wrong.len() < WRONG_MAX {
            self.out.wrong.push(Wrong::new(at, line, what));
        }
    }
}

/// Joins a listener's words with blanks, the address first.
fn address_first(words: &[ScriptWord], is_address: impl Fn(&ScriptWord) -> bool) -> String {
    let (mut listener, rest): (Vec<_>, Vec<_>) = words.iter().partition(|word| is_address(word));
    listener.extend(rest);
    let words: Vec<&str> = listener.iter().map(|word| &*word.text).collect();
    words.join(" ")
}

fn statement(verb: &str, words: &[ScriptWord], space: &mut Arc<str>) -> Result<Statement, String> {
    match verb {
        "mount" => {
            let (options, rest) = StatementOptions::parse("mount", words)?;
            let (server, old, aname) = match rest {
                [server, old] => (server, old, ""),
                [server, old, aname] => (server, old, &*aname.text),
                _ => return Err(format!("`mount` with {}; {MOUNT}", count(rest))),
            };
            let StatementOptions { flags, lanes, wait, ahead, user } = options;
            let (server, old, aname) = (filled("SERVER", server)?, path("OLD", old)?, aname.into());
            let word = server.clone();
            Ok(Statement::Mount(Mount { flags, lanes, wait, ahead, user, server, word, old, aname }))
        }
        "bind" => {
            let (StatementOptions { flags, .. }, rest) = StatementOptions::parse("bind", words)?;
            let [new, old] = rest else { return Err(format!("`bind` with {}; {BIND}", count(rest))) };
            Ok(Statement::Bind { flags, new: path("NEW", new)?, old: path("OLD", old)? })
        }
        "unmount" => match words {
            [old] => Ok(Statement::Unmount { new: None, old: path("OLD", old)? }),
            [new, old] => Ok(Statement::Unmount { new: Some(filled("NEW", new)?), old: path("OLD", old)? }),
            _ => Err(format!("`unmount` with {}; write: unmount [NEW] OLD", count(words))),
        },
        "listen" if words.iter().any(ScriptWord::is_web) => {
            Ok(Statement::Web { listener: address_first(words, ScriptWord::is_web) })
        }
        "listen" if words.iter().any(ScriptWord::is_console) => {
            Ok(Statement::Console { listener: address_first(words, ScriptWord::is_console) })
        }
        "listen" => {
            let (flags, addrs): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.is_flag());
            let (mut insecure, mut waits) = (false, None);
            for flag in flags {
                match flag.text.as_str() {
                    "-insecure" => insecure = true,
                    "-poll" | "-interrupt" | "-adaptive" if waits.is_none() => {
                        waits = Some(flag.text[1..].into())
                    }
                    text => {
                        let hint = near::hint(text, ["-insecure", "-poll", "-interrupt", "-adaptive"]);
                        return Err(format!("`{text}` is not known; write: {LISTEN}{hint}"));
                    }
                }
            }
            let [addr] = *addrs else {
                return Err(format!("`listen` with {}; write: {LISTEN}", count(&addrs)));
            };
            Ok(Statement::Listen { addr: filled("ADDR", addr)?, insecure, waits })
        }
        "space" => {
            let Some((name, users)) = words.split_first() else {
                return Err("`space` without a name; write: space NAME [USER...]".into());
            };
            let name = filled("NAME", name)?;
            if name.contains('/') || name.starts_with("token:") {
                return Err(format!("`{name}` is no name for a name space; it has no `/` and no `token:`"));
            }
            *space = name.into();
            Ok(Statement::Space { users: users.iter().map(|user| user.text.clone()).collect() })
        }
        "nomux" if words.is_empty() => Ok(Statement::NoMux),
        "nolisten" if words.is_empty() => Ok(Statement::NoListen),
        "nomux" | "nolisten" => Err(format!("`{verb}` stands alone")),
        "hangup" => {
            let [server] = words else {
                return Err(format!("`hangup` with {}; write: hangup SERVER", count(words)));
            };
            Ok(Statement::Hangup { server: filled("SERVER", server)? })
        }
        "push" => {
            let [server, module @ ..] = words else {
                return Err(format!("`push` with {}; {PUSH}", count(words)));
            };
            if module.is_empty() {
                return Err(format!("`push` without a module; {PUSH}"));
            }
            let module: Vec<&str> = module.iter().map(|word| &*word.text).collect();
            Ok(Statement::Push { server: filled("SERVER", server)?, module: module.join(" ") })
        }
        "pop" => {
            let [server] = words else {
                return Err(format!("`pop` with {}; write: pop SERVER", count(words)));
            };
            Ok(Statement::Pop { server: filled("SERVER", server)? })
        }
        other => {
            let known = VERBS.split(", ").chain(["hangup", "pop"]);
            Err(format!("`{other}` is not known; a line begins with {VERBS}{}", near::hint(other, known)))
        }
    }
}

/// The options between the verb and the operands.
struct StatementOptions {
    flags: Flags,
    lanes: u16,
    wait: Option<Wait>,
    ahead: bool,
    user: Option<User>,
}

impl StatementOptions {
    fn parse<'w>(verb: &str, words: &'w [ScriptWord]) -> Result<(Self, &'w [ScriptWord]), String> {
        let mounts = verb == "mount";
        let mut options = Self { flags: Flags::REPLACE, lanes: 1, wait: None, ahead: false, user: None };
        let mut limit = None;
        let mut rest = words;
        while let Some((word, after)) = rest.split_first().filter(|(word, _)| word.is_flag()) {
            rest = after;
            let letters = &word.text[1..];
            for (i, letter) in letters.char_indices() {
                let mut value = |what: &str| match rest.split_first() {
                    _ if i + letter.len_utf8() < letters.len() => {
                        Err(format!("`{}`: {what} is due after -{letter}, as a word of its own", word.text))
                    }
                    Some((value, after)) => {
                        rest = after;
                        Ok(&*value.text)
                    }
                    None => Err(format!("`{}` is the last word; {what} is due after it", word.text)),
                };
                match letter {
                    'a' | 'b' => {
                        let order = if letter == 'a' { Order::After } else { Order::Before };
                        if !matches!(options.flags.order, Order::Replace) && options.flags.order != order {
                            return Err("-a and -b; only one of them may stand".into());
                        }
                        options.flags.order = order;
                    }
                    'c' => options.flags.create = true,
                    'd' => options.flags.duplicates = true,
                    'n' if mounts => {
                        let text = value("a number of connections")?;
                        let lanes = text.parse().ok().filter(|n| (1..=LANES_MAX).contains(n));
                        options.lanes = lanes.ok_or_else(|| {
                            format!("`-n {text}`; a number of connections from 1 to {LANES_MAX} is due")
                        })?;
                    }
                    'u' if mounts => {
                        options.user = Some(match value("a user, or `.` for each client,")? {
                            "." => User::Client,
                            name => User::Name(name.into()),
                        });
                    }
                    'r' if mounts => options.wait = Some(Wait::Ever),
                    'P' if mounts => options.ahead = true,
                    't' if mounts => {
                        let text = value("a number of seconds")?;
                        let seconds = text.parse().ok().filter(|n| *n <= SECONDS_MAX);
                        let seconds = seconds.ok_or_else(|| {
                            format!("`-t {text}`; a number of seconds from 0 to {SECONDS_MAX} is due")
                        })?;
                        limit = Some(Wait::AtMost(Duration::from_secs(seconds)));
                    }
                    'C' if mounts => return Err("-C (caching) is not there yet; mount without it".into()),
                    _ => {
                        let usage = if mounts { MOUNT } else { BIND };
                        return Err(format!("`-{letter}` is not known to {verb}; {usage}"));
                    }
                }
            }
        }
        match (options.wait, limit) {
            (None, Some(_)) => return Err("-t says how long requests wait; it stands with -r".into()),
            (wait, limit) => options.wait = limit.or(wait),
        }
        Ok((options, rest))
    }
}

fn count(words: &[impl Sized]) -> String {
    match words.len() {
        0 => "no word".into(),
        1 => "one word".into(),
        n => format!("{n} words"),
    }
}

fn filled(what: &str, word: &ScriptWord) -> Result<String, String> {
    if word.text.is_empty() { Err(format!("{what} is empty")) } else { Ok(word.text.clone()) }
}

fn path(what: &str, word: &ScriptWord) -> Result<String, String> {
    let text = &word.text;
    if !text.starts_with('/') {
        return Err(format!("{what} is `{text}`; a path that begins with `/` is due"));
    }
    if what == "OLD" && text.split('/').any(|name| name == "..") {
        return Err(format!("`{text}` has a `..` in it; a mount point is named without"));
    }
    Ok(text.clone())
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.at, self.column, self.what)
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.statement {
            Statement::Space { users } => {
                write!(f, "space {}", quote(&self.space))?;
                users.iter().try_for_each(|user| write!(f, " {}", quote(user)))
            }
            other => other.fmt(f),
        }
    }
}

impl fmt::Display for Statement {
    /// Formats the statement. `space` is shown with its users only: the name is in its [`Line`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(Mount { flags, lanes, wait, ahead, user, server, old, aname, word: _ }) => {
                write!(f, "mount{flags}")?;
                match wait {
                    None => {}
                    Some(Wait::Ever) => f.write_str(" -r")?,
                    Some(Wait::AtMost(limit)) => write!(f, " -r -t {}", limit.as_secs())?,
                }
                if *ahead {
                    f.write_str(" -P")?;
                }
                if *lanes != 1 {
                    write!(f, " -n {lanes}")?;
                }
                match user {
                    None => {}
                    Some(User::Client) => f.write_str(" -u .")?,
                    Some(User::Name(name)) => write!(f, " -u {}", quote(name))?,
                }
                write!(f, " {} {}", quote(server), quote(old))?;
                if aname.is_empty() { Ok(()) } else { write!(f, " {}", quote(aname)) }
            }
            Self::Bind { flags, new, old } => write!(f, "bind{flags} {} {}", quote(new), quote(old)),
            Self::Unmount { new: Some(new), old } => write!(f, "unmount {} {}", quote(new), quote(old)),
            Self::Unmount { new: None, old } => write!(f, "unmount {}", quote(old)),
            Self::Listen { addr, insecure, waits } => {
                write!(f, "listen {}{}", quote(addr), if *insecure { " -insecure" } else { "" })?;
                waits.iter().try_for_each(|waits| write!(f, " -{waits}"))
            }
            Self::Web { listener } | Self::Console { listener } => write!(f, "listen {listener}"),
            Self::Space { users } => {
                f.write_str("space")?;
                users.iter().try_for_each(|user| write!(f, " {}", quote(user)))
            }
            Self::NoMux => f.write_str("nomux"),
            Self::NoListen => f.write_str("nolisten"),
            Self::Hangup { server } => write!(f, "hangup {}", quote(server)),
            Self::Push { server, module } => {
                write!(f, "push {}", quote(server))?;
                module.split(' ').try_for_each(|word| write!(f, " {}", quote(word)))
            }
            Self::Pop { server } => write!(f, "pop {}", quote(server)),
        }
    }
}

impl fmt::Display for Flags {
    /// Formats the flags as options after the verb: ` -ac`, or nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            Order::Replace => "",
            Order::Before => "b",
            Order::After => "a",
        };
        let (create, duplicates) =
            (if self.create { "c" } else { "" }, if self.duplicates { "d" } else { "" });
        let letters = [order, create, duplicates].concat();
        if letters.is_empty() { Ok(()) } else { write!(f, " -{letters}") }
    }
}

const VERBS: &str = "mount, bind, unmount, listen, push, space, nomux, nolisten, `.` or NAME=";
const MOUNT: &str = "write: mount [-abcdrP] [-t SECONDS] [-n N] [-u USER] SERVER OLD [ANAME]";
const BIND: &str = "write: bind [-abcd] NEW OLD";
const LISTEN: &str = "listen ADDR [-insecure] [-poll|-interrupt|-adaptive]";
const PUSH: &str = "write: push SERVER MODULE [ARGUMENTS]";

/// Maximum number of statements in a script, including those of included files.
pub const LINES_MAX: usize = 10_000;
/// Maximum number of reported errors. There may be more.
pub const WRONG_MAX: usize = 20;
/// Maximum depth of includes.
pub const DEPTH_MAX: usize = 16;
/// Maximum number of includes. A file counts each time.
pub const FILES_MAX: usize = 1000;
/// Maximum number of connections of one mount.
pub const LANES_MAX: u16 = 64;
/// Maximum time that a request may wait, in seconds: a day.
pub const SECONDS_MAX: u64 = 86_400;

#[cfg(test)]
mod tests;
