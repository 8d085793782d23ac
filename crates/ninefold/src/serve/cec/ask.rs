//! The meaning of a line at a console: the name of a file to show, or a command for `ctl`.
//!
//! In: lines. Out: their answers. All files and commands of a console are available, without any list here. This module
//! assumes only that `ctl` takes lines, and lists its commands when read.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use nine_io::client::{self, Client, Error, File};
use nine_io::server::{Anonymous, Core, Gate, Service};
use nine_net::cec::ANSWER_MAX;
use nine_net::{Peer, Proof, rt};
use nine_proto::{Dialect, NOUID, OpenFlags};

use crate::archive::Archives;

/// The archive selected in a conversation, if any.
pub type Memory = Rc<RefCell<Option<String>>>;

/// Answers the lines of all conversations.
pub struct Asks {
    /// The root, with a directory for each open archive.
    all: File,
}

impl Asks {
    pub async fn new(env: rt::Real, archives: &Arc<Archives>) -> Result<Self> {
        // Clients of the console have given the password already.
        let tree = archives.tree(env).owned_by(|_, _| true);
        let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
        let service = Service { own: true, ..Service::new(Arc::new(tree), gate, Core::default()) };
        let peer = Peer { addr: "cec".into(), proof: Proof::None };
        // 9P2000.L cannot carry the text of an error.
        let options = client::Options { dialects: vec![Dialect::U], ..client::Options::default() };
        let client = Client::within(&env, &service, peer, options).await?;
        Ok(Self { all: client.attach("none", NOUID, "").await? })
    }

    /// Returns the answer to a line, or `None` if the line ends the conversation.
    pub async fn ask(&self, line: &str, memory: &Memory) -> Option<String> {
        if matches!(line, "exit" | "quit") {
            return None;
        }
        Some(self.answer(line, memory).await.unwrap_or_else(|why| why))
    }

    async fn answer(&self, line: &str, memory: &Memory) -> Result<String, String> {
        let names = names(&self.all).await.map_err(said)?;
        let chosen = memory.borrow().clone().filter(|name| names.contains(name));
        let meant = chosen.as_ref().or(if let [one] = &*names { Some(one) } else { None });
        match line.split_once(char::is_whitespace).map_or((line, ""), |(word, rest)| (word, rest.trim())) {
            ("archives", "") if names.is_empty() => return Ok(NONE.into()),
            ("archives", "") => {
                let line =
                    |name: &String| format!("{} {name}\n", if Some(name) == meant { '*' } else { ' ' });
                return Ok(names.iter().map(line).collect());
            }
            ("use", name) if names.iter().any(|of| of == name) => {
                *memory.borrow_mut() = Some(name.into());
                return Ok(String::new());
            }
            ("use", name) => return Err(format!("there is no archive `{name}`; {}", known(&names))),
            _ => {}
        }
        let Some(name) = meant else {
            let help = if line == "help" { HELP } else { "" };
            return Err(format!("{help}{}", known(&names)));
        };
        let dir = self.all.walk(name.as_str()).await.map_err(said)?;
        let files = self::names(&dir).await.map_err(said)?;
        match line {
            "help" => {
                let files: Vec<String> = files.into_iter().filter(|file| file != CTL).collect();
                let commands = text(&dir, CTL).await.map_err(said)?;
                Ok(format!("{HELP}{} are shown by their names\n{commands}", files.join(", ")))
            }
            file if file != CTL && files.iter().any(|of| of == file) => text(&dir, file).await.map_err(said),
            command => {
                let ctl = dir.open(CTL, OpenFlags::WRITE).await.map_err(said)?;
                ctl.write(0, command.as_bytes()).await.map_err(said)?;
                Ok("ok".into())
            }
        }
    }
}

fn known(names: &[String]) -> String {
    match names {
        [] => NONE.into(),
        names => format!("say which: use {}", names.join(", use ")),
    }
}

fn said(error: Error) -> String {
    error.to_string()
}

async fn names(dir: &File) -> client::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut reading = dir.read_dir().await?;
    while let Some(entry) = reading.next().await {
        let entry = entry?;
        // A read of an event file may never return.
        if !entry.qid.is_event() {
            names.push(String::from_utf8_lossy(&entry.name).into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads the text of a file, a little more than fits in an answer.
async fn text(dir: &File, name: &str) -> client::Result<String> {
    let file = dir.open(name, OpenFlags::READ).await?;
    let (mut text, mut piece) = (Vec::new(), [0; 8192]);
    while text.len() <= ANSWER_MAX {
        match file.read_at(text.len() as u64, &mut piece).await? {
            0 => break,
            n => text.extend(&piece[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

const CTL: &str = "ctl";
const NONE: &str = "no archive is open here; a name space needs a line like `mount fs: /archive`";
const HELP: &str = "\
archives           those that are open; * before the one that is meant
use NAME           which one is meant
exit               the end; so are quit and ^D
";
