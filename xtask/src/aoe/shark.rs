//! Wireshark's check of captured frames.
//!
//! Its dissector reads the header of AoE and the ATA registers, and assigns answers to requests. It does not read the
//! contents of config, mask and reserve. A deliberately corrupt frame must be found, or the check itself fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child::{Child, last_lines};
use crate::netns::{Netns, said};
use crate::packages;
use crate::recorder::pcap;

/// A running capture.
pub struct Shark {
    child: Child,
    file: PathBuf,
}

impl Shark {
    /// Starts to capture AoE frames that match `filter` on an interface into a file. Returns `None` without tshark.
    pub fn start(space: &Netns, interface: &str, filter: &str, file: &Path) -> Result<Option<Self>, String> {
        if packages::program("tshark").is_none() {
            return Ok(None); // reported when the packages were looked up
        }
        let (name, filter) = (file.display().to_string(), format!("ether proto 0x88a2{filter}"));
        // dumpcap is started directly, because it survives a tshark that is killed.
        let words = ["dumpcap", "-q", "-B", "64", "-i", interface, "-f", &filter, "-w", &name];
        let mut child = space.start(&words)?;
        child.wait_for("File: ", LONG).map_err(|why| format!("dumpcap: {why}: {}", child.output()))?;
        Ok(Some(Self { child, file: file.to_path_buf() }))
    }

    /// Ends the capture. Fails if wireshark complains about a frame or has seen fewer than `least`; returns their
    /// number. An answer without a request only fails with `all_asked`, since a repeated request may have two answers.
    pub fn judge(mut self, least: usize, all_asked: bool) -> Result<usize, String> {
        self.child.signal("INT")?;
        self.child.wait(LONG)?;
        let said = self.child.output();
        // Packets received/dropped on interface 'v0': 12/0 (..)
        if !said.lines().any(|line| line.contains("/dropped on ") && line.contains("/0 (")) {
            return Err(format!("not all frames were captured:\n{said}"));
        }
        let seen = said.split("Packets captured: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
        let seen: usize = seen.ok_or_else(|| format!("dumpcap: {said}"))?;
        finds_what_is_spoiled(&self.file.with_extension("spoiled"))?;
        let wrong = against(&self.file, WRONG)?;
        if !wrong.is_empty() {
            return Err(format!("wireshark:\n{}", last_lines(&wrong, 20)));
        }
        let unasked = against(&self.file, UNASKED)?;
        if let Some(first) = unasked.split_whitespace().next() {
            let number = format!("frame.number == {first}");
            let tag = tshark(&self.file, &["-Y", &number, "-T", "fields", "-e", "aoe.tag"])?;
            let of_it = tshark(&self.file, &["-Y", &format!("aoe.tag == {}", tag.trim())])?;
            let [unasked, of_it] = [&unasked, &of_it].map(|lines| last_lines(lines, 20));
            let why = format!(
                "answers that wireshark has no question for:\n{unasked}all of the first tag:\n{of_it}"
            );
            if all_asked {
                return Err(why);
            }
            println!("{why}");
        }
        if seen < least {
            return Err(format!("wireshark was given {seen} frames of AoE, not {least}"));
        }
        Ok(seen)
    }
}

/// Returns a line for each frame that matches `what`.
fn against(file: &Path, what: &str) -> Result<String, String> {
    tshark(file, &["-Y", &format!("eth.type == 0x88a2 && ({what})")])
}

fn tshark(file: &Path, words: &[&str]) -> Result<String, String> {
    let output = said(Command::new("tshark").arg("-r").arg(file).args(words))?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Checks the check: of several frames exactly the corrupt one must be found.
fn finds_what_is_spoiled(file: &Path) -> Result<(), String> {
    type Spoil = fn(&mut Vec<u8>);
    let ways: [(&str, Spoil); 5] = [
        ("cut short", |frame| frame.truncate(28)),
        ("of version 2", |frame| frame[14] = 0x28),
        ("error 9", |frame| frame[14..16].copy_from_slice(&[0x1c, 9])),
        ("command 16", |frame| frame[19] = 16),
        ("an answer to nothing", |frame| frame[23] ^= 0x40),
    ];
    for (way, spoil) in ways {
        let frames = (0..3).flat_map(|n| {
            let [question, mut answer] = [0x10, 0x18].map(|flags| frame(flags, n));
            if n == 1 {
                spoil(&mut answer);
            }
            [question, answer]
        });
        fs::write(file, pcap(ETHERNET, frames)).map_err(|error| format!("{}: {error}", file.display()))?;
        let found = against(file, &format!("{WRONG} || {UNASKED}"))?;
        let numbers: Vec<_> = found.lines().filter_map(|line| line.split_whitespace().next()).collect();
        if numbers != ["4"] {
            return Err(format!("of six frames the fourth is {way}; wireshark's check finds:\n{found}"));
        }
    }
    Ok(())
}

/// Returns a request for a sector of 1.0, or an answer to it.
fn frame(flags: u8, tag: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xa2];
    frame.extend([flags, 0, 0, 1, 0, 0, 0x80, 0, 0, tag]);
    frame.extend([0x40, 0, 1, if flags & 8 == 0 { 0x24 } else { 0x40 }, tag, 0, 0, 0, 0, 0, 0, 0]);
    frame.resize(14 + 22 + 512, 0);
    frame
}

/// Filter for wrong frames. vblade's first broadcast, with version 0 and tag 0, is allowed.
const WRONG: &str = "_ws.malformed || _ws.expert || aoe.cmd > 3 || aoe.error > 6 \
                     || (!aoe.cmd && !(aoe.version == 0 && frame[19:5] == 01:00:00:00:00))";
/// Filter for ATA answers without a request.
const UNASKED: &str = "(aoe.cmd == 0 && aoe.response == 1 && !aoe.response_to)";
const ETHERNET: u32 = 1;
const LONG: Duration = Duration::from_secs(60);
