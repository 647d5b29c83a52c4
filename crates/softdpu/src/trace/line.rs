//! A frame on a line.

use std::fmt::{self, Display};

use serde_json::{Value, json};
use softdpu_api::{IDENTIFIER, PathStep};
use softdpu_pcapng::{Direction, EnhancedPacket};
use softdpu_vpc::trace::{Description, Step, Subject};

use super::explain;
use crate::daemon::object;

/// The UDP port of VXLAN where a site says nothing else (RFC 7348 §5).
const VXLAN: u16 = 4789;

/// A frame that passed `port`.
pub struct PacketLine<'a> {
    pub port: &'a str,
    pub packet: &'a EnhancedPacket<'a>,
    /// With Ethernet addresses.
    pub ethernet: bool,
    /// UDP port of VXLAN, where the port is the underlay.
    pub vxlan: Option<u16>,
}

impl Display for PacketLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EnhancedPacket { time, bytes, original, direction, lost, comments, .. } = self.packet;
        if let Some(lost) = lost {
            writeln!(f, "({lost} frames of {} are lost here)", self.port)?;
        }
        let direction = match direction {
            Some(Direction::In) => "in ",
            Some(Direction::Out) => "out",
            None => "-  ",
        };
        let subject = Subject::on_wire(bytes, *original as usize, self.vxlan.unwrap_or(0));
        write!(f, "{} {} {direction} {original:>5}  ", Time(time.unwrap_or(0)), self.port)?;
        if self.ethernet
            && let Some(outermost) = subject.outer.or(subject.packet)
        {
            write!(f, "{} > {}, ", outermost.source, outermost.destination)?;
        }
        write!(f, "{}", Description(subject))?;
        if bytes.len() < *original as usize {
            write!(f, " ({} bytes kept)", bytes.len())?;
        }
        let (path, said): (Vec<_>, Vec<_>) = comments.iter().partition(|comment| step(comment).is_some());
        said.into_iter().try_for_each(|comment| write!(f, " [{comment}]"))?;
        let mut steps = path.into_iter().filter_map(|comment| step(comment));
        steps.try_for_each(|step| write!(f, "\n  {}", explain::line(&step)))
    }
}

impl PacketLine<'_> {
    /// The same for programs.
    pub fn json(&self) -> Value {
        let EnhancedPacket { time, bytes, original, direction, lost, comments, .. } = self.packet;
        let subject = Subject::on_wire(bytes, *original as usize, self.vxlan.unwrap_or(0));
        let direction = match direction {
            Some(Direction::In) => json!("in"),
            Some(Direction::Out) => json!("out"),
            None => Value::Null,
        };
        let after = |prefix: &str| comments.iter().find_map(|comment| comment.strip_prefix(prefix));
        let steps = comments.iter().filter_map(|comment| step(comment)).map(|step| json!(step));
        object([
            ("time-ns", json!(time)),
            ("port", json!(self.port)),
            ("direction", direction),
            ("bytes", json!(original)),
            ("frame", json!(Description(subject).to_string())),
            ("lost-before", json!(lost)),
            ("dropped", json!(after("dropped: "))),
            ("left-to-do", json!(after("left to do: "))),
            ("trace", json!(after(IDENTIFIER))),
            (
                "steps",
                Some(steps.collect::<Vec<_>>()).filter(|steps| !steps.is_empty()).map_or(Value::Null, Value::Array),
            ),
        ])
    }
}

/// The step in a comment.
fn step(comment: &str) -> Option<PathStep> {
    let (time, step) = comment.strip_prefix('+')?.split_once(" ns | ")?;
    Some(PathStep::from(&(time.parse().ok()?, step.parse::<Step>().ok()?)))
}

/// The UDP port that an underlay's description names.
pub fn vxlan_port(description: &str) -> u16 {
    description.rsplit(' ').next().and_then(|port| port.parse().ok()).unwrap_or(VXLAN)
}

/// A time of day (UTC) of nanoseconds since 1970.
struct Time(u64);

impl Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1000);
        let (hours, minutes, seconds) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{hours:02}:{minutes:02}:{seconds:02}.{micros:06}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_there_is_to_say() {
        let packet = EnhancedPacket {
            interface: 0,
            time: Some(1_700_000_000_123_456_789),
            original: 64,
            bytes: vec![0xff; 14].into(),
            direction: Some(Direction::In),
            lost: Some(3),
            comments: vec!["dropped: spoofed-mac".into()],
        };
        let line = PacketLine { port: "vm1-nic", packet: &packet, ethernet: true, vxlan: None };
        assert_eq!(
            line.to_string(),
            "(3 frames of vm1-nic are lost here)\n22:13:20.123456 vm1-nic in     64  ff:ff:ff:ff:ff:ff > ff:ff:ff:ff:ff:ff, \
             ff:ff:ff:ff:ff:ff > ff:ff:ff:ff:ff:ff EtherType 0xffff (14 bytes kept) [dropped: spoofed-mac]"
        );
        let step = "+1200 ns | flow | flows | stale | a | computed from what has changed | routes of red 1/2";
        let comments = vec!["trace 0.7".into(), step.into()];
        let packet = EnhancedPacket { comments, lost: None, ..packet };
        let line = PacketLine { port: "vm1-nic", packet: &packet, ethernet: false, vxlan: None };
        let text = line.to_string();
        let (first, second) = text.split_once('\n').unwrap();
        assert!(first.ends_with(" [trace 0.7]"), "{text}");
        assert_eq!(
            second,
            "      1200 ns  flow          flows           stale  a  computed from what has changed  (versions: routes of red 1, now 2)"
        );
        let json = line.json();
        assert_eq!((&json["trace"], &json["steps"][0]["ns"]), (&json!("0.7"), &json!(1200)));
        assert_eq!(json["steps"][0]["versions"][0]["current"], 2);
        assert_eq!(vxlan_port("the underlay, VXLAN on UDP port 8472"), 8472);
        assert_eq!(vxlan_port(""), VXLAN);
    }
}
