//! The archives' consoles on an Ethernet (docs/cec.md). A client that gives the password sends commands, one line at a
//! time.
//!
//! In: `cec!IFACE -password FILE`; lines. Out: the content of a console's files, or the result of its `ctl`.
//!
//! Always holds: there is no console unless one is configured, and none without a password. Each conversation has one
//! line in flight, which is dropped with the conversation.

mod ask;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use futures_util::future::{AbortHandle, FutureExt, LocalBoxFuture, Shared, abortable};
use nine_net::cec::{ETHER_TYPE, Event, Host, Id, Offer, Password, Setup, host};
use nine_net::ether::Mac;
use nine_net::nonet::Link;
use nine_net::{Env, rt};
use serde::{Deserialize, Serialize};

use super::token;
use crate::archive::Archives;
use crate::blocks::ethers_of_type;
use crate::config::by_string;
use ask::Asks;

/// The setting of a console: `cec!IFACE -password FILE`, then `-shelf N`, `-name NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Console {
    interface: String,
    password: PathBuf,
    shelf: i32,
    /// Its name; the machine's name if `None`.
    name: Option<String>,
}

impl Console {
    /// Makes a relative path of the password file relative to `dir`.
    pub fn within(self, dir: &Path) -> Self {
        Self { password: dir.join(&self.password), ..self }
    }

    fn name(&self) -> String {
        let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.name.clone().unwrap_or_else(machine)
    }

    fn password(&self) -> Result<Password> {
        let file = self.password.display();
        let text = token::private(&self.password, "the password")?;
        let line = text.lines().next().unwrap_or_default();
        Password::new(line).map_err(|why| anyhow!("{file}: {why}"))
    }
}

impl FromStr for Console {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write cec!IFACE -password FILE, and perhaps -shelf N or -name NAME after it";
        let mut words = text.split_whitespace();
        let interface = words.next().and_then(|word| word.strip_prefix("cec!")).ok_or(FORM)?;
        let (mut password, mut shelf, mut name) = (None, -1, None);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(FORM)?;
            match word {
                "-password" => password = Some(value.into()),
                "-shelf" => shelf = value.parse().map_err(|_| format!("-shelf {value}: not a number"))?,
                "-name" => name = Some(value.into()),
                _ => return Err(FORM.into()),
            }
        }
        let password = password.filter(|_| !interface.is_empty()).ok_or(FORM)?;
        Ok(Self { interface: interface.into(), password, shelf, name })
    }
}

impl fmt::Display for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cec!{} -password {}", self.interface, self.password.display())?;
        if self.shelf != -1 {
            write!(f, " -shelf {}", self.shelf)?;
        }
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " -name {name}"))
    }
}

by_string! {
    Console, String, |console| console.to_string();
}

/// A console that is open.
pub struct Open {
    /// Its address.
    pub at: String,
    /// Description of the service, for the banner.
    pub says: String,
    host: Host,
    over: Shared<LocalBoxFuture<'static, ()>>,
}

impl Open {
    /// Ends all conversations and notifies their clients.
    pub async fn close(&self) {
        self.host.close();
        self.over.clone().await;
    }
}

/// Opens all consoles, or none.
pub async fn open(env: rt::Real, consoles: &[Console], archives: &Arc<Archives>) -> Result<Vec<Open>> {
    if consoles.is_empty() {
        return Ok(Vec::new());
    }
    let asks = Rc::new(Asks::new(env, archives).await?);
    consoles.iter().map(|console| open_one(env, console, asks.clone())).collect()
}

fn open_one(env: rt::Real, console: &Console, asks: Rc<Asks>) -> Result<Open> {
    let at = format!("cec!{}", console.interface);
    let offer = Offer { shelf: console.shelf, name: console.name() };
    let setup = Setup { password: console.password().with_context(|| at.clone())?, offer };
    let ether = ethers_of_type(std::slice::from_ref(&console.interface), ETHER_TYPE)?.pop();
    let ether = ether.context("an interface")?.hearing_all();
    let says = format!("{}, shelf {}, {}", setup.offer.name, setup.offer.shelf, ether.address());
    let (host, driver) = host(ether, setup, env.clock())?;
    let over = driver.boxed_local().shared();
    env.spawn(Box::pin(over.clone()));
    env.spawn(Box::pin(Rc::new(Serving { env, at: at.clone(), host: host.clone(), asks }).run()));
    Ok(Open { at, says, host, over })
}

/// The server on one interface.
struct Serving {
    env: rt::Real,
    at: String,
    host: Host,
    asks: Rc<Asks>,
}

/// A client that has logged in.
struct Talker {
    mac: Mac,
    /// The archive that the client has selected.
    memory: ask::Memory,
    /// Aborts the client's line in flight.
    under_way: Option<AbortHandle>,
}

impl Serving {
    /// Serves forever.
    async fn run(self: Rc<Self>) {
        let at = &self.at;
        let mut talkers: HashMap<Id, Talker> = HashMap::new();
        loop {
            match self.host.event().await {
                Event::Open(id, mac) => {
                    tracing::info!("{at}: {mac} has logged in");
                    talkers.insert(id, Talker { mac, memory: ask::Memory::default(), under_way: None });
                }
                Event::Line(id, line) => {
                    let Some(talker) = talkers.get_mut(&id) else { continue };
                    tracing::info!("{at}: {}: {line}", talker.mac);
                    let (answered, under_way) =
                        abortable(self.clone().answer(id, line, talker.memory.clone()));
                    talker.under_way = Some(under_way);
                    self.env.spawn(Box::pin(answered.map(drop)));
                }
                Event::End(id, why) => {
                    let Some(talker) = talkers.remove(&id) else { continue };
                    talker.under_way.into_iter().for_each(|line| line.abort());
                    tracing::info!("{at}: {} has gone: {why}", talker.mac);
                }
                Event::Wrong(mac) => tracing::warn!("{at}: {mac} has said a wrong password"),
            }
        }
    }

    async fn answer(self: Rc<Self>, id: Id, line: String, memory: ask::Memory) {
        match self.asks.ask(&line, &memory).await {
            Some(text) => self.host.answer(id, &text),
            None => self.host.hang_up(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_has_an_interface_and_a_password() {
        let parse = |text: &str| text.parse::<Console>().map(|console| console.to_string());
        for text in ["cec!eth0 -password /p", "cec!eth0 -password /p -shelf 3 -name fs"] {
            assert_eq!(parse(text).as_deref(), Ok(text));
        }
        assert_eq!(parse("cec!e -shelf -1 -password p").as_deref(), Ok("cec!e -password p"));
        for wrong in
            ["cec!eth0", "cec! -password p", "eth0 -password p", "cec!e -password", "cec!e -password p -s 3"]
        {
            assert!(parse(wrong).unwrap_err().contains("-password FILE"), "{wrong}");
        }
        assert!(parse("cec!e -password p -shelf x").unwrap_err().contains("not a number"));
    }
}
