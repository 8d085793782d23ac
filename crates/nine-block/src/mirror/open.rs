//! Creating and opening mirrors.

use std::sync::Arc;

use bytes::Bytes;

use super::label::{
    HEAD_SECTORS, LabelEvent, MARKS, MEMBERS_MOST, MemberLabel, Place, REGIONS_MAX, SLOTS, beyond,
};
use super::state::{MemberState, MirrorState};
use super::{Happening, Mirror, MirrorShared, Told};
use crate::bits::Bits;
use crate::device::{Device, SECTOR};
use crate::error::{Error, Kind, Result};
use crate::locks::RangeLocks;
use crate::sync::Mutex;
use crate::task::Tasks;

/// The conditions under which a mirror may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Start only if no missing member could be newer.
    Careful,
    /// Start with the members that are there. Writes that only others have are lost.
    Anyway,
    /// Start with this member, counted from 0, as the right one.
    From(usize),
}

/// Maximum number of regions of a new mirror.
const REGIONS_NEW: u64 = REGIONS_MAX / 4;
/// The minimum and the maximum number of sectors of a region.
const REGION_SECTORS_MIN: u64 = 2048;
const REGION_SECTORS_MAX: u64 = 1 << 31;

/// The state read from a member.
struct FoundMember {
    label: MemberLabel,
    /// One of its labels cannot be read, and may have been newer by one event.
    newer: bool,
    marks: Bits,
    /// The bits of those sectors of marks that were valid.
    right: Bits,
}

impl Mirror {
    /// Creates a mirror from disks. Their data is lost, and all regions remain to be made equal. `set` must be random,
    /// so that no two sets have the same name.
    ///
    /// # Errors
    /// A disk is a member of a mirror already, or too small.
    pub async fn make(members: &[Arc<dyn Device>], set: [u8; 16]) -> Result<()> {
        let smallest = members.iter().map(|member| member.shape().sectors).min().unwrap_or(0);
        let sectors = smallest.saturating_sub(HEAD_SECTORS);
        let mut region = REGION_SECTORS_MIN;
        while sectors.div_ceil(region) > REGIONS_NEW && region < REGION_SECTORS_MAX {
            region *= 2;
        }
        Self::make_with(members, set, region as u32).await
    }

    /// The same with regions of this number of sectors, a power of two: for tests of small ones.
    #[doc(hidden)]
    pub async fn make_with(members: &[Arc<dyn Device>], set: [u8; 16], region: u32) -> Result<()> {
        if members.is_empty() || members.len() > MEMBERS_MOST {
            let text = format!("a mirror has 1 to {MEMBERS_MOST} members, not {}", members.len());
            return Err(Error::new(Kind::Unsupported, text));
        }
        let smallest = members.iter().map(|member| member.shape().sectors).min().unwrap_or(0);
        for member in members {
            let refused = |text: String| Err(Error::new(Kind::Failed, text).of(member.name()));
            if smallest <= HEAD_SECTORS || member.shape().read_only {
                return refused(format!("it needs more than {HEAD_SECTORS} sectors, and to be written"));
            }
            if let Some(label) = read_label(&**member).await?.0 {
                return refused(format!("it is member {} of a mirror already", label.member));
            }
        }
        let sectors = smallest - HEAD_SECTORS;
        if sectors.div_ceil(region.into()) > REGIONS_MAX {
            let text = format!(
                "{sectors} sectors are too many: a mirror has {} at most",
                REGION_SECTORS_MAX * REGIONS_MAX
            );
            return Err(Error::new(Kind::Unsupported, text));
        }
        let mut marks = Bits::new(sectors.div_ceil(region.into()));
        marks.fill();
        let bytes: Vec<Bytes> = (0..marks.sectors()).map(|sector| marks.sector(sector)).collect();
        let bytes = Bytes::from(bytes.concat());
        for member in members {
            member.write(0, vec![0; (MARKS * SECTOR) as usize].into()).await?;
            member.write(MARKS, bytes.clone()).await?;
            member.flush().await?;
        }
        let now = LabelEvent { event: 1, base: 1, sectors, places: vec![(Place::In, 1); members.len()] };
        for (number, member) in members.iter().enumerate() {
            let label = MemberLabel { set, member: number, region, now: now.clone() };
            member.write(label.sector(), label.encode()).await?;
            member.flush().await?;
        }
        Ok(())
    }

