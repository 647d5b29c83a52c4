mod by_file;
mod networks;
mod tenants;

use serde_json::json;
use softdpu_api::{Change, ErrorCode};
use softdpu_site::{self as config, Bytes, Device, DeviceChange, FunctionChange, Site, TenantChange, Volume};

use super::*;

/// The disk of `folder` is slow for as long as the file `slow` is in it.
pub(in super::super) fn wait_for_disk(folder: &Path) {
    while folder.join("slow").exists() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn commit(desired: &mut Desired, change: &Change) {
    if desired.commit(change) {
        desired.snapshot().unwrap().write().unwrap();
    }
}

fn commit_load(desired: &mut Desired, copy: &str, found: &LoadResult) {
    desired.commit_load(copy, found);
    desired.snapshot().unwrap().write().unwrap();
}

fn site(folder: &Path) -> Site {
    let text = r#"
        [[volume]]
        name = "a"
        memory = { size = "1 MiB" }
        [[device]]
        name = "d"
        domain = "vm"
        virtio-blk = { volume = "a" }
    "#;
    let loaded = config::parse(text, "site.toml", folder, None);
    let mut site = loaded.site.unwrap_or_else(|| panic!("{:?}", loaded.report));
    site.node.state_directory = folder.join("state");
    site
}

fn volume(name: &str) -> Volume {
    config::volume_from_json(&serde_json::json!({"name": name, "null": {"size": "4 MiB"}})).unwrap()
}

fn device(name: &str, volume: &str) -> Device {
    let parameters = serde_json::json!({"name": name, "domain": "vm", "virtio-blk": {"volume": volume}});
    config::device_from_json(&parameters, Path::new("/run/softdpu")).unwrap()
}

#[test]
fn kept_changes_are_for_the_daemon_alone_and_have_names_that_are_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    let path = folder.path().join("state").join(FILE);
    fs::create_dir_all(folder.path().join("state")).unwrap();
    // As an interrupted save leaves it.
    fs::write(path.with_extension("new"), "{").unwrap();
    commit(&mut desired, &Change::VolumeCreate(volume("fresh")));
    commit(&mut desired, &Change::DeviceAdd(device("added", "fresh")));
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    for (good, wrong) in [("added", "../added"), ("fresh", "a/b"), ("vm", "v m"), ("added", "-a")] {
        let quoted = |name: &str| format!("\"{name}\"");
        fs::write(&path, text.replace(&quoted(good), &quoted(wrong))).unwrap();
        let error = Desired::load(site(folder.path())).unwrap_err().to_string();
        assert!(error.contains(wrong) && error.contains("is no name"), "{error}");
    }
}

#[test]
fn kept_changes_that_are_no_file_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state").join(FILE);
    fs::create_dir_all(folder.path().join("state")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let error = Desired::load(site(folder.path())).unwrap_err().to_string();
    assert!(error.contains("not a file"), "{error}");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let error = Desired::load(site(folder.path())).unwrap_err().to_string();
    assert!(error.contains("not a file"), "{error}");
}

#[test]
fn changes_survive_the_supervisor_and_are_laid_over_the_site_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    let changes = [
        Change::VolumeCreate(volume("b")),
        Change::VolumeGrow { name: "b".into(), size: Bytes(8 << 20) },
        Change::VolumeGrow { name: "a".into(), size: Bytes(2 << 20) },
        Change::DeviceAdd(device("e", "b")),
        Change::DeviceRemove { name: "d".into() },
    ];
    for change in &changes {
        desired.check(change, None).unwrap();
        commit(&mut desired, change);
    }
    let again = Desired::load(site(folder.path())).unwrap();
    assert_eq!(again.site(), desired.site());
    assert!(again.site().device("d").is_none() && again.site().device("e").is_some());
    assert_eq!(again.site().volume("a").unwrap().backend.size(), Some(Bytes(2 << 20)));
    assert_eq!(again.site().volume("b").unwrap().backend.size(), Some(Bytes(8 << 20)));
}

