//! libFuzzer drives `nine_fuzz::client`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::client(data));
