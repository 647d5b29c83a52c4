//! What would become of a packet: it is made up here, and a core tells.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};
use softdpu_engine::Engine;
use softdpu_vpc::trace::{Description, Subject};
use softdpu_vpc::{Mac, PortId, Probe, Verdict, through_tunnel};

use super::networks::{Attached, Networks};
use softdpu_api::{ApiError, ErrorCode, FUNCTIONS, PathAnswer, PathOutcome, PathQuestion, PathStep, UNDERLAY};
use softdpu_site as config;

/// How long cores have to answer: a round of theirs is far shorter.
const PATIENCE: Duration = Duration::from_secs(1);

/// A frame that was made up here.
struct MadeUp<'a> {
    /// The port by which it would come in, and its name.
    port: PortId,
    name: &'a str,
    /// The device behind it; None: the underlay.
    sender: Option<&'a Attached>,
    frame: Vec<u8>,
    /// UDP port of VXLAN, where it is in a tunnel.
    vxlan: u16,
}

/// What would become of the packet that `question` is about.
pub(super) fn explain(question: &PathQuestion, networks: &Networks, engine: &Engine) -> Result<Value, ApiError> {
    let made_up = match question.host {
        Some(host) => from_host(networks, question, host)?,
        None => from_device(networks, question)?,
    };
    let MadeUp { port, name, sender, frame, vxlan } = made_up;
    let answer = engine.explain(port, name, &frame, PATIENCE);
    let (core, explained) = answer.ok_or_else(|| {
        ApiError::new(ErrorCode::Unavailable, "no core has answered: `softdpu status` says how they are".to_owned())
    })?;
    let (outcome, reason) = PathOutcome::of(&explained.verdict);
    let to = match explained.verdict {
        Verdict::Local { port, .. } | Verdict::Underlay { port, .. } => networks.port_name(port),
        Verdict::Software | Verdict::Consumed | Verdict::Drop(_) => None,
    };
    let mut steps: Vec<PathStep> = explained.steps.iter().map(Into::into).collect();
    let receiver = to.and_then(|name| Some((name, networks.port(name)?)));
    // As frames meet them.
    let end = steps.last().map_or(0, |last| last.ns);
    steps.splice(0..0, sender.and_then(|sender| not_asked(0, "switch-before", name, sender)));
    steps.extend(receiver.and_then(|(name, port)| not_asked(end, "switch-after", name, port)));
    Ok(json!(PathAnswer {
        port: name.to_owned(),
        packet: Description(Subject::on_wire(&frame, frame.len(), vxlan)).to_string(),
        core: core.0,
        flow: explained.is_flow,
        outcome,
        to: to.map(str::to_owned),
        reason,
        steps,
    }))
}

/// That the functions of an interface, if it has some, are not asked: their verdict may depend on earlier packets.
fn not_asked(ns: u64, tier: &str, device: &str, port: &Attached) -> Option<PathStep> {
    let functions = &port.settings.functions;
    (!functions.is_empty()).then(|| PathStep {
        ns,
        tier: tier.to_owned(),
        table: FUNCTIONS.to_owned(),
        outcome: "pass".to_owned(),
        key: device.to_owned(),
        found: format!("not asked: {}", functions.join(", ")),
        versions: Vec::new(),
    })
}

fn invalid(message: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidParams, message)
}

/// The packet, between its sender or receiver and the gateway.
fn packet(
    question: &PathQuestion,
    source: IpAddr,
    from_mac: Mac,
    network: &config::Network,
) -> Result<Vec<u8>, ApiError> {
    let probe = Probe {
        from_mac,
        to_mac: Mac(network.gateway_mac().0),
        addresses: (source, question.to),
        service: question.service()?,
        payload: question.payload.into(),
    };
    probe.frame().ok_or_else(|| invalid(format!("{source} and {} are of two families", question.to)))
}

/// What a device here sends.
fn from_device<'a>(networks: &'a Networks, question: &PathQuestion) -> Result<MadeUp<'a>, ApiError> {
    let (name, sender, source) = sender(networks, question)?;
    let Attached { id, settings, .. } = sender;
    let frame = packet(question, source, Mac(settings.mac.0), network(networks, &settings.network)?)?;
    Ok(MadeUp { port: *id, name, sender: Some(sender), frame, vxlan: 0 })
}

/// What comes by the tunnel of another host.
fn from_host<'a>(networks: &'a Networks, question: &PathQuestion, host: IpAddr) -> Result<MadeUp<'a>, ApiError> {
    let source: IpAddr = question
        .from
        .parse()
        .map_err(|_| invalid(format!("from: '{}' is no address: what comes from {host} has one", question.from)))?;
    let port = networks
        .underlay_port()
        .ok_or_else(|| invalid("host: nothing comes from other hosts, as there is no node.underlay".to_owned()))?;
    let underlay = networks.underlay_spec().ok_or_else(|| {
        ApiError::new(ErrorCode::Unavailable, "the underlay was not open yet: `softdpu status` says why".to_owned())
    })?;
    let of = network_of(networks, question, source)?;
    let mac = networks.tables().and_then(|tables| tables.remote(&of.name, source)).map(|sender| sender.mac);
    let inner = packet(question, source, mac.unwrap_or(Mac(of.gateway_mac().0)), of)?;
    let frame = through_tunnel(&underlay, host, of.vni, &inner)
        .ok_or_else(|| invalid(format!("host: this node's tunnel end point has no address of the family of {host}")))?;
    Ok(MadeUp { port, name: UNDERLAY, sender: None, frame, vxlan: underlay.udp_port })
}

