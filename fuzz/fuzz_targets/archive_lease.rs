//! libFuzzer drives `nine_fuzz::archive_lease`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nine_fuzz::archive_lease(data));
