//! The console of an archive: files by which its owner observes and controls it, with commands like those of Ken's
//! fs(8).
//!
//! ```text
//! ctl      written: a command a line, answered when it is done; read: the commands
//! status   what there is, and what is under way
//! stats    all that is counted
//! hurt     one a line: when, which file cannot be read, of which dump, why; since the last scrub
//! dumps    one a line: name, time, blocks on w, or that it is on its way
//! log      what it has told: seconds since 1970 and a line, the newest 64 KiB
//! news     the same, from the open on: a reader waits for more
//! cache    the cache device and what it is made of
//! worm     the same of the worm
//! users    /adm/users as it counts
//! quotas   who uses how much, and may use
//! ```

use std::fmt::Write as _;
use std::sync::Arc;

use nine_io::synth::{Ask, Dir, File};
use nine_proto::{Errno, Error, Names, Result};

use crate::archive::{Archive, ArchiveState};
use crate::check::Depth;
use crate::dump::Dumped;
use crate::forecast::{at_this_rate, bytes, days_left, percent};
use crate::users::UserTable;

const HELP: &str = "\
dump [wait]        a dump of all there is now; with `wait` answered when it is on w
sync               all that was changed is durable when this is answered
dumpctl on|off     whether dumps are made by themselves
attach on|off      whether anybody new comes in; who is in stays
schedule WORDS     dumps by themselves: 05:00 | 05:00,17:30 | every 2h | every 7d | off
quota USER BYTES   the most that a user's files may take; 0: any
newuser WORDS      as Ken's: NAME | NAME : | NAME =LEADER | NAME +MEMBER | NAME -MEMBER | NAME NEWNAME
verify DUMP        all of a dump (2026/1121) is read; answered when it is, with an error if something is wrong
scrub [wait]       everything is read, and healed from mirrors; beside all else. `wait`: answered at its end
scrub stop         what reads ends; the next scrub goes on where this one was
scrub schedule WORDS  by itself, at 2:00: every 30d | off
check [HOW]        whether all is as it must be, beside all else: names, links, rows and slots. HOW: `quick`, the
                   names alone; `blocks`, content too; `dumps`, of all dumps; and `wait`, answered at its end
check stop         it ends
grow [DEVICE]      what the worm's device has become larger by is used; another one is put behind it
cache WORDS        for the cache device: `return 1`, `scrub`; its words and state: the file `cache`
worm WORDS         the same for the worm
takeover [WORDS]   this machine becomes the main one of several; `main-is-dead`: also where the arbiter is not there
handover           another may become the main one: all is in its place, and this one follows
path INODE         in the log: where the inode is
";

