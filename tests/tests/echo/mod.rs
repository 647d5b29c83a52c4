//! A TCP connection through a migration.

use std::time::Duration;

use softdpu_tests::{Failure, Host, Lab, Process, wait_until};

/// What comes back late is sent again by TCP, after pauses that double.
const DEADLINE: Duration = Duration::from_secs(120);

/// Bytes of a line that the guest sends back: a few frames together with others, and more than a frame's head.
const LINE: usize = 700;

/// A TCP connection with an other end that sends every line back.
pub struct Echo {
    client: Process,
    sent: usize,
}

impl Echo {
    /// From a host to port 7 of a guest, where netcat's listener is.
    pub fn to(host: &Host, lab: &Lab, guest: &str) -> Result<Echo, Failure> {
        Ok(Echo { client: host.start(lab, "client", &["busybox", "nc", guest, "7"])?, sent: 0 })
    }

    /// Lines that were sent.
    pub fn sent(&self) -> usize {
        self.sent
    }

    fn text(number: usize) -> String {
        format!("line {number} {}", "0123456789".repeat(LINE / 10))
    }

    /// Sends the next line, if those before have all come back.
    pub fn offer(&mut self) -> Result<(), Failure> {
        if self.client.lines().len() == self.sent {
            self.client.send_line(&Echo::text(self.sent))?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Waits until all lines have come back, each as it was and in order.
    pub fn settle(&mut self) -> Result<(), Failure> {
        wait_until("the guest to send all lines back", DEADLINE, || {
            Ok((self.client.lines().len() >= self.sent).then_some(()))
        })?;
        let wrong = self.client.lines().into_iter().enumerate().find(|(number, line)| *line != Echo::text(*number));
        wrong.map_or(Ok(()), |(number, line)| Err(Failure::new(format!("line {number} came back as `{line}`"))))
    }
}
