//! Device expressions: `cp(e565.0)0.3276800{e565.1e545.1}` (grammar: docs/block.md).
//!
//! In: text, and the known words. Out: a [`Tree`] with the position of each device in the text, or [`Wrong`], which
//! points at the error. A tree has no iterators, and no brackets around a single device.
//!
//! Always holds: the text form of a tree parses to an equal tree.

mod absent;
mod buffer;
mod build;
mod parse;

use std::fmt;
use std::sync::Arc;

pub use build::{Built, Driver, How, Making, OpenMirrors, Table};
pub use parse::parse;

/// Maximum bytes of an expression.
pub const TEXT_MOST: usize = 4096;
/// Maximum number of devices in an expression, including composite ones.
pub const DEVICES_MOST: usize = 256;
/// Maximum nesting depth of devices.
pub const DEPTH_MOST: usize = 32;

/// A device, and the devices that it is made of. Equality ignores positions.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The byte of the text at which it begins.
    pub at: usize,
    /// Its kind.
    pub what: What,
}

/// The kind of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A letter or a word, and its argument.
    Leaf(String, Arg),
    /// Made of others: `(`, `[`, `{`, `bare`, `ro`, `f`, `c`, `j` or `x`.
    Of(&'static str, Vec<Tree>),
    /// A partition, by numbers.
    Part(Box<Tree>, u64, u64),
    /// A partition, by name.
    Named(Box<Tree>, String),
    /// A device with a cache of this number of bytes.
    Buffer(u64, Box<Tree>),
}

/// The argument of a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg {
    /// None: the letter stands for a single device.
    None,
    /// One to three numbers.
    Numbers(Vec<u64>),
    /// A name without `"` and control characters.
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

/// Prefixes, with the number of devices that follow.
const PREFIXES: [(&str, usize); 5] = [("ro", 1), ("f", 1), ("x", 1), ("c", 2), ("j", 2)];

/// Devices that are made of a list of others.
const LISTS: [(&str, char, char); 4] =
    [("(", '(', ')'), ("[", '[', ']'), ("{", '{', '}'), ("bare", '{', '}')];

/// The word for a cache, followed by a number of bytes and a device.
const BUFFER: &str = "buffer";

/// Letters that can directly precede another device, so no word may begin with one.
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

/// An error in an expression, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The expression.
    pub expr: Arc<str>,
    /// The position in bytes of the error, or the end of the text if something is missing.
    pub at: usize,
    /// The error message.
    pub text: String,
}

impl Wrong {
    /// Returns the column in characters, from 1.
    pub fn column(&self) -> usize {
        self.expr.char_indices().take_while(|(at, _)| *at < self.at).count() + 1
    }
}

/// Characters of an expression that are shown on each side of an error.
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
