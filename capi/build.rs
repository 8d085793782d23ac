//! Gives the shared library its name of the first interface: another one that does not fit will be called otherwise.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libninefold.so.0");
}
