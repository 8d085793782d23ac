//! `cec`: the console of a server on the same Ethernet (docs/cec.md).
//!
//! In: keys, or lines of the standard input. Out: the console's output.

mod login;
mod terminal;

use std::future::{self, poll_fn};
use std::io::IoSlice;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::future::{Either, join, select};
use nine_net::cec::{Call, ETHER_TYPE, End, Found, call, discover};
use nine_net::ether::Ether;
use nine_net::{Env, Pipe, Transport, rt};
use serde_json::json;

use crate::blocks::{all_ethers, ethers_of_type};
use crate::cli::Cec;
use crate::dial::within;
use crate::fail::{self, Interrupted, Stdout};
use crate::output::Output;
use login::{Login, Stage};
use terminal::Terminal;

pub fn run(args: Cec) -> Result<()> {
    rt::block_on(async |env| {
        let names = if args.interfaces.is_empty() { all_ethers()? } else { args.interfaces.clone() };
        match (&args.shelf, args.ea) {
            (None, None) => list(&args, &names, env).await,
            _ => connect(&args, &names, env).await,
        }
    })?
}

fn open(names: &[String]) -> Result<Vec<Ether>> {
    let hearing = |ether: Ether| ether.hearing_all();
    Ok(ethers_of_type(names, ETHER_TYPE)?.into_iter().map(hearing).collect())
}

async fn list(args: &Cec, names: &[String], env: rt::Real) -> Result<()> {
    let patience = Duration::from_secs(args.patience);
    let mut found = look(args, names, patience, |_| false, env).await?;
    found.dedup_by(|a, b| (a.mac, a.port) == (b.mac, b.port));
    let mut out = Output::new();
    for Found { offer, mac, port } in found {
        let (shelf, name, interface) = (offer.shelf, offer.name, &names[port]);
        if args.json {
            let mac = mac.to_string();
            out.json(&json!({ "shelf": shelf, "name": name, "interface": interface, "mac": mac }))?;
        } else {
            out.print(format_args!("{shelf:>5}  {mac}  {interface:<8}  {name}\n"))?;
        }
    }
    out.flush()
}

async fn look(
    args: &Cec,
    names: &[String],
    patience: Duration,
    wanted: impl Fn(&Found) -> bool,
    env: rt::Real,
) -> Result<Vec<Found>> {
    loop {
        let found = discover(open(names)?, patience, &wanted, env.clock()).await?;
        if !args.persist || !found.is_empty() {
            return Ok(found);
        }
    }
}

/// Returns whether this is the requested console.
fn is_meant(args: &Cec, Found { offer, mac, .. }: &Found) -> bool {
    let is_shelf = |word: &String| word.parse() == Ok(offer.shelf) || *word == offer.name;
    args.shelf.as_ref().is_none_or(is_shelf) && args.ea.is_none_or(|ea| ea == *mac)
}

async fn connect(args: &Cec, names: &[String], env: rt::Real) -> Result<()> {
    let patience = Duration::from_secs(args.patience);
    let found = loop {
        let found = look(args, names, patience, |found| is_meant(args, found), env).await?;
        match found.into_iter().find(|found| is_meant(args, found)) {
            Some(found) => break found,
            None if args.persist => {}
            None => {
                let on = names.join(" ");
                bail!("nobody like that answers on {on}\n  `ninefold cec {on}` shows who does.")
            }
        }
    };
    let Found { offer, mac, port } = found;
    let link = ethers_of_type(&names[port..=port], ETHER_TYPE)?.pop().context("an interface")?;
    let (call, driver) = call(link, mac, env.clock())?;
    let call = Arc::new(call);
    let mut signals = rt::signals()?;
    let talk = Talk::new(args, call.clone(), &offer.name, env)?;
    fail::note(format_args!(
        "{}, shelf {}, {mac} on {}{}",
        offer.name,
        offer.shelf,
        names[port],
        if talk.is_terminal() { format!("; the escape is ^{}", args.escape) } else { String::new() }
    ));
    let hangs_up = call.clone();
    let talked = async {
        let ended = talk.run(args).await;
        // The driver notifies the server.
        hangs_up.quit();
        ended
    };
    let mut both = pin!(join(driver, talked));
    let signal = match select(&mut both, pin!(signals.next())).await {
        Either::Left(((driven, talked), _)) => {
            driven?;
            return talked;
        }
        Either::Right((signal, _)) => signal,
    };
    call.quit();
    // The driver has a last message to send; do not wait for the terminal.
    let _ = within(&env, SOON, both).await;
    Err(Interrupted(signal).into())
}

