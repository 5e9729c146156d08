//! What a crate may depend on, read from its `Cargo.toml`. Cargo refuses cycles; these rules refuse an edge between
//! neighbours, and Arrow and DataFusion below the control plane.

use std::collections::BTreeSet;

/// The crates of the workspace, lowest layer first. A crate depends only on crates of lower layers.
pub(crate) const LAYERS: [&[&str]; 17] = [
    // A macro, with which tests plant faults.
    &["tanist-planted-faults"],
    &["tanist-ha"],
    &["tanist-proto"],
    &[
        "tanist-compact",
        "tanist-config",
        "tanist-model",
        "tanist-telemetry",
    ],
    &["tanist-compile", "tanist-net", "tanist-rest-model"],
    &["tanist-gateway"],
    &["tanist-dataflow"],
    &["tanist-operators"],
    &[
        "tanist-dispatcher",
        "tanist-job-master",
        "tanist-resource-manager",
        "tanist-task-executor",
    ],
    &["tanist-rpc"],
    &["tanist-leadership"],
    &["tanist-process"],
    &["tanist-client", "tanist-rest"],
    &["tanist-cli"],
    &["tanist"],
    // Tools, which no other crate uses but in its tests.
    &["tanist-chaos", "tanist-property-tests"],
    &["tanist-bench", "xtask"],
];

/// Crates that must build without records and expressions: those of the JobManager.
pub(crate) const CONTROL_PLANE: [&str; 5] = [
    "tanist-dispatcher",
    "tanist-job-master",
    "tanist-leadership",
    "tanist-resource-manager",
    "tanist-rpc",
];

/// A crate's name and the names in its table `[dependencies]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub name: String,
    pub dependencies: BTreeSet<String>,
}

impl Manifest {
    /// Reads the two tables that the rules need. A manifest without a package has an empty name.
    pub(crate) fn read(text: &str) -> Manifest {
        let mut manifest = Manifest {
            name: String::new(),
            dependencies: BTreeSet::new(),
        };
        let mut table = "";
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[') {
                table = name.trim_matches(['[', ']']);
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let key = key.trim();
            match table {
                "package" if key == "name" => value
                    .trim()
                    .trim_matches('"')
                    .clone_into(&mut manifest.name),
                "dependencies" => {
                    let name = key.split('.').next().unwrap_or(key);
                    manifest.dependencies.insert(name.to_owned());
                }
                _ => {}
            }
        }
        manifest
    }
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

/// Dependencies of a crate that are not below it.
pub(crate) fn layers(manifest: &Manifest) -> Vec<String> {
    let name = &manifest.name;
    let Some(own) = layer(name) else {
        return vec![format!("`{name}` has no layer: give it one in {}", file!())];
    };
    let others = manifest.dependencies.iter();
    let others = others.filter_map(|other| Some((other, layer(other)?)));
    let complain = |(other, at): (&String, usize)| {
        let reason = match at.cmp(&own) {
            std::cmp::Ordering::Less => return None,
            std::cmp::Ordering::Equal => "neighbours in a layer meet through a lower one",
            std::cmp::Ordering::Greater => "a layer uses only those below it",
        };
        Some(format!("`{name}` depends on `{other}`: {reason}"))
    };
    others.filter_map(complain).collect()
}

/// Crates of Arrow and DataFusion that `name` depends on, also through others of `all`.
pub(crate) fn columnar(all: &[Manifest], name: &str) -> Vec<String> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
    let mut complaints = Vec::new();
    while let Some(next) = open.pop() {
        let Some(manifest) = all.iter().find(|it| it.name == next) else {
            continue;
        };
        for dependency in &manifest.dependencies {
            if dependency.starts_with("arrow") || dependency.starts_with("datafusion") {
                complaints.push(format!("`{name}` needs `{dependency}`, through `{next}`"));
            } else if seen.insert(dependency.clone()) {
                open.push(dependency.clone());
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, dependencies: &[&str]) -> Manifest {
        Manifest {
            name: name.to_owned(),
            dependencies: dependencies.iter().map(|it| (*it).to_owned()).collect(),
        }
    }

    #[test]
    fn a_manifest_is_read_without_its_other_tables() {
        let text = "[package]\nname = \"tanist-net\"\n[dependencies]\ntanist-config.workspace = true\n\
                    tonic = { workspace = true }\n[dev-dependencies]\naxum.workspace = true\n";
        assert_eq!(
            Manifest::read(text),
            manifest("tanist-net", &["tanist-config", "tonic"])
        );
    }

    #[test]
    fn an_edge_to_a_neighbour_and_an_edge_upwards_are_reported() {
        let bad = manifest(
            "tanist-dispatcher",
            &[
                "tanist-gateway",
                "tanist-job-master",
                "tanist-rest",
                "tokio",
            ],
        );
        let complaints = layers(&bad);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].contains("neighbours"), "{complaints:?}");
        assert!(layers(&manifest("tanist-new", &[]))[0].contains("no layer"));
    }

    #[test]
    fn arrow_is_found_through_another_crate() {
        let all = [
            manifest("tanist-dispatcher", &["tanist-gateway"]),
            manifest("tanist-gateway", &["arrow-schema", "tanist-dispatcher"]),
        ];
        assert_eq!(columnar(&all, "tanist-dispatcher").len(), 1);
        assert_eq!(columnar(&all[..1], "tanist-dispatcher"), [""; 0]);
    }
}
