//! Passes the name of the build profile to the program: cargo tells build scripts only the profile that it inherits
//! from.

use std::env;
use std::path::Path;

fn main() {
    // OUT_DIR is TARGET/FOLDER/build/NAME-HASH/out, and the folder has the profile's name, except for `dev`.
    let out_dir = env::var("OUT_DIR").expect("cargo sets it");
    let folder = Path::new(&out_dir).ancestors().nth(3).and_then(Path::file_name);
    let profile = folder.map_or("unknown".into(), |name| name.to_string_lossy().replace("debug", "dev"));
    println!("cargo::rustc-env=NINE_BENCH_PROFILE={profile}");
    println!("cargo::rerun-if-changed=build.rs");
}
