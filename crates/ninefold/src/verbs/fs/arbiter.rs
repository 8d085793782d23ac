//! `fs arbiter`: the disk on which machines agree on the primary.
//!
//! In: a device, names of machines. Out: a new arbiter on the device; or the primary according to
//! an existing arbiter.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nine_fs::lease::{self, Arbiter};
use nine_net::{Env, rt};

use super::show;
use crate::archive::{self, Options};
use crate::cli::FsArbiter;
use crate::fail::Tally;

pub async fn run(args: FsArbiter, env: rt::Real) -> Result<Tally> {
    let FsArbiter { device: word, machines, period, force, again, behind, over } = args;
    let options = Options { over, ..Options::default() };
    let device = archive::arbiter(&word, &options, env).await?;
    let mut identity = [0; 16];
    env.entropy(&mut identity);
    if again {
        let floor = lease::reset(&*device, identity, behind).await.with_context(|| word.clone())?;
        show(&format!("it is made anew: epochs begin behind {floor}\n"))?;
        return Ok(Tally::default());
    }
    if machines.is_empty() {
        show(&lease::shown(&*device).await.with_context(|| word.clone())?)?;
        return Ok(Tally::default());
    }
    ensure!(period.is_finite() && (0.1..=3600.0).contains(&period), "--period: 0.1 to 3600 seconds");
    let arbiter = Arbiter { names: machines, period: Duration::from_secs_f64(period), identity };
    lease::format(&*device, &arbiter, force).await.with_context(|| word.clone())?;
    let mut said = String::from("for each machine, behind the archive's place where it is mounted:\n");
    for name in &arbiter.names {
        said += &format!("    ,arbiter={word},machine={name}\n");
    }
    show(&said)?;
    Ok(Tally::default())
}
