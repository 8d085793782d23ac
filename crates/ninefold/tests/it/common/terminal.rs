//! A terminal that the test controls.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Longer than any output takes.
const LIMIT: Duration = Duration::from_mins(1);

/// A terminal.
pub struct Terminal {
    pub user: File,
    screen: OwnedFd,
    seen: String,
}

impl Terminal {
    pub fn new() -> Self {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let screen = rustix::fs::open(ptsname(&user, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
        Self { user: File::from(user), screen, seen: String::new() }
    }

    /// Sets the size.
    pub fn resize(&self, columns: u16, lines: u16) {
        let size = Winsize { ws_col: columns, ws_row: lines, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.user, size).unwrap();
    }

    /// Connects a command's input and output to the terminal.
    pub fn gives<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let screen = || Stdio::from(self.screen.try_clone().unwrap());
        command.stdin(screen()).stdout(screen()).stderr(screen())
    }

    /// Waits until this text is on the screen. Returns everything before it.
    pub fn shows(&mut self, words: &str) -> String {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "{words:?} after {}", self.seen);
            if let Some(at) = self.seen.find(words) {
                let rest = self.seen.split_off(at + words.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let mut due = [PollFd::new(&self.user, PollFlags::IN)];
            let limit = rustix::time::Timespec::try_from(LIMIT).unwrap();
            assert_eq!(poll(&mut due, Some(&limit)).unwrap(), 1, "{words:?} after {}", self.seen);
            let mut bytes = [0; 1000];
            let n = self.user.read(&mut bytes).unwrap();
            self.seen += &String::from_utf8_lossy(&bytes[..n]);
        }
    }

    pub fn types(&mut self, keys: &str) {
        self.user.write_all(keys.as_bytes()).unwrap();
    }
}
