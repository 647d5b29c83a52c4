//! A million guests on other hosts, loaded by file while traffic goes on; and a file with something wrong in it.

#![allow(missing_docs)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use softdpu_tests::{Context, Daemon, Failure, Host, Lab, Site, Wire, wait_until};

const WAIT: Duration = Duration::from_secs(120);
const WIRE: Wire = Wire::ETHERNET;

/// How many are loaded beside the one that answers.
const CROWD: u32 = 1_000_000;

/// A host with a port at 10.0.0.NUMBER; the second one's has another address, which the first one's site does not name.
fn site(host: &Host) -> String {
    let (own, other) = (host.number(), host.other());
    let addresses: &[&str] = if own == 2 { &["10.0.0.2", "10.0.0.22"] } else { &["10.0.0.1"] };
    Site::on(&[0])
        .with(&format!("tables = {{ endpoints = {}, routes = 10, hosts = 100 }}", CROWD + 10))
        .with(&WIRE.underlay(host))
        .network("acme", 5001, &["10.0.0.0/8"])
        .with("gateway = '10.255.255.254'")
        .endpoint(&[&format!("10.0.0.{other}")], &format!("02:5d:00:00:00:0{other}"), &WIRE.address(other))
        .tap("port", own, addresses, "")
        .to_string()
}

/// A file with `crowd` guests, `wrong` in the middle, and the second address of the second host's port.
fn file(lab: &Lab, name: &str, crowd: u32, wrong: &str) -> Result<PathBuf, Failure> {
    let path = lab.path().join(name);
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(fs::File::create(&path)?);
        writeln!(file, "# {crowd} guests")?;
        for at in 0..crowd {
            let address = std::net::Ipv4Addr::from_bits((10 << 24 | 1 << 16) + at);
            writeln!(file, "endpoint,acme,{address},,203.0.113.{}", at % 64 + 1)?;
            if at == crowd / 2 && !wrong.is_empty() {
                writeln!(file, "{wrong}")?;
            }
        }
        writeln!(file, "endpoint,acme,10.0.0.22,02:5d:00:00:00:02,{}", WIRE.address(2))?;
        writeln!(file, "route,acme,172.16.0.0/12,{}", WIRE.address(2))?;
        file.flush()
    };
    write().context("the file of guests")?;
    Ok(path)
}

fn load(daemon: &Daemon, file: &Path) -> Result<serde_json::Value, Failure> {
    let loaded = daemon.command(&["--timeout", "180 s", "network", "load", "--json", &file.display().to_string()])?;
    serde_json::from_str(&loaded).context("what was loaded")
}

/// The number of guests and routes that are loaded.
fn counts(daemon: &Daemon) -> Result<(u64, u64), Failure> {
    let network = &daemon.status()?["networks"][0];
    let count = |key: &str| network[key].as_u64().ok_or_else(|| Failure::new(format!("no {key}: {network}")));
    Ok((count("loaded_endpoints")?, count("loaded_routes")?))
}

fn silent(from: &Host, address: &str) -> bool {
    from.exec(&["ping", "-c", "2", "-i", "0.2", "-W", "1", address]).is_err()
}

/// The copy that is kept: its inode, and when it was written.
fn kept(folder: &Path) -> Result<Vec<(u64, i64)>, Failure> {
    let files = fs::read_dir(folder.join("run/softdpu/state")).context("the state directory")?;
    let files = files.flatten().filter(|file| file.file_name().to_string_lossy().starts_with("loaded-"));
    Ok(files.filter_map(|file| file.metadata().ok()).map(|file| (file.ino(), file.mtime_nsec())).collect())
}

