//! AoE disks as files: each disk that answers on these Ethernets appears as `SHELF.SLOT/data`, with files about it.
//!
//! Always holds: a disk that appeared once stays listed while it does not answer. At most [`DISKS`] disks are listed. A
//! disk that lost its interfaces is searched for again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::{Either, select};
use nine_aoe::driver::{Disk, Found, discover, disk};
use nine_aoe::frame::{Address, config};
use nine_aoe::identify::Identify;
use nine_aoe::initiator::Event;
use nine_block::{Device, Error, Io, Kind, Shape};
use nine_mux::told;
use nine_net::{Env, rt};
use nine_servers::Blocks;
use nine_servers::block::More;

use crate::blocks::{all_ethers, ethers};

/// The search for disks, and the known disks.
struct Disks {
    env: rt::Real,
    /// The interfaces; all Ethernets if empty.
    interfaces: Vec<String>,
    /// Reads and writes fail after this long without an answer from the disk.
    patience: Duration,
    blocks: Blocks,
    known: RefCell<BTreeSet<Address>>,
}

/// Starts the search for disks on these interfaces, or on all Ethernets. One of the words may be `patience=SECONDS`.
pub fn serve(words: &[String], env: rt::Real) -> Result<Blocks> {
    let (mut interfaces, mut patience) = (Vec::new(), PATIENCE);
    for word in words {
        match word.strip_prefix("patience=") {
            Some(seconds) => {
                let seconds: u64 =
                    seconds.parse().with_context(|| format!("`{word}`: no number of seconds"))?;
                ensure!((1..=3600).contains(&seconds), "`{word}`: 1 to 3600 seconds");
                patience = Duration::from_secs(seconds);
            }
            None => interfaces.push(word.clone()),
        }
    }
    // Open the interfaces once now, to report errors at the start.
    drop(ethers(&if interfaces.is_empty() { all_ethers()? } else { interfaces.clone() })?);
    let blocks = Blocks::new(env.wall()).told_by(told);
    let disks = Disks { env, interfaces, patience, blocks: blocks.clone(), known: RefCell::default() };
    env.spawn(Box::pin(Rc::new(disks).watch()));
    Ok(blocks)
}

impl Disks {
    async fn watch(self: Rc<Self>) {
        // Each state is reported once.
        let (mut said, mut full) = (String::new(), false);
        loop {
            let wrong = match self.look().await {
                Err(error) => format!("{error:#}"),
                Ok(more) => {
                    if more && !full {
                        tracing::warn!("aoe: there are more than {DISKS} disks; the others are not shown");
                    }
                    full = more;
                    String::new()
                }
            };
            if !wrong.is_empty() && wrong != said {
                tracing::warn!("aoe: {wrong}");
            }
            said = wrong;
            self.env.sleep_until(self.env.now() + EVERY).await;
        }
    }

    /// Starts the disks that are new. Returns true if there are too many.
    async fn look(self: &Rc<Self>) -> Result<bool> {
        // With several interfaces, one may be absent and return later.
        let named =
            |name: &&String| self.interfaces.len() == 1 || ethers(std::slice::from_ref(*name)).is_ok();
        let names: Vec<String> = match self.interfaces.is_empty() {
            true => all_ethers()?,
            false => self.interfaces.iter().filter(named).cloned().collect(),
        };
        ensure!(!names.is_empty(), "no interface is there: {}", self.interfaces.join(", "));
        let read = (config::READ, &[][..]);
        let found = discover(ethers(&names)?, Address::ALL, read, LISTEN, self.env.clock()).await?;
        for Found { address, config, .. } in found {
            if self.known.borrow().contains(&address) {
                continue;
            }
            if self.known.borrow().len() >= DISKS {
                return Ok(true);
            }
            let links = ethers(&names)?;
            self.known.borrow_mut().insert(address);
            let this = self.clone();
            let config = nine_text::show_name(&config).to_string() + "\n";
            let (disk, driver) = disk(links, address, self.patience, self.env.clock());
            let (disk, names) = (Arc::new(disk), names.clone());
            self.env.spawn(Box::pin(async move {
                let watched = std::pin::pin!(this.follow(disk.clone(), config, &names));
                if let Either::Left((Err(error), _)) = select(driver, watched).await {
                    tracing::warn!("{}: {error}", disk.name());
                }
                this.known.borrow_mut().remove(&address);
            }));
        }
        Ok(false)
    }

