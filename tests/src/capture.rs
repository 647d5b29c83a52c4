//! Frames as they are on a wire, captured in a network namespace and judged by tshark: lengths, headers, every
//! checksum.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::netns::run;
use crate::{Context, Failure, Process, wait_until};

/// A capture has begun, or is written, within this time.
const DEADLINE: Duration = Duration::from_secs(60);

/// What the kernel has captured and not yet handed over, it does within this time.
const SETTLE: Duration = Duration::from_millis(500);

/// Checks in a row at which dumpcap is asleep: it has taken what it was handed.
const ASLEEP: u32 = 5;

/// Mebibytes for frames that dumpcap has not yet taken, on a machine that is busy with something else.
const BUFFER: &str = "64";

/// Expert information of this severity is an error: tshark's PI_ERROR.
const ERROR: u64 = 0x0080_0000;

/// What iperf3 sends is random: tshark is to find no protocol in it.
const PLAIN: [&str; 2] = ["tcp.port==5201,data", "udp.port==5201,data"];

/// The fields that are judged, each with a value for every header in the frame that has it.
const FIELDS: [&str; 11] = [
    "frame.number",
    "_ws.malformed",
    "_ws.short",
    "_ws.expert.severity",
    "_ws.expert.message",
    "ip.checksum.status",
    "udp.checksum.status",
    "tcp.checksum.status",
    "icmp.checksum.status",
    "icmpv6.checksum.status",
    "frame.len",
];

/// A capture under way.
pub struct Capture {
    process: Process,
    file: PathBuf,
}

/// Captured frames.
pub struct Recording {
    file: PathBuf,
}

/// What tshark says of a sender's frames.
#[derive(Debug, Default)]
pub struct Findings {
    /// Frames.
    pub frames: u64,
    /// Bytes of the longest.
    pub longest: u64,
    /// Malformed frames and those with a wrong checksum, with what is wrong.
    pub faults: Vec<String>,
    /// Frames with a right checksum of IPv4, UDP, TCP, ICMP and ICMPv6 in any of their headers, in this order.
    pub right: [u64; 5],
}

impl Capture {
    /// Whether this machine has tshark.
    pub fn is_possible() -> bool {
        Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success())
    }

    /// Captures whatever passes `interface` of a network namespace into `folder/NAME.pcap`.
    pub fn start(folder: &Path, name: &str, namespace: &str, interface: &str) -> Result<Capture, Failure> {
        let file = folder.join(format!("{name}.pcap"));
        let path = file.to_string_lossy();
        let arguments = ["netns", "exec", namespace, "dumpcap", "-q", "-P", "-i", interface, "-B", BUFFER, "-w", &path];
        let mut process = Process::start(name, folder, Path::new("ip"), arguments)?;
        process.wait_for_line("where it writes", 0, DEADLINE, |line| line.starts_with("File: ").then_some(()))?;
        Ok(Capture { process, file })
    }

    /// Ends the capture.
    pub fn stop(mut self) -> Result<Recording, Failure> {
        std::thread::sleep(SETTLE);
        let mut checks = 0;
        wait_until("dumpcap to have taken what was captured", DEADLINE, || {
            let asleep = self.process.thread_states()?.iter().all(|state| *state == 'S');
            checks = if asleep { checks + 1 } else { 0 };
            Ok((checks >= ASLEEP).then_some(()))
        })?;
        self.process.stop()?;
        Ok(Recording { file: self.file })
    }
}

