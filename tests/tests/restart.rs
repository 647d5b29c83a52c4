//! softdpu stopped and started again under a guest's I/O, as an update of its package does: QEMU connects again, with
//! the arguments that `softdpu device args` prints, and the guest goes on.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Context, Daemon, Failure, Guest, GuestSpec, Lab, wait_until};

const MIB: u64 = 1 << 20;
const RESTARTS: usize = 3;
/// A round of a guest takes seconds; one that takes this long hangs.
const DEADLINE: Duration = Duration::from_secs(120);

const SITE: &str = "
[node]
dataplane = { cores = [0] }

[[volume]]
name = \"data\"
file = { path = \"data.img\" }

[[device]]
name = \"data-disk\"
virtio-blk = { volume = \"data\", queues = 4 }
";

fn rounds(guest: &Guest) -> usize {
    guest.reports().iter().filter(|report| report.step == "round").count()
}

fn wait_for_rounds(guest: &mut Guest, more: usize) -> Result<(), Failure> {
    let wanted = rounds(guest) + more;
    wait_until("the guest to finish a round", DEADLINE, || {
        guest.check()?;
        Ok((rounds(guest) >= wanted).then_some(()))
    })
    .map(drop)
}

#[test]
fn a_guest_goes_on_when_the_whole_daemon_is_stopped_and_started() {
    Lab::run("restart", |lab| {
        lab.image("data.img", 64 * MIB)?;
        let mut daemon = Daemon::start(lab.path(), SITE)?;
        let spec = GuestSpec::new("guest").cpus(4).memory_mib(768).device(daemon.guest_device("data-disk")?);
        let spec = spec.job("kill-loop").parameter("DISK", "vda").parameter("MIB", 8).parameter("JOBS", 4);
        let mut guest = Guest::boot(lab.path(), spec)?;
        guest.step("bystander", DEADLINE)?;
        for restart in 0..RESTARTS {
            // A whole round since the last start, and a part of the next: the stop meets requests in flight.
            wait_for_rounds(&mut guest, 1)?;
            daemon.restart().context(format_args!("restart {restart}"))?;
        }
        wait_for_rounds(&mut guest, 2)?;
        guest.type_line("stop")?;
        guest.finish(DEADLINE)?;
        daemon.stop()
    });
}
