//! What the paper does not say, by name: every number here may be set (`--set KEY=VALUE`) and is part of the
//! sensitivity table.

use std::fmt::Write;

/// **Calibrated**, the only number here that was chosen by a result: what a core loses when it goes on with another
/// tenant's application, nanoseconds. With it, DPDK's total of four balanced tenants at 1024 B is what §V-D states,
/// 15.345 Gbit/s, which therefore does not count as reproduced. `softdpu twin mtda-calibrate` finds it again.
///
/// It is this constant because it is what the paper makes responsible for DPDK's loss (§II-C, "competition among
/// tenants"; §III-C, "context switches"), and names no figure for.
pub const SWITCH_NS: f64 = 4_210.0;

/// The numbers that are assumed, see [`ENTRIES`] for what each is and where it is from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    pub(super) switch_ns: f64,
    pub(super) decision_ns: f64,
    pub(super) load: f64,
    pub(super) service_scale: f64,
    pub(super) service_spread: f64,
    pub(super) rta_ns: f64,
    pub(super) rta_byte_ns: f64,
    pub(super) fm_ns: f64,
    pub(super) fm_byte_ns: f64,
    pub(super) router_ns: f64,
    pub(super) router_byte_ns: f64,
    pub(super) fw_ns: f64,
    pub(super) fw_byte_ns: f64,
    pub(super) rta_accelerator_ns: f64,
    pub(super) fm_accelerator_ns: f64,
    pub(super) router_accelerator_ns: f64,
    pub(super) fw_accelerator_ns: f64,
    pub(super) channel: f64,
    pub(super) link_buffer_us: f64,
    pub(super) credit: f64,
    pub(super) burst_before: f64,
    pub(super) burst: f64,
    pub(super) burst_size: f64,
    pub(super) ipipe_tail_us: f64,
    pub(super) ipipe_migration_us: f64,
    pub(super) ipipe_quantum_us: f64,
}

impl Default for Constants {
    fn default() -> Self {
        Constants {
            switch_ns: SWITCH_NS,
            decision_ns: 100.0,
            load: 1.0,
            service_scale: 1.0,
            service_spread: 25.0,
            rta_ns: 1_200.0,
            rta_byte_ns: 0.3,
            fm_ns: 960.0,
            fm_byte_ns: 0.1,
            router_ns: 640.0,
            router_byte_ns: 0.0,
            fw_ns: 800.0,
            fw_byte_ns: 0.2,
            rta_accelerator_ns: 0.0,
            fm_accelerator_ns: 0.0,
            router_accelerator_ns: 0.0,
            fw_accelerator_ns: 0.0,
            channel: 1_024.0,
            link_buffer_us: 1_000.0,
            credit: 1_024.0,
            burst_before: 0.2,
            burst: 0.85,
            burst_size: 512.0,
            ipipe_tail_us: 100.0,
            ipipe_migration_us: 40.0,
            ipipe_quantum_us: 10.0,
        }
    }
}

/// A constant: its key, unit, the range that it may have, and where its value is from.
#[derive(Clone, Copy)]
pub struct Entry {
    /// What `--set` takes.
    pub key: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The least and the most that it may be.
    pub range: (f64, f64),
    /// What it is, and its source.
    pub about: &'static str,
    of: fn(&mut Constants) -> &mut f64,
}

macro_rules! entries {
    ($($key:literal $field:ident $unit:literal $least:literal $most:literal $about:literal;)*) => {
        &[$(Entry { key: $key, unit: $unit, range: ($least, $most), about: $about, of: |all| &mut all.$field },)*]
    };
}

