use softdpu_api::ErrorCode;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use super::super::loader::Outcome;
use super::publish::LATE;
use super::*;
use softdpu_link::SharedFd;

/// A network with `endpoints` guests of the site file, and room for two in all.
fn networks(endpoints: u8) -> Networks {
    let guest = |last: u8| json!({"address": format!("10.0.0.{last}"), "mac": format!("02:5d:00:00:00:{last}"), "host": "192.0.2.2"});
    let guests: Vec<_> = (10..10 + endpoints).map(guest).collect();
    let network = json!({"name": "acme", "vni": 1, "cidr": ["10.0.0.0/16"], "endpoint": guests});
    let network = config::network_from_json(&network).unwrap();
    let tables = config::TableSizes { endpoints: 2, ..config::TableSizes::default() };
    let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let wire = Wire::new(end.into()).unwrap();
    Networks::new(&[network], &[], &config::Node { tables, ..config::Node::default() }, wire).unwrap()
}

fn file(text: &str) -> SharedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    Arc::new(file.into())
}

const GUEST: &str = "endpoint,acme,10.0.0.3,,192.0.2.2\n";

/// What comes of the file that was in force before.
fn kept(networks: &mut Networks, text: &str) -> Result<Arc<Loaded>, String> {
    networks.load_kept(&file(text), vec!["acme".into()]);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(Outcome::File(outcome)) = networks.loader.outcome() {
            return outcome.result;
        }
        assert!(Instant::now() < deadline, "the file is read in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_loaded_while_what_was_kept_is_read_is_all_there_is() {
    let mut networks = networks(0);
    let loaded = kept(&mut networks, GUEST).unwrap();
    let spec = networks.spec().unwrap();
    assert!(spec.is_loading && spec.awaited == ["acme"]);
    let failed = networks.go_on_with(Pair::new(Arc::clone(&loaded), None), |_| Err("no".to_owned()));
    assert!(failed.is_err() && networks.spec().unwrap().is_loading && networks.loaded.is_none());
    let published = networks.go_on_with(Pair::new(loaded, None), |networks| {
        let spec = networks.spec()?;
        (networks.loaded.is_some() && !spec.is_loading && spec.awaited.is_empty())
            .then_some(())
            .ok_or_else(|| "as if it were being read".to_owned())
    });
    assert_eq!(published, Ok(()));
    assert!(!networks.is_loading());
}

#[test]
fn what_was_in_force_is_loaded_again_though_the_table_is_full_meanwhile() {
    let mut networks = networks(2);
    assert_eq!(kept(&mut networks, GUEST).unwrap().counts().endpoints, 1);
}

#[test]
fn hosts_have_room_beside_those_of_loaded_entries() {
    let mut networks = networks(1);
    networks.capacity.hosts = 2;
    let loaded = kept(&mut networks, &GUEST.replace("192.0.2.2", "192.0.2.3")).unwrap();
    networks.go_on_with(Pair::new(loaded, None), |_| Ok(())).unwrap();
    let before = networks.configured();
    let route = |host: &str| {
        let change = json!({"network": "acme", "route": [{"prefix": "172.16.0.0/12", "host": host}]});
        config::routings_from_json(&change).unwrap()
    };
    networks.change(&route("192.0.2.3")).unwrap();
    networks.has_room(&before).unwrap();
    networks.change(&route("192.0.2.4")).unwrap();
    let refusal = networks.has_room(&before).unwrap_err();
    let full = "network \"acme\", route[0], 192.0.2.4: the table of hosts is full: it has room for 2, and 3 are wanted";
    assert!(refusal.code == ErrorCode::Refused && refusal.message.starts_with(full), "{refusal:?}");
    // What is too many already does not grow, and may change.
    networks.capacity.hosts = 1;
    networks.has_room(&networks.configured()).unwrap();
}

#[test]
fn a_core_that_has_not_gone_on_is_told_of_once() {
    let (engine, mut core) = Engine::by_hand(8).unwrap();
    let mut networks = networks(0);
    networks.publish(&engine).unwrap();
    assert_eq!((networks.warning(), networks.warning()), (Some(LATE), None));
    // One that does, while it is waited for.
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                core.round();
            }
        });
        let published = networks.publish(&engine);
        is_done.store(true, Ordering::Relaxed);
        published.unwrap();
    });
    assert_eq!(networks.warning(), None);
}

#[test]
fn why_what_was_in_force_is_not_is_told_until_something_else_is_loaded() {
    let mut networks = networks(0);
    let error = kept(&mut networks, "endpoint,gone,10.0.0.3,,192.0.2.2\n").unwrap_err();
    networks.not_loaded(error);
    assert!(networks.load_error().is_some_and(|error| error.contains("gone")), "{:?}", networks.load_error());
    let loaded = kept(&mut networks, GUEST).unwrap();
    networks.go_on_with(Pair::new(loaded, None), |_| Ok(())).unwrap();
    assert_eq!(networks.load_error(), None);
}
