//! `softdpu trace packet`: pcapng from the daemon, onto the terminal or into a file.
//!
//! The daemon sends whole blocks; those that were begun when a data plane died are left out, so what is written is
//! always a file that others can read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use softdpu_api::{ApiError, Client, ClientError, ErrorCode, PacketTrace, Query, UNDERLAY};
use softdpu_pcapng::{Block, Reader};
use softdpu_vpc::trace::Filter;

use super::line::{PacketLine, vxlan_port};
use super::stop::{Ready, Signals, wait};
use super::{Packet, STANDARD_OUTPUT};
use crate::arguments::Connection;
use crate::daemon::connect;

/// How long a data plane that died may take to come back.
const RETURN: Duration = Duration::from_secs(30);

/// Between two tries.
const RETRY: Duration = Duration::from_millis(50);

/// Runs the trace until it is ended from here, or the daemon is gone.
pub fn run(connection: &Connection, options: &Packet) -> Result<(), String> {
    if let Some(filter) = &options.filter {
        filter
            .parse::<Filter>()
            .map_err(|error| format!("--filter: {error}\n  {filter}\n  {:>1$}", '^', error.column))?;
    }
    let trace = PacketTrace {
        ports: options.port.clone(),
        filter: options.filter.clone(),
        direction: options.direction.into(),
        drops: options.drops,
        tiers: options.tiers,
        snaplen: options.snaplen,
        buffer: options.buffer,
    };
    let seconds = options.seconds.map(|seconds| {
        Duration::try_from_secs_f64(seconds).map_err(|_| format!("--seconds: {seconds} is no length of time"))
    });
    let deadline = seconds.transpose()?.map(|seconds| Instant::now() + seconds);
    let request = Query::TracePacket(trace);
    let stream = open(connect(connection)?, &request)?;
    let sink = Sink::open(options).map_err(|error| format!("{}: {error}", place(options.write.as_deref())))?;
    let (signals, reader) = (Signals::new()?, Reader::new());
    // From here on no frame passes unseen.
    crate::output::error_line!("softdpu: tracing {}; Ctrl-C ends", ports(&options.port));
    let totals = BTreeMap::new();
    let mut run =
        Reading { options, sink, reader, ports: Vec::new(), totals, shown: 0, signals, deadline, stopping: None };
    let outcome = run.follow(connection, &request, stream);
    run.report();
    outcome
}

fn place(path: Option<&Path>) -> String {
    path.map_or("the standard output".to_owned(), |path| path.display().to_string())
}

fn ports(names: &[String]) -> String {
    if names.is_empty() { "all ports".to_owned() } else { names.join(", ") }
}

fn open(client: Client, request: &Query) -> Result<(UnixStream, Vec<u8>), String> {
    client.stream(request).map_err(|error| error.to_string())
}

/// Where frames go.
struct Sink {
    print: bool,
    file: Option<BufWriter<Box<dyn Write>>>,
}

impl Sink {
    fn open(options: &Packet) -> io::Result<Sink> {
        let target: Option<Box<dyn Write>> = match options.write.as_deref() {
            None => None,
            Some(path) if path == Path::new(STANDARD_OUTPUT) => Some(Box::new(io::stdout())),
            Some(path) => Some(Box::new(File::create(path)?)),
        };
        Ok(Sink { print: target.is_none() || options.print, file: target.map(BufWriter::new) })
    }

    /// Lines go where the file does not.
    fn line(&self, options: &Packet, line: &PacketLine<'_>) -> io::Result<()> {
        if options.write.as_deref() == Some(Path::new(STANDARD_OUTPUT)) {
            writeln!(io::stderr().lock(), "{line}")
        } else {
            writeln!(io::stdout().lock(), "{line}")
        }
    }

    fn json(&self, line: &PacketLine<'_>) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{}", line.json())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// What the daemon counted at a port.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    seen: u64,
    matched: u64,
    lost: u64,
}

/// A port of the section that is being read.
struct Port {
    name: String,
    vxlan: Option<u16>,
}

struct Reading<'a> {
    options: &'a Packet,
    sink: Sink,
    reader: Reader,
    ports: Vec<Port>,
    /// Of data planes that said what they counted, by port.
    totals: BTreeMap<String, Totals>,
    shown: u64,
    signals: Signals,
    deadline: Option<Instant>,
    /// Until when the daemon may take for the rest, once it was asked to end.
    stopping: Option<Instant>,
}

/// How a stream ended.
enum End {
    /// As was asked for.
    Asked,
    /// The reader of the output is gone.
    NoReader,
    /// The data plane is gone.
    Gone,
}

