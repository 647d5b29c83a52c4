//! `softdpu trace …`: see frames that pass ports, and bring some in.

mod explain;
mod line;
mod packet;
mod replay;
mod stop;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use softdpu_api::Directions;
use softdpu_site::{Bytes, Span};
use softdpu_vpc::trace::HELP;

use crate::arguments::Connection;

/// What behind a file name means the standard output.
const STANDARD_OUTPUT: &str = "-";

/// `softdpu trace …`
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Show frames that pass ports, or capture them into a file
    Packet(Packet),
    /// Tell what would become of a packet, tier by tier; nothing is sent or changed
    Explain(Explain),
    /// Bring the frames of a capture file in by a port
    Replay(Replay),
}

/// `softdpu trace packet`
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct Packet {
    /// A port: the name of its device, or `underlay`; may be given several times [default: all ports]
    #[arg(long, value_name = "NAME")]
    pub port: Vec<String>,
    /// Which frames, see below [default: all]
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Which way they go: from the port into the node (in), or by the port out of it (out)
    #[arg(long, value_enum, default_value = "both")]
    pub direction: DirectionChoice,
    /// Only frames that are dropped
    #[arg(long)]
    pub drops: bool,
    /// With the way of each frame through the tiers, from where it comes in; no others are shown
    #[arg(long)]
    pub tiers: bool,
    /// A JSON object a line for each frame, instead of text
    #[arg(long, conflicts_with = "write")]
    pub json: bool,
    /// End after so many frames
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Bytes that are kept of a frame
    #[arg(short, long, value_name = "BYTES", default_value_t = 262_144)]
    pub snaplen: u32,
    /// How much may wait to be read; what comes then is lost, and counted
    #[arg(long, value_name = "SIZE", default_value = "16 MiB")]
    pub buffer: Bytes,
    /// Write the frames as pcapng into a file, or to the standard output (-), instead of printing them
    #[arg(short, long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Print them as well
    #[arg(long, requires = "write")]
    pub print: bool,
    /// Print Ethernet addresses too
    #[arg(short, long)]
    pub ethernet: bool,
}

/// What a line has, and examples.
const AFTER_HELP: &str = "\
A line has the time (UTC), the port, the direction, the frame's bytes, what it is, and in brackets what its sender left to be
done and why it was dropped. Ctrl-C ends the trace.

  softdpu trace packet --port vm1-nic --filter 'icmp or arp'
  softdpu trace packet --drops
  softdpu trace packet --port vm1-nic --tiers --count 1
  softdpu trace packet --port vm1-nic --write vm1.pcapng --seconds 10
  softdpu trace packet --write - | wireshark -k -i -

";

/// Which way frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectionChoice {
    /// From the port into the node
    In,
    /// By the port out of the node
    Out,
    /// Either
    Both,
}

impl From<DirectionChoice> for Directions {
    fn from(choice: DirectionChoice) -> Directions {
        match choice {
            DirectionChoice::In => Directions::In,
            DirectionChoice::Out => Directions::Out,
            DirectionChoice::Both => Directions::Both,
        }
    }
}

/// `softdpu trace explain`
#[derive(Debug, Args)]
pub struct Explain {
    /// The sender: the name of a device, or an address of one; with --host, an address there
    #[arg(long, value_name = "PORT|ADDRESS")]
    pub from: String,
    /// The other host that it comes from by tunnel: its tunnel end point, as the site has it
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<IpAddr>,
    /// Where the packet goes
    #[arg(long, value_name = "ADDRESS")]
    pub to: IpAddr,
    /// The network, where several have an endpoint with the address
    #[arg(long, value_name = "NAME")]
    pub network: Option<String>,
    /// What it carries; icmp is an echo request, of IPv6 too
    #[arg(long, value_enum, default_value = "icmp")]
    pub protocol: Protocol,
    /// Destination port of TCP and UDP
    #[arg(long, value_name = "N")]
    pub port: Option<u16>,
    /// Source port of TCP and UDP [default: 49152]
    #[arg(long, value_name = "N")]
    pub source_port: Option<u16>,
    /// TCP flags, such as `syn` or `fin,ack` [default: syn]
    #[arg(long, value_name = "FLAGS")]
    pub tcp_flags: Option<String>,
    /// Bytes behind the transport header
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub payload: u16,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// An echo request
    Icmp,
    /// A TCP segment
    Tcp,
    /// A UDP datagram
    Udp,
}

/// `softdpu trace replay`
#[derive(Debug, Args)]
pub struct Replay {
    /// The port that they come in by: the name of its device, or `underlay`
    #[arg(long, value_name = "NAME")]
    pub port: String,
    /// A capture file of whole Ethernet frames (pcapng)
    pub file: PathBuf,
    /// Frames a second [default: as fast as they are taken]
    #[arg(long, value_name = "N", conflicts_with = "as_captured")]
    pub rate: Option<f64>,
    /// With the pauses that the file has
    #[arg(long)]
    pub as_captured: bool,
    /// The longest such pause
    #[arg(long, value_name = "TIME", default_value = "10 s", requires = "as_captured")]
    pub longest_pause: Span,
}

/// How it looks, and the filter language.
fn after_help() -> String {
    format!("{AFTER_HELP}{HELP}")
}

/// Does what `command` says.
pub fn execute(connection: &Connection, command: &TraceCommand) -> Result<(), String> {
    match command {
        TraceCommand::Packet(options) => packet::run(connection, options),
        TraceCommand::Explain(options) => explain::run(connection, options),
        TraceCommand::Replay(options) => replay::run(connection, options),
    }
}
