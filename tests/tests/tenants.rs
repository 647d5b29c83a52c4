//! Tenants that share one data-plane core, seen from their drivers: what a light one waits beside one that floods, and
//! how equal tenants share. Every figure is a ratio of two measurements that take turns within one run; what is
//! asserted is an interval of the median of many such pairs.

#![allow(missing_docs)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use softdpu_frontend::load::block::BlockWork;
use softdpu_frontend::load::frames::Route;
use softdpu_frontend::load::{BlockClient, FrameClient, Job, Priority, RoundTrip, RunOptions, run};
use softdpu_frontend::{Frames, Station, Transfer};
use softdpu_sched::{fair1, jain};
use softdpu_tests::{Context, Daemon, Failure, Interval, Lab, Process, SlowDisk, has_two_cpus, skip, wait_until};

/// The clients' CPU, and the core's.
const CPUS: (usize, usize) = (0, 1);
/// Pairs of measurements.
const PAIRS: usize = 15;
const WARM_UP: Duration = Duration::from_millis(50);

const READ: BlockWork = BlockWork { transfer: Transfer::Read, block_size: 4096, depth: 1 };
const FLOOD: BlockWork = BlockWork { transfer: Transfer::Write, block_size: 4096, depth: 128 };

/// Clients that go before all other programs.
fn clients_first(duration: Duration) -> RunOptions {
    RunOptions { cpu: CPUS.0, priority: Priority::Session, batch: None, warm_up: WARM_UP, duration }
}

/// A tenant of a site, and its volume as the site file has it.
struct Tenant {
    keys: &'static str,
    volume: String,
}

impl Tenant {
    fn with_memory(keys: &'static str) -> Tenant {
        Tenant { keys, volume: "memory = { size = \"4 MiB\" }".to_owned() }
    }
}

fn site(fairness: &str, tenants: &[Tenant], folder: &Path) -> (String, Vec<PathBuf>) {
    let mut text = format!(
        "[node]\nfairness = \"{fairness}\"\ndataplane = {{ cores = [{}] }}\n\
         log = {{ level = \"warn\" }}\n",
        CPUS.1
    );
    let mut sockets = Vec::new();
    for (at, Tenant { keys, volume }) in tenants.iter().enumerate() {
        let _ = write!(text, "[[tenant]]\nname = \"t{at}\"\n{keys}\n");
        // An empty one: the volume of the tenant before.
        let disk = if volume.is_empty() { at - 1 } else { at };
        if !volume.is_empty() {
            let _ = write!(text, "[[volume]]\nname = \"v{at}\"\n{volume}\n");
        }
        let _ = write!(
            text,
            "[[device]]\nname = \"d{at}\"\ntenant = \"t{at}\"\nvirtio-blk = {{ volume = \"v{disk}\", queue-size = 1024, \
             socket = \"d{at}.sock\" }}\n"
        );
        sockets.push(folder.join(format!("d{at}.sock")));
    }
    (text, sockets)
}

/// What tenants do, and how it is measured.
struct Load<'a> {
    works: &'a [BlockWork],
    /// One measurement.
    turn: Duration,
    /// The clients go before all other programs.
    first: bool,
    /// What the data planes are slowed on.
    slow: Option<&'a SlowDisk>,
}

/// A daemon with a policy, and clients of its tenants. Its core sleeps while another daemon is measured.
struct Subject {
    daemon: Daemon,
    jobs: Vec<Box<dyn Job>>,
    options: RunOptions,
}

/// What the light tenant, the first, waits in one measurement: nanoseconds.
#[derive(Clone, Copy)]
struct Wait {
    mean: f64,
    p99: f64,
}

impl Subject {
    /// The light tenant alone.
    fn alone(&mut self) -> Result<Wait, Failure> {
        self.measure(1)
    }

    /// The light tenant beside the others.
    fn beside(&mut self) -> Result<Wait, Failure> {
        let all = self.jobs.len();
        self.measure(all)
    }

    fn measure(&mut self, tenants: usize) -> Result<Wait, Failure> {
        let served = run(self.jobs[..tenants].iter_mut().map(Box::as_mut), &self.options).context("load")?;
        Ok(Wait { mean: served[0].latency.mean(), p99: served[0].latency_at(0.99) as f64 })
    }

    fn stop(self) -> Result<(), Failure> {
        drop(self.jobs);
        self.daemon.stop()
    }
}

