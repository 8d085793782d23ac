//! libFuzzer drives `nine_fuzz::serving`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::serving(data));
