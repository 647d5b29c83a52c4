//! What networks are to have comes by file: an error names its place.

use std::path::Path;

use softdpu_api::{Change, ErrorCode};
use softdpu_site::{self as config, NetworkPart, Places};

use super::super::Desired;

/// A site of the networks `a` and `b`, where `a` has a device.
fn two_networks(folder: &Path) -> Desired {
    let text = r#"
        [node]
        underlay = { interface = "eth0", address = "192.0.2.1" }
        [[network]]
        name = "a"
        vni = 1
        cidr = "10.0.0.0/16"
        [[network.security-group]]
        name = "web"
        [[network.endpoint]]
        address = "10.0.0.9"
        mac = "02:5d:00:00:00:09"
        host = "192.0.2.2"
        security-groups = "web"
        [[network]]
        name = "b"
        vni = 2
        cidr = "10.1.0.0/16"
    "#;
    let loaded = config::parse(text, "site.toml", folder, None);
    let mut site = loaded.site.unwrap_or_else(|| panic!("{:?}", loaded.report));
    site.node.state_directory = folder.join("state");
    Desired::load(site).unwrap()
}

/// A change by a file called `/f.toml`.
fn by_file(part: NetworkPart, text: String) -> (Change, Places) {
    let (changes, places) = config::networks_file(part, text, "/f.toml").unwrap();
    (Change::from(changes), places)
}

#[test]
fn what_a_file_makes_wrong_elsewhere_is_told_with_its_place_in_the_site() {
    let folder = tempfile::tempdir().unwrap();
    let desired = two_networks(folder.path());
    let (change, places) = by_file(NetworkPart::Policy, "network = \"a\"\n".to_owned());
    let error = desired.check(&change, Some(&places)).unwrap_err();
    let place = "network `a`, `endpoint[0].security-groups[0]`: there is no network.security-group `web`";
    assert!(error.message.starts_with(place), "{}", error.message);
}

#[test]
fn a_network_that_is_not_there_is_told_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let desired = two_networks(folder.path());
    for (text, line) in [("\nnetwork = \"c\"\n", 2), ("[[network]]\nname = \"b\"\n[[network]]\nname = \"c\"\n", 4)] {
        let (change, places) = by_file(NetworkPart::Policy, text.to_owned());
        let error = desired.check(&change, Some(&places)).unwrap_err();
        let is_placed = error.message.starts_with(&format!("/f.toml:{line}:"));
        assert!(is_placed && error.message.contains("there is no network called \"c\""), "{}", error.message);
        assert_eq!(error.code, ErrorCode::NotFound);
    }
}

#[test]
fn tens_of_thousands_of_names_are_checked_in_time_whether_they_are_right_or_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let desired = two_networks(folder.path());
    let checked = |part, text: String| {
        let (change, places) = by_file(part, text);
        let began = std::time::Instant::now();
        let result = desired.check(&change, Some(&places)).map_err(|error| error.message);
        assert!(began.elapsed() < std::time::Duration::from_secs(6), "{:?}", began.elapsed());
        result
    };
    let groups = |count: usize, rules: usize, name: &str| {
        let rule = format!("{{ direction = \"ingress\", group = \"{name}\" }},");
        let group = |at: usize| {
            format!("[[security-group]]\nname = \"a-group-of-many-{at}\"\nrule = [{}]\n", rule.repeat(rules))
        };
        "network = \"b\"\n".to_owned() + &(0..count).map(group).collect::<String>()
    };
    let error = checked(NetworkPart::Policy, groups(1000, 30, "nobody-at-all")).unwrap_err();
    let first = "there is no network.security-group `nobody-at-all` (declare it, or use one of: a-group-of-many-0, ";
    assert!(error.contains(first) && error.contains(" and 990 more)") && error.len() < 10_000, "{error}");
    // As many as could be right are not compared each with each.
    checked(NetworkPart::Policy, groups(40_000, 1, "a-group-of-many-39999")).unwrap();

    let hosts = |at: usize| format!("{{ host = \"198.{}.{}.{}\" }},", 18 + (at >> 16), at >> 8 & 255, at & 255);
    let members: String = (0..40_000).map(hosts).collect();
    let error =
        checked(NetworkPart::Routing, format!("network = \"b\"\necmp = [{{ name = \"x\", member = [{members}] }}]\n"));
    assert!(error.unwrap_err().contains("too many members"));
    let ways = |at: usize| format!("{{ prefix = \"20.{}.{}.0/24\", address = \"10.0.0.9\" }},", at >> 8, at & 255);
    let routes: String = (0..20_000).map(ways).collect();
    checked(NetworkPart::Routing, format!("network = \"a\"\nroute = [{routes}]\n")).unwrap();
}

#[test]
fn a_long_list_is_read_in_time_and_one_that_is_too_long_is_refused() {
    let peers = |count: usize| {
        let names: String = (0..count).map(|at| format!("\"n{at}\",")).collect();
        let began = std::time::Instant::now();
        let read =
            config::networks_file(NetworkPart::Routing, format!("network = \"a\"\npeer = [{names}]\n"), "/f.toml");
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
        read.map(drop)
    };
    assert_eq!(peers(60_000), Ok(()));
    let error = peers(100_001).unwrap_err();
    assert!(
        error.starts_with("/f.toml:2:8:") && error.contains("found 100001 items, expected at most 100000"),
        "{error}"
    );
    let empty = format!("network = \"a\"\nroute = [{}]\n", "{},".repeat(500_000));
    let error = config::networks_file(NetworkPart::Routing, empty, "/f.toml").map(drop).unwrap_err();
    assert_eq!(error, "/f.toml:1:1: too many tables and lists: found 500001, expected at most 500000");
}
