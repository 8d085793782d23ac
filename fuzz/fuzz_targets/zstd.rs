//! libFuzzer drives `nine_fuzz::zstd`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::zstd(data));
