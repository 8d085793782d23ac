//! libFuzzer drives `nine_fuzz::text`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::text(data));