#[test]
fn a_million_guests_are_loaded_while_traffic_goes_on_and_outlive_every_process() {
    WIRE.run("load", |lab, a, b| {
        let (mut at_a, at_b) = (a.softdpu(lab, &site(a))?, b.softdpu(lab, &site(b))?);
        for host in [a, b] {
            host.ip(&["addr", "add", &format!("10.0.0.{}/8", host.number()), "dev", "acme0"])?;
        }
        b.ip(&["addr", "add", "10.0.0.22/8", "dev", "acme0"])?;
        a.wait_to_reach("10.0.0.2")?;
        assert!(silent(a, "10.0.0.22"), "no endpoint has its address");
        let all = file(lab, "all.csv", CROWD, "")?;
        let wrong = file(lab, "wrong.csv", CROWD, "endpoint,acme,11.0.0.1,,203.0.113.1")?;
        let many = file(lab, "many.csv", CROWD + 20, "")?;

        // A million come, twice, and what is not theirs loses nothing.
        for host in [a, b] {
            // Room for what comes while a core is held up by others on this machine: the kernel drops what its TAP has
            // none for.
            host.ip(&["link", "set", "acme0", "txqueuelen", "20000"])?;
        }
        // By the kernel's counts, which include answers that come after `ping` has ended.
        let echoes = || Ok::<_, Failure>((a.counter("Icmp", "OutEchos")?, a.counter("Icmp", "InEchoReps")?));
        let (asked, answered) = echoes()?;
        let mut ping = a.start(lab, "ping", &["ping", "-q", "-i", "0.005", "10.0.0.2"])?;
        let goes_on = |what: &str| {
            let (_, before) = echoes()?;
            wait_until(what, WAIT, || Ok((echoes()?.1 > before + 20).then_some(())))
        };
        goes_on("answers before anything is loaded")?;
        let loaded = load(&at_a, &all)?;
        println!("loaded: {loaded}");
        assert_eq!((&loaded["endpoints"], &loaded["routes"]), (&(CROWD + 1).into(), &1.into()), "{loaded}");
        assert_eq!(counts(&at_a)?, (u64::from(CROWD) + 1, 1));
        load(&at_a, &all)?;
        goes_on("answers after both loads")?;
        ping.stop()?;
        wait_until("every request to be answered: a load costs others nothing", WAIT, || {
            let (now_asked, now_answered) = echoes()?;
            Ok((now_asked - asked == now_answered - answered).then_some(()))
        })
        .map_err(|error| {
            Failure::new(format!("{error}; requests and answers: {:?} from {:?}", echoes(), (asked, answered)))
        })?;
        a.wait_to_reach("10.0.0.22")?;

        // An error names its place, and everything stays as it was.
        let before = kept(&lab.path().join(a.name()))?;
        assert_eq!(before.len(), 1, "one copy is kept");
        let error = load(&at_a, &wrong).err().ok_or_else(|| Failure::new("a wrong entry was loaded"))?.to_string();
        let place = format!("wrong.csv:{}: address 11.0.0.1 is in none of the network's subnets", CROWD / 2 + 3);
        assert!(error.contains(&place), "{error}");
        let error = load(&at_a, &many).err().ok_or_else(|| Failure::new("too many were loaded"))?.to_string();
        let full = format!("the table of endpoints is full: it has room for {}", CROWD + 10);
        assert!(error.contains(&full) && error.contains("many.csv:"), "{error}");
        let error = load(&at_a, Path::new("/dev/null")).err().ok_or_else(|| Failure::new("a device was loaded"))?;
        assert!(error.to_string().contains("it is no regular file"), "{error}");
        assert_eq!(counts(&at_a)?, (u64::from(CROWD) + 1, 1));
        a.wait_to_reach("10.0.0.22")?;

        // A small change is one, and wins while it is there.
        let moved = ["--address", "10.0.0.22", "--mac", "02:5d:00:00:00:22", "--host", "192.0.2.77"];
        at_a.command(&[&["network", "endpoint", "add", "acme"], &moved[..]].concat())?;
        assert!(silent(a, "10.0.0.22"), "it has moved");
        at_a.kill_data_plane()?;
        wait_until("the entries to be back", WAIT, || Ok((counts(&at_a)? == (u64::from(CROWD) + 1, 1)).then_some(())))?;
        assert!(silent(a, "10.0.0.22"), "no packet goes by what was before the change");
        at_a.command(&["network", "endpoint", "remove", "acme", "10.0.0.22"])?;
        a.wait_to_reach("10.0.0.22")?;
        assert_eq!(kept(&lab.path().join(a.name()))?, before, "the copy is the very file");

        // Single entries go, all that are named or none.
        let unload =
            |entries: &[&str]| at_a.command(&[&["--timeout", "180 s", "network", "unload", "acme"], entries].concat());
        let error = unload(&["10.0.0.22", "10.0.0.33"]).expect_err("one is not loaded").to_string();
        assert!(error.contains("10.0.0.33 is not loaded"), "{error}");
        assert_eq!(counts(&at_a)?, (u64::from(CROWD) + 1, 1));
        let left = unload(&["--json", "10.0.0.22", "172.16.0.0/12"])?;
        println!("unloaded: {left}");
        assert_eq!(counts(&at_a)?, (u64::from(CROWD), 0));
        assert!(silent(a, "10.0.0.22"), "it is no longer known");
        load(&at_a, &all)?;

        // They outlive the daemon, and go as they came.
        at_a.restart()?;
        a.ip(&["addr", "add", "10.0.0.1/8", "dev", "acme0"])?;
        a.wait_to_reach("10.0.0.22")?;
        let none = lab.path().join("none.csv");
        fs::write(&none, "").context("an empty file")?;
        load(&at_a, &none)?;
        assert_eq!(counts(&at_a)?, (0, 0));
        assert!(silent(a, "10.0.0.22"), "it is no longer known");
        a.wait_to_reach("10.0.0.2")?;
        assert_eq!(kept(&lab.path().join(a.name()))?, []);
        at_a.stop()?;
        at_b.stop()
    });
}
