//! The transitions of a block's state: Ken Thompson's table, as in docs/disk.md, "States".
//!
//! In: a state and an operation. Out: the steps to perform, and the states after them. Nothing here performs a step.

/// The state of a block; the names are Ken's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
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
pub(crate) enum BlockOperation {
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
pub(crate) enum PlanStep {
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
pub(crate) struct OperationPlan {
    pub(crate) steps: &'static [PlanStep],
    /// The state after the last step; `None`: the block is gone.
    pub(crate) then: Option<BlockState>,
    /// The state if a step fails.
    pub(crate) failed: BlockState,
}

/// Looks up the plan for an operation. `None`: the operation is invalid in this state, which is an error of the caller.
pub(crate) fn step(state: BlockState, op: BlockOperation, fastworm: bool) -> Option<OperationPlan> {
    use {BlockOperation as Do, BlockState as Is, PlanStep::*};
    let plan = |steps, then, failed| Some(OperationPlan { steps, then: Some(then), failed });
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

        (Is::Dirty, Do::Free) => Some(OperationPlan { steps: &[Release], then: None, failed: Is::Dirty }),
        (Is::Read, Do::Free) => plan(&[Drop], Is::None, Is::None),
        // These belong to a dump, or to w.
        (Is::None | Is::Dump | Is::Dump1, Do::Free) => plan(&[], state, state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [BlockState; 5] =
        [BlockState::None, BlockState::Read, BlockState::Dirty, BlockState::Dump, BlockState::Dump1];
    const OPS: [BlockOperation; 6] = [
        BlockOperation::Read,
        BlockOperation::Write,
        BlockOperation::Grow,
        BlockOperation::Dump,
        BlockOperation::Copy,
        BlockOperation::Free,
    ];

    fn each(see: impl Fn(BlockState, BlockOperation, OperationPlan)) {
        for (state, op) in STATES.into_iter().flat_map(|state| OPS.map(|op| (state, op))) {
            for plan in [true, false].into_iter().filter_map(|fastworm| step(state, op, fastworm)) {
                see(state, op, plan);
            }
        }
    }

    #[test]
    fn what_w_does_not_have_is_never_given_up_but_by_who_frees_it() {
        let only_on_c = |state| matches!(state, BlockState::Dirty | BlockState::Dump | BlockState::Dump1);
        each(|state, op, plan| {
            if only_on_c(state) && op != BlockOperation::Free && !plan.then.is_some_and(only_on_c) {
                let at = |step| plan.steps.iter().position(|one| *one == step);
                let (written, forward) = (at(PlanStep::WriteWorm), at(PlanStep::Forward));
                assert!(written.is_some() && written < forward, "{state:?} {op:?}");
                assert!(at(PlanStep::Drop).is_none_or(|drop| Some(drop) > forward));
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
            assert_eq!(
                does(PlanStep::WriteWorm),
                op == BlockOperation::Copy && matches!(state, BlockState::Dump | BlockState::Dump1)
            );
            assert_eq!(
                does(PlanStep::WriteCache),
                matches!(op, BlockOperation::Write | BlockOperation::Grow)
            );
            assert_eq!(does(PlanStep::Release), op == BlockOperation::Free && state == BlockState::Dirty);
        });
        assert!(STATES[..2].iter().all(|state| step(*state, BlockOperation::Write, true).is_none()));
    }

    #[test]
    fn with_a_fast_worm_nothing_read_is_written_and_nothing_copied_stays() {
        for state in STATES {
            for op in OPS {
                let Some(plan) = step(state, op, true) else { continue };
                assert!(!plan.steps.contains(&PlanStep::Keep));
                assert!(state == BlockState::Read || plan.then != Some(BlockState::Read), "{state:?} {op:?}");
            }
        }
    }
}
