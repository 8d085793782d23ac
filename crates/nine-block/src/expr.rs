//! Device expressions: `cp(e565.0)0.3276800{e565.1e545.1}` (grammar: docs/block.md).
//!
//! In: text, and the words that are known. Out: a [`Tree`] with the place of each device in the text, or [`Wrong`],
//! which points at what is wrong. Iterators and brackets around one device are gone from a tree.
//!
//! Always holds: a tree shows itself as text that is parsed to an equal one.

mod absent;
mod buffer;
mod build;
mod parse;

use std::fmt;
use std::sync::Arc;

pub use build::{Built, Driver, How, Making, OpenMirrors, Table};
pub use parse::parse;

/// Bytes of an expression.
pub const TEXT_MOST: usize = 4096;
/// Devices of an expression, those that are made of others among them.
pub const DEVICES_MOST: usize = 256;
/// Devices within devices.
pub const DEPTH_MOST: usize = 32;

/// A device, and what it is made of. Equal are those that say the same, wherever they stand.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The byte of the text at which it begins.
    pub at: usize,
    /// What it is.
    pub what: What,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A letter or a word, and which of its devices.
    Leaf(String, Arg),
    /// Made of others: `(`, `[`, `{`, `bare`, `ro`, `f`, `c`, `j` or `x`.
    Of(&'static str, Vec<Tree>),
    /// A partition, by numbers.
    Part(Box<Tree>, u64, u64),
    /// A partition, by name.
    Named(Box<Tree>, String),
    /// With a cache of so many bytes before it.
    Buffer(u64, Box<Tree>),
}

/// Which of the devices of a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg {
    /// There is but one.
    None,
    /// One to three numbers.
    Numbers(Vec<u64>),
    /// A name, which has neither `"` nor control characters.
    Text(String),
}

impl PartialEq for Tree {
    fn eq(&self, other: &Self) -> bool {
        self.what == other.what
    }
}

impl Eq for Tree {}

/// Letters that stand for a device alone.
const ALONE: [&str; 2] = ["n", "o"];

/// Devices that are made of a fixed number of others.
const PREFIXES: [(&str, usize); 5] = [("ro", 1), ("f", 1), ("x", 1), ("c", 2), ("j", 2)];

/// Devices that are made of a list of others.
const LISTS: [(&str, char, char); 4] =
    [("(", '(', ')'), ("[", '[', ']'), ("{", '{', '}'), ("bare", '{', '}')];

/// What stands for a cache: the word, a number of bytes and a device.
const BUFFER: &str = "buffer";

/// Letters that other devices can follow: no word begins with one.
const OLD: &str = "cfjnopx";

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Leaf(name, arg) => write!(f, "{name}{arg}"),
            What::Of(name, of) => {
                let list = LISTS.iter().find(|(list, ..)| list == name);
                if let Some((name, open, _)) = list {
                    f.write_str(if name.len() > 1 { name } else { "" })?;
                    write!(f, "{open}")?;
                } else {
                    f.write_str(name)?;
                }
                of.iter().try_for_each(|tree| tree.fmt(f))?;
                list.map_or(Ok(()), |(.., close)| write!(f, "{close}"))
            }
            What::Part(of, base, size) => write!(f, "p({of}){base}.{size}"),
            What::Named(of, name) => write!(f, "p({of})\"{name}\""),
            What::Buffer(bytes, of) => write!(f, "{BUFFER} {} {of}", nine_text::show_size(*bytes)),
        }
    }
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Numbers(numbers) => {
                let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
                f.write_str(&words.join("."))
            }
            Self::Text(text) => write!(f, "\"{text}\""),
        }
    }
}

/// What is wrong with an expression, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The expression.
    pub expr: Arc<str>,
    /// The byte that is wrong, or that was expected behind its end.
    pub at: usize,
    /// What.
    pub text: String,
}

impl Wrong {
    /// The character, from 1.
    pub fn column(&self) -> usize {
        self.expr.char_indices().take_while(|(at, _)| *at < self.at).count() + 1
    }
}

/// Characters of an expression that are shown on each side of what is wrong.
const SHOWN: usize = 50;

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = self.column();
        writeln!(f, "column {column}: {}", self.text)?;
        let skip = (column - 1).saturating_sub(SHOWN);
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let line: String = self.expr.chars().skip(skip).take(2 * SHOWN).map(plain).collect();
        writeln!(f, "    {line}")?;
        write!(f, "    {:>width$}", "^", width = column - skip)
    }
}

impl std::error::Error for Wrong {}
