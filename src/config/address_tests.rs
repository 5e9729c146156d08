//! Tests of [`super`]: the forms of hosts, ports, server lists and storage locations.

use super::*;

#[test]
fn a_range_of_ports_is_tried_in_order() {
    let ports = PortRange::parse("0, 7001,50100-50102").expect("well-formed");
    assert_eq!(
        ports.iter().collect::<Vec<_>>(),
        [0, 7001, 50100, 50101, 50102]
    );
    assert_eq!(ports.to_string(), "0,7001,50100-50102");
}

#[test]
fn a_wrong_port_is_answered_with_what_to_write() {
    let cases = [
        ("65536", "number up to 65535"),
        ("http", "number up to 65535"),
        ("200-100", "write `100-200`"),
        ("0-100", "write 0 alone"),
    ];
    for (text, part) in cases {
        let message = PortRange::parse(text).expect_err(text);
        assert!(message.contains(part), "{text}: {message}");
    }
    assert_eq!(u16::parse("0"), Ok(0));
}

#[test]
fn servers_get_their_default_port_and_keep_their_own() {
    let EtcdEndpoints(endpoints) =
        EtcdEndpoints::parse("http://a:1, b , [::1]:3,::1, 10.0.0.1:4/").expect("well-formed");
    let shown: Vec<String> = endpoints.iter().map(HostPort::to_string).collect();
    assert_eq!(
        shown,
        ["a:1", "b:2379", "[::1]:3", "[::1]:2379", "10.0.0.1:4"]
    );
    let Quorum(servers) = Quorum::parse("zk1,zk2:2182").expect("well-formed");
    assert_eq!(servers[0].to_string(), "zk1:2181");
    assert_eq!(servers[1].to_string(), "zk2:2182");
}

#[test]
fn a_server_list_that_can_not_work_is_refused_with_the_reason() {
    assert!(
        EtcdEndpoints::parse("https://a:1")
            .expect_err("TLS")
            .contains("http://")
    );
    assert!(
        EtcdEndpoints::parse(" , ")
            .expect_err("empty")
            .contains("host:port")
    );
    assert!(
        EtcdEndpoints::parse("a:0")
            .expect_err("port 0")
            .contains("port 0")
    );
    assert!(
        EtcdEndpoints::parse("a b:1")
            .expect_err("blank")
            .contains("a b")
    );
    let message = Quorum::parse("zk1:2181/flink").expect_err("a path");
    assert!(message.contains("path.root: /flink"), "{message}");
}

#[test]
fn hosts_know_whether_others_can_reach_them() {
    let host = |text: &str| Host::parse(text).expect(text);
    assert!(host("localhost").is_loopback() && host("127.0.1.1").is_loopback());
    assert!(host("[::1]").is_loopback() && !host("node-1").is_loopback());
    assert!(host("0.0.0.0").is_wildcard() && host("::").is_wildcard());
    assert_eq!(host("::1").with_port(80), "[::1]:80");
    assert!(
        Host::parse("node:6123")
            .expect_err("with port")
            .contains("host alone")
    );
}

#[test]
fn storage_is_an_absolute_directory_or_a_bucket() {
    let directory = StorageLocation::Directory(PathBuf::from("/mnt/ha"));
    assert_eq!(StorageLocation::parse("/mnt/ha"), Ok(directory.clone()));
    assert_eq!(
        StorageLocation::parse("file:///mnt/ha"),
        Ok(directory.clone())
    );
    assert_eq!(StorageLocation::parse("file:/mnt/ha"), Ok(directory));
    let bucket = StorageLocation::parse("s3://bucket/ha/").expect("a bucket");
    assert_eq!(bucket.to_string(), "s3://bucket/ha");
    for text in [
        "relative/dir",
        "hdfs://namenode/ha",
        "s3:///prefix",
        "/mnt/../ha",
        "file:///mnt/ha/..",
        "s3://bucket/../ha",
    ] {
        assert!(StorageLocation::parse(text).is_err(), "{text}");
    }
}

#[test]
fn the_root_of_a_store_is_made_of_names() {
    assert_eq!(RootPath::parse("/a/b"), Ok(RootPath("/a/b".to_owned())));
    for text in ["", "a", "/", "/a/", "/a//b", "/a/../b", "/zookeeper"] {
        assert!(RootPath::parse(text).is_err(), "{text}");
    }
}

#[test]
fn hosts_are_allowed_by_name_or_by_the_domain_above_them() {
    let allowed = AllowedHosts::parse("Flink.example.com, *.svc, 192.0.2.7").expect("valid");
    for host in ["flink.EXAMPLE.com", "jm.default.svc", "192.0.2.7"] {
        assert!(allowed.contains(host), "{host}");
    }
    for host in [
        "example.com",
        "svc",
        "evilsvc",
        "flink.example.com.evil",
        "",
    ] {
        assert!(!allowed.contains(host), "{host}");
    }
    let any = AllowedHosts::parse("*").expect("valid");
    assert!(any.contains("evil.example"));
    for text in ["flink.example.com:8081", "*.", "a b"] {
        assert!(AllowedHosts::parse(text).is_err(), "{text}");
    }
}