/// A conversation between the server, the keyboard and the screen.
struct Talk {
    env: rt::Real,
    call: Arc<Call>,
    keys: Pipe,
    screen: Pipe,
    login: Login,
    terminal: Option<Terminal>,
    /// The escape character.
    escape: u8,
    /// The escape character was typed; a command is expected.
    escaped: bool,
    /// Input to send.
    pending: Vec<u8>,
    /// The input has ended.
    typed_all: bool,
    /// Time at which all input was acknowledged.
    settled: Option<Duration>,
}

/// The next event.
enum Next {
    Came(Vec<u8>),
    Ended(End),
    Sent(usize),
    Typed(Vec<u8>),
    TypedAll,
    Settled,
    Late,
}

impl Talk {
    fn new(args: &Cec, call: Arc<Call>, name: &str, env: rt::Real) -> Result<Self> {
        let escape = (args.escape as u32 & 0x1f) as u8;
        let terminal = Terminal::raw();
        let login = Login::new(args.password_file.as_deref(), terminal.is_some(), name)?;
        let (keys, screen) = (terminal::keyboard()?, terminal::screen()?);
        Ok(Self {
            env,
            call,
            keys,
            screen,
            login,
            terminal,
            escape,
            escaped: false,
            pending: Vec::new(),
            typed_all: false,
            settled: None,
        })
    }

    fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    async fn run(mut self, args: &Cec) -> Result<()> {
        if let Err(end) = self.call.opened().await {
            bail!("{end}");
        }
        self.login.begin(self.env.now());
        let ended = self.converse(Duration::from_secs(args.linger)).await;
        // Show all output before the end.
        terminal::shown(&mut self.screen).await;
        ended
    }

    async fn converse(&mut self, linger: Duration) -> Result<()> {
        let mut heard = self.env.now();
        loop {
            let late = self.login.deadline().or(self.settled.map(|settled| settled.max(heard) + linger));
            match self.next(late).await {
                Next::Came(bytes) => {
                    heard = self.env.now();
                    self.show(&bytes).await?;
                    self.pending.extend(self.login.heard(heard, &bytes).await?.unwrap_or_default());
                }
                Next::Ended(End::Reset) if self.login.has_failed() => bail!("the password is wrong"),
                Next::Ended(End::Reset) if self.is_terminal() => return Ok(()),
                Next::Ended(End::Reset)
                    if self.typed_all && self.pending.is_empty() && self.call.is_idle() =>
                {
                    return Ok(());
                }
                Next::Ended(End::Reset) => {
                    bail!("the server has ended the conversation before all was said")
                }
                Next::Ended(end) => bail!("{end}"),
                Next::Sent(n) => drop(self.pending.drain(..n)),
                Next::Typed(bytes) => {
                    if self.typed(bytes).await? {
                        return Ok(());
                    }
                }
                Next::TypedAll => self.typed_all = true,
                Next::Settled => self.settled = Some(self.env.now()),
                Next::Late if self.login.deadline().is_some() => self.login.late(),
                Next::Late => return Ok(()),
            }
        }
    }