/// A daemon in a folder of its own, with a disk for each tenant.
fn disks(lab: &Lab, fairness: &str, tenants: &[Tenant], load: &Load<'_>) -> Result<Subject, Failure> {
    let folder = lab.path().join(fairness);
    std::fs::create_dir(&folder).context(folder.display())?;
    let (text, sockets) = site(fairness, tenants, &folder);
    let daemon = Daemon::start(&folder, &text)?;
    if let Some(slow) = load.slow {
        std::fs::write(slow.members(), daemon.data_plane()?.0.to_string()).context("slowing the data plane")?;
    }
    let mut jobs: Vec<Box<dyn Job>> = Vec::new();
    for (socket, work) in sockets.iter().zip(load.works) {
        jobs.push(Box::new(BlockClient::connect(socket, *work).context("connecting")?));
    }
    let priority = if load.first { Priority::Session } else { Priority::Normal };
    Ok(Subject { daemon, jobs, options: RunOptions { priority, ..clients_first(load.turn) } })
}

/// What is waited under one policy over what is waited under another, beside the same others, in pairs.
struct Waits {
    mean: Interval,
    p99: Interval,
}

/// Measures the light tenant beside the others with `fcfs` and with `weighted`, in turn.
fn compare(pairs: usize, fcfs: &mut Subject, weighted: &mut Subject) -> Result<Waits, Failure> {
    let (mut mean, mut p99) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let (first_come, fair) = if pair % 2 == 0 {
            let first_come = fcfs.beside()?;
            (first_come, weighted.beside()?)
        } else {
            let fair = weighted.beside()?;
            (fcfs.beside()?, fair)
        };
        mean.push(first_come.mean / fair.mean);
        p99.push(first_come.p99 / fair.p99);
    }
    Ok(Waits { mean: Interval::new(mean)?, p99: Interval::new(p99)? })
}

/// Reads of a tenant of a class beside a flood of writes: p99 and the mean are `worse` times as much with `fcfs`.
fn beside_writes(name: &str, class: &'static str, worse: f64) {
    let load = Load { works: &[READ, FLOOD], turn: Duration::from_millis(150), first: true, slow: None };
    let tenants = [Tenant::with_memory(class), Tenant::with_memory("")];
    Lab::run_on_two_cpus(name, |lab| {
        let (mut fcfs, mut weighted) = (disks(lab, "fcfs", &tenants, &load)?, disks(lab, "weighted", &tenants, &load)?);
        let waits = compare(PAIRS, &mut fcfs, &mut weighted)?;
        waits.mean.is_at_least(worse, "mean wait of reads beside a flood, fcfs over weighted")?;
        waits.p99.is_at_least(worse, "p99 of reads beside a flood, fcfs over weighted")?;
        fcfs.stop()?;
        weighted.stop()
    });
}

const LATENCY: &str = "class = \"latency\"";
const DEFAULT: &str = "";

#[test]
fn reads_of_one_tenant_wait_a_third_at_most_of_what_they_do_first_come_first_served() {
    beside_writes("flood", LATENCY, 3.0);
}

#[test]
fn reads_of_a_tenant_of_the_default_class_wait_half_at_most_of_what_they_do_first_come_first_served() {
    beside_writes("flood-default", DEFAULT, 2.0);
}

#[test]
fn a_slow_server_that_one_tenant_floods_still_answers_another() {
    if !std::process::Command::new("nbdkit").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("flooded server", "nbdkit is not installed");
    }
    Lab::run_on_two_cpus("flooded-nbd", |lab| {
        let socket = lab.path().join("slow.sock");
        let arguments = ["-f", "-U", "slow.sock", "--filter=delay", "memory", "16M", "rdelay=20ms", "wdelay=20ms"]
            .map(str::to_owned);
        let mut server = Process::start("nbdkit", lab.path(), Path::new("nbdkit"), arguments)?;
        wait_until("nbdkit's socket", Duration::from_secs(60), || Ok(socket.exists().then_some(())))?;
        let shared = format!("shared = true\nnbd = {{ uri = \"nbd+unix:///?socket={}\" }}", socket.display());
        // The server's delay is many times what it may wait for a CPU, and it needs one as well.
        let load = Load { works: &[READ, FLOOD], turn: Duration::from_millis(600), first: false, slow: None };
        let tenants = [Tenant { keys: "", volume: shared }, Tenant { keys: "", volume: String::new() }];
        let (mut fcfs, mut weighted) = (disks(lab, "fcfs", &tenants, &load)?, disks(lab, "weighted", &tenants, &load)?);
        let waits = compare(9, &mut fcfs, &mut weighted)?;
        waits.mean.is_at_least(2.0, "mean wait at a slow server beside a flood, fcfs over weighted")?;
        fcfs.stop()?;
        let slowdown = |subject: &mut Subject| {
            let alone = subject.alone()?.p99;
            Ok::<_, Failure>(subject.beside()?.p99 / alone)
        };
        let slowdowns = (0..9).map(|_| slowdown(&mut weighted)).collect::<Result<Vec<_>, _>>()?;
        Interval::new(slowdowns)?.is_at_most(1.5, "p99 at a slow server beside a flood, over alone")?;
        weighted.stop()?;
        server.stop()?;
        Ok(())
    });
}

