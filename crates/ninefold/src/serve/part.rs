//! Distribution of a program from server to server (docs/part.md, "Trees"): the implementation of a session's `clone`.
//!
//! In: a program, and sessions of other servers with their keys. Out: the program is written to them; or the list of
//! sessions that did not get it.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::future::join_all;
use nine_io::client::File;
use nine_net::{Env, rt};
use nine_proto::{Errno, OpenFlags};
use nine_servers::part::{Machine, Machines, Rights, Spread, Spreads, Start, quote};

use crate::config::Remote;
use crate::dial::Sessions;
use crate::operand::Place;

/// Runs images in sessions: this same command, confined like a program, starts QEMU and serves the machine the tree of
/// the session's channel.
pub struct Images;

impl Machines for Images {
    fn machine(&self, image: &Path, start: &Start<'_>) -> io::Result<Machine> {
        let text = |path: &Path| {
            path.to_str().map(String::from).ok_or_else(|| io::Error::other("a path is no text"))
        };
        let (program, image) = (std::env::current_exe()?, text(image)?);
        let (name, args) = start.words.split_first().map_or((&image, &[][..]), |(name, args)| (name, args));
        // The rest is overhead of QEMU and of this command.
        let memory = (start.memory >> 20).saturating_sub(OVERHEAD).clamp(LEAST, MOST);
        let mut words = ["ninefold", "partition", "run"].map(String::from).to_vec();
        words.extend([format!("--name={name}"), format!("--memory={memory}M")]);
        words.extend(start.env.iter().map(|(name, value)| format!("--env={name}={value}")));
        words.extend((!start.channel).then(|| "ram:".into()));
        words.extend(["--".into(), image.clone()]);
        words.extend_from_slice(args);
        let rights = Rights {
            programs: vec![text(&program)?],
            reads: vec![image, OWN.into()],
            writes: vec!["/dev/kvm".into()],
        };
        Ok(Machine { program, words, rights })
    }
}

/// Limit of servers that one server writes a program to at the same time: each holds a piece of it in memory.
const AT_ONCE: usize = 64;
/// Longest wait while another client writes the program; and the pause between two checks.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Directory through which this command sees its own open files; QEMU does not see it.
const OWN: &str = "/proc/self";
/// MiB: the overhead of a machine; and the limits of a machine's own memory.
const OVERHEAD: u64 = 128;
const LEAST: u64 = 16;
const MOST: u64 = 1024;

/// Returns a function that distributes programs as a client with this configuration.
pub fn spread(remote: Remote, env: rt::Real) -> Box<Spreads> {
    let remote = remote.with_error_texts();
    Box::new(move |spread| {
        let remote = remote.clone();
        Box::pin(async move {
            let sessions = Sessions::new(remote.clone(), env);
            let shares = shares(&spread.to, spread.most);
            let gives = shares.into_iter().map(|share| give_all(&sessions, &remote, &spread, share));
            let failed: Vec<String> = join_all(gives).await.into_iter().flatten().collect();
            if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
        })
    })
}

/// Divides the sessions into shares. The first session of a share gets the program and writes it to the others.
fn shares(to: &[String], most: usize) -> Vec<VecDeque<String>> {
    let mut shares = vec![VecDeque::new(); most.min(AT_ONCE).clamp(1, to.len().max(1))];
    let count = shares.len();
    for (n, to) in to.iter().enumerate() {
        shares[n % count].push_back(to.clone());
    }
    shares
}

/// Writes the program to the first session of a share, which distributes it to the rest. If that fails, tries the next
/// one. Returns the sessions that did not get it.
async fn give_all(
    sessions: &Sessions,
    remote: &Remote,
    spread: &Spread,
    mut share: VecDeque<String>,
) -> Vec<String> {
    let mut failed = Vec::new();
    while let Some(first) = share.pop_front() {
        let given = async {
            let dir = sessions.walk(&Place::parse(first.as_ref(), remote)?, true).await?;
            give(&sessions.env(), &dir, spread.length, async |at| (spread.pieces)(at).await).await?;
            Ok::<_, anyhow::Error>(dir)
        };
        match given.await {
            // Strip the key, which is secret.
            Err(error) => {
                failed.push(format!("{}: {error:#}", first.rsplit_once('.').map_or("", |(of, _)| of)))
            }
            Ok(dir) if share.is_empty() => drop(dir),
            Ok(dir) => {
                let words: Vec<String> = share.iter().map(|to| quote(to)).collect();
                if pass(&dir, &format!("clone {} {}", spread.most, words.join(" "))).await.is_ok() {
                    break;
                }
            }
        }
    }
    failed
}

/// Writes a program of this length to a session, unless it is there already. Waits while another client writes it.
/// `piece` returns the program's bytes from an offset on.
pub async fn give<B: AsRef<[u8]>>(
    env: &impl Env,
    dir: &File,
    length: u64,
    piece: impl AsyncFn(u64) -> io::Result<B>,
) -> Result<()> {
    let ctl = dir.open("ctl", OpenFlags::WRITE).await?;
    let late = env.now() + PATIENCE;
    let file = loop {
        let opened = async {
            ctl.write(0, format!("length {length}").as_bytes()).await?;
            dir.open("exec", OpenFlags::WRITE).await
        };
        match opened.await {
            Ok(file) => break file,
            // The program is there and complete.
            Err(error) if error.errno() == Errno::EEXIST => return Ok(()),
            Err(error) if error.errno() == Errno::EBUSY && env.now() < late => {
                env.sleep_until(env.now() + PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    let mut at = 0;
    while at < length {
        let piece = piece(at).await?;
        let piece = piece.as_ref();
        if piece.is_empty() {
            bail!("the program ends before its length");
        }
        file.write_all_at(at, piece).await?;
        at += piece.len() as u64;
    }
    Ok(file.close().await?)
}

async fn pass(dir: &File, text: &str) -> Result<()> {
    let ctl = dir.open("ctl", OpenFlags::WRITE).await?;
    ctl.write(0, text.as_bytes()).await?;
    Ok(ctl.close().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_many_as_there_may_be_and_all_are_in_one() {
        let all: Vec<String> = (0..7).map(|n| n.to_string()).collect();
        for (most, lens) in [(1, &[7][..]), (2, &[4, 3]), (7, &[1; 7]), (100, &[1; 7])] {
            let shares = shares(&all, most);
            assert_eq!(shares.iter().map(VecDeque::len).collect::<Vec<_>>(), lens);
            let mut seen: Vec<String> = shares.into_iter().flatten().collect();
            seen.sort_unstable();
            assert_eq!(seen, all);
        }
    }
}