fn network<'a>(networks: &'a Networks, name: &str) -> Result<&'a config::Network, ApiError> {
    let known = networks.iter().find(|network| network.name == name);
    known.ok_or_else(|| ApiError::new(ErrorCode::NotFound, format!("there is no network '{name}'")))
}

/// The network of an address on another host.
fn network_of<'a>(
    networks: &'a Networks,
    question: &PathQuestion,
    source: IpAddr,
) -> Result<&'a config::Network, ApiError> {
    if let Some(name) = &question.network {
        return network(networks, name);
    }
    let knows = |network: &&config::Network| elsewhere(networks, network, source).is_some();
    let has = |network: &&config::Network| network.subnet_of(source).is_some();
    let mut of: Vec<_> = networks.iter().filter(knows).collect();
    if of.is_empty() {
        of = networks.iter().filter(has).collect();
    }
    match of[..] {
        [one] => Ok(one),
        [] => Err(invalid(format!("no network here has {source}: say of which it is by `network`"))),
        _ => Err(several(source, of.iter().map(|network| network.name.as_str()))),
    }
}

fn several<'a>(address: IpAddr, networks: impl Iterator<Item = &'a str>) -> ApiError {
    let names: Vec<&str> = networks.collect();
    invalid(format!("{address} is in the networks {}: say which by `network`", names.join(", ")))
}

/// The other host that has an address of a network.
fn elsewhere(networks: &Networks, network: &config::Network, address: IpAddr) -> Option<IpAddr> {
    // The tables have them once the underlay was open.
    let configured = network.endpoints.iter().find(|endpoint| endpoint.addresses.contains(&address));
    let known = || networks.tables()?.remote(&network.name, address).map(|sender| sender.host);
    configured.map(|endpoint| endpoint.host).or_else(known)
}

/// The sender: the device, its port, and the source address.
fn sender<'a>(networks: &'a Networks, question: &PathQuestion) -> Result<(&'a str, &'a Attached, IpAddr), ApiError> {
    let PathQuestion { from, to, network, .. } = question;
    let in_network = |port: &Attached| network.as_ref().is_none_or(|network| port.settings.network == *network);
    let Ok(address) = from.parse::<IpAddr>() else {
        let (name, port) = networks
            .ports()
            .find(|(name, port)| name == from && in_network(port))
            .ok_or_else(|| ApiError::new(ErrorCode::NotFound, no_device(networks, question)))?;
        let own = port.settings.addresses.iter().find(|own| own.is_ipv4() == to.is_ipv4());
        let own = own.ok_or_else(|| invalid(format!("device '{from}' has no address of the family of {to}")))?;
        return Ok((name, port, *own));
    };
    let those: Vec<(&str, &Attached)> =
        networks.ports().filter(|(_, port)| in_network(port) && port.settings.addresses.contains(&address)).collect();
    match those[..] {
        [(name, port)] => Ok((name, port, address)),
        [] => Err(ApiError::new(ErrorCode::NotFound, not_here(networks, question, address))),
        _ => Err(several(address, those.iter().map(|(_, port)| port.settings.network.as_str()))),
    }
}

/// That no device has this name, and what is meant where it is that of the underlay's port.
fn no_device(networks: &Networks, PathQuestion { from, to, .. }: &PathQuestion) -> String {
    if from == UNDERLAY && networks.underlay_port().is_some() {
        let ask = format!("softdpu trace explain --from ADDRESS --host HOST --to {to}");
        return format!("what comes by the underlay is from an endpoint on another host: `{ask}`");
    }
    format!("there is no device '{from}' with a port here")
}

/// That no device has this address, and how to ask about the endpoint that has it elsewhere.
fn not_here(networks: &Networks, PathQuestion { to, network, .. }: &PathQuestion, address: IpAddr) -> String {
    let asked = networks.iter().filter(|one| network.as_ref().is_none_or(|network| one.name == *network));
    let mut there = asked.filter_map(|network| Some((&network.name, elsewhere(networks, network, address)?)));
    let Some((name, host)) = there.next() else { return format!("no device here has the address {address}") };
    let network =
        if network.is_some() || there.next().is_some() { format!(" --network {name}") } else { String::new() };
    let ask = format!("softdpu trace explain --from {address} --host {host} --to {to}{network}");
    format!("{address} is on host {host}: ask there, or what becomes here of what comes from there, `{ask}`")
}