#[test]
fn a_slow_disk_that_one_tenant_floods_still_answers_another() {
    const TEST: &str = "flooded disk";
    /// Bytes a second: a read of 4 KiB takes 1.25 ms.
    const RATE: u64 = 800 * 4096;
    const IMAGE: usize = 4 << 20;
    if !has_two_cpus(TEST) {
        return;
    }
    // Not in the lab's folder, which may be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let slow = match SlowDisk::new(folder.path(), RATE) {
        Ok(slow) => slow,
        Err(error) => return skip(TEST, &error.to_string()),
    };
    Lab::run("flooded-disk", |lab| {
        // A file for each tenant of each daemon, on one disk.
        let tenants = |daemon: &str| {
            let volume = |tenant: &str| -> Result<Tenant, Failure> {
                let image = folder.path().join(format!("{daemon}-{tenant}"));
                std::fs::write(&image, vec![1; IMAGE]).context("writing an image")?;
                std::fs::File::open(&image).and_then(|file| file.sync_all()).context("syncing an image")?;
                let volume = format!("depth = 8\nfile = {{ path = '{}', direct = true }}", image.display());
                Ok(Tenant { keys: "", volume })
            };
            Ok::<_, Failure>(vec![volume("light")?, volume("flood")?])
        };
        let works = [READ, BlockWork { depth: 128, ..READ }];
        let load = Load { works: &works, turn: Duration::from_millis(1_500), first: false, slow: Some(&slow) };
        let (mut fcfs, mut weighted) =
            (disks(lab, "fcfs", &tenants("fcfs")?, &load)?, disks(lab, "weighted", &tenants("weighted")?, &load)?);
        // Eight at the disk instead of 128. By the mean: the kernel lets what it holds back go in slices of 100 ms,
        // which is p99 for a tenant that is alone there, too.
        let waits = compare(9, &mut fcfs, &mut weighted)?;
        waits.mean.is_at_least(2.5, "mean wait at a slow disk beside a flood, fcfs over weighted")?;
        fcfs.stop()?;
        weighted.stop()
    });
}

/// What each tenant cost its core so far, in nanoseconds as `weighted` counts them: time, and 20 ps a byte.
fn costs(daemon: &Daemon) -> Result<Vec<f64>, Failure> {
    let status = daemon.status()?;
    let of = |tenant: &serde_json::Value| {
        let [time, bytes] = ["core_time_ns", "bytes"].map(|key| tenant[key].as_f64());
        Some(time? + 0.02 * bytes?)
    };
    let ours = |tenant: &&serde_json::Value| tenant["name"].as_str().is_some_and(|name| name.starts_with('t'));
    let tenants = status["tenants"].as_array().map_or(&[][..], Vec::as_slice);
    let costs: Option<Vec<f64>> = tenants.iter().filter(ours).map(of).collect();
    costs.ok_or_else(|| Failure::new(format!("no costs of tenants: {}", status["tenants"])))
}

#[test]
fn equal_tenants_have_equal_parts() {
    parts_are_had("equal", &[vec![1; 2], vec![1; 4], vec![1; 8]]);
}

#[test]
fn tenants_have_parts_by_their_weights() {
    parts_are_had("weights", &[vec![4, 1], vec![4, 2, 2, 1]]);
}

