//! Passes the directory of `machine.ld` to the linker of an image.

fn main() {
    println!("cargo::rerun-if-changed=machine.ld");
    if let Some(here) = std::env::var_os("CARGO_MANIFEST_DIR").filter(|_| cfg!(feature = "machine")) {
        println!("cargo::rustc-link-search=native={}", here.display());
    }
}
