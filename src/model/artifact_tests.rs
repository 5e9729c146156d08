//! Shipped files have the expected content, from files and from addresses; references resolve to them.

use super::*;

#[test]
fn references_are_found_and_replaced() {
    let text = "a ${artifact:x}${artifact:y-1.b} ${artifact:open";
    assert_eq!(references(text).collect::<Vec<_>>(), ["x", "y-1.b"]);
    let resolved = resolve(text, |name| Some(format!("/{name}")));
    assert_eq!(resolved.as_deref(), Ok("a /x/y-1.b ${artifact:open"));
    assert_eq!(resolve(text, |_| None), Err("x".to_owned()));
}

#[test]
fn names_lead_nowhere_else() {
    assert!(is_name("model-1.bin") && is_name("_"));
    for wrong in ["", ".", "..", "a/b", ".hidden", "a b", &"x".repeat(101)] {
        assert!(!is_name(wrong), "{wrong}");
    }
}

fn shipped(name: &str, content: &'static [u8]) -> v1::Artifact {
    v1::Artifact {
        name: name.to_owned(),
        sha256: Sha256::digest(content).to_vec().into(),
        content: content.into(),
        ..v1::Artifact::default()
    }
}

#[test]
fn what_a_stranger_ships_is_checked() {
    let mut graph = v1::JobGraph {
        artifacts: vec![shipped("a", b"1"), shipped("b", b"2")],
        ..v1::JobGraph::default()
    };
    assert_eq!(problems(&graph), Vec::<String>::new());
    graph.artifacts[0].content = (&b"other"[..]).into();
    graph.artifacts[1].name = "../b".to_owned();
    let problems = problems(&graph);
    assert!(
        problems[0].contains("does not have its SHA-256"),
        "{problems:?}"
    );
    assert!(
        problems[1].contains("no name of an artifact"),
        "{problems:?}"
    );
}

#[test]
fn only_whoever_has_the_files_can_ship_them() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("m"), "content").expect("written");
    let spec = [ArtifactSpec::new("model", "m").executable()];
    let read_here = read(&spec, Some(directory.path()), None).expect("it is there");
    assert!(read_here[0].executable && read_here[0].content == "content");
    let message = |spec: &str, directory| {
        let problems = read(&[ArtifactSpec::new("model", spec)], directory, None);
        problems.expect_err("refused")[0].message.clone()
    };
    assert!(message("m", None).contains("submit the job with `tanist run`"));
    assert!(message("none", Some(directory.path())).contains("can't be read"));
    assert!(message(".", Some(directory.path())).contains("is no file"));
}

#[test]
fn what_has_an_address_is_named_in_the_graph_until_it_is_submitted() {
    let sum = hex(&Sha256::digest("content"));
    let spec = ArtifactSpec::new("model", "http://host/m?signed").with_sha256(sum);
    let named = read(&[spec], None, None).expect("an address");
    assert_eq!(named[0].url, "http://host/m?signed");
    assert_eq!(named[0].sha256[..], Sha256::digest("content")[..]);
    let mut graph = v1::JobGraph {
        artifacts: named,
        ..v1::JobGraph::default()
    };
    assert_eq!(
        (problems(&graph), not_uploaded(&graph)),
        (Vec::new(), Some("model"))
    );
    graph.artifacts[0].content = (&b"content"[..]).into();
    assert!(problems(&graph)[0].contains("both an address and content"));
}

#[test]
fn what_is_no_address_to_fetch_from_is_told_without_its_secrets() {
    for (address, message) in [
        ("ftp://host/m?secret", "has the scheme `ftp`"),
        ("http://", "no whole address"),
        ("http://:80/secret?secret", "no whole address"),
        ("s3://bucket", "no whole address"),
        ("http://me:secret@host/m", "user and password"),
        ("http://host/a b", "no whole address"),
    ] {
        let refused = read(&[ArtifactSpec::new("m", address)], None, None);
        let text = refused.expect_err("refused")[0].message.clone();
        assert!(
            text.contains(message) && !text.contains("?secret"),
            "{text}"
        );
        assert!(!text.contains("me:"), "{text}");
    }
    let https = read(&[ArtifactSpec::new("m", "https://host/m")], None, None);
    assert_eq!(https.is_ok(), cfg!(feature = "https"));
}

#[test]
fn a_file_that_has_another_checksum_than_it_should_is_not_shipped() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("m"), "content").expect("written");
    let read = |digits: String, above| {
        let spec = ArtifactSpec::new("model", "m").with_sha256(digits);
        read(&[spec], Some(directory.path()), Some(above))
    };
    let right = hex(&Sha256::digest("content"));
    for above in [0, 100] {
        assert!(read(right.clone(), above).is_ok());
        let wrong = read(hex(&Sha256::digest("other")), above).expect_err("changed");
        assert!(wrong[0].message.contains("has the SHA-256"), "{wrong:?}");
    }
    let none = read("abc".to_owned(), 0).expect_err("no checksum");
    assert!(
        none[0].message.contains("64 hexadecimal digits"),
        "{none:?}"
    );
}

#[test]
fn a_large_file_is_left_to_be_uploaded_and_where_to_changes_no_digest() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("m"), "content").expect("written");
    let spec = [ArtifactSpec::new("model", "m")];
    let read = |above| read(&spec, Some(directory.path()), Some(above)).expect("there");
    assert_eq!(read(7)[0].content, "content");
    let large = read(6).remove(0);
    assert!(large.content.is_empty() && large.local_path.ends_with("/m"));
    assert_eq!(large.sha256[..], Sha256::digest("content")[..]);
    let mut graph = v1::JobGraph {
        job_id: "0a".to_owned(),
        artifacts: vec![large],
        ..v1::JobGraph::default()
    };
    assert_eq!(not_uploaded(&graph), Some("model"));
    let before = digest(&graph);
    let object = |owner: &str| format!("{owner}-upload-0123456789ab-0123456789abcdef");
    graph.artifacts[0].local_path.clear();
    graph.artifacts[0].uploaded = Some(v1::UploadedContent {
        object: object("0a"),
        pieces: 1,
        size: 7,
    });
    assert_eq!((digest(&graph), problems(&graph)), (before, Vec::new()));
    assert_eq!(uploaded_size(&graph), 7);
    let same = v1::Artifact {
        name: "same".to_owned(),
        ..graph.artifacts[0].clone()
    };
    graph.artifacts.push(same);
    assert_eq!((problems(&graph), uploads(&graph).len()), (Vec::new(), 1));
    assert_eq!(uploaded_size(&graph), 7, "uploaded once");
    let uploaded = graph.artifacts[0].uploaded.as_mut().expect("set");
    uploaded.object = object("0b");
    assert!(problems(&graph)[0].contains("not uploaded for this job"));
}
