//! The daemon, and what has to hold after an abuse.

use std::path::PathBuf;
use std::time::Duration;

use softdpu_tests::abuses::wait_for_reason;
use softdpu_tests::{Context, Daemon, Failure, Lab, PortCounts, Site, wait_until};
use softdpu_transport::vhost_user::Message;

use crate::SOON;
use crate::nic::{Nic, Settings};

/// One network with all guests in it: what one guest may do to another, it may do to its neighbour.
fn site() -> String {
    let nic = |name: &str, addresses: &str, mac: &str, more: &str| {
        let place = format!("network = 'shared', address = {addresses}, mac = '02:5d:00:00:00:{mac}'");
        format!("virtio-net = {{ {place}, socket = '{name}.sock'{more} }}")
    };
    let large = ", queue-size = 1024";
    let hostile = nic("hostile", "['10.0.0.66', 'fd00:5d::66']", "66", ", queue-size = 1024, packed = true");
    let site = Site::on(&[0])
        .tenants(["mallory", "alice"])
        .network("shared", 5001, &["10.0.0.0/24", "fd00:5d::/64"])
        .device("hostile-nic", &hostile)
        .with("tenant = 'mallory'\ndomain = 'mallory-vm'")
        .device("sink-nic", &nic("sink", "['10.0.0.67', 'fd00:5d::67']", "67", ""))
        .with("tenant = 'mallory'\ndomain = 'mallory-sink'")
        .device("a-nic", &nic("a", "'10.0.0.10'", "0a", large))
        .with("tenant = 'alice'\ndomain = 'alice-a'")
        .device("b-nic", &nic("b", "'10.0.0.11'", "0b", large))
        .with("tenant = 'alice'\ndomain = 'alice-b'");
    site.to_string()
}

