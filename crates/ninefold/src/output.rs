//! Buffered standard output, and the forms of names, modes, times and JSON on it.
//!
//! Always holds: a failed write is a [`Stdout`] error, so the program ends quietly if its reader is gone. A name takes
//! one line, and none of its characters moves the cursor or reverses text. Bytes that are not UTF-8 are escaped only on
//! a terminal. JSON has every name in full.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use anyhow::Result;
use nine_proto::{Attr, Time, mode};
use nine_text::{is_deceptive, name_line, show_name};
use serde_json::{Map, Value, json};

use crate::fail::Stdout;

/// The buffered standard output.
pub struct Output {
    out: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

impl Output {
    pub fn new() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self { out: BufWriter::with_capacity(64 * 1024, stdout.lock()), terminal }
    }

    /// Returns whether the output goes to a terminal.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Prints text unchanged.
    pub fn print(&mut self, text: impl fmt::Display) -> Result<()> {
        Ok(write!(self.out, "{text}").map_err(Stdout)?)
    }

    /// Prints a name or a path.
    pub fn name(&mut self, name: &[u8]) -> Result<()> {
        match self.terminal {
            true => self.print(show_name(name)),
            false => self.bytes(&name_line(name)),
        }
    }

    /// Prints a JSON value as one line.
    pub fn json(&mut self, value: &Value) -> Result<()> {
        self.print(format_args!("{value}\n"))
    }

    /// Prints lines that came from a server, escaped for a terminal.
    pub fn lines(&mut self, text: &str) -> Result<()> {
        if self.terminal { self.print(calm(text)) } else { self.print(text) }
    }

    /// Writes raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.out.write_all(bytes).map_err(Stdout)?)
    }

    /// Writes out all buffered data.
    pub fn flush(&mut self) -> Result<()> {
        Ok(self.out.flush().map_err(Stdout)?)
    }
}

/// Escapes text that came from elsewhere, for a terminal. Only newlines and tabs still move the cursor.
pub fn calm(text: &str) -> String {
    let mut calm = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => calm.push(c),
            c if is_deceptive(c) => calm.extend(c.escape_default()),
            c => calm.push(c),
        }
    }
    calm
}

/// Formats a mode in the letters of ls(1).
pub fn letters(st_mode: u32) -> String {
    let ty = match st_mode & mode::S_IFMT {
        mode::S_IFDIR => 'd',
        mode::S_IFLNK => 'l',
        mode::S_IFBLK => 'b',
        mode::S_IFCHR => 'c',
        mode::S_IFIFO => 'p',
        mode::S_IFSOCK => 's',
        _ => '-',
    };
    let mut text = String::from(ty);
    for (shift, special, yes, no) in
        [(6, mode::S_ISUID, 's', 'S'), (3, mode::S_ISGID, 's', 'S'), (0, mode::S_ISVTX, 't', 'T')]
    {
        let bits = st_mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, st_mode & special != 0) {
            (true, false) => 'x',
            (false, false) => '-',
            (true, true) => yes,
            (false, true) => no,
        });
    }
    text
}

/// Names the kind of a file.
pub fn kind(st_mode: u32) -> &'static str {
    match st_mode & mode::S_IFMT {
        mode::S_IFDIR => "directory",
        mode::S_IFLNK => "link",
        mode::S_IFBLK => "block device",
        mode::S_IFCHR => "character device",
        mode::S_IFIFO => "pipe",
        mode::S_IFSOCK => "socket",
        _ => "file",
    }
}

/// Formats a time as `2026-11-21 05:48:09Z`.
pub fn date(time: Time) -> String {
    let (days, seconds) = (time.sec.div_euclid(86_400), time.sec.rem_euclid(86_400));
    // Count days from 1 March of year 0, so that the leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Formats a table. Each column is as wide as its widest cell, and no cell can move a terminal's cursor.
pub fn table(rows: &[Vec<String>]) -> String {
    let shown: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| nine_text::show_name(cell.as_bytes()).to_string()).collect())
        .collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |i: usize| shown.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in shown {
        let line: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Returns the attributes of a file as JSON.
pub fn object(name: &[u8], attr: &Attr, target: Option<&[u8]>) -> Value {
    let time = |t: Time| json!(format!("{}.{:09}", t.sec, t.nsec));
    let mut object = Map::new();
    put_text(&mut object, "name", name);
    if let Some(target) = target {
        put_text(&mut object, "target", target);
    }
    for (key, value) in [
        ("type", json!(kind(attr.mode))),
        ("mode", json!(format!("{:04o}", attr.mode & 0o7777))),
        ("size", json!(attr.size)),
        ("links", json!(attr.nlink)),
        ("uid", json!(attr.uid)),
        ("gid", json!(attr.gid)),
        ("mtime", time(attr.mtime)),
        ("atime", time(attr.atime)),
        ("ctime", time(attr.ctime)),
        ("qid", json!({ "path": attr.qid.path, "version": attr.qid.vers, "type": attr.qid.ty })),
    ] {
        object.insert(key.into(), value);
    }
    Value::Object(object)
}

/// Adds a name to a JSON object. If the name is not UTF-8, its bytes are added in hex under `KEY-hex`, too.
pub fn put_text(object: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    if std::str::from_utf8(bytes).is_err() {
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        object.insert(format!("{key}-hex"), json!(hex));
    }
    object.insert(key.into(), json!(String::from_utf8_lossy(bytes)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (sec, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (-1, "1969-12-31 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_735_689_599, "2024-12-31 23:59:59Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(date(Time { sec, nsec: 0 }), text);
        }
    }

    #[test]
    fn modes_are_written_as_ls_does() {
        assert_eq!(letters(0o100_644), "-rw-r--r--");
        assert_eq!(letters(0o041_777), "drwxrwxrwt");
        assert_eq!(letters(0o104_755), "-rwsr-xr-x");
        assert_eq!(letters(0o102_640), "-rw-r-S---");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["A", "B"], ["long\n", "x"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows), "A       B\nlong\\n  x\n");
    }
}
