//! Addresses of blocks, and pointers to them (docs/disk.md, "Addresses, generations, dumps").

/// The first new address: those below are places on w.
pub(crate) const NEW: u64 = 1 << 47;

/// Where a block is, and in which generation it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ptr {
    /// Its address.
    pub(crate) at: u64,
    /// Its generation.
    pub(crate) made: u32,
}

impl Ptr {
    /// The row of a new address.
    pub(crate) fn row(self) -> Option<u64> {
        self.at.checked_sub(NEW)
    }
}
