//! A table of all functions that the bindings declare, made from the bindings.

#![allow(clippy::disallowed_methods)] // a build script, on the machine that compiles

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    let bindings = env::var("DEP_ROCKSDB_OUT_DIR").expect("librocksdb-sys says where its bindings are");
    let bindings = Path::new(&bindings).join("bindings.rs");
    println!("cargo:rerun-if-changed={}", bindings.display());
    let declarations = fs::read_to_string(bindings).expect("bindgen has written the bindings");

    let mut table = "vec![\n".to_owned();
    for name in declarations.split("pub fn ").skip(1).filter_map(|rest| rest.split('(').next()) {
        if name.starts_with("rocksdb_") {
            writeln!(table, "(\"{name}\", librocksdb_sys::{name} as *const ()),")
                .expect("a string takes all");
        }
    }
    table.push(']');
    let directory = env::var("OUT_DIR").expect("cargo names a directory for build scripts");
    fs::write(Path::new(&directory).join("functions.rs"), table).expect("write functions.rs");
}
