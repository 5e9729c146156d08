//! Compiles the protocol in pure Rust, so that no protoc is needed, and writes the methods of each service as a
//! macro: clients, servers and the gateways between components are made from it. The comments of the methods in the
//! `.proto` files become their documentation.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Error;
use std::path::PathBuf;

use tonic_prost_build::FileDescriptorSet;

fn main() -> Result<(), Error> {
    let files = [
        "tanist/v1/blob.proto",
        "tanist/v1/checkpoints.proto",
        "tanist/v1/graph.proto",
        "tanist/v1/peers.proto",
        "tanist/v1/records.proto",
        "tanist/v1/resources.proto",
        "tanist/v1/rpc.proto",
        "tanist/v1/state.proto",
    ];
    println!("cargo::rerun-if-changed=tanist");
    let descriptors = protox::compile(files, ["."]).map_err(Error::other)?;
    let generated = PathBuf::from(env::var_os("OUT_DIR").ok_or(Error::other("no OUT_DIR"))?);
    fs::write(generated.join("services.rs"), services(&descriptors))?;
    fs::write(
        generated.join("job_messages.rs"),
        job_messages(&descriptors),
    )?;
    tonic_prost_build::configure()
        // Chunks are forwarded without copying.
        .bytes(".tanist.v1.BlobChunk")
        // Graphs are cloned.
        .bytes(".tanist.v1.Artifact")
        .compile_fds(descriptors)
}

/// Field numbers of descriptors, as in the paths of comments.
const SERVICE: i32 = 6;
const METHOD: i32 = 2;

/// For each service the macro `<service>_methods!`, which passes its unary methods on to another macro.
fn services(descriptors: &FileDescriptorSet) -> String {
    let mut code = String::new();
    for file in &descriptors.file {
        let comment = |path: &[i32]| {
            let locations = file.source_code_info.iter().flat_map(|info| &info.location);
            let mut here = locations.filter(|location| location.path == path);
            here.find_map(|location| location.leading_comments.as_deref())
                .unwrap_or_default()
        };
        for (service, position) in file.service.iter().zip(0..) {
            let mut methods = String::new();
            let unary = |streaming: Option<bool>| !streaming.unwrap_or_default();
            for (method, number) in service.method.iter().zip(0..) {
                if !unary(method.client_streaming) || !unary(method.server_streaming) {
                    continue;
                }
                for line in comment(&[SERVICE, position, METHOD, number]).lines() {
                    writeln!(methods, "            #[doc = {line:?}]").expect("a string grows");
                }
                let name = method.name();
                let (snake, request) = (snake_case(name), message(method.input_type()));
                let answer = message(method.output_type());
                writeln!(
                    methods,
                    "            {name} {snake}({request}) -> {answer};"
                )
                .expect("a string grows");
            }
            let name = snake_case(service.name());
            write!(
                code,
                "/// Calls another macro with what is given, followed by the unary methods of the service: \
                 `Name name(Request) -> Answer;`, each with its documentation.\n\
                 #[macro_export]\n\
                 macro_rules! {name}_methods {{\n    \
                     ($($then:ident)::+! {{ $($given:tt)* }}) => {{\n        \
                         $($then)::+! {{\n            $($given)*\n{methods}        }}\n    }};\n}}\n"
            )
            .expect("a string grows");
        }
    }
    code
}

/// Implements `JobMessage` for the requests of the service JobMaster: each names its job.
fn job_messages(descriptors: &FileDescriptorSet) -> String {
    let mut code = String::new();
    for file in &descriptors.file {
        let requests = file
            .service
            .iter()
            .filter(|service| service.name() == "JobMaster");
        let requests = requests
            .flat_map(|service| &service.method)
            .map(|method| method.input_type());
        for request in requests.map(message) {
            let found = file
                .message_type
                .iter()
                .find(|found| found.name() == request);
            let mut fields = found.iter().flat_map(|found| &found.field);
            let job_id = match fields.any(|field| field.name() == "job") {
                true => "self.job.as_ref().map_or(\"\", |job| &job.job_id)",
                false => "&self.job_id",
            };
            write!(
                code,
                "impl JobMessage for v1::{request} {{\n    fn job_id(&self) -> &str {{\n        {job_id}\n    }}\n}}\n"
            )
            .expect("a string grows");
        }
    }
    code
}

/// The name of a message of the protocol, without its package.
fn message(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
