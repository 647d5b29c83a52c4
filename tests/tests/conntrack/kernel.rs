//! The other side of the comparison: a kernel that forwards between two TAPs, `inside` and `outside`, with a firewall
//! in between.

use std::collections::HashSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use softdpu_sys::namespace;
use softdpu_sys::port::tap::{Offloads, Tap, TapOptions};
use softdpu_sys::port::{Frame, MAX_BATCH, PortError, VnetHeader};
use softdpu_tests::netns::Namespace;
use softdpu_tests::{Failure, Lab};

/// The MAC addresses of the kernel's ends. Who is behind them has the same with another last byte.
const MACS: [&str; 2] = ["02:00:00:00:01:01", "02:00:00:00:02:01"];
/// What is asked about each packet: connections begin inside.
const RULES: &str = "table inet connections {
  chain forward {
    type filter hook forward priority 0; policy drop;
    ct state invalid drop
    ct state established,related accept
    iifname \"inside\" ct state new accept
  }
}
";

/// How long frames may be on their way.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes in front of an IP packet.
pub const ETHERNET: usize = 14;
/// Where IPv4 and IPv6 headers have their hop limit.
const HOPS: [usize; 2] = [ETHERNET + 8, ETHERNET + 7];
const IPV4_CHECKSUM: usize = ETHERNET + 10;

/// A network namespace that forwards.
pub struct Kernel {
    _namespace: Namespace,
    ends: [Tap; 2],
}

impl Kernel {
    /// `settings`: names below /proc/sys/net/netfilter.
    pub fn new(lab: &Lab, what: &str, settings: &[(&str, &str)]) -> Result<Kernel, Failure> {
        let own = Namespace::new("conntrack", what)?;
        let failed = |error: &dyn std::fmt::Display| Failure::new(error.to_string());
        let file = namespace::open(&own.name).map_err(|error| failed(&error))?;
        let offloads = Offloads { csum: false, tso4: false, tso6: false, tso_ecn: false, uso: false };
        let options = TapOptions { offloads, ..TapOptions::default() };
        let mut ends = Vec::new();
        for (at, (name, mac)) in ["inside", "outside"].into_iter().zip(MACS).enumerate() {
            let tap = namespace::within(file.as_fd(), || Tap::open(name, &options)).map_err(|error| failed(&error))?;
            ends.push(tap.map_err(|error| failed(&error))?);
            // Nothing but what is forwarded: no address of its own, no duplicate address detection.
            own.ip(&["link", "set", name, "address", mac, "addrgenmode", "none", "txqueuelen", "4096"])?;
            own.ip(&["link", "set", name, "up"])?;
            let behind = mac.replace(":01:01", ":01:02").replace(":02:01", ":02:02");
            let [net4, net6] = [format!("10.{at}.0"), format!("2001:db8:{at}:")];
            own.ip(&["address", "add", &format!("{net4}.1/24"), "dev", name])?;
            own.ip(&["address", "add", &format!("{net6}:1/64"), "dev", name, "nodad"])?;
            for (family, gateway, all) in [
                ("-4", format!("{net4}.2"), format!("10.{at}.0.0/16")),
                ("-6", format!("{net6}:2"), format!("2001:db8:{at}::/48")),
            ] {
                own.ip(&[family, "neigh", "replace", &gateway, "lladdr", &behind, "dev", name, "nud", "permanent"])?;
                own.ip(&[family, "route", "add", &all, "via", &gateway, "dev", name])?;
            }
        }
        let rules = lab.path().join("rules");
        fs::write(&rules, RULES).map_err(|error| failed(&error))?;
        own.exec(&["nft", "-f", &rules.display().to_string()])?;
        let set = |path: &str, value: &str| own.exec(&["sysctl", "-qw", &format!("net.{path}={value}")]);
        set("ipv4.ip_forward", "1")?;
        set("ipv6.conf.all.forwarding", "1")?;
        for (name, value) in settings {
            set(&format!("netfilter.{name}"), value)?;
        }
        let [inside, outside] = <[Tap; 2]>::try_from(ends).map_err(|_| Failure::new("two TAPs"))?;
        Ok(Kernel { _namespace: own, ends: [inside, outside] })
    }

    /// The Ethernet header of what comes from inside (0) or outside (1).
    pub fn ethernet(from: usize) -> ([u8; 6], [u8; 6]) {
        let side = from as u8 + 1;
        ([2, 0, 0, 0, side, 2], [2, 0, 0, 0, side, 1])
    }

    /// Which of these frames pass, each with the side that it comes from; `mark` is one that does, from inside.
    pub fn forward(&mut self, frames: &[(usize, &[u8])], mark: &[u8]) -> Result<Vec<bool>, Failure> {
        let failed = |error: PortError| Failure::new(error.to_string());
        for (from, frame) in frames.iter().copied().chain([(0, mark)]) {
            let tap = &mut self.ends[from];
            tap.reserve(frame.len()).ok_or_else(|| Failure::new("no room for a frame"))?.copy_from_slice(frame);
            tap.commit(VnetHeader::default(), frame.len());
            tap.flush().map_err(failed)?;
        }
        let mut came: [HashSet<Vec<u8>>; 2] = Default::default();
        let mark = essence(mark);
        let end = Instant::now() + PATIENCE;
        loop {
            // Who forwards the mark is done with what was sent before it: what is there then is all that comes.
            let is_last = came[1].contains(&mark);
            let mut count = 0;
            for (end, came) in self.ends.iter_mut().zip(&mut came) {
                let take = |frames: &mut [Frame<'_>]| came.extend(frames.iter().map(|frame| essence(frame.bytes)));
                count += end.receive(MAX_BATCH, take).map_err(failed)?;
            }
            match count {
                0 if is_last => break,
                0 if Instant::now() > end => {
                    return Err(Failure::new("the kernel does not forward what always passes"));
                }
                _ => {}
            }
        }
        let refused: u64 = self.ends.iter().map(|end| end.counters().refused).sum();
        if refused != 0 {
            return Err(Failure::new("the kernel did not take all frames"));
        }
        Ok(frames.iter().map(|(from, frame)| came[1 - from].contains(&essence(frame))).collect())
    }
}

/// What a router leaves of a frame as it is.
fn essence(frame: &[u8]) -> Vec<u8> {
    let mut rest = frame.to_vec();
    let is_ipv6 = rest.get(ETHERNET).is_some_and(|first| first >> 4 == 6);
    rest[..ETHERNET].fill(0);
    if let Some(hops) = rest.get_mut(HOPS[usize::from(is_ipv6)]) {
        *hops = 0;
    }
    if !is_ipv6 && rest.len() > IPV4_CHECKSUM + 2 {
        rest[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].fill(0);
    }
    rest
}

/// Whether this machine can be such a kernel; says so where not.
pub fn is_possible(test: &str) -> bool {
    if std::process::Command::new("nft").arg("--version").output().is_err() {
        softdpu_tests::skip(test, "there is no nft here (Debian: nftables)");
        return false;
    }
    if !Path::new("/proc/sys/net/netfilter").exists() {
        softdpu_tests::skip(test, "this kernel tracks no connections (nf_conntrack)");
        return false;
    }
    softdpu_tests::netns::possible(test)
}
