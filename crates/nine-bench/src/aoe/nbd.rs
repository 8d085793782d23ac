//! A job over NBD, on this thread.

use std::io;
use std::net::SocketAddr;

use nine_sim::delay::Side;

use super::cables::{EtherCable, EtherTestbed};
use super::job::{BlockJob, BlockOp, OperationMeter, check};
use crate::peers::nbdkit::{NbdClient, READ, WRITE};

/// Runs a job on the server at a port of the far side, over one connection on this cable.
pub fn turn(ground: &EtherTestbed, cable: &EtherCable, port: u16, job: &BlockJob) -> io::Result<f64> {
    let at = SocketAddr::from((cable.address(Side::There), port));
    ground.far.run(Side::Here, || {
        let kind = if job.op == BlockOp::Read { READ } else { WRITE };
        let mut client = NbdClient::dial(at, kind, job.size as usize)?;
        let (mut places, mut data) = (job.places(), vec![0; job.size as usize]);
        let mut asked: Vec<u64> = places.by_ref().take(job.depth).collect();
        for (slot, at) in asked.iter().enumerate() {
            client.ask(slot as u64, *at)?;
        }
        let (mut meter, mut under_way, mut goes_on) = (OperationMeter::new(job), job.depth, true);
        while under_way > 0 {
            client.send()?;
            while under_way > 0 {
                let slot = client.reply(&mut data)?;
                let place = asked.get_mut(slot as usize).ok_or(io::ErrorKind::InvalidData)?;
                if job.op == BlockOp::Read {
                    check(*place, &data)?;
                }
                goes_on = goes_on && meter.done();
                if goes_on {
                    *place = places.next().unwrap_or_default();
                    client.ask(slot, *place)?;
                } else {
                    under_way -= 1;
                }
                if !client.has_more() {
                    break;
                }
            }
        }
        client.end()?;
        meter.figure()
    })?
}
