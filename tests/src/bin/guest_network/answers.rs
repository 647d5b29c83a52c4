//! What an interrupt costs until a guest's driver has acted on it, as the data plane sees it: from the moment at which
//! a frame is in the guest's receive queue, and its interrupt on the way, to the moment at which the data plane has the
//! guest's answer in hand. Linux answers an echo request in the softirq of the receive interrupt itself, without waking
//! a process.

use serde_json::Value;
use softdpu_tests::{Context, Daemon, Failure, Guest};

use crate::DEADLINE;
use crate::links::Side;

/// Nanoseconds from each of about `count` echo requests that a guest sends to the other one at `address`, as `softdpu
/// trace packet` shows it to leave by that one's port, to its answer, as that comes in.
pub fn times(daemon: &Daemon, from: &mut Guest, address: &str, count: u32) -> Result<Vec<f64>, Failure> {
    let frames = (2 * count).to_string();
    let arguments = ["trace", "packet", "--port", Side::B.name(), "--filter", "icmp", "--json", "--count", &frames];
    let lines = std::thread::scope(|scope| {
        let trace = scope.spawn(|| daemon.command(&arguments));
        // The trace ends by itself; what is sent before it has begun is not in it.
        let mut asked = Ok(());
        while asked.is_ok() && !trace.is_finished() {
            asked = from.ask(&format!("rtt {address} {count}"), DEADLINE).map(|_| ());
        }
        let lines = trace.join().unwrap_or_else(|_| Err(Failure::new("the trace panicked")));
        asked.and(lines)
    })?;
    paired(&lines)
}

/// The time between what went out and what came in next, of lines of JSON: there is one request at a time.
fn paired(lines: &str) -> Result<Vec<f64>, Failure> {
    let (mut asked, mut times) = (None, Vec::new());
    for line in lines.lines() {
        let frame: Value = serde_json::from_str(line).context(format_args!("a line of the trace: {line}"))?;
        let time = frame["time-ns"].as_u64().ok_or_else(|| Failure::new(format!("a frame without a time: {line}")))?;
        match frame["direction"].as_str() {
            Some("out") => asked = Some(time),
            _ => times.extend(asked.take().map(|began| time.saturating_sub(began) as f64)),
        }
    }
    if times.is_empty() { Err(Failure::new("the trace shows no request and its answer")) } else { Ok(times) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_belongs_to_the_request_before_it() {
        let line = |time: u64, direction: &str| format!("{{\"time-ns\":{time},\"direction\":\"{direction}\"}}\n");
        let lines = [line(5, "in"), line(10, "out"), line(25, "in"), line(30, "out"), line(40, "out"), line(47, "in")];
        assert_eq!(paired(&lines.concat()).unwrap(), [15.0, 7.0]);
        assert!(paired(&line(5, "in")).is_err());
    }
}