impl Archive {
    /// Returns the directory of the console.
    pub fn console(&self) -> Dir {
        let of = |text: fn(&Archive) -> String| {
            let archive = self.clone();
            File::text(move |_| text(&archive)).mode(0o444)
        };
        let archive = self.clone();
        let ctl = File::text(|_| HELP.into()).on_write(move |ask| archive.asked(ask)).mode(0o600);
        let log = self.log();
        let news = File::opened(move |_, _| Ok(Box::new(log.news()))).mode(0o444).event();
        Dir::new()
            .file("ctl", ctl)
            .file("status", of(Self::status))
            .file("dumps", of(Self::dumps_text))
            .file("stats", of(Self::stats))
            .file("hurt", of(Self::hurt_text))
            .file("log", of(|archive| archive.log().text()))
            .file("news", news)
            .file("cache", of(|archive| archive.0.cw.devices().0.status()))
            .file("worm", of(|archive| archive.0.cw.devices().1.status()))
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

    /// Runs a command.
    ///
    /// # Errors
    /// EINVAL with the list of commands, if there is no such command; the error of the command.
    pub async fn command(&self, line: &str) -> Result<()> {
        let wrong = |why: String| Error::new(Errno::EINVAL, why);
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        if self.state().follows.is_some()
            && !matches!(
                word,
                "verify" | "scrub" | "check" | "path" | "grow" | "worm" | "takeover" | "handover"
            )
        {
            return Err(Error::new(Errno::EROFS, "it follows the worm of another server: tell that one"));
        }
        match (word, rest) {
            ("dump", "") => self.dump().await.map(drop),
            ("dump", "wait") => {
                self.dump().await?;
                self.copied().await
            }
            ("sync", "") => self.sync().await,
            ("dumpctl", "on" | "off") => {
                self.state().dumper.is_off = rest == "off";
                Ok(())
            }
            ("attach", "on" | "off") => {
                self.state().closed_to_new = rest == "off";
                Ok(())
            }
            ("schedule", words) if !words.is_empty() => self.schedule(words).map_err(wrong),
            ("quota", words) => match words.split_whitespace().collect::<Vec<_>>()[..] {
                [user, most] => {
                    let most = nine_text::parse_size(most).map_err(|error| wrong(error.to_string()))?;
                    let id = self.state().users.uid(user.as_bytes());
                    let id = id.ok_or_else(|| wrong(format!("there is no user `{user}`")))?;
                    self.state().fs.set_quota(id, most);
                    self.sync().await
                }
                _ => Err(wrong("write: quota USER BYTES".into())),
            },
            ("newuser", words) if !words.is_empty() => self.new_user(words).await,
            ("verify", name) if !name.is_empty() => self.verify(name).await,
            ("scrub", "wait") => self.scrub().await,
            ("scrub" | "check", "stop") => {
                self.state().scrubber.stop();
                Ok(())
            }
            ("scrub", words) if words.starts_with("schedule ") => {
                self.schedule_scrub(words.trim_start_matches("schedule ")).map_err(wrong)
            }
            ("scrub", "") => {
                let archive = self.clone();
                // Its result is in the log and in `status`.
                self.begin(async move { drop(archive.scrub().await) });
                Ok(())
            }
            ("check", words) => {
                let words: Vec<&str> = words.split_whitespace().collect();
                let depth = match words.iter().copied().filter(|word| *word != "wait").collect::<Vec<_>>()[..]
                {
                    [] => Depth::Names,
                    ["quick"] => Depth::Quick,
                    ["blocks"] => Depth::Blocks,
                    ["dumps"] | ["blocks", "dumps"] | ["dumps", "blocks"] => Depth::Dumps,
                    _ => return Err(wrong("write: check [quick|blocks|dumps] [wait], or check stop".into())),
                };
                if words.contains(&"wait") {
                    return self.check_and_tell(depth).await;
                }
                let archive = self.clone();
                // Its result is in the log and in `status`.
                self.begin(async move { drop(archive.check_and_tell(depth).await) });
                Ok(())
            }
            ("grow", words) => self.grow(words).await,
            ("takeover" | "handover", _) => self.turn(line).await,
            ("cache" | "worm", words) => self.tell_device(word, words),
            ("path", ino) => {
                let ino = ino.parse().map_err(|_| wrong(format!("`{ino}` is no inode")))?;
                let path =
                    self.attempt(|state: &mut ArchiveState| state.fs.path(state.fs.mem.root, ino)).await?;
                self.info(format_args!("inode {ino}: {path}"));
                Ok(())
            }
            _ => {
                Err(wrong(format!("`{line}` is no command: ctl, when it is read, has those that there are")))
            }
        }
    }

    /// Changes the table of users, and writes its file.
    async fn new_user(&self, words: &str) -> Result<()> {
        let mut users = UserTable::clone(&*self.state().users);
        let said = users.newuser(words).map_err(|why| Error::new(Errno::EINVAL, why))?;
        let text = users.to_string();
        let now = self.time();
        let ino = self.attempt(|state: &mut ArchiveState| state.fs.put_users(&text, now)).await?;
        self.state().is_users_file(ino);
        self.state().users = Arc::new(users);
        self.sync().await?;
        self.info(format_args!("newuser: {said}"));
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

    pub(crate) fn status(&self) -> String {
        let (slots, used) = self.0.cw.slots();
        let worm = self.0.cw.worm_blocks();
        let stats = self.cache_stats();
        let state = &*self.state();
        let block = state.fs.block();
        let mut text: String =
            self.trouble(state).into_iter().map(|line| format!("trouble: {line}\n")).collect();
        let (name, zone) = (&self.0.label.name, &self.0.zone);
        let size = |blocks: u64| bytes(blocks * block);
        let _ = writeln!(text, "name {name}\nblock {}\nzone {zone}", bytes(block));
        let written = self.0.cw.written(state.next_worm);
        let left = self.0.cw.worm_left(state.next_worm);
        let is_copied = |generation| state.waiting.iter().all(|dump| dump.generation != generation);
        let copied = state.dumps.iter().filter(|(generation, _)| is_copied(**generation));
        let sizes = copied.map(|(_, dump)| (dump.record.time.sec, dump.record.blocks));
        let forecast = match days_left(sizes, self.time().sec, left) {
            Some(days) => format!(", full in {}", at_this_rate(days)),
            None => String::new(),
        };
        let (all, share) = (size(worm), percent(written, worm));
        if self.0.cw.in_place() {
            let _ = writeln!(text, "cache none, {} of {} in no dump yet", size(used), size(slots));
            let left = size(left);
            let _ = writeln!(text, "worm {} of {all} in use ({share}), {left} left{forecast}", size(written));
        } else {
            let (used, slots, share_used) = (size(used), size(slots), percent(used, slots));
            let _ = writeln!(text, "cache {used} of {slots} not on the worm ({share_used})");
            let _ = writeln!(text, "worm {} of {all} written ({share}){forecast}", size(written));
        }
        let _ = writeln!(text, "files {}, next inode {}", size(state.fs.blocks), state.fs.next_inode);
        let (open, freed) = state.fs.mem.changed();
        let (open, freed) = (size(open as u64), size(freed as u64));
        let _ = writeln!(text, "changed {open}, {freed} to be freed, in memory");
        let newest = state.dumps.values().next_back().map(|dump| self.0.zone.time(dump.record.time.sec));
        let newest = newest.map_or(String::new(), |time| format!(", the newest of {time}"));
        let _ = writeln!(text, "dumps {}, {} on their way{newest}", state.dumps.len(), state.waiting.len());
        let (hits, misses) = (stats.hits, stats.misses);
        let share = percent(hits, hits + misses);
        let _ = writeln!(text, "memory {}, {hits} hits ({share}), {misses} misses", size(stats.held));
        if state.closed_to_new {
            let _ = writeln!(text, "attach off: nobody new comes in");
        }
        if state.dumper.is_off {
            let _ = writeln!(text, "dumpctl off: no dump is made by itself");
        } else if let Some(due) = state.dumper.next_due(self.time().sec) {
            let _ = writeln!(text, "next dump at {}", self.0.zone.time(due));
        }
        if let Some(due) = state.scrubber.due {
            let _ = writeln!(text, "next scrub at {}", self.0.zone.time(due.next));
        }
        state.scrubber.said(&mut text);
        if let Some(turns) = &state.turns {
            text += &(turns.said)();
            let _ = writeln!(text, "newest epoch on the worm {}", state.newest_epoch);
        }
        if let Some(follows) = &state.follows {
            text += &follows.said();
        }
        text
    }

    /// Returns the present faults of the archive and its devices, the worst first.
    fn trouble(&self, state: &ArchiveState) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(error) = state.stopped.as_ref().filter(|_| state.follows.is_none()) {
            all.push(format!("stopped, nothing is changed any more: {error}"));
        }
        if let Some(error) = &state.fs.full {
            all.push(format!("full, changes wait in memory until there is room: {error}"));
        }
        if let Some(why) = state.dumper.why_not() {
            all.push(format!("a dump waits on the cache device: {why}"));
        }
        if state.scrubber.hurt() > 0 {
            all.push(format!("{} files cannot be read whole: see `hurt`", state.scrubber.hurt()));
        }
        let (c, w) = self.0.cw.devices();
        for line in c.trouble().into_iter().chain(w.trouble()) {
            // Both may be parts of one mirror.
            if !all.contains(&line) {
                all.push(line);
            }
        }
        all
    }
}