impl Reading<'_> {
    /// Reads stream after stream: each data plane has its own.
    fn follow(&mut self, connection: &Connection, request: &Query, first: (UnixStream, Vec<u8>)) -> Result<(), String> {
        let mut next = first;
        loop {
            match self.read(next.0, &next.1)? {
                End::Asked | End::NoReader => return Ok(()),
                End::Gone => {}
            }
            crate::output::error_line!(
                "softdpu: the data plane has ended; what passes before the next one serves is not seen"
            );
            match self.reopen(connection, request)? {
                Some(stream) => next = stream,
                None => return Ok(()),
            }
            crate::output::error_line!("softdpu: the trace goes on");
        }
    }

    /// A stream of the data plane that comes next; none if the trace was ended meanwhile.
    fn reopen(&self, connection: &Connection, request: &Query) -> Result<Option<(UnixStream, Vec<u8>)>, String> {
        let patience = Instant::now() + RETURN;
        // Readable only when a signal comes.
        let (nothing, _open) = UnixStream::pair().map_err(|error| error.to_string())?;
        loop {
            let error = match connect(connection).map(|client| client.stream(request)) {
                Ok(Ok(stream)) => return Ok(Some(stream)),
                Ok(Err(error @ ClientError::Refused(ApiError { code: ErrorCode::Unavailable, .. })))
                | Ok(Err(error @ ClientError::Closed { .. })) => error.to_string(),
                Ok(Err(error)) => return Err(error.to_string()),
                Err(error) => return Err(error),
            };
            if Instant::now() >= patience {
                return Err(error);
            }
            let pause = Some(Instant::now() + RETRY);
            if wait(nothing.as_fd(), Some(&self.signals), pause) == Ready::Signal || self.is_over() {
                return Ok(None);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn read(&mut self, mut stream: UnixStream, already: &[u8]) -> Result<End, String> {
        self.reader = Reader::new();
        let mut bytes = vec![0; 1 << 20];
        if let Some(end) = self.take(already, &stream)? {
            return Ok(end);
        }
        loop {
            self.sink.flush().map_err(|error| format!("{}: {error}", place(self.options.write.as_deref())))?;
            let (signals, until) = match self.stopping {
                Some(until) => (None, Some(until)),
                None => (Some(&self.signals), self.deadline),
            };
            match (wait(stream.as_fd(), signals, until), self.stopping) {
                (Ready::Readable, _) => {}
                (Ready::Time, Some(_)) => return Ok(End::Asked),
                (Ready::Signal | Ready::Time, _) => {
                    self.stop(&stream);
                    continue;
                }
            }
            let count = match stream.read(&mut bytes) {
                Ok(0) if self.stopping.is_some() => return Ok(End::Asked),
                Ok(0) => return Ok(End::Gone),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(End::Gone),
                Err(error) => return Err(format!("the daemon's connection: {error}")),
            };
            if let Some(end) = self.take(&bytes[..count], &stream)? {
                return Ok(end);
            }
        }
    }

    /// Ends the trace at the daemon. What was captured until then still comes, and the counts.
    fn stop(&mut self, stream: &UnixStream) {
        const PATIENCE: Duration = Duration::from_secs(10);
        self.stopping.get_or_insert_with(|| Instant::now() + PATIENCE);
        // It fails only where the daemon is gone, which is noticed by reading.
        let _ = stream.shutdown(Shutdown::Write);
    }

    /// Writes and prints the blocks that are here.
    fn take(&mut self, bytes: &[u8], stream: &UnixStream) -> Result<Option<End>, String> {
        self.reader.push(bytes);
        loop {
            if self.stopping.is_none() && self.options.count.is_some_and(|count| self.shown >= count) {
                self.stop(stream);
            }
            match self.block() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Some(End::NoReader)),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// The next block. False: there is none yet.
    fn block(&mut self) -> io::Result<bool> {
        let Reading { options, sink, reader, ports, totals, shown, .. } = self;
        let bad = |error| io::Error::other(format!("the daemon's answer: {error}"));
        let Some((raw, block)) = reader.next_block().map_err(bad)? else { return Ok(false) };
        match &block {
            Block::Section { .. } => ports.clear(),
            Block::Interface(interface) => {
                let name = interface.name.as_deref().unwrap_or("?").to_owned();
                let vxlan = || vxlan_port(interface.description.as_deref().unwrap_or_default());
                ports.push(Port { vxlan: (name == UNDERLAY).then(vxlan), name });
            }
            Block::Packet(packet) => {
                if options.count.is_some_and(|count| *shown >= count) {
                    return Ok(true);
                }
                *shown += 1;
                let port = ports.get(packet.interface as usize);
                if sink.print
                    && let Some(Port { name, vxlan }) = port
                {
                    let line = PacketLine { port: name, packet, ethernet: options.ethernet, vxlan: *vxlan };
                    if options.json { sink.json(&line)? } else { sink.line(options, &line)? }
                }
            }
            Block::Statistics(statistics) => {
                if let Some(port) = ports.get(statistics.interface as usize) {
                    let total = totals.entry(port.name.clone()).or_default();
                    total.seen += statistics.received.unwrap_or(0);
                    total.matched += statistics.accepted.unwrap_or(0);
                    total.lost += statistics.lost.unwrap_or(0);
                }
            }
            Block::Other { .. } => {}
        }
        if let Some(file) = &mut sink.file {
            file.write_all(raw)?;
        }
        Ok(true)
    }

    /// The counts, as tcpdump prints them.
    fn report(&mut self) {
        if let Err(error) = self.sink.flush()
            && error.kind() != ErrorKind::BrokenPipe
        {
            crate::output::error_line!("softdpu: {}: {error}", place(self.options.write.as_deref()));
        }
        let sum = |count: fn(&Totals) -> u64| self.totals.values().map(count).sum::<u64>();
        crate::output::error_line!("{} frames captured", self.shown);
        if !self.totals.is_empty() {
            crate::output::error_line!(
                "{} frames passed, {} matched",
                sum(|total| total.seen),
                sum(|total| total.matched)
            );
            crate::output::error_line!("{} frames lost for want of room", sum(|total| total.lost));
        }
    }
}