    /// Waits for the next event. Output is always read: the server may produce much before it takes more input.
    async fn next(&mut self, late: Option<Duration>) -> Next {
        let may_type = self.login.stage() == Stage::In && !self.typed_all && self.pending.len() < PENDING;
        let settles = self.typed_all && self.settled.is_none() && self.pending.is_empty();
        let Self { env, call, keys, pending, .. } = self;
        let came = pin!(async {
            match call.recv().await {
                Ok(bytes) => Next::Came(bytes),
                Err(end) => Next::Ended(end),
            }
        });
        let sent = pin!(async {
            // The end of the conversation shows up on the receiving side.
            if !pending.is_empty()
                && let Ok(n) = call.send(pending).await
            {
                return Next::Sent(n);
            }
            match call.sent().await {
                Ok(()) if settles => Next::Settled,
                _ => future::pending().await,
            }
        });
        let typed = pin!(async {
            if !may_type {
                return future::pending().await;
            }
            let mut bytes = vec![0; PIECE];
            match poll_fn(|cx| keys.poll_read(cx, &mut bytes)).await {
                Ok(n @ 1..) => Next::Typed(bytes[..n].into()),
                _ => Next::TypedAll,
            }
        });
        let time = pin!(async {
            match late {
                Some(late) => env.sleep_until(late).await,
                None => future::pending().await,
            }
            Next::Late
        });
        match select(select(came, sent), select(typed, time)).await {
            Either::Left((Either::Left((next, _)) | Either::Right((next, _)), _)) => next,
            Either::Right((Either::Left((next, _)) | Either::Right((next, _)), _)) => next,
        }
    }

    /// Sends input, except commands after the escape character. Returns whether the user wants to quit.
    async fn typed(&mut self, bytes: Vec<u8>) -> Result<bool> {
        if !self.is_terminal() {
            let line = |byte: u8| if byte == b'\n' { b'\r' } else { byte };
            self.pending.extend(bytes.into_iter().map(line));
            return Ok(false);
        }
        for byte in bytes {
            match (std::mem::take(&mut self.escaped), byte) {
                (false, byte) if byte == self.escape => {
                    self.escaped = true;
                    self.show(b"\n>>> ").await?;
                }
                (false, byte) => self.pending.push(byte),
                (true, b'q') => {
                    self.show(b"q\n").await?;
                    return Ok(true);
                }
                (true, b'i') => {
                    self.show(b"i\n").await?;
                    self.pending.push(self.escape);
                }
                (true, b'.') => self.show(b".\n").await?,
                (true, _) => {
                    self.escaped = true;
                    self.show(b"\n(q)uit, (i)nterrupt, (.)continue\n>>> ").await?;
                }
            }
        }
        Ok(false)
    }

    /// Shows output without carriage returns, as Plan 9 does: the terminal adds its own.
    async fn show(&mut self, bytes: &[u8]) -> Result<()> {
        let bytes: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != b'\r').collect();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let written = poll_fn(|cx| self.screen.poll_write(cx, &[IoSlice::new(rest)])).await;
            rest = &rest[written.map_err(Stdout)?..];
        }
        Ok(())
    }
}

/// Parses the letter of a control character, like Plan 9's cec(8).
pub fn escape(text: &str) -> Result<char, String> {
    let letter = text.strip_prefix('^').filter(|rest| !rest.is_empty()).unwrap_or(text);
    match letter.chars().collect::<Vec<_>>()[..] {
        [c @ ('a'..='z' | 'A'..='Z' | '[' | '\\' | ']' | '^' | '_')] => Ok(c.to_ascii_uppercase()),
        _ => Err("a letter, or one of [ \\ ] ^ _".into()),
    }
}

/// Limit of input that waits to be sent; beyond it the keyboard is not read.
const PENDING: usize = 4 << 10;
/// Size of one read of the keyboard, bytes.
const PIECE: usize = 250;
/// Time for the driver's last message.
const SOON: Duration = Duration::from_secs(1);
