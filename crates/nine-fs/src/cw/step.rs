//! The transitions of a block's state: Ken Thompson's table, as in docs/disk.md, "States".
//!
//! In: a state and an operation. Out: the steps to perform, and the states after them. Nothing here performs a step.

/// The state of a block; the names are Ken's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Only on w.
    None,
    /// On w, with a copy on c.
    Read,
    /// Created in the current generation: only on c.
    Dirty,
    /// Created in an older generation; still to be copied to w.
    Dump,
    /// As `Dump`, but copying has failed.
    Dump1,
}

/// An operation on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Read its content.
    Read,
    /// Replace its content.
    Write,
    /// Create a block.
    Grow,
    /// End the generation.
    Dump,
    /// Copy it to w.
    Copy,
    /// Free it: nothing points to it any more.
    Free,
}

/// A step of a plan. Steps are performed in order, and a failed step ends the plan. In a plan for a read the next step
/// is instead another source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read the block from its slot.
    ReadCache,
    /// Read it from w.
    ReadWorm,
    /// Put the block into a slot as a read copy. If there is no free slot, or this fails, nothing is lost.
    Keep,
    /// Write it into a fresh slot. The old slot is free when this is durable.
    WriteCache,
    /// Write it to w.
    WriteWorm,
    /// Record its w-address in its row.
    Forward,
    /// Allocate a row.
    TakeRow,
    /// Free row and slot when this is durable.
    Release,
    /// Drop its copy on c.
    Drop,
}

/// The steps of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: &'static [Step],
    /// The state after the last step; `None`: the block is gone.
    pub(crate) then: Option<State>,
    /// The state if a step fails.
    pub(crate) failed: State,
}

/// Looks up the plan for an operation. `None`: the operation is invalid in this state, which is an error of the caller.
pub(crate) fn step(state: State, op: Op, fastworm: bool) -> Option<Plan> {
    use {Op as Do, State as Is, Step::*};
    let plan = |steps, then, failed| Some(Plan { steps, then: Some(then), failed });
    match (state, op) {
        (Is::None, Do::Read) if fastworm => plan(&[ReadWorm], Is::None, Is::None),
        (Is::None, Do::Read) => plan(&[ReadWorm, Keep], Is::Read, Is::None),
        (Is::Read, Do::Read) => plan(&[ReadCache, ReadWorm], Is::Read, Is::None),
        (Is::Dirty | Is::Dump | Is::Dump1, Do::Read) => plan(&[ReadCache], state, state),

        (Is::Dirty, Do::Write) => plan(&[WriteCache], Is::Dirty, Is::Dirty),
        // A block that w has, or will have, is never changed. The tree allocates a new block instead.
        (Is::None | Is::Read | Is::Dump | Is::Dump1, Do::Write) => None,

        (Is::None, Do::Grow) => plan(&[TakeRow, WriteCache], Is::Dirty, Is::None),
        (Is::Read | Is::Dirty | Is::Dump | Is::Dump1, Do::Grow) => None,

        (Is::Dirty, Do::Dump) => plan(&[], Is::Dump, Is::Dirty),
        (Is::None | Is::Read | Is::Dump | Is::Dump1, Do::Dump) => None,

        (Is::Dump | Is::Dump1, Do::Copy) if fastworm => {
            plan(&[ReadCache, WriteWorm, Forward, Drop], Is::None, Is::Dump1)
        }
        (Is::Dump | Is::Dump1, Do::Copy) => plan(&[ReadCache, WriteWorm, Forward], Is::Read, Is::Dump1),
        (Is::None | Is::Read | Is::Dirty, Do::Copy) => None,

        (Is::Dirty, Do::Free) => Some(Plan { steps: &[Release], then: None, failed: Is::Dirty }),
        (Is::Read, Do::Free) => plan(&[Drop], Is::None, Is::None),
        // These belong to a dump, or to w.
        (Is::None | Is::Dump | Is::Dump1, Do::Free) => plan(&[], state, state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 5] = [State::None, State::Read, State::Dirty, State::Dump, State::Dump1];
    const OPS: [Op; 6] = [Op::Read, Op::Write, Op::Grow, Op::Dump, Op::Copy, Op::Free];

    fn each(see: impl Fn(State, Op, Plan)) {
        for (state, op) in STATES.into_iter().flat_map(|state| OPS.map(|op| (state, op))) {
            for plan in [true, false].into_iter().filter_map(|fastworm| step(state, op, fastworm)) {
                see(state, op, plan);
            }
        }
    }

    #[test]
    fn what_w_does_not_have_is_never_given_up_but_by_who_frees_it() {
        let only_on_c = |state| matches!(state, State::Dirty | State::Dump | State::Dump1);
        each(|state, op, plan| {
            if only_on_c(state) && op != Op::Free && !plan.then.is_some_and(only_on_c) {
                let at = |step| plan.steps.iter().position(|one| *one == step);
                let (written, forward) = (at(Step::WriteWorm), at(Step::Forward));
                assert!(written.is_some() && written < forward, "{state:?} {op:?}");
                assert!(at(Step::Drop).is_none_or(|drop| Some(drop) > forward));
            }
            if only_on_c(state) {
                assert!(only_on_c(plan.failed), "{state:?} {op:?}: a step that fails loses nothing");
            }
        });
    }

    #[test]
    fn only_what_is_dirty_is_written_and_only_a_dump_comes_to_w() {
        each(|state, op, plan| {
            let does = |step| plan.steps.contains(&step);
            assert_eq!(does(Step::WriteWorm), op == Op::Copy && matches!(state, State::Dump | State::Dump1));
            assert_eq!(does(Step::WriteCache), matches!(op, Op::Write | Op::Grow));
            assert_eq!(does(Step::Release), op == Op::Free && state == State::Dirty);
        });
        assert!(STATES[..2].iter().all(|state| step(*state, Op::Write, true).is_none()));
    }

    #[test]
    fn with_a_fast_worm_nothing_read_is_written_and_nothing_copied_stays() {
        for state in STATES {
            for op in OPS {
                let Some(plan) = step(state, op, true) else { continue };
                assert!(!plan.steps.contains(&Step::Keep));
                assert!(state == State::Read || plan.then != Some(State::Read), "{state:?} {op:?}");
            }
        }
    }
}