fn parts_are_had(name: &str, sites: &[Vec<u32>]) {
    Lab::run_on_two_cpus(name, |lab| {
        for weights in sites {
            let keys: Vec<&'static str> = weights
                .iter()
                .map(|weight| match weight {
                    4 => "weight = 4",
                    2 => "weight = 2",
                    _ => "weight = 1",
                })
                .collect();
            let tenants: Vec<Tenant> = keys.into_iter().map(Tenant::with_memory).collect();
            let (text, sockets) = site("weighted", &tenants, lab.path());
            let daemon = Daemon::start(lab.path(), &text)?;
            // Large ones: the core has to be the bottleneck, and not the clients, or not each tenant always has work.
            // And many: a tenant that the core serves first still has work while the clients' CPU does something else.
            let work = BlockWork { transfer: Transfer::Read, block_size: 65_536, depth: 256 };
            let mut clients = sockets
                .iter()
                .map(|socket| BlockClient::connect(socket, work))
                .collect::<Result<Vec<_>, _>>()
                .context("connecting")?;
            let expected: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
            let mut fairness = Vec::new();
            for _ in 0..PAIRS {
                let before = costs(&daemon)?;
                let served = run(&mut clients, &clients_first(Duration::from_millis(400))).context("load")?;
                // A tenant with a larger part finds more of its data in the cache, so that its requests cost less.
                let requests: Vec<f64> = served.iter().map(|served| served.requests as f64).collect();
                let cost: Vec<f64> =
                    costs(&daemon)?.iter().zip(&before).map(|(after, before)| after - before).collect();
                let got: Vec<f64> = if weights.iter().all(|weight| *weight == 1) { requests } else { cost };
                fairness.push(fair1(&expected, &got));
            }
            Interval::new(fairness)?.is_at_most(0.02, &format!("Fair1 of tenants with weights {weights:?}"))?;
            drop(clients);
            daemon.stop()?;
        }
        Ok(())
    });
}

#[test]
fn a_limit_holds_is_changed_while_it_holds_and_shows_in_the_status() {
    Lab::run_on_two_cpus("limits", |lab| {
        let tenants = [Tenant::with_memory("limits = { iops = 5_000, iops-burst = 64 }"), Tenant::with_memory("")];
        let (text, sockets) = site("weighted", &tenants, lab.path());
        let daemon = Daemon::start(lab.path(), &text)?;
        let work = BlockWork { transfer: Transfer::Read, block_size: 4096, depth: 32 };
        let mut clients = vec![BlockClient::connect(&sockets[0], work).context("connecting")?];
        // Requests a second: of each window never more than the limit and its burst, and of most not much less.
        let mut rate_in = |range: std::ops::Range<f64>| -> Result<f64, Failure> {
            let mut rates = Vec::new();
            for _ in 0..6 {
                let options =
                    RunOptions { warm_up: Duration::from_millis(100), ..clients_first(Duration::from_millis(400)) };
                let rate = run(&mut clients, &options).context("load")?[0].rate();
                assert!(rate < range.end, "{rate:.0} requests a second, of {:.0} at most", range.end);
                rates.push(rate);
            }
            let rates = Interval::new(rates)?;
            assert!(rates.median() >= range.start, "{rates} requests a second, of {:.0} at least", range.start);
            Ok(rates.median())
        };
        rate_in(4_000.0..5_200.0)?;

        daemon.command(&["tenant", "set", "t0", "--iops", "20000", "--iops-burst", "64", "--weight", "3"])?;
        let rate = rate_in(15_000.0..20_800.0)?;
        let status = daemon.status()?;
        let tenant = &status["tenants"][0];
        assert_eq!((&tenant["weight"], &tenant["limits"]["iops"]), (&3.into(), &20_000.into()), "{tenant}");
        assert!(tenant["limited_ns"].as_u64().is_some_and(|ns| ns > 500_000_000), "{tenant}");
        assert!(tenant["waited_ns"].as_u64().is_some_and(|ns| ns > 500_000_000), "{tenant}");
        assert_eq!(tenant["cores"][0]["iops_limit"], 20_000, "{tenant}");

        daemon.command(&["tenant", "set", "t0", "--no-limits"])?;
        // Without a limit.
        rate_in(2.0 * rate..f64::INFINITY)?;
        let refused = daemon.command(&["tenant", "set", "nobody", "--weight", "3"]).err();
        let words = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(words.contains("there is no tenant called"), "{words}");
        drop(clients);
        daemon.stop()
    });
}