impl Recording {
    /// Judges the frames that `filter` (Wireshark's display filters) lets pass.
    pub fn judge(&self, filter: &str) -> Result<Findings, Failure> {
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&self.file).args(["-n", "-Y", filter, "-T", "fields", "-E", "separator=/t"]);
        for protocol in ["ip", "udp", "tcp"] {
            tshark.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
        }
        for rule in PLAIN {
            tshark.args(["-d", rule]);
        }
        for field in FIELDS {
            tshark.args(["-e", field]);
        }
        let output = tshark.output().context("starting tshark")?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::new(format!("tshark ended with {}: {}", output.status, words.trim())));
        }
        let mut findings = Findings::default();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            findings.add(line)?;
        }
        Ok(findings)
    }

    /// A field of the frames that `filter` lets pass, one a line.
    pub fn field(&self, filter: &str, field: &str) -> Result<Vec<String>, Failure> {
        let file = self.file.display().to_string();
        let text = run("tshark", &["-r", &file, "-n", "-Y", filter, "-T", "fields", "-e", field])?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The same with one byte changed, the last one of the longest frame from this MAC address: a judge
    /// that finds nothing in it is none.
    pub fn spoil(&self, sender: &str) -> Result<Recording, Failure> {
        /// Of a pcap file, and of a record in it, whose third word is the number of bytes that follow.
        const HEADER: usize = 24;
        const RECORD: usize = 16;
        let mac: Vec<_> = sender.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        let mut bytes = std::fs::read(&self.file).context(self.file.display())?;
        let (mut at, mut longest) = (HEADER, (0, 0));
        while let Some(record) = bytes.get(at..at + RECORD) {
            let len = u32::from_le_bytes([record[8], record[9], record[10], record[11]]) as usize;
            at += RECORD + len;
            let frame = bytes.get(at - len..at).unwrap_or_default();
            if frame.get(6..12) == Some(&mac[..]) {
                longest = longest.max((len, at));
            }
        }
        let last = longest.1.checked_sub(1).and_then(|last| bytes.get_mut(last));
        *last.ok_or_else(|| Failure::new(format!("{} has no frame from {sender}", self.file.display())))? ^= 0x55;
        let file = self.file.with_extension("spoilt.pcap");
        std::fs::write(&file, bytes).context(file.display())?;
        Ok(Recording { file })
    }
}

impl Findings {
    fn add(&mut self, line: &str) -> Result<(), Failure> {
        let fields: Vec<_> = line.split('\t').collect();
        let &[number, malformed, short, severity, message, ip, udp, tcp, icmp, icmp6, len] = &fields[..] else {
            return Err(Failure::new(format!("tshark printed other fields than were asked for: {line}")));
        };
        // 0 is wrong, 1 is right; others were not looked at, of the first fragments for one.
        let sums = [ip, udp, tcp, icmp, icmp6];
        let wrong = sums.iter().any(|all| all.split(',').any(|status| status == "0"));
        let severe = severity.split(',').filter_map(|level| level.parse().ok()).any(|level: u64| level >= ERROR);
        if wrong || severe || !malformed.is_empty() || !short.is_empty() {
            self.faults.push(format!("frame {number}, {len} bytes: {message} {malformed} {short}"));
        }
        for (right, all) in self.right.iter_mut().zip(sums) {
            *right += u64::from(all.split(',').any(|status| status == "1"));
        }
        self.frames += 1;
        self.longest = self.longest.max(len.parse().context("frame.len")?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_checksum_and_an_error_are_faults_and_a_note_is_none() {
        let mut findings = Findings::default();
        for line in [
            "1\t\t\t\t\t1,1\t3\t1\t\t\t1500",
            "2\t\t\t4194304\tretransmission\t1,1\t3\t1\t\t\t60",
            "3\t\t\t8388608\tBad checksum\t1,1\t3\t0\t\t\t60",
            "4\t\t\t4194304,8388608\tlength\t1\t\t\t\t\t60",
            "5\tMalformed Packet\t\t\t\t1\t\t\t\t\t60",
        ] {
            findings.add(line).unwrap();
        }
        assert_eq!((findings.frames, findings.longest, findings.right), (5, 1500, [5, 0, 2, 0, 0]));
        let numbers: Vec<_> = findings.faults.iter().map(|fault| &fault[..7]).collect();
        assert_eq!(numbers, ["frame 3", "frame 4", "frame 5"]);
        assert!(findings.add("1\t2").is_err());
    }
}
