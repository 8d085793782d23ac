//! libFuzzer drives `nine_fuzz::cec`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::cec(data));