/// The burst is four seconds of the rate: one that is given again shows.
#[test]
fn a_limit_gives_its_burst_once_however_often_the_data_plane_is_killed_or_upgraded() {
    const RATE: f64 = 2_000.0;
    const BURST: f64 = 8_000.0;
    Lab::run_on_two_cpus("limits-kept", |lab| {
        let tenants = [Tenant::with_memory("limits = { iops = 2_000, iops-burst = 8_000 }")];
        let (text, sockets) = site("weighted", &tenants, lab.path());
        let mut daemon = Daemon::start(lab.path(), &text)?;
        let work = BlockWork { transfer: Transfer::Read, block_size: 4096, depth: 32 };
        let mut clients = vec![BlockClient::connect(&sockets[0], work).context("connecting")?];
        let (began, mut had) = (Instant::now(), 0.0);
        let mut have = |seconds: f64| -> Result<f64, Failure> {
            let duration = Duration::from_secs_f64(seconds);
            let options = RunOptions { warm_up: Duration::ZERO, ..clients_first(duration) };
            let requests = run(&mut clients, &options).context("load")?[0].rate() * seconds;
            had += requests;
            Ok(requests)
        };
        let first = have(1.0)?;
        assert!(first > BURST, "{first:.0} requests of a burst of {BURST}");
        for round in 0..20 {
            match round % 2 {
                0 => daemon.upgrade().map(|_| ()),
                _ => daemon.kill_data_plane().map(|_| ()),
            }?;
            let again = have(0.1)?;
            assert!(again < BURST / 2.0, "{again:.0} requests at once after switch {round}");
        }
        let (all, most) = (had, BURST + RATE * began.elapsed().as_secs_f64());
        assert!(all <= 1.05 * most, "{all:.0} requests, of {most:.0} at most");
        daemon.stop()
    });
}

/// Bytes of memory of its own that the daemon's two processes have.
fn resident(daemon: &Daemon) -> Result<u64, Failure> {
    let supervisor = daemon.status()?["supervisor_pid"].as_u64().unwrap_or_default() as u32;
    let mut sum = 0;
    for pid in [supervisor, daemon.data_plane()?.0] {
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).context(&path)?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        sum += kib.ok_or_else(|| Failure::new(format!("{path} has no RssAnon")))? * 1024;
    }
    Ok(sum)
}

#[test]
fn a_thousand_tenants_with_a_disk_each_are_served_alike_and_take_little_memory() {
    if !has_two_cpus("a thousand tenants") {
        return;
    }
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let files = getrlimit(Resource::Nofile);
    if files.maximum.is_some_and(|most| most < 16_384) {
        return skip("a thousand tenants", "a process may not have 16,384 files open (ulimit -Hn)");
    }
    let allow = |current: Option<u64>| {
        setrlimit(Resource::Nofile, Rlimit { current, ..files }).expect("the soft limit may be the hard one");
    };
    Lab::run("thousand", |lab| {
        let with = |count: usize| -> Result<u64, Failure> {
            let null = || Tenant { keys: "", volume: "null = { size = \"1 GiB\" }".to_owned() };
            let tenants: Vec<Tenant> = (0..count).map(|_| null()).collect();
            let (text, sockets) = site("weighted", &tenants, lab.path());
            // What a shell gives a daemon: it raises that itself.
            allow(Some(1_024));
            let daemon = Daemon::start(lab.path(), &text)?;
            // For the clients, which are this process's.
            allow(files.maximum);
            let work = BlockWork { depth: 2, ..READ };
            let mut clients = sockets
                .iter()
                .map(|socket| BlockClient::connect(socket, work))
                .collect::<Result<Vec<_>, _>>()
                .context("connecting")?;
            let mut indices = Vec::new();
            let mut all = vec![0.0; count];
            for _ in 0..6 {
                let served = run(&mut clients, &clients_first(Duration::from_secs(1))).context("load")?;
                let got: Vec<f64> = served.iter().map(|served| served.requests as f64).collect();
                all.iter_mut().zip(&got).for_each(|(all, got)| *all += got);
                indices.push(jain(&vec![1.0; count], &got));
            }
            let indices = Interval::new(indices)?;
            println!("{count} tenants: {:.0} requests, Jain {indices}", all.iter().sum::<f64>());
            assert!(indices.median() > 0.9, "{count} tenants: Jain {indices}");
            assert!(all.iter().all(|got| *got > 0.0), "{count} tenants: some got nothing");
            let resident = resident(&daemon)?;
            drop(clients);
            daemon.stop()?;
            Ok(resident)
        };
        let (few, many) = (with(32)?, with(1_024)?);
        let each = many.saturating_sub(few) / (1_024 - 32);
        println!("{each} bytes each");
        assert!(each < 64 << 10, "{each} bytes for a tenant with a device");
        Ok(())
    });
}

