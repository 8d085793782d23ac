//! libFuzzer drives `nine_fuzz::guest`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::guest(data));
