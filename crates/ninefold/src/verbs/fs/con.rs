//! `fs con`: an archive's console, line by line.
//!
//! In: lines of the standard input. Out: the content of the console's files, or the answers of its `ctl`. Errors are
//! printed, and the next line is read.

use std::io::{BufRead, IsTerminal};

use anyhow::Result;
use nine_io::client::File;

use super::{show, tell};
use crate::fail::Tally;
use crate::verbs::{sorted, text};

/// Runs until `exit` or EOF.
pub async fn run(dir: &File) -> Result<Tally> {
    let mut tally = Tally::default();
    let (input, is_terminal) = (std::io::stdin(), std::io::stdin().is_terminal());
    let prompt = |text| if is_terminal { show(text) } else { Ok(()) };
    let mut line = Vec::new();
    loop {
        prompt("> ")?;
        line.clear();
        if input.lock().read_until(b'\n', &mut line)? == 0 {
            prompt("\n")?;
            return Ok(tally);
        }
        match String::from_utf8_lossy(&line).trim() {
            "" => {}
            "exit" | "quit" => return Ok(tally),
            words => drop(tally.check(words, ask(dir, words).await)?),
        }
    }
}

/// Shows the console's file of this name; writes all other lines to its `ctl`.
async fn ask(dir: &File, words: &str) -> Result<()> {
    let files = sorted(dir, None).await?;
    // A read of an event file would block all later lines.
    let files = files
        .iter()
        .filter(|file| !file.qid.is_event())
        .map(|file| String::from_utf8_lossy(&file.name).into_owned());
    let files: Vec<String> = files.filter(|name| name != "ctl").collect();
    if words == "help" {
        show(&format!("shown: {}\n{}exit\n", files.join(" "), text(dir, "ctl").await?))
    } else if files.iter().any(|name| name == words) {
        show(&text(dir, words).await?)
    } else {
        tell(dir, words).await?;
        show("ok\n")
    }
}
