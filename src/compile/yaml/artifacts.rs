//! Reads the `artifacts` of a job file: for each name a path or an address, or a map with more fields.

use tanist_model::artifact::ArtifactSpec;
use tanist_model::job_file::{Fields, Node, Reader, Value};

pub(super) fn read(node: &Node, reader: &mut Reader) -> Vec<ArtifactSpec> {
    let Some(fields) = reader.map("artifacts", node, "`{ NAME: path }`") else {
        return Vec::new();
    };
    let mut artifacts = Vec::new();
    for (key, node) in fields {
        let mut spec = ArtifactSpec::new(key.text.clone(), String::new());
        spec.position = Some(node.position);
        let path = if let Value::Scalar { .. } = &node.value {
            reader.text(&key.text, node)
        } else {
            let mut fields = Fields::of(node, reader);
            spec.executable = fields
                .optional_value("executable", reader, Reader::bool)
                .unwrap_or(false);
            spec.sha256 = fields.optional_value("sha256", reader, Reader::text);
            let path = fields.required("path", "./model.bin", reader, Reader::text);
            fields.finish(&format!("artifact `{}`", key.text), reader);
            path
        };
        if let Some(path) = path {
            spec.path = path;
            artifacts.push(spec);
        }
    }
    artifacts
}