/// All of them.
pub const ENTRIES: &[Entry] = entries! {
    "switch-ns" switch_ns "ns" 0.0 1e6
        "a core goes on with another tenant's application; calibrated on 15.345 Gbit/s of DPDK (§V-D)";
    "decision-ns" decision_ns "ns" 0.0 1e6 "a policy decides; assumed, softdpu's take 3 to 80 ns on a faster core";
    "load" load "1" 0.001 10.0 "what all tenants send together, of what the line carries; assumed, Poisson";
    "service-scale" service_scale "1" 0.01 100.0 "factor of all service times below";
    "service-spread" service_spread "%" 0.0 99.0 "a packet's service time is more or less by up to this; assumed";
    "rta-ns" rta_ns "ns" 1.0 1e6 "a packet of real-time analytics; assumed, the most: compute and memory (§V-A)";
    "rta-byte-ns" rta_byte_ns "ns/B" 0.0 1e3 "and a byte of it; assumed";
    "fm-ns" fm_ns "ns" 1.0 1e6 "a packet of the flow monitor; assumed, memory-intensive (§V-A)";
    "fm-byte-ns" fm_byte_ns "ns/B" 0.0 1e3 "and a byte of it; assumed";
    "router-ns" router_ns "ns" 1.0 1e6 "a packet of the router; assumed, the least: headers only";
    "router-byte-ns" router_byte_ns "ns/B" 0.0 1e3 "and a byte of it; assumed";
    "fw-ns" fw_ns "ns" 1.0 1e6 "a packet of the firewall; assumed, compute-intensive (§V-A)";
    "fw-byte-ns" fw_byte_ns "ns/B" 0.0 1e3 "and a byte of it; assumed";
    "rta-accelerator-ns" rta_accelerator_ns "ns" 0.0 1e6 "then a packet takes an accelerator; 0: none, the paper does not say";
    "fm-accelerator-ns" fm_accelerator_ns "ns" 0.0 1e6 "the same, of the flow monitor";
    "router-accelerator-ns" router_accelerator_ns "ns" 0.0 1e6 "the same, of the router";
    "fw-accelerator-ns" fw_accelerator_ns "ns" 0.0 1e6 "the same, of the firewall";
    "channel" channel "packets" 8.0 1e6 "that a tenant's channel holds; assumed, softdpu's channels";
    "link-buffer-us" link_buffer_us "us" 1.0 1e6 "a frame waits for the wire before it is lost; assumed";
    "credit" credit "1" 1.0 1e9 "CREDIT of equation (7); not in the paper, softdpu's default";
    "burst-before" burst_before "1" 0.001 10.0 "Fig. 13: load before the burst (\"lightweight\"), balanced; assumed";
    "burst" burst "1" 0.001 10.0 "Fig. 13: load in the burst (\"intensify\"), at Table IV's rates; assumed";
    "burst-size" burst_size "B" 64.0 9000.0 "Fig. 13: bytes of a packet; assumed, of the sizes that the paper uses";
    "ipipe-tail-us" ipipe_tail_us "us" 0.1 1e6 "iPipe's threshold of tail latency; not in the paper";
    "ipipe-migration-us" ipipe_migration_us "us" 0.0 1e6 "a tenant that moves between iPipe's groups waits; assumed";
    "ipipe-quantum-us" ipipe_quantum_us "us" 0.1 1e6 "a turn of iPipe's round robin; assumed";
};

impl Constants {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<f64> {
        let mut copy = *self;
        ENTRIES.iter().find(|entry| entry.key == key).map(|entry| *(entry.of)(&mut copy))
    }

    /// Sets a constant by its key.
    ///
    /// # Errors
    /// A sentence: there is no such key, or the value is not in its range.
    pub fn set(&mut self, key: &str, value: f64) -> Result<(), String> {
        let entry = ENTRIES.iter().find(|entry| entry.key == key);
        let entry = entry.ok_or_else(|| format!("there is no constant {key:?}; --set help lists them"))?;
        let (least, most) = entry.range;
        if !(least..=most).contains(&value) {
            return Err(format!("{key} is from {least} to {most} {}, not {value}", entry.unit));
        }
        *(entry.of)(self) = value;
        Ok(())
    }

    /// Sets a constant as `--set` writes it, `KEY=VALUE`.
    ///
    /// # Errors
    /// A sentence, as [`set`](Self::set).
    pub fn set_pair(&mut self, pair: &str) -> Result<(), String> {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("--set takes KEY=VALUE, not {pair:?}"))?;
        let number = value.parse().map_err(|_| format!("{key}: {value:?} is not a number"))?;
        self.set(key, number)
    }

    /// A list of all, with their values here.
    pub fn list(&self) -> String {
        let mut text = String::new();
        for Entry { key, unit, about, .. } in ENTRIES {
            let unit = if *unit == "1" { "" } else { unit };
            let _ = writeln!(text, "{key:22} {:>8} {unit:8} {about}", self.get(key).unwrap_or_default());
        }
        text
    }

    /// Those that are not as they are by default, for people.
    pub fn changed(&self) -> Vec<String> {
        let default = Constants::default();
        let differs = |entry: &&Entry| self.get(entry.key) != default.get(entry.key);
        ENTRIES
            .iter()
            .filter(differs)
            .map(|entry| format!("{}={}", entry.key, self.get(entry.key).unwrap_or(0.0)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_is_set_by_its_own_key_and_no_other() {
        for entry in ENTRIES {
            let mut constants = Constants::default();
            let value = constants.get(entry.key).expect("a constant");
            assert!((entry.range.0..=entry.range.1).contains(&value), "{}", entry.key);
            constants.set_pair(&format!("{}={}", entry.key, value * 0.5 + entry.range.1 * 0.1)).expect("in its range");
            assert_eq!(constants.changed().len(), 1, "{}", entry.key);
            assert!(constants.list().contains(entry.key));
        }
        let mut constants = Constants::default();
        for wrong in ["switch", "swich-ns=1", "load=-1", "load=x", "load=NaN"] {
            assert!(constants.set_pair(wrong).is_err(), "{wrong}");
        }
        assert_eq!(constants, Constants::default());
    }
}
