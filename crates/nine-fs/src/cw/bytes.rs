//! Reads and writes integers at byte offsets, least significant byte first.

/// Defines the reader and the writer of one integer type. Both panic if the bytes end before the integer does.
macro_rules! number {
    ($get:ident, $put:ident, $ty:ty) => {
        pub(crate) fn $get(bytes: &[u8], at: usize) -> $ty {
            <$ty>::from_le_bytes(bytes[at..at + size_of::<$ty>()].try_into().expect("as many bytes"))
        }

        pub(crate) fn $put(bytes: &mut [u8], at: usize, value: $ty) {
            bytes[at..at + size_of::<$ty>()].copy_from_slice(&value.to_le_bytes());
        }
    };
}

number!(get16, put16, u16);
number!(get32, put32, u32);
number!(get64, put64, u64);
