//! `aoe config`, `aoe mask`, `aoe reserve`: settings that a target stores beside its disk.

use anyhow::{Result, anyhow, bail, ensure};
use nine_aoe::driver::Disk;
use nine_aoe::frame::{Config, Edit, Mask, Reserve, command, config, error};
use nine_block::Kind;
use nine_net::ether::Mac;
use nine_net::nonet::Link;
use nine_net::rt;

use super::open;
use crate::blocks::ethers;
use crate::cli::{AoeConfig, AoeMask, AoeReserve};
use crate::output::Output;

pub async fn config(args: AoeConfig, env: rt::Real) -> Result<()> {
    let disk = open(&args.disk, env).await?;
    let all = [
        (config::SET, &args.set),
        (config::SET_EMPTY, &args.set_if_empty),
        (config::IS, &args.is),
        (config::BEGINS, &args.begins),
    ];
    let asked = all.into_iter().find_map(|(what, text)| Some((what, text.as_ref()?)));
    let (what, text) = asked.map_or((config::READ, ""), |(what, text)| (what, text));
    ensure!(text.len() <= nine_aoe::frame::CONFIG_MAX, "at most {} bytes", nine_aoe::frame::CONFIG_MAX);
    let answer = disk.ask(command::CONFIG, Config::ask(what, text.as_bytes()).bytes()).await;
    let (code, body) = match answer {
        // A target does not answer a failed test.
        Err(error) if error.kind == Kind::Down && matches!(what, config::IS | config::BEGINS) => {
            bail!("its config string is another one")
        }
        answer => answer?,
    };
    let string = Config::parse(&body).map_or(&b""[..], |config| config.string);
    let string = nine_text::show_name(string);
    match code {
        Some(error::PRESENT) => bail!("it has a config string already: {string}"),
        Some(code) => Err(refused(code)),
        None => {
            let mut out = Output::new();
            out.print(format_args!("{string}\n"))?;
            out.flush()
        }
    }
}

pub async fn mask(args: AoeMask, env: rt::Real) -> Result<()> {
    let disk = open(&args.disk, env).await?;
    let add = args.add.into_iter().map(Edit::Add);
    let edits: Vec<Edit> = add.chain(args.delete.into_iter().map(Edit::Delete)).collect();
    ensure!(edits.len() <= MOST, "at most {MOST} at once");
    let macs = ask_mask(&disk, edits).await?;
    print(&macs)
}

pub async fn reserve(args: AoeReserve, env: rt::Real) -> Result<()> {
    let disk = open(&args.disk, env).await?;
    let (what, macs) = match (args.set, args.force, args.release) {
        (Some(macs), ..) => (1, Some(macs)),
        (_, Some(macs), _) => (2, Some(macs)),
        (.., true) => (1, None),
        _ => (0, None),
    };
    let macs = match macs {
        Some(macs) if macs.is_empty() => ethers(&args.disk.interfaces)?.iter().map(Link::address).collect(),
        macs => macs.unwrap_or_default(),
    };
    ensure!(macs.len() <= MOST, "at most {MOST}");
    let macs = ask_reserve(&disk, what, macs).await?;
    print(&macs)
}

/// Shows all three settings, as far as the target supports them.
pub async fn show(disk: &Disk, out: &mut Output) -> Result<()> {
    let answer = disk.ask(command::CONFIG, Config::ask(config::READ, b"").bytes()).await?;
    if let Some(Config { string, .. }) = Config::parse(&answer.1) {
        out.print(format_args!("config    {}\n", nine_text::show_name(string)))?;
    }
    // Old targets support neither of these.
    if let Ok(macs) = ask_mask(disk, Vec::new()).await {
        out.print(format_args!("for       {}\n", list(&macs, "everybody")))?;
    }
    if let Ok(macs) = ask_reserve(disk, 0, Vec::new()).await {
        out.print(format_args!("reserved  by {}\n", list(&macs, "nobody")))?;
    }
    Ok(())
}

async fn ask_mask(disk: &Disk, edits: Vec<Edit>) -> Result<Vec<Mac>> {
    let what = u8::from(!edits.is_empty());
    let (code, body) = disk.ask(command::MASK, Mask { what, error: 0, edits }.bytes()).await?;
    let answer = Mask::parse(&body).filter(|_| code.is_none());
    let Mask { error, edits, .. } = answer.ok_or_else(|| refused(code.unwrap_or_default()))?;
    match error {
        0 => {}
        3 => bail!("its list is full: nothing was changed"),
        error => bail!("it refuses (mask error {error}): nothing was changed"),
    }
    let of = |edit| match edit {
        Edit::Add(mac) => Some(mac),
        _ => None,
    };
    Ok(edits.into_iter().filter_map(of).collect())
}

async fn ask_reserve(disk: &Disk, what: u8, macs: Vec<Mac>) -> Result<Vec<Mac>> {
    let (code, body) = disk.ask(command::RESERVE, Reserve { what, macs }.bytes()).await?;
    let answer = Reserve::parse(&body).filter(|_| code.is_none());
    Ok(answer.ok_or_else(|| refused(code.unwrap_or_default()))?.macs)
}

fn refused(code: u8) -> anyhow::Error {
    match code {
        error::COMMAND => anyhow!("this target knows no such list"),
        error::RESERVED => anyhow!("another has reserved it; --force takes it from him"),
        code => anyhow!("it refuses (error {code})"),
    }
}

fn list(macs: &[Mac], nobody: &str) -> String {
    let macs: Vec<String> = macs.iter().map(ToString::to_string).collect();
    if macs.is_empty() { nobody.into() } else { macs.join(" ") }
}

/// Prints one address on each line.
fn print(macs: &[Mac]) -> Result<()> {
    let mut out = Output::new();
    macs.iter().try_for_each(|mac| out.print(format_args!("{mac}\n")))?;
    out.flush()
}

/// Limit of addresses in one request.
const MOST: usize = 255;
