//! Assigns processors to sessions exclusively, and keeps other sessions off them.
//!
//! In: sessions' requests for processors, and the groups of sessions without exclusive ones. Out: the processors of a
//! session. The groups are updated at each change, also while their programs run.
//!
//! Always holds: no processor belongs to two sessions, and at least one is left for sessions without exclusive ones.
//! Waits for the kernel, but never on a core.

use std::collections::{BTreeMap, BTreeSet};

use nine_net::lock::{Mutex, lock};
use nine_proto::{Errno, Error, Result};

use super::cgroup::SessionCgroup;
use super::policy::cpu_list;
use super::session::{busy, wrong};

/// See the module.
pub(super) struct CpuAllocator {
    /// Groups can have processors here.
    can: bool,
    state: Mutex<CpuAllocation>,
}

#[derive(Default)]
struct CpuAllocation {
    own: BTreeMap<usize, u64>,
    /// Sessions that run on the remaining processors, with the set these are taken from.
    common: BTreeMap<u64, (BTreeSet<usize>, SessionCgroup)>,
}

impl CpuAllocator {
    pub(super) fn new(can: bool) -> Self {
        Self { can, state: Mutex::default() }
    }

    /// Gives a session these processors in place of its former ones, if `online` has them.
    pub(super) fn dedicate(
        &self,
        number: u64,
        online: &BTreeSet<usize>,
        cpus: &BTreeSet<usize>,
    ) -> Result<()> {
        if !self.can {
            let text = "no control group has processors here, so that none is a session's alone";
            return Err(Error::new(Errno::EOPNOTSUPP, text));
        }
        if let Some(cpu) = cpus.difference(online).next() {
            let all = cpu_list(online);
            return Err(wrong(&format!("processor {cpu} is none of those of this server: {all}")));
        }
        let mut state = lock(&self.state);
        let mut own = state.own.clone();
        own.retain(|_, of| *of != number);
        if let Some((cpu, other)) = cpus.iter().find_map(|cpu| Some((cpu, own.get(cpu)?))) {
            return Err(busy(&format!("processor {cpu} is session {other}'s")));
        }
        own.extend(cpus.iter().map(|&cpu| (cpu, number)));
        let all = state.common.values().map(|(online, _)| online);
        if all.chain([online]).any(|online| left(online, &own).is_empty()) {
            return Err(busy("the last processor is of those sessions that have none of their own"));
        }
        state.own = own;
        state.follow();
        Ok(())
    }

    /// Returns the processors of a session that starts: its own, or those that no session owns.
    pub(super) fn of(&self, number: u64, online: &BTreeSet<usize>) -> Result<BTreeSet<usize>> {
        let state = lock(&self.state);
        let own: BTreeSet<usize> =
            state.own.iter().filter(|(_, of)| **of == number).map(|(cpu, _)| *cpu).collect();
        let cpus = if own.is_empty() { left(online, &state.own) } else { own };
        match cpus.is_empty() {
            true => Err(busy("every processor is some session's alone")),
            false => Ok(cpus),
        }
    }

    /// Registers a group to be updated, if its session has no processors of its own.
    pub(super) fn joins(&self, number: u64, online: &BTreeSet<usize>, group: &SessionCgroup) {
        let mut state = lock(&self.state);
        if group.has("cpuset") && !state.own.values().any(|of| *of == number) {
            state.common.insert(number, (online.clone(), group.clone()));
            state.follow();
        }
    }

    /// Removes a group that has no more processes.
    pub(super) fn leaves(&self, number: u64) {
        lock(&self.state).common.remove(&number);
    }

    /// Removes a session that has ended.
    pub(super) fn forget(&self, number: u64) {
        let mut state = lock(&self.state);
        let before = state.own.len();
        state.own.retain(|_, of| *of != number);
        state.common.remove(&number);
        if state.own.len() < before {
            state.follow();
        }
    }
}

impl CpuAllocation {
    fn follow(&self) {
        for (online, group) in self.common.values() {
            group.moves(&cpu_list(&left(online, &self.own)));
        }
    }
}

fn left(online: &BTreeSet<usize>, own: &BTreeMap<usize, u64>) -> BTreeSet<usize> {
    online.iter().filter(|cpu| !own.contains_key(cpu)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_processor_is_left_and_none_is_twos() {
        let (cpus, online) = (CpuAllocator::new(true), BTreeSet::from([0, 1, 2]));
        let may = |number, of: &[usize]| cpus.dedicate(number, &online, &of.iter().copied().collect());
        assert_eq!(may(1, &[0, 1, 2]).unwrap_err().errno, Errno::EBUSY);
        may(1, &[0]).unwrap();
        assert_eq!(may(2, &[0]).unwrap_err().errno, Errno::EBUSY);
        assert_eq!(may(2, &[1, 2]).unwrap_err().errno, Errno::EBUSY);
        assert_eq!(may(2, &[5]).unwrap_err().errno, Errno::EINVAL);
        may(1, &[1]).unwrap();
        assert_eq!((cpus.of(1, &online).unwrap(), cpus.of(2, &online).unwrap()), ([1].into(), [0, 2].into()));
        assert!(cpus.of(3, &[1].into()).is_err());
        cpus.forget(1);
        may(2, &[0, 1]).unwrap();
        let none = CpuAllocator::new(false).dedicate(1, &online, &[0].into());
        assert_eq!(none.unwrap_err().errno, Errno::EOPNOTSUPP);
    }
}