    /// Returns the event of a member's label, and the states of all members in it.
    pub(crate) async fn places(member: &dyn Device) -> Option<(u64, Vec<Place>)> {
        let label = read_label(member).await.ok()?.0?;
        let places = label.now.places.iter().map(|(place, _)| *place).collect();
        Some((label.now.event, places))
    }

    /// Opens a mirror. The members must be in the order in which it was created; the first one is read first.
    ///
    /// # Errors
    /// `start` does not allow the state of the members, or another owner has reserved one of them.
    pub async fn open(members: Vec<Arc<dyn Device>>, start: Start, told: Told) -> Result<Self> {
        let name: String = members.iter().map(|member| member.name()).collect();
        let refused = |text: String| Error::new(Kind::Failed, text).of(format!("{{{name}}}"));
        let mut found = Vec::new();
        for member in &members {
            match find(&**member).await {
                Err(error) if error.kind == Kind::Reserved => return Err(error),
                result => found.push(result),
            }
        }
        let chosen = choose(&members, &found, start).map_err(refused)?;
        let right = found[chosen].as_ref().expect("it was chosen because it has a label").label.clone();
        let doubt = found[chosen].as_ref().is_ok_and(|found| found.newer);
        // If one member was named as the right one, the data of the others is not used.
        let named = matches!(start, Start::From(_));
        let mut now = right.now.clone();
        if named {
            now.places[chosen].0 = Place::In;
        }
        let regions = right.now.sectors.div_ceil(right.region.into());
        for found in &mut found {
            let is_other = |found: &FoundMember| {
                found.label.region != right.region || found.label.now.sectors > right.now.sectors
            };
            match found {
                Ok(other) if is_other(other) => {
                    let text = "its label has other regions, or a larger size, than one that is newer";
                    *found = Err(Error::new(Kind::Failed, text));
                }
                // From before the mirror has grown.
                Ok(found) => {
                    [&mut found.marks, &mut found.right].into_iter().for_each(|bits| bits.resize(regions))
                }
                Err(_) => {}
            }
        }
        let newest = |number: usize, found: &FoundMember| {
            let same = found.label.now.event == right.now.event && !found.newer && !doubt;
            number == chosen || same && !named
        };
        // The marks of all members that are in with the newest event: the regions where these may differ.
        let mut marks = Bits::new(regions);
        for (number, found) in found.iter().enumerate() {
            if let Ok(found) = found
                && now.places[number].0 == Place::In
                && newest(number, found)
            {
                marks.add(&found.marks);
            }
        }
        let mut told_first = Vec::new();
        let mut kept = Vec::new();
        for (number, found) in found.iter().enumerate() {
            let mut member = MemberState::new(regions);
            let place = &mut now.places[number].0;
            match found {
                Ok(found) if *place != Place::Out && (number == chosen || !named) => {
                    member.disk = found.marks.clone();
                    member.disk.keep(&found.right);
                    match (*place, newest(number, found)) {
                        (Place::In, true) if number == chosen => {}
                        (Place::In, true) => member.todo = marks.clone(),
                        (_, true) => member.todo = found.marks.clone(),
                        (_, false) => {
                            *place = Place::Returning;
                            member.todo = found.marks.clone();
                            member.todo.add(&marks);
                            if found.label.now.event < right.now.base {
                                member.todo.fill();
                            }
                        }
                    }
                    member.want = if *place == Place::In { marks.clone() } else { member.todo.clone() };
                }
                found => {
                    let text = match named {
                        true => "another was named as the right one; it can be told to return",
                        false => "it was set aside before; it can be told to return",
                    };
                    *place = Place::Out;
                    let why = found.as_ref().err().cloned();
                    let why = why.unwrap_or_else(|| Error::new(Kind::Failed, text));
                    told_first.push((number, Happening::Aside(why.clone())));
                    member.why = Some(why);
                    member.todo.fill();
                }
            }
            kept.push(member);
        }
        let both = now.places.iter().zip(&right.now.places).enumerate();
        let changed: Vec<usize> =
            both.filter(|(_, (new, old))| new.0 != old.0).map(|(number, _)| number).collect();
        // Exceed all events found, so that no old label can be taken for the new one.
        let events = found.iter().flatten().map(|found| found.label.now.event + u64::from(found.newer));
        now.event = beyond(now.event, events.max().unwrap_or(0));
        let change = doubt || now != right.now;
        let mut state = MirrorState {
            owners: Vec::new(),
            waits_for_owner: false,
            region: right.region.into(),
            members: kept,
            hot: Default::default(),
            touched: Bits::new(regions),
            written: Default::default(),
            scrub: None,
            resync: None,
            speed: None,
            unsure: false,
            shape: members[chosen].shape(),
            now,
        };
        // The first member that is in must be right everywhere. The chosen one is, and so are all that are in with it.
        let first = state.inside()[0];
        state.members[first].todo.clear();
        if first != chosen {
            state.members[chosen].todo = marks;
        }
        let inner = MirrorShared {
            set: right.set,
            members,
            state: Arc::new(Mutex::new(state)),
            ranges: RangeLocks::default(),
            marks: RangeLocks::default(),
            labels: RangeLocks::default(),
            driver: RangeLocks::default(),
            returns: RangeLocks::default(),
            looks: Mutex::default(),
            told,
            tasks: Tasks::default(),
        };
        told_first.into_iter().for_each(|(member, what)| inner.tell(member, what));
        inner.write_marks().await?;
        if change {
            let since = |next: &mut LabelEvent| {
                let event = next.event + 1;
                changed.iter().for_each(|number| next.places[*number].1 = event);
                if named {
                    // Others get everything.
                    next.base = event;
                }
            };
            inner.relabel(Vec::new(), since).await?;
        }
        let shape = inner.shape_of(&inner.state());
        inner.state().shape = shape;
        Ok(Self(Arc::new(inner)))
    }
}