const STATIONS: [[Station; 2]; 2] = {
    const fn station(last: u8) -> Station {
        Station { mac: [2, 0x5d, 0, 0, 0, last], address: std::net::Ipv4Addr::new(10, 0, 0, last) }
    }
    [[station(10), station(11)], [station(20), station(21)]]
};

/// Frames of the flood that are on their way: less than the receiver has buffers.
const FLOOD_FRAMES: usize = 192;
/// Frames of the flood that are taken before the talk has its turn.
const FLOOD_BATCH: usize = 32;

/// A daemon in a folder of its own: request and response of one tenant's guests, and a flood of frames
/// between another's.
fn talks(lab: &Lab, fairness: &str) -> Result<Subject, Failure> {
    let folder = lab.path().join(fairness);
    std::fs::create_dir(&folder).context(folder.display())?;
    let mut text = format!(
        "[node]\nfairness = \"{fairness}\"\ndataplane = {{ cores = [{}] }}\n\
         log = {{ level = \"warn\" }}\n",
        CPUS.1
    );
    let mut sockets = Vec::new();
    // What makes the core, not the client, what the flood waits for.
    text.push_str(
        "[[function]]\nname = \"heavy\"\nanalytics = { by = [\"source\", \"destination\", \"destination-port\", \"flow\"], \
         top = 16 }\n",
    );
    for (tenant, stations) in STATIONS.iter().enumerate() {
        let functions = if tenant == 0 { "" } else { ", functions = [\"heavy\"]" };
        let class = if tenant == 0 { "latency" } else { "normal" };
        let _ = write!(
            text,
            "[[tenant]]\nname = \"t{tenant}\"\nclass = \"{class}\"\n[[network]]\nname = \"n{tenant}\"\nvni = {}\n\
             cidr = \"10.0.0.0/24\"\n",
            tenant + 1
        );
        for (end, station) in stations.iter().enumerate() {
            let mac = station.mac.map(|byte| format!("{byte:02x}")).join(":");
            let _ = write!(
                text,
                "[[device]]\nname = \"d{tenant}{end}\"\ntenant = \"t{tenant}\"\nvirtio-net = {{ network = \"n{tenant}\", \
                 address = \"{}\", mac = \"{mac}\", queue-size = 256, socket = \"{tenant}{end}.sock\"{functions} }}\n",
                station.address
            );
            sockets.push(folder.join(format!("{tenant}{end}.sock")));
        }
    }
    let daemon = Daemon::start(&folder, &text)?;
    let of = |tenant: usize| [&*sockets[2 * tenant], &*sockets[2 * tenant + 1]];
    let [from, to] = STATIONS[1];
    let route = Route { frames: Frames::Mtu, flows: 1, from, to, by: to.mac };
    let talk = RoundTrip::connect(of(0), STATIONS[0]).context("connecting")?;
    let flood = FrameClient::connect(of(1), route, FLOOD_FRAMES).context("connecting")?;
    let options = RunOptions { batch: Some(FLOOD_BATCH), ..clients_first(Duration::from_millis(150)) };
    Ok(Subject { daemon, jobs: vec![Box::new(talk), Box::new(flood)], options })
}

#[test]
fn a_talk_of_one_tenant_waits_a_quarter_at_most_of_what_it_does_first_come_first_served() {
    Lab::run_on_two_cpus("frames", |lab| {
        let (mut fcfs, mut weighted) = (talks(lab, "fcfs")?, talks(lab, "weighted")?);
        let waits = compare(PAIRS, &mut fcfs, &mut weighted)?;
        waits.mean.is_at_least(4.0, "mean wait of a talk beside a flood, fcfs over weighted")?;
        waits.p99.is_at_least(4.0, "p99 of a talk beside a flood, fcfs over weighted")?;
        fcfs.stop()?;
        weighted.stop()
    });
}
