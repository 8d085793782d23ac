//! libFuzzer drives `nine_fuzz::part`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::part(data));
