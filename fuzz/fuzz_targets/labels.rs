//! libFuzzer drives `nine_fuzz::labels`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::labels(data));
