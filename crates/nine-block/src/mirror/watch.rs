//! A mirror that another program is using: it is read, and never written.
//!
//! In: its members. Out: the data of complete members, by labels that are read again at each look. Labels, marks and
//! sectors of the members are left unchanged.
//!
//! Data being written may be on one member and not yet on another. A reader passes a [`Proof`], and the next member is
//! asked if it does not hold.

use std::sync::Arc;

use bytes::Bytes;

use super::label::{HEAD_SECTORS, MemberLabel, Place};
use super::open::read_label;
use super::{UnfitAnswer, best, fit};
use crate::device::{Device, Io, Op, Shape};
use crate::error::{Error, Kind, Result};
use crate::plain::above;
use crate::sync::{Mutex, lock};
use crate::task::Tasks;

#[cfg(doc)]
use crate::Proof;

/// A read-only view of a mirror in use.
pub struct Watched(Arc<WatchShared>);

struct WatchShared {
    of: Vec<Arc<dyn Device>>,
    now: Mutex<WatchedState>,
    tasks: Tasks,
}

/// The state in the labels.
#[derive(Clone)]
struct WatchedState {
    sectors: u64,
    /// The members in the order in which they are asked, and how many of them are complete.
    order: Vec<usize>,
    whole: usize,
}

impl Watched {
    /// Opens a view of these members, which must be in the order in which the mirror was created.
    ///
    /// # Errors
    /// No member is in by the newest readable label, or the members belong to several mirrors.
    pub async fn open(of: Vec<Arc<dyn Device>>) -> Result<Self> {
        let now = look(&of).await.map_err(|error| error.of(name(&of)))?;
        Ok(Self(Arc::new(WatchShared { of, now: Mutex::new(now), tasks: Tasks::default() })))
    }
}

fn name(of: &[Arc<dyn Device>]) -> String {
    format!("{{{}}}", of.iter().map(|member| member.name()).collect::<String>())
}

/// Reads all labels.
async fn look(of: &[Arc<dyn Device>]) -> Result<WatchedState> {
    let (mut labels, mut why) = (Vec::new(), Vec::new());
    // Read them concurrently, because a member that does not answer takes long.
    let looks: Vec<_> = of.iter().map(|member| member.look()).collect();
    for ((number, member), look) in of.iter().enumerate().zip(looks) {
        let read = async {
            look.await?;
            Result::Ok(read_label(&**member).await?.0)
        };
        match read.await {
            Err(error) if error.kind == Kind::Reserved => return Err(error),
            Err(error) => why.push(error.to_string()),
            Ok(None) => why.push(format!("{}: no label of a mirror is on it", member.name())),
            Ok(Some(label)) if (label.member, label.now.places.len()) != (number, of.len()) => {
                why.push(format!("{}: it is another member, or of a mirror of others", member.name()));
            }
            Ok(Some(label)) => labels.push(label),
        }
    }
    let failed = |text: String| Error::new(Kind::Failed, text);
    if labels.iter().any(|label| label.set != labels[0].set) {
        return Err(failed("its members are of several mirrors".into()));
    }
    let is_in = |label: &&MemberLabel| label.own().0 == Place::In;
    let newest = labels.iter().filter(is_in).max_by_key(|label| label.now.event);
    let Some(now) = newest.map(|label| label.now.clone()) else {
        return Err(failed(format!("no member has everything: {}", why.join("; "))));
    };
    // A member with an older event lacks the writes since it was set aside.
    let is_whole = |label: &&MemberLabel| label.now.event == now.event && label.own().0 == Place::In;
    let (whole, others): (Vec<&MemberLabel>, Vec<&MemberLabel>) = labels.iter().partition(is_whole);
    let order = whole.iter().chain(&others).map(|label| label.member).collect();
    Ok(WatchedState { sectors: now.sectors, order, whole: whole.len() })
}

impl WatchShared {
    async fn read(self: Arc<Self>, io: Io) {
        let now = lock(&self.now).clone();
        // Without a proof, incomplete members cannot be used.
        let asked = if io.proof.is_some() { now.order.len() } else { now.whole };
        let mut unfit = Vec::new();
        for member in &now.order[..asked] {
            let answer = self.of[*member].read_proven(HEAD_SECTORS + io.at, io.count, io.proof.clone()).await;
            match fit(&io, answer) {
                Ok(data) => return io.end(Ok(data)),
                Err(answer) => unfit.push(answer),
            }
            if unfit.last().is_some_and(UnfitAnswer::stops) {
                break;
            }
        }
        // If no proof holds, the first answer is from a complete member.
        io.end(best(unfit));
    }

    async fn looks(self: Arc<Self>, io: Io) {
        let now = look(&self.of).await;
        io.end(now.map(|now| {
            *lock(&self.now) = now;
            Bytes::new()
        }));
    }
}

impl Device for Watched {
    fn shape(&self) -> Shape {
        let now = lock(&self.0.now);
        let of = self.0.of[now.order[0]].shape();
        Shape { sectors: now.sectors, read_only: true, ..of }
    }

    fn submit(&self, io: Io) {
        let inner = self.0.clone();
        match (io.op, io.judge(&self.shape())) {
            (_, Err(error)) => io.end(Err(error.of(self.name()))),
            (Op::Read, _) => self.0.tasks.spawn(inner.read(io)),
            (Op::Look, _) => self.0.tasks.spawn(inner.looks(io)),
            // Nothing was written.
            _ => io.end(Ok(Bytes::new())),
        }
    }

    fn name(&self) -> String {
        name(&self.0.of)
    }

    fn status(&self) -> String {
        above(self, &self.0.of.iter().collect::<Vec<_>>())
    }

    fn trouble(&self) -> Vec<String> {
        self.0.of.iter().flat_map(|member| member.trouble()).collect()
    }
}