fn networked(folder: &Path) -> Site {
    let text = r#"
        [node]
        underlay = { interface = "eth0", address = "192.0.2.1" }
        [[network]]
        name = "a"
        vni  = 1
        cidr = "10.0.0.0/16"
        [[network.endpoint]]
        address = "10.0.0.2"
        mac     = "02:5d:00:00:00:02"
        host    = "192.0.2.2"
        [[network.endpoint]]
        address = "10.0.0.3"
        mac     = "02:5d:00:00:00:03"
        host    = "192.0.2.2"
        [[device]]
        name = "d"
        tap  = { network = "a", address = "10.0.0.4", interface = "t0" }
    "#;
    let loaded = config::parse(text, "site.toml", folder, None);
    let mut site = loaded.site.unwrap_or_else(|| panic!("{:?}", loaded.report));
    site.node.state_directory = folder.join("state");
    site
}

#[test]
fn functions_and_the_devices_that_have_them_survive_the_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let function = |name: &str, ports: u16| {
        let rule = json!({"priority": 1, "action": "allow", "protocol": "tcp", "ports": ports});
        config::function_from_json(&json!({"name": name, "firewall": {"rule": [rule]}})).unwrap()
    };
    let site = || {
        let mut site = networked(folder.path());
        site.functions.push(function("guard", 22));
        site
    };
    let mut desired = Desired::load(site()).unwrap();
    let add = |name: &str, ports| Change::FunctionAdd(function(name, ports));
    let set = |name: &str, ports| {
        let config::Function { name, kind, .. } = function(name, ports);
        Change::FunctionSet(FunctionChange { name, kind })
    };
    let remove = |name: &str| Change::FunctionRemove { name: name.into() };
    let give = |device: &str, names: &[&str]| {
        let functions = Some(names.iter().map(|name| (*name).to_owned()).collect());
        Change::DeviceSet(DeviceChange { name: device.into(), functions, ..DeviceChange::default() })
    };
    let refused = |desired: &Desired, change: &Change| {
        let error = desired.check(change, None).unwrap_err();
        (error.code.clone(), error.to_string())
    };
    for change in [
        add("flows", 80),
        give("d", &["guard", "flows"]),
        set("guard", 443),
        set("flows", 81),
        give("d", &["flows"]),
        remove("guard"),
        add("guard", 25),
    ] {
        desired.check(&change, None).unwrap_or_else(|error| panic!("{change:?}: {error}"));
        commit(&mut desired, &change);
        let again = Desired::load(site()).unwrap();
        assert_eq!(again.site(), desired.site(), "after {change:?}");
    }
    assert_eq!(desired.site().function("flows"), Some(&function("flows", 81)));
    assert_eq!(desired.site().function("guard"), Some(&function("guard", 25)));

    let monitor = json!({"name": "guard", "monitor": {"collector": "192.0.2.9:4739"}});
    let monitor = Change::FunctionSet(config::function_change_from_json(&monitor).unwrap());
    let nine: Vec<String> = (0..9).map(|number| format!("f{number}")).collect();
    for (change, code, words) in [
        (add("flows", 1), ErrorCode::Exists, "there is a function called \"flows\" already"),
        (set("flow", 1), ErrorCode::NotFound, "there is no function called \"flow\""),
        (remove("flow"), ErrorCode::NotFound, "there is no function called \"flow\""),
        (remove("flows"), ErrorCode::Busy, "in use by d (take it from them by `device set --functions` first)"),
        (monitor, ErrorCode::Refused, "function \"guard\" is of kind `firewall`, not `monitor`"),
        (give("e", &["flows"]), ErrorCode::NotFound, "there is no device called \"e\""),
        (give("d", &["flaws"]), ErrorCode::Refused, "there is no function `flaws`"),
        (give("d", &["flows", "flows"]), ErrorCode::Refused, "function `flows` is named twice"),
        (give("d", &nine.iter().map(String::as_str).collect::<Vec<_>>()), ErrorCode::Refused, "at most 8"),
    ] {
        let (found, message) = refused(&desired, &change);
        assert!(found == code && message.contains(words), "{change:?}: {message}");
    }
    for number in 0..62 {
        commit(&mut desired, &add(&format!("f{number}"), 1));
    }
    let (code, message) = refused(&desired, &add("f62", 1));
    assert!(code == ErrorCode::Refused && message.contains("too many functions") && message.contains("at most 64"));
}

