//! Compiles `proto/*.proto` with protox, so no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["error.proto", "raft.proto", "datanode.proto", "registry.proto", "scm.proto", "om.proto"];
    for file in files {
        println!("cargo:rerun-if-changed=proto/{file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        // Maps reach disk and Raft replicas inside stored messages: their order must not depend on the process.
        .btree_map(".")
        .build_client(true)
        .build_server(true)
        .compile_fds(descriptors)?;
    Ok(())
}
