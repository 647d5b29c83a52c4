//! The demonstration's networks: two guests of one tenant with a disk and an interface each, and one of another tenant
//! with the same addresses.

use std::time::Duration;

use softdpu_tests::{Accel, Context, Daemon, Failure, Guest, GuestSpec, Lab, Root, repository};

use crate::table::Table;
use crate::{DEADLINE, expect};

/// The file that the first guest serves, and how often the transfer that is to see a kill repeats it.
const MIB: u32 = 64;
const REPEATS: u32 = 2;

/// Site file, guests, and what they do for and against each other.
pub fn demonstrate(accel: Accel, lab: &Lab, table: &mut Table) -> Result<(), Failure> {
    let mut daemon = table.row("start softdpu with two tenants' networks", || {
        for guest in ["acme-vm1", "acme-vm2", "globex-vm1"] {
            lab.root_image(&format!("{guest}.img"))?;
        }
        let path = repository().join("lab/sites/demo-networks.toml");
        let site = std::fs::read_to_string(&path).context(format_args!("reading {}", path.display()))?;
        Ok((Daemon::start(lab.path(), &site)?, String::new()))
    })?;
    let mut first = boot(lab, &daemon, accel, "acme-vm1", table)?;
    let mut second = boot(lab, &daemon, accel, "acme-vm2", table)?;
    let mut other = boot(lab, &daemon, accel, "globex-vm1", table)?;

    ask(table, &mut first, "dhcp", "acme-vm1 gets its address by DHCP")?;
    ask(table, &mut second, "dhcp", "acme-vm2 gets its address by DHCP")?;
    ask(table, &mut other, "dhcp", "globex-vm1 gets the same address as acme-vm1")?;
    ask(table, &mut second, "ping 10.0.0.1", "acme-vm2 pings its gateway")?;
    ask(table, &mut second, "ping 10.0.0.2", "acme-vm2 pings acme-vm1")?;
    let sum = ask(table, &mut first, "serve", "acme-vm1 serves a file over HTTP")?;
    let theirs = ask(table, &mut other, "serve", "globex-vm1 serves another")?;
    ask(table, &mut second, "iperf 10.0.0.2 3", "iperf3: acme-vm2 to acme-vm1")?;
    ask(table, &mut second, "iperf 10.0.0.2 3 -R", "iperf3: acme-vm1 to acme-vm2")?;
    let fetched = ask(table, &mut second, "fetch 10.0.0.2 file", "acme-vm2 fetches acme-vm1's file, same checksum")?;
    same(&fetched, &sum)?;
    let fetched = ask(table, &mut other, "fetch 10.0.0.2 file", "globex-vm1 reaches only itself by that address")?;
    same(&fetched, &theirs)?;
    ask(table, &mut other, "silence 10.0.0.3", "globex-vm1 does not reach acme-vm2")?;

    let fetch = format!("fetch 10.0.0.2 cgi-bin/stream?{REPEATS}");
    let wanted = ask(table, &mut second, &fetch, &format!("one TCP connection carries {} MiB", MIB * REPEATS))?;
    second.type_line(&fetch)?;
    second.step("progress", DEADLINE)?;
    table.row("kill -9 the data plane under the same again", || {
        std::thread::sleep(Duration::from_millis(100));
        let before = second.reports().iter().filter(|report| report.step == "fetch").count();
        let time = daemon.kill_data_plane()?;
        second.check()?;
        let after = second.reports().iter().filter(|report| report.step == "fetch").count();
        if after != before {
            return Err(Failure::new("the transfer was over before the data plane was back"));
        }
        Ok(((), format!("back after {:.0} ms", time.as_secs_f64() * 1e3)))
    })?;
    let survived = table.step(&mut second, "fetch", "the TCP connection survives, same checksum")?;
    same(&survived.get::<String>("sum")?, &wanted)?;
    expect("restarts of the data plane", daemon.data_plane()?.1, 1)?;
    for (mut guest, name) in [(first, "acme-vm1"), (second, "acme-vm2"), (other, "globex-vm1")] {
        table.row(&format!("{name} powers off"), || {
            guest.type_line("stop")?;
            Ok((guest.finish(DEADLINE)?, String::new()))
        })?;
    }
    table.row("stop softdpu", || Ok((daemon.stop()?, String::new())))
}

/// Boots a guest from its own disk, with its interface.
fn boot(lab: &Lab, daemon: &Daemon, accel: Accel, name: &str, table: &mut Table) -> Result<Guest, Failure> {
    let disk = daemon.guest_device(&format!("{name}-disk"))?;
    let interface = daemon.guest_device(&format!("{name}-nic"))?;
    let spec = GuestSpec::new(name).memory_mib(512).accel(accel).root(Root::FirstDisk).device(disk).device(interface);
    let spec = spec.job("network").parameter("NAME", name).parameter("MIB", MIB);
    let mut guest = Guest::boot(lab.path(), spec)?;
    table.step(&mut guest, "boot", &format!("boot {name} from its disk"))?;
    guest.step("ready", DEADLINE)?;
    Ok(guest)
}

/// A step of a guest as a row; gives the checksum that it reports, if it reports one.
fn ask(table: &mut Table, guest: &mut Guest, line: &str, what: &str) -> Result<String, Failure> {
    guest.type_line(line)?;
    let report = table.step(guest, line.split(' ').next().unwrap_or(line), what)?;
    Ok(report.fields.get("sum").cloned().unwrap_or_default())
}

fn same(found: &str, expected: &str) -> Result<(), Failure> {
    if found == expected { Ok(()) } else { Err(Failure::new(format!("checksum {found}, expected {expected}"))) }
}