/// What has to follow an abuse.
pub enum Expect {
    /// As many frames as the abuse says are dropped and counted under this reason, and no queue breaks.
    Drops(&'static str),
    /// A queue breaks for a reason with these words.
    Breaks(&'static str),
    /// Chains are given back, nothing breaks.
    Harmless,
    /// Whether it breaks is left open, as it depends on which side is faster.
    Survives,
}

type Act = Box<dyn Fn(&mut Nic) -> Result<u64, Failure>>;

pub struct Abuse {
    pub name: &'static str,
    pub expect: Expect,
    pub settings: Settings,
    /// What is done; how many frames have to be dropped for it.
    pub act: Act,
}

impl Abuse {
    pub fn new(
        name: &'static str,
        settings: Settings,
        expect: Expect,
        act: impl Fn(&mut Nic) -> Result<u64, Failure> + 'static,
    ) -> Abuse {
        Abuse { name, expect, settings, act: Box::new(act) }
    }
}

pub struct Scene {
    daemon: Daemon,
    folder: PathBuf,
    data_plane: (u32, u64),
}

impl Scene {
    pub fn start(lab: &Lab) -> Result<Scene, Failure> {
        softdpu_memory::catch_bus_errors();
        let daemon = Daemon::start(lab.path(), &site())?;
        let data_plane = daemon.data_plane()?;
        Ok(Scene { daemon, folder: lab.path().to_owned(), data_plane })
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.sock"))
    }

    pub fn connect(&self, settings: Settings) -> Result<Nic, Failure> {
        Nic::connect(&self.socket("hostile"), settings)
    }

    /// Plays an abuse and checks everything that has to follow; says what was seen.
    pub fn play(&self, abuse: &Abuse) -> Result<String, Failure> {
        let mut nic = self.connect(abuse.settings)?;
        if abuse.settings.receives {
            nic.probe().context("before the abuse")?;
        }
        let before = self.counts()?;
        let count = (abuse.act)(&mut nic)?;
        match abuse.expect {
            Expect::Drops(reason) => {
                let dropped = || Ok::<_, Failure>(self.counts()?.dropped_in(reason) - before.dropped_in(reason));
                wait_until("the frames to be counted", SOON, || Ok((dropped()? >= count).then_some(()))).map_err(
                    |error| {
                        let now = self.counts().map(|counts| counts.to_string()).unwrap_or_default();
                        Failure::new(format!("{error}: {count} as {reason}; before {before}, now {now}"))
                    },
                )?;
                self.unbroken(&mut nic)?;
                let dropped = dropped()?;
                match dropped == count {
                    true => Ok(format!("{count} {reason}")),
                    false => Err(Failure::new(format!("{dropped} {reason}, and only {count} were sent"))),
                }
            }
            Expect::Breaks(words) => {
                let reason = self.broken(words)?;
                wait_until("the error eventfd to be signalled", SOON, || Ok(nic.error_signalled().then_some(())))?;
                needs_reset(&mut nic, true)?;
                self.reconnects(nic)?;
                Ok(reason)
            }
            Expect::Harmless => {
                self.unbroken(&mut nic)?;
                Ok("harmless".to_owned())
            }
            Expect::Survives => {
                let reason = self.broken_reason()?;
                self.reconnects(nic)?;
                Ok(reason.unwrap_or_else(|| "it did not break".to_owned()))
            }
        }
    }

    fn unbroken(&self, nic: &mut Nic) -> Result<(), Failure> {
        if nic.can_be_asked() {
            nic.probe().context("after the abuse")?;
        }
        match self.broken_reason()? {
            Some(reason) => Err(Failure::new(format!("it broke: {reason}"))),
            None => Ok(()),
        }
    }

    /// A new connection finds the interface as good as new.
    fn reconnects(&self, nic: Nic) -> Result<(), Failure> {
        drop(nic);
        let mut nic = self.connect(Settings::PLAIN)?;
        needs_reset(&mut nic, false)?;
        nic.probe().context("after reconnecting")?;
        wait_until("status to show no broken queue", SOON, || Ok(self.broken_reason()?.is_none().then_some(())))
    }

    /// The data plane is the one that was started first.
    pub fn same_data_plane(&self) -> Result<(), Failure> {
        self.daemon.expect_data_plane(self.data_plane)
    }

    /// What the hostile port counted.
    pub fn counts(&self) -> Result<PortCounts, Failure> {
        self.daemon.port("hostile-nic")
    }

    /// Core time that the hostile tenant's frames took so far.
    pub fn core_time(&self) -> Result<Duration, Failure> {
        let status = self.daemon.status()?;
        let tenants = status["tenants"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mallory = tenants.iter().find(|tenant| tenant["name"] == "mallory");
        let time = mallory.and_then(|tenant| tenant["core_time_ns"].as_u64());
        Ok(Duration::from_nanos(time.ok_or_else(|| Failure::new("status shows no core time of mallory's"))?))
    }

    /// What the ports of the well-behaved guests counted: the sender's and the receiver's.
    pub fn pair(&self) -> Result<[PortCounts; 2], Failure> {
        Ok([self.daemon.port("a-nic")?, self.daemon.port("b-nic")?])
    }

    /// Frames, bytes and drops of a device's queue.
    pub fn queue(&self, device: &str, index: usize) -> Result<[u64; 3], Failure> {
        let queue = self.daemon.device(device)?["queues"][index].clone();
        let count = |key: &str| queue[key].as_u64().ok_or_else(|| Failure::new(format!("no {key}: {queue}")));
        Ok([count("frames")?, count("frame_bytes")?, count("dropped_frames")?])
    }

    fn broken_reason(&self) -> Result<Option<String>, Failure> {
        let device = self.daemon.device("hostile-nic")?;
        let queues = device["queues"].as_array().map(Vec::as_slice).unwrap_or_default();
        let reasons = queues.iter().filter_map(|queue| queue["broken_reason"].as_str());
        Ok(reasons.chain(device["broken_reason"].as_str()).next().map(str::to_owned))
    }

    pub fn broken(&self, words: &str) -> Result<String, Failure> {
        wait_for_reason(words, SOON, || self.broken_reason())
    }

    pub fn stop(self) -> Result<(), Failure> {
        self.daemon.stop()
    }
}

/// The device status has DEVICE_NEEDS_RESET (virtio 1.3 §2.1), or not.
fn needs_reset(nic: &mut Nic, expected: bool) -> Result<(), Failure> {
    let control = nic.port.connection().ok_or_else(|| Failure::new("the interface has no connection"))?;
    let status = control.number(&Message::GetStatus).context("GET_STATUS")?;
    if (status & 64 != 0) == expected {
        return Ok(());
    }
    Err(Failure::new(format!("the device status is {status:#x}, DEVICE_NEEDS_RESET should be {expected}")))
}
