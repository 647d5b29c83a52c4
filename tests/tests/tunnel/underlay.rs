//! The underlay's interface: taken away, made anew, set down, missing at the start, or of an MTU that AF_XDP refuses.

use softdpu_tests::{Daemon, Failure, Wire, wait_until};

use super::common::{WAIT, against_the_kernel, kernel, make_checksums, pings, softdpu};

/// Waits until `status` says of the underlay that it is away with this reason, or that it is not.
fn underlay_is(daemon: &Daemon, reason: Option<&str>) -> Result<(), Failure> {
    let what =
        reason.map_or("the underlay to be back".to_owned(), |reason| format!("the underlay to be away: {reason}"));
    wait_until(&what, WAIT, || {
        let absence = daemon.status()?["underlay"]["absence"].clone();
        let said = absence["reason"].as_str().map(str::to_owned);
        Ok(match (reason, said) {
            (None, None) => Some(()),
            (Some(reason), Some(said)) => {
                (said.contains(reason) && absence["attempts"].as_u64() >= Some(1)).then_some(())
            }
            _ => None,
        })
    })
}

/// The interface is taken away, made anew and set down: what goes through the tunnel goes on when it is there again.
fn comes_back(test: &str, wire: Wire) {
    against_the_kernel(test, &wire, |_, daemon, [a, b]| {
        let reaches = || a.reaches("10.0.0.2");
        // No host can be reached while there is no wire: it is dropped where it comes in.
        let dropped = || Ok::<_, Failure>(daemon.port("port")?.dropped_in("unresolved"));

        a.ip(&["link", "del", "wire"])?;
        underlay_is(daemon, Some("wire: no such network interface"))?;
        let before = dropped()?;
        assert!(!reaches(), "there is a path without a wire");
        wait_until("what finds no underlay to be counted", WAIT, || Ok((dropped()? > before).then_some(())))
            .map_err(|error| Failure::new(format!("{error}: {:?}", daemon.port("port"))))?;
        assert_eq!(daemon.device("port")?["state"], "running", "the device goes on");
        let table = daemon.command(&["status"])?;
        assert!(table.contains("! the underlay wire is away for "), "{table}");
        let sent = daemon.status()?["underlay"]["frames_out"].as_u64();

        wire.join(a, b)?;
        make_checksums(b)?;
        underlay_is(daemon, None)?;
        pings(a, &wire)?;
        assert!(daemon.status()?["underlay"]["frames_out"].as_u64() > sent, "counts began anew");
        // It may have been seen between the moment when it was made and the one when it was set up.
        let said = |text: &str| daemon.log().iter().filter(|line| line.contains(text)).count();
        wait_until("the log to tell that it is back", WAIT, || Ok((said("the underlay is open") >= 2).then_some(())))?;
        let down = said("the interface is down");
        assert!(down <= 1, "{:?}", daemon.log());

        a.ip(&["link", "set", "wire", "down"])?;
        underlay_is(daemon, Some("wire: the interface is down"))?;
        assert!(!reaches(), "there is a path through an interface that is down");
        a.ip(&["link", "set", "wire", "up"])?;
        underlay_is(daemon, None)?;
        pings(a, &wire)?;
        pings(b, &wire)?;

        // The other end is down: nothing is plugged in.
        b.ip(&["link", "set", "wire", "down"])?;
        underlay_is(daemon, Some("wire: the interface has no carrier"))?;
        assert!(!reaches(), "there is a path through an interface without a carrier");
        b.ip(&["link", "set", "wire", "up"])?;
        underlay_is(daemon, None)?;
        pings(a, &wire)?;

        // Each reason once, however often it was tried.
        let lines = [("no such network interface", 1), ("the interface is down", down + 1), ("is lost", 3)];
        for (text, count) in lines.into_iter().chain([("the underlay is open", 4)]) {
            daemon.wait_for_log(text, count, |line| line.contains(text))?;
        }
        assert_eq!(daemon.data_plane()?.1, 0, "the data plane was started again");
        Ok(())
    });
}

#[test]
fn an_underlay_that_is_made_anew_or_set_down_is_used_again() {
    comes_back("back", Wire { backend: "af-packet", ..Wire::ETHERNET });
}

#[test]
fn an_underlay_on_af_xdp_that_is_made_anew_or_set_down_is_used_again() {
    comes_back("backxdp", Wire { backend: "af-xdp", ..Wire::ETHERNET });
}

#[test]
fn af_xdp_refuses_an_mtu_that_its_memory_has_no_room_for() {
    let wire = Wire { mtu: 3827, backend: "af-xdp", ..Wire::ETHERNET };
    wire.run("tunnel-mtu", |lab, a, _| {
        let daemon = softdpu(lab, a, &wire)?;
        let reason =
            "wire: its MTU is 3827, and af-xdp takes at most 3826: set the underlay's `mtu` to that, or backend";
        underlay_is(&daemon, Some(reason))?;
        assert!(daemon.status()?["underlay"]["path"].is_null(), "it is away");
        daemon.stop()
    });
}

#[test]
fn an_underlay_that_is_missing_at_the_start_is_used_when_it_comes() {
    let wire = Wire::ETHERNET;
    wire.run("tunnel-late", |lab, a, b| {
        a.ip(&["link", "del", "wire"])?;
        let daemon = softdpu(lab, a, &wire)?;
        underlay_is(&daemon, Some("wire: no such network interface"))?;
        // The network's own services are there meanwhile, with the MTU of the wire that is to come.
        a.wait_to_reach("10.0.255.254")?;
        assert_eq!(daemon.status()?["networks"][0]["mtu"], 1450);
        wire.join(a, b)?;
        kernel(b, &wire)?;
        underlay_is(&daemon, None)?;
        pings(a, &wire)?;
        // No veth pair does AF_XDP without copies.
        let fell_back = |line: &str| line.contains("underlay on AF_PACKET") && line.contains("without copies");
        daemon.wait_for_log("that it fell back", 1, fell_back)?;
        daemon.stop()
    });
}
