//! libFuzzer drives `nine_fuzz::ring`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::ring(data));
