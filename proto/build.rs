//! Compiles the protocol in pure Rust, so that no protoc is needed.

use std::io::Error;

fn main() -> Result<(), Error> {
    let files = [
        "tanist/v1/blob.proto",
        "tanist/v1/graph.proto",
        "tanist/v1/peers.proto",
        "tanist/v1/records.proto",
        "tanist/v1/resources.proto",
        "tanist/v1/rpc.proto",
    ];
    println!("cargo::rerun-if-changed=tanist");
    let descriptors = protox::compile(files, ["."]).map_err(Error::other)?;
    tonic_prost_build::configure()
        // Chunks are forwarded without copying.
        .bytes(".tanist.v1.BlobChunk")
        // Graphs are cloned.
        .bytes(".tanist.v1.Artifact")
        .compile_fds(descriptors)
}
