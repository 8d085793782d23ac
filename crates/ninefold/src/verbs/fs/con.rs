//! `fs con`: an archive's console, line by line.
//!
//! In: lines of the standard input. Out: what its files say, what its `ctl` answers. What fails is told, and the next
//! line is read.

use std::io::{BufRead, IsTerminal};

use anyhow::Result;
use nine_io::client::File;

use super::{show, tell};
use crate::fail::Tally;
use crate::verbs::{sorted, text};

/// Until `exit`, or the end of the input.
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

/// A file of the console is shown; all else is for its `ctl`.
async fn ask(dir: &File, words: &str) -> Result<()> {
    let files = sorted(dir, None).await?;
    // One that waits would hold up all lines behind it.
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
