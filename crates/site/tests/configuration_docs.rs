//! `docs/configuration.md`, `docs/networks.md` and `lab/sites` are held to what the reader does: every key documented
//! exists and the reverse, every example is a valid site.

use std::collections::BTreeMap;
use std::path::Path;

use softdpu_site::{parse, schema};

fn reference() -> String {
    read("docs/configuration.md")
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The TOML examples of a page.
fn examples(text: &str) -> Vec<&str> {
    text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

/// The keys documented under each heading that has a table of keys.
fn documented(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut sections: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut title, mut in_keys) = (String::new(), false);
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            title = heading.trim_matches('`').to_owned();
        }
        if line.starts_with("| key | type | default | meaning |") {
            in_keys = true;
        } else if !line.starts_with('|') {
            in_keys = false;
        }
        if let Some((key, _)) = line.strip_prefix("| `").and_then(|row| row.split_once("` |"))
            && in_keys
        {
            sections.entry(title.clone()).or_default().push(key.to_owned());
        }
    }
    sections
}

#[test]
fn every_key_is_documented_and_every_documented_key_exists() {
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    let expected: BTreeMap<String, Vec<String>> = schema::sections()
        .into_iter()
        .map(|section| {
            let title = if section.title == schema::ROOT { "The file" } else { section.title };
            (title.to_owned(), sorted(section.keys.into_iter().map(str::to_owned).collect()))
        })
        .collect();
    let documented: BTreeMap<String, Vec<String>> =
        documented(&reference()).into_iter().map(|(title, keys)| (title, sorted(keys))).collect();
    assert_eq!(documented, expected);
}

#[test]
fn every_row_says_type_default_and_meaning() {
    let text = reference();
    for row in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert!(cells.len() >= 4 && cells.iter().all(|cell| !cell.is_empty()), "{row}");
    }
}

#[test]
fn every_example_is_a_valid_site() {
    let (reference, networks) = (reference(), read("docs/networks.md"));
    let examples: Vec<&str> = examples(&reference).into_iter().chain(examples(&networks)).collect();
    assert!(examples.len() >= 12, "{} examples", examples.len());
    for example in examples {
        let loaded = parse(example, "example.toml", Path::new("/srv/site"), None);
        assert!(loaded.site.is_some() && loaded.report.diagnostics.is_empty(), "{example}\n{}", loaded.report);
    }
}

#[test]
fn every_site_of_the_lab_is_valid() {
    for name in ["demo", "networks", "two-hosts-a", "two-hosts-b", "gateway", "ecmp"] {
        let loaded = parse(&read(&format!("lab/sites/{name}.toml")), name, Path::new("/srv/site"), None);
        assert!(loaded.site.is_some() && loaded.report.diagnostics.is_empty(), "{}", loaded.report);
    }
}

#[test]
fn the_packaged_site_fits_the_packaged_unit() {
    let loaded = parse(&read("packaging/site.toml"), "site.toml", Path::new("/etc/softdpu"), None);
    let site = loaded.site.unwrap_or_else(|| panic!("{}", loaded.report));
    assert!(loaded.report.diagnostics.is_empty(), "{}", loaded.report);
    let unit = read("packaging/systemd/softdpu.service");
    let directory = |key: &str| {
        let prefix = format!("{key}=");
        unit.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_else(|| panic!("the unit has no {key}"))
    };
    assert_eq!(site.node.run_directory, Path::new("/run").join(directory("RuntimeDirectory")));
    assert_eq!(site.node.state_directory, Path::new("/var/lib").join(directory("StateDirectory")));
    let sockets = site.devices.iter().filter_map(|device| device.access()).map(|access| &access.socket);
    for path in sockets.chain([&site.node.run_directory, &site.node.state_directory, &site.node.api.socket]) {
        assert!(["/etc", "/usr", "/boot"].iter().all(|fixed| !path.starts_with(fixed)), "{}", path.display());
    }
    // What networks need is not in the unit itself: the drop-in has it.
    let network = read("packaging/systemd/softdpu.service.d/network.conf");
    for word in ["CAP_NET_ADMIN", "CAP_NET_RAW", "AF_PACKET", "AF_XDP"] {
        assert!(network.lines().any(|line| !line.starts_with('#') && line.contains(word)), "{word}");
    }
}

#[test]
fn each_of_two_hosts_knows_the_others_guests() {
    let site =
        |name: &str| parse(&read(&format!("lab/sites/{name}.toml")), name, Path::new("/srv/site"), None).site.unwrap();
    let (a, b) = (site("two-hosts-a"), site("two-hosts-b"));
    for (here, there) in [(&a, &b), (&b, &a)] {
        let known = &there.networks[0].endpoints;
        assert_eq!(known.len(), here.devices.len());
        for (port, endpoint) in here.devices.iter().filter_map(|device| device.port()).zip(known) {
            assert_eq!((&port.addresses, port.mac), (&endpoint.addresses, endpoint.mac));
            assert!(here.node.underlay.as_ref().unwrap().addresses.contains(&endpoint.host));
        }
    }
}

#[test]
fn the_documented_message_is_the_one_that_is_printed() {
    let text = reference();
    let shown = text.split("$ softdpu check site.toml\n").nth(1).unwrap().split("```").next().unwrap();
    let site = "[[volume]]\nname = \"scratch\"\nmemory = { size = \"64\" }\n";
    assert_eq!(parse(site, "site.toml", Path::new("/srv/site"), None).report.to_string(), shown);
}