/// Reads the state of a member, or returns why it cannot be used now.
async fn find(member: &dyn Device) -> Result<FoundMember> {
    let failed = |text: String| Error::new(Kind::Failed, text).of(member.name());
    member.look().await?;
    let sectors = member.shape().sectors;
    if sectors <= HEAD_SECTORS || member.shape().read_only {
        return Err(failed(format!(
            "it has {sectors} sectors, and has to have more than {HEAD_SECTORS}, and to be written"
        )));
    }
    let (label, newer) = read_label(member).await?;
    let label = label.ok_or_else(|| failed("no label of a mirror is on it: it has to be made".into()))?;
    let needs = HEAD_SECTORS + label.now.sectors;
    if sectors < needs {
        return Err(failed(format!("it has {sectors} sectors, and {needs} are needed")));
    }
    let (marks, right) = read_marks(member, label.now.sectors.div_ceil(label.region.into())).await?;
    Ok(FoundMember { label, newer, marks, right })
}

/// Returns the label of a member, if it has one; and whether an unreadable sector may have a newer one.
pub(super) async fn read_label(member: &dyn Device) -> Result<(Option<MemberLabel>, bool)> {
    let (mut label, mut unread): (Option<MemberLabel>, _) = (None, None);
    for slot in SLOTS {
        match member.read(slot, 1).await {
            Ok(bytes) => {
                let other = MemberLabel::decode(&bytes);
                label = label.into_iter().chain(other).max_by_key(|label| label.now.event);
            }
            Err(error) if error.kind == Kind::Failed => unread = Some(error),
            Err(error) => return Err(error),
        }
    }
    match (label, unread) {
        (None, Some(error)) => Err(error),
        (label, unread) => Ok((label, unread.is_some())),
    }
}