#[test]
fn what_was_made_and_removed_again_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    commit(&mut desired, &Change::VolumeCreate(volume("b")));
    commit(&mut desired, &Change::VolumeDelete { name: "b".into() });
    assert_eq!(desired.overlay, Overlay::default());
}

#[test]
fn an_item_that_is_made_anew_has_nothing_of_one_that_the_site_file_had() {
    let folder = tempfile::tempdir().unwrap();
    let with_more = || {
        let mut site = site(folder.path());
        site.tenants.push(config::Tenant::called("globex"));
        site.volumes.push(volume("v"));
        site
    };
    let mut desired = Desired::load(with_more()).unwrap();
    let weight = TenantChange {
        name: "globex".into(),
        weight: Some(5),
        class: None,
        guarantee: None,
        limits: None,
        meter: None,
    };
    for change in [Change::TenantSet(weight), Change::VolumeGrow { name: "v".into(), size: Bytes(64 << 20) }] {
        desired.check(&change, None).unwrap();
        commit(&mut desired, &change);
    }
    let size = |desired: &Desired| desired.site().volume("v").unwrap().backend.size();
    assert_eq!(size(&desired), Some(Bytes(64 << 20)));
    // The site file has neither any more.
    let mut desired = Desired::load(site(folder.path())).unwrap();
    let globex = config::Tenant { weight: 2, ..config::Tenant::called("globex") };
    for change in [Change::TenantAdd(globex), Change::VolumeCreate(volume("v"))] {
        desired.check(&change, None).unwrap();
        commit(&mut desired, &change);
    }
    let again = Desired::load(site(folder.path())).unwrap();
    assert_eq!(again.site().tenant("globex").unwrap().weight, 2);
    assert_eq!(size(&again), volume("v").backend.size());
}

#[test]
fn a_check_reports_a_site_that_contradicts_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    super::check_kept(site(folder.path())).unwrap();
    commit(&mut desired, &Change::VolumeCreate(volume("v")));
    super::check_kept(site(folder.path())).unwrap();
    let mut contradicts = site(folder.path());
    contradicts.volumes.push(volume("v"));
    let error = super::check_kept(contradicts).unwrap_err().to_string();
    assert!(error.contains("desired.json"), "{error}");
}

#[test]
fn changes_that_contradict_the_site_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let desired = Desired::load(site(folder.path())).unwrap();
    let code = |change: &Change| desired.check(change, None).unwrap_err().code;
    assert_eq!(code(&Change::VolumeCreate(volume("a"))), ErrorCode::Exists);
    assert_eq!(code(&Change::DeviceAdd(device("d", "a"))), ErrorCode::Exists);
    assert_eq!(code(&Change::VolumeGrow { name: "x".into(), size: Bytes(1) }), ErrorCode::NotFound);
    assert_eq!(code(&Change::DeviceRemove { name: "x".into() }), ErrorCode::NotFound);
    assert_eq!(code(&Change::VolumeDelete { name: "a".into() }), ErrorCode::Busy);
    assert_eq!(code(&Change::DeviceAdd(device("e", "missing"))), ErrorCode::Refused);
}

#[test]
fn a_refusal_has_names_instead_of_indexes_and_the_nearest_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut desired = Desired::load(site(folder.path())).unwrap();
    commit(&mut desired, &Change::VolumeCreate(volume("acme-root")));
    let refused = |change: Change| desired.check(&change, None).unwrap_err().to_string();
    assert_eq!(
        refused(Change::DeviceAdd(Device {
            tenant: "acme".into(),
            domain: "web".into(),
            ..device("web", "acme-root")
        })),
        "device `web`, `tenant`: there is no tenant `acme` (declare it, or use one of: default)"
    );
    assert_eq!(
        refused(Change::VolumeDelete { name: "acme-roat".into() }),
        "there is no volume called \"acme-roat\" (did you mean `acme-root`?)"
    );
    assert_eq!(refused(Change::DeviceRemove { name: "x".into() }), "there is no device called \"x\"");
}

#[test]
fn a_damaged_state_file_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path());
    fs::create_dir_all(&site.node.state_directory).unwrap();
    fs::write(site.node.state_directory.join(FILE), "{").unwrap();
    let error = Desired::load(site).unwrap_err().to_string();
    assert!(error.contains("desired.json"), "{error}");
}