    /// Logs a disk's events and lists the disk once it is up. Returns if it turns out not to be a disk.
    async fn follow(&self, disk: Arc<Disk>, config: String, names: &[String]) {
        let mut shown = false;
        loop {
            let event = disk.event().await;
            say(&disk.name(), &event, names);
            match event {
                Event::Up(_) if !shown => {
                    self.show(disk.clone(), config.clone());
                    shown = true;
                }
                Event::Down if !shown => return,
                _ => {}
            }
        }
    }

    fn show(&self, disk: Arc<Disk>, config: String) {
        let (ident, stat) = (disk.clone(), disk.clone());
        let more: Vec<More> = vec![
            ("config".into(), Box::new(move || config.clone())),
            ("ident".into(), Box::new(move || ident.identify().map(text).unwrap_or_default())),
            ("stat".into(), Box::new(move || lines(&stat))),
        ];
        let name = disk.name();
        self.blocks.add(name.trim_start_matches('e'), Arc::new(Shown(disk)), more);
    }
}

/// A listed disk, with its control commands.
struct Shown(Arc<Disk>);

impl Device for Shown {
    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn submit(&self, io: Io) {
        self.0.submit(io);
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn status(&self) -> String {
        self.0.status()
    }

    fn control(&self, words: &[&str]) -> nine_block::Result<()> {
        let text = format!("no `{}`; it knows: look", words.join(" "));
        Err(Error::new(Kind::Unsupported, text).of(self.name()))
    }
}

/// Logs the events of a disk, forever.
pub async fn tell(disk: Arc<Disk>, names: Vec<String>) {
    loop {
        say(&disk.name(), &disk.event().await, &names);
    }
}

fn say(disk: &str, event: &Event, names: &[String]) {
    let name = |port: &usize| names.get(*port).map_or("?", |name| name.as_str());
    match event {
        Event::Up(Identify { serial, sectors, .. }) => {
            tracing::info!("{disk}: up, serial {serial}, {sectors} sectors");
        }
        Event::Down => tracing::warn!("{disk}: down: it does not answer"),
        Event::Other(serial) => {
            tracing::warn!("{disk}: another disk is there, serial {serial}: nothing is sent to it");
        }
        Event::Resized(from, to) => tracing::info!("{disk}: {to} sectors by now, and not {from}"),
        Event::Started => tracing::info!("{disk}: the target has started anew"),
        Event::PathUp(mac, port) => tracing::info!("{disk}: path {} {mac} up", name(port)),
        Event::PathDown(mac, port) => tracing::warn!("{disk}: path {} {mac} down", name(port)),
        Event::PathSmall(mac, port) => {
            tracing::warn!("{disk}: path {} {mac}: only standard frames come through", name(port));
        }
    }
}

fn text(ident: Identify) -> String {
    let Identify { serial, firmware, model, sectors, .. } = ident;
    format!("model {model}\nserial {serial}\nfirmware {firmware}\nsectors {sectors}\n")
}

/// Formats the state and the frame counts of a disk: a name and a value on each line.
fn lines(disk: &Disk) -> String {
    let counts = disk.counts().to_string();
    let words: Vec<&str> = counts.split(' ').collect();
    let pairs: String = words.chunks(2).map(|pair| pair.join(" ") + "\n").collect();
    format!("state {}\n{pairs}", disk.state())
}

/// Limit of disks in one server.
const DISKS: usize = 256;
/// Time that disks have to answer a discovery.
const LISTEN: Duration = Duration::from_secs(1);
/// Time between two discoveries.
const EVERY: Duration = Duration::from_secs(10);
/// Default limit of a disk's silence.
const PATIENCE: Duration = Duration::from_secs(30);
