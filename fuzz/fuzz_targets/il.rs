//! libFuzzer drives `nine_fuzz::il`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::il(data));