/// Returns the marks of a member, and which of their bits are valid. Bits that cannot be read, or have a wrong sum,
/// count as 1.
pub(super) async fn read_marks(member: &dyn Device, regions: u64) -> Result<(Bits, Bits)> {
    let (mut marks, mut right) = (Bits::new(regions), Bits::new(regions));
    right.fill();
    let whole = member.read(MARKS, marks.sectors()).await;
    for sector in 0..marks.sectors() {
        let bytes = match &whole {
            Ok(bytes) => Ok(bytes.slice((sector * SECTOR) as usize..((sector + 1) * SECTOR) as usize)),
            Err(error) if error.kind == Kind::Failed => member.read(MARKS + sector, 1).await,
            Err(error) => Err(error.clone()),
        };
        let bytes = match bytes {
            Err(error) if error.kind == Kind::Failed => Bytes::from_static(&[0; SECTOR as usize]),
            bytes => bytes?,
        };
        if !marks.take(sector, &bytes) {
            let none = Bits::new(regions);
            right.copy(&none, sector);
        }
    }
    Ok((marks, right))
}

/// Returns the member with the label that counts, or an error message.
fn choose(
    members: &[Arc<dyn Device>],
    found: &[Result<FoundMember>],
    start: Start,
) -> std::result::Result<usize, String> {
    let labels: Vec<Option<&MemberLabel>> =
        found.iter().map(|found| found.as_ref().ok().map(|found| &found.label)).collect();
    let Some(any) = labels.iter().flatten().next() else {
        let why: Vec<String> =
            found.iter().filter_map(|found| found.as_ref().err()).map(ToString::to_string).collect();
        return Err(format!("no member can be used: {}", why.join("; ")));
    };
    for (number, label) in labels.iter().enumerate() {
        let Some(label) = label else { continue };
        let name = members[number].name();
        if label.set != any.set {
            return Err(format!("{name} is of another mirror"));
        }
        let count = label.now.places.len();
        if (label.member, count) != (number, members.len()) {
            let (is, of) = (label.member + 1, members.len());
            return Err(format!(
                "{name} is member {is} of {count}, and stands here as {} of {of}",
                number + 1
            ));
        }
    }
    if let Start::From(member) = start {
        return match labels.get(member) {
            Some(Some(_)) => Ok(member),
            _ => Err(format!("there is no member {member} to start from")),
        };
    }
    let is_in = |number: &usize| labels[*number].is_some_and(|label| label.own().0 == Place::In);
    let event = |number: usize| labels[number].map_or(0, |label| label.now.event);
    let newer = |number: usize| found[number].as_ref().is_ok_and(|found| found.newer);
    let newest = (0..labels.len())
        .filter(is_in)
        .max_by_key(|number| (event(*number), newer(*number), std::cmp::Reverse(*number)));
    let Some(chosen) = newest else {
        let name = members[any.member].name();
        return Err(format!("{name} has not got yet all it missed, and no member that has is there"));
    };
    let right = labels[chosen].expect("it has one");
    for (number, label) in labels.iter().enumerate() {
        let name = members[number].name();
        let alone =
            label.is_some_and(|label| label.alone(right) || right.alone(label) && right.missed(label));
        if alone && number != chosen {
            return Err(format!("{name} has gone on alone: one member has to be named as the right one"));
        }
        // A member that was returning may have completed its return, and seen all others fail. A label newer than the
        // right one belongs to a member that was returning when an event was interrupted.
        let could = |label: &&MemberLabel| {
            label.now.event >= right.now.event && label.now.places[number].0 != Place::Out
        };
        let may_be_newer = labels.iter().flatten().any(could);
        if newer(number) && number != chosen && event(number) >= right.now.event && start == Start::Careful {
            return Err(format!("{name} may have what is newer: one of its labels cannot be read"));
        }
        if label.is_none() && may_be_newer && start == Start::Careful {
            let why = found[number].as_ref().err().map(ToString::to_string).unwrap_or_default();
            return Err(format!("{name} may have what is newer, and cannot be used: {why}"));
        }
    }
    Ok(chosen)
}
