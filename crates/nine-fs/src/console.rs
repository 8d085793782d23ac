//! An archive's console: files by which its owner sees it and tells it what to do, in words like those of
//! Ken's (fs(8)).
//!
//! ```text
//! ctl      written: a command a line, answered when it is done; read: the commands
//! status   what there is, and what is under way
//! dumps    one a line: name, time, blocks on w, or that it is on its way
//! users    /adm/users as it counts
//! quotas   who uses how much, and may use
//! ```

use std::fmt::Write as _;
use std::sync::Arc;

use nine_io::synth::{Ask, Dir, File};
use nine_proto::{Errno, Error, Names, Result};

use crate::archive::{Archive, State};
use crate::dump::Dumped;
use crate::users::Users;

const HELP: &str = "\
dump [wait]        a dump of all there is now; with `wait` answered when it is on w
sync               all that was changed is durable when this is answered
schedule WORDS     dumps by themselves: 05:00 | 05:00,17:30 | every 2h | off
quota USER BYTES   the most that a user's files may take; 0: any
newuser WORDS      as Ken's: NAME | NAME : | NAME =LEADER | NAME +MEMBER | NAME -MEMBER | NAME NEWNAME
path INODE         in the log: where the inode is
";

impl Archive {
    /// The directory of the console.
    pub fn console(&self) -> Dir {
        let of = |text: fn(&Archive) -> String| {
            let archive = self.clone();
            File::text(move |_| text(&archive)).mode(0o444)
        };
        let archive = self.clone();
        let ctl = File::text(|_| HELP.into()).on_write(move |ask| archive.asked(ask)).mode(0o600);
        Dir::new()
            .file("ctl", ctl)
            .file("status", of(Self::status))
            .file("dumps", of(Self::dumps_text))
            .file("users", of(|archive| archive.state().users.to_string()))
            .file("quotas", of(Self::quotas))
    }

    fn asked(&self, ask: Ask) {
        let archive = self.clone();
        self.begin(async move {
            let result = match ask.lines() {
                Ok(lines) => archive.commands(&lines).await,
                Err(error) => Err(error),
            };
            ask.done(result);
        });
    }

    async fn commands(&self, lines: &[&str]) -> Result<()> {
        for line in lines {
            self.command(line.trim()).await?;
        }
        Ok(())
    }

    /// Does what a line says.
    ///
    /// # Errors
    /// EINVAL with the commands, if it is none; what the command says.
    pub async fn command(&self, line: &str) -> Result<()> {
        let wrong = |why: String| Error::new(Errno::EINVAL, why);
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match (word, rest) {
            ("dump", "") => self.dump().await.map(drop),
            ("dump", "wait") => {
                self.dump().await?;
                self.copied().await
            }
            ("sync", "") => self.sync().await,
            ("schedule", words) if !words.is_empty() => self.schedule(words).map_err(wrong),
            ("quota", words) => match words.split_whitespace().collect::<Vec<_>>()[..] {
                [user, most] => {
                    let most = most.parse().map_err(|_| wrong(format!("`{most}` is no number of bytes")))?;
                    let id = self.state().users.uid(user.as_bytes());
                    let id = id.ok_or_else(|| wrong(format!("there is no user `{user}`")))?;
                    self.state().fs.set_quota(id, most);
                    self.sync().await
                }
                _ => Err(wrong("write: quota USER BYTES".into())),
            },
            ("newuser", words) if !words.is_empty() => self.new_user(words).await,
            ("path", ino) => {
                let ino = ino.parse().map_err(|_| wrong(format!("`{ino}` is no inode")))?;
                let path = self.attempt(|state: &mut State| state.fs.path(state.fs.mem.root, ino)).await?;
                tracing::info!("inode {ino}: {path}");
                Ok(())
            }
            _ => {
                Err(wrong(format!("`{line}` is no command: ctl, when it is read, has those that there are")))
            }
        }
    }

    /// Changes the users, and writes their file.
    async fn new_user(&self, words: &str) -> Result<()> {
        let mut users = Users::clone(&*self.state().users);
        let said = users.newuser(words).map_err(|why| Error::new(Errno::EINVAL, why))?;
        let text = users.to_string();
        let now = self.time();
        let ino = self.attempt(|state: &mut State| state.fs.put_users(&text, now)).await?;
        self.state().is_users_file(ino);
        self.state().users = Arc::new(users);
        self.sync().await?;
        tracing::info!("newuser: {said}");
        Ok(())
    }

    fn dumps_text(&self) -> String {
        let line = |Dumped { name, time, copied, blocks, .. }: Dumped| match copied {
            true => format!("{name} {} {blocks}\n", time.sec),
            false => format!("{name} {} on its way\n", time.sec),
        };
        self.dumps().into_iter().map(line).collect()
    }

    fn quotas(&self) -> String {
        let state = &*self.state();
        let lines = state.fs.usage().map(|(uid, usage)| {
            let most = if usage.most == 0 { "-".into() } else { usage.most.to_string() };
            format!("{} {} {most}\n", state.users.user(uid), usage.bytes)
        });
        lines.collect()
    }

    fn status(&self) -> String {
        let (slots, used) = self.0.cw.slots();
        let worm = self.0.cw.worm_blocks();
        let stats = self.cache_stats();
        let state = &*self.state();
        let block = state.fs.block();
        let mut text = String::new();
        let (name, zone) = (&self.0.label.name, &self.0.zone);
        let _ = writeln!(text, "name {name}\nblock {block} bytes\nzone {zone}");
        let _ = writeln!(text, "cache {used} of {slots} blocks not on w");
        let _ = writeln!(text, "worm {} of {worm} blocks written", state.next_worm);
        let _ = writeln!(text, "files {} blocks, next inode {}", state.fs.blocks, state.fs.next_inode);
        let (open, freed) = state.fs.mem.changed();
        let _ = writeln!(text, "changed {open} blocks, {freed} to be freed, in memory");
        let _ = writeln!(text, "dumps {}, {} on their way", state.dumps.len(), state.waiting.len());
        let _ = writeln!(text, "memory {} blocks, {} hits, {} misses", stats.held, stats.hits, stats.misses);
        if let Some(due) = state.dumper.next_due(self.time().sec) {
            let _ = writeln!(text, "next dump at {due}");
        }
        if let Some(why) = state.dumper.why_not() {
            let _ = writeln!(text, "the copy waits: {why}");
        }
        if let Some(error) = &state.stopped {
            let _ = writeln!(text, "STOPPED: {error}");
        }
        text
    }
}
