//! Disks of AoE as files: whoever answers on these Ethernets is there, as `SHELF.SLOT/data` and what is said of it.
//!
//! Always holds: a disk that was there once stays, also while it does not answer; at most [`DISKS`] are there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use nine_aoe::driver::{Found, discover};
use nine_aoe::frame::{Address, config};
use nine_aoe::identify::Identify;
use nine_mux::told;
use nine_net::{Env, rt};
use nine_servers::Blocks;
use nine_servers::block::More;

use crate::blocks::{Over, all_ethers, ethers};

/// The disks on these interfaces, or on all Ethernets. They are looked for from now on.
pub fn serve(names: &[String], env: rt::Real) -> Result<Blocks> {
    let interfaces = if names.is_empty() { all_ethers()? } else { names.to_vec() };
    // What cannot be had is said now.
    drop(ethers(&interfaces)?);
    let blocks = Blocks::new(env.wall()).told_by(told);
    let over = Over { env, interfaces, patience: PATIENCE };
    env.spawn(Box::pin(watch(over, blocks.clone())));
    Ok(blocks)
}

async fn watch(over: Over, blocks: Blocks) {
    let mut known = BTreeSet::new();
    loop {
        if let Err(error) = look(&over, &blocks, &mut known).await {
            tracing::warn!("aoe: {error:#}");
        }
        over.env.sleep_until(over.env.now() + EVERY).await;
    }
}

/// Adds those that are new.
async fn look(over: &Over, blocks: &Blocks, known: &mut BTreeSet<Address>) -> Result<()> {
    let links = ethers(&over.interfaces)?;
    let read = (config::READ, &[][..]);
    for Found { address, config, .. } in discover(links, Address::ALL, read, LISTEN, over.env.clock()).await?
    {
        if known.contains(&address) || known.len() >= DISKS {
            continue;
        }
        let disk = Arc::new(over.disk(address)?);
        known.insert(address);
        let (ident, stat) = (disk.clone(), disk.clone());
        let config = nine_proto::show(&config).to_string() + "\n";
        let more: Vec<More> = vec![
            ("config".into(), Box::new(move || config.clone())),
            ("ident".into(), Box::new(move || ident.identify().map(text).unwrap_or_default())),
            ("stat".into(), Box::new(move || format!("{:?}\n{:?}\n", stat.state(), stat.counts()))),
        ];
        blocks.add(&address.to_string(), disk, more);
    }
    Ok(())
}

fn text(ident: Identify) -> String {
    let Identify { serial, firmware, model, sectors, .. } = ident;
    format!("model {model}\nserial {serial}\nfirmware {firmware}\nsectors {sectors}\n")
}

/// Disks of one server.
const DISKS: usize = 256;
/// How long those who are asked may take to answer.
const LISTEN: Duration = Duration::from_secs(1);
/// Between two looks for new ones.
const EVERY: Duration = Duration::from_secs(10);
/// How long a disk may be silent before its reads and writes fail.
const PATIENCE: Duration = Duration::from_secs(30);
