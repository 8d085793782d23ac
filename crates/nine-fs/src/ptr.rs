//! Addresses of blocks, and pointers to them (docs/disk.md, "Addresses, generations, dumps").

/// The first new address: all lower addresses are blocks of w.
pub(crate) const NEW: u64 = 1 << 47;

/// The address of a block, and the generation in which it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockPtr {
    pub(crate) at: u64,
    pub(crate) made: u32,
}

impl BlockPtr {
    /// Returns the row of a new address, or `None` for a w-address.
    pub(crate) fn row(self) -> Option<u64> {
        self.at.checked_sub(NEW)
    }
}
