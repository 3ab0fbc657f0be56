//! Compiles `proto/*.proto` with protox, so no `protoc` is needed, and writes down what `src/limits.rs` must
//! know of the messages.

#![allow(clippy::disallowed_methods)] // a build script writes what it was made for

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

/// Numbers of `google.protobuf.FieldDescriptorProto`.
mod field {
    pub(super) const REPEATED: i32 = 3;
    pub(super) const STRING: i32 = 9;
    pub(super) const MESSAGE: i32 = 11;
    pub(super) const BYTES: i32 = 12;
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "error.proto",
        "raft.proto",
        "datanode.proto",
        "registry.proto",
        "scm.proto",
        "om.proto",
        "process.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed=proto/{file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    let out = std::env::var("OUT_DIR")?;

    // Messages and those within them, which are those of maps.
    let (mut messages, mut methods, mut codecs) = (Vec::new(), Vec::new(), String::new());
    for file in &descriptors.file {
        for message in &file.message_type {
            messages.push((format!("{}.{}", file.package(), message.name()), message));
            for inner in &message.nested_type {
                let name = format!("{}.{}.{}", file.package(), message.name(), inner.name());
                messages.push((name, inner));
            }
        }
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                let (input, output) = (method.input_type().to_owned(), method.output_type().to_owned());
                methods.push((path, input, output, method.client_streaming()));
            }
        }
    }
    let numbers: HashMap<String, usize> =
        messages.iter().enumerate().map(|(n, (name, _))| (format!(".{name}"), n)).collect();

    let mut shapes = String::from("pub(crate) static SHAPES: &[Shape] = &[\n");
    for (name, message) in &messages {
        let mut fields = String::new();
        for at in &message.field {
            let part = match (at.label == Some(field::REPEATED), at.r#type) {
                (_, Some(field::MESSAGE)) => format!("Part::Message({})", numbers[at.type_name()]),
                (true, Some(field::STRING | field::BYTES)) => "Part::Element".to_owned(),
                (true, _) => "Part::Numbers".to_owned(),
                (false, _) => continue,
            };
            write!(fields, "({}, {part}), ", at.number())?;
        }
        writeln!(shapes, "    Shape {{ name: {name:?}, parts: &[{fields}] }},")?;
    }
    shapes.push_str("];\n\n/// In the order of their paths.\npub(crate) static METHODS: &[Method] = &[\n");
    methods.sort();
    for (path, input, _, takes_stream) in &methods {
        let asked = numbers[input];
        writeln!(shapes, "    Method {{ path: {path:?}, asked: {asked}, takes_stream: {takes_stream} }},")?;
    }
    shapes.push_str("];\n");

    let mut decoders = String::new();
    for (path, input, ..) in &methods {
        writeln!(decoders, "    ({path:?}, decode_as::<crate{}>),", input.replace('.', "::"))?;
    }
    write!(
        codecs,
        "type Decode = fn(&[u8]) -> Result<(), Failure>;\n\nstatic DECODERS: &[(&str, Decode)] = &[\n{decoders}];\n\n"
    )?;

    let inputs: Vec<&String> = methods.iter().map(|(_, input, ..)| input).collect();
    let mut carried: Vec<&String> =
        methods.iter().flat_map(|(_, input, output, _)| [input, output]).collect();
    carried.sort();
    carried.dedup();
    for name in carried {
        let asked =
            if inputs.contains(&name) { format!("Some({})", numbers[name]) } else { "None".to_owned() };
        let rust = name.replace('.', "::");
        writeln!(codecs, "impl Carried for crate{rust} {{\n    const ASKED: Option<usize> = {asked};\n}}")?;
    }
    std::fs::write(Path::new(&out).join("shapes.rs"), format!("{shapes}\n{codecs}"))?;

    tonic_prost_build::configure()
        .bytes(".")
        // Maps reach disk and Raft replicas inside stored messages: their order must not depend on the
        // process.
        .btree_map(".")
        // A call may bring many empty ones, which take no more than other parts do.
        .boxed(".flotilla.om.v1.Change.what")
        .codec_path("crate::codec::CheckedCodec")
        .build_client(true)
        .build_server(true)
        .compile_fds(descriptors)?;
    Ok(())
}
