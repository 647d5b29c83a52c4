//! `softdpu function`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use softdpu_api::{Change, Query, Request};
use softdpu_site as config;

use crate::daemon::{object, problems};

/// `softdpu function …`
#[derive(Clone, Debug, Subcommand)]
pub enum FunctionCommand {
    /// Add a function: a flow monitor, an analysis or a firewall; `device set --functions` gives it to interfaces
    Add(Box<FunctionAdd>),
    /// Give a function other settings in the place of all that it has; what is not given is its default
    Set(Box<FunctionSet>),
    /// Forget a function that no interface has
    Remove {
        /// The function
        name: String,
    },
    /// List functions
    List {
        /// Print a JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
}

/// `softdpu function add`: the keys of `[[function]]`.
#[derive(Clone, Debug, Args)]
pub struct FunctionAdd {
    /// Its name
    pub name: String,
    /// The only tenant that may have it on devices
    #[arg(long)]
    pub tenant: Option<String>,
    #[command(flatten)]
    pub settings: Settings,
}

/// `softdpu function set`
#[derive(Clone, Debug, Args)]
pub struct FunctionSet {
    /// The function
    pub name: String,
    #[command(flatten)]
    pub settings: Settings,
}

/// What a function does.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("kind").required(true).args(["monitor", "analytics", "firewall"]))]
pub struct Settings {
    /// Flow monitor: export flow records as IPFIX to this collector, such as 192.0.2.9:4739
    #[arg(long, value_name = "COLLECTOR")]
    pub monitor: Option<String>,
    /// Monitor: the observation domain of its records [default: the network's VNI]
    #[arg(long, requires = "monitor")]
    pub domain: Option<u32>,
    /// Monitor: report a flow that goes on after so long, such as "60 s"
    #[arg(long, value_name = "TIME", requires = "monitor")]
    pub active_timeout: Option<String>,
    /// Monitor: a flow of which nothing was seen for so long is over, such as "15 s"
    #[arg(long, value_name = "TIME", requires = "monitor")]
    pub idle_timeout: Option<String>,
    /// Monitor: the most flows that each core keeps
    #[arg(long, requires = "monitor")]
    pub flows: Option<u32>,
    /// Real-time analytics: count, and rank what has the most
    #[arg(long)]
    pub analytics: bool,
    /// Analytics: which frames, such as "tcp port 80"
    #[arg(long, requires = "analytics")]
    pub filter: Option<String>,
    /// Analytics: what is counted apart: source, destination, source-port, destination-port, protocol, flow
    #[arg(long, value_delimiter = ',', requires = "analytics")]
    pub by: Option<Vec<String>>,
    /// Analytics: what is heavy, bytes or packets
    #[arg(long, requires = "analytics")]
    pub rank: Option<String>,
    /// Analytics: how many of the heaviest are shown
    #[arg(long, requires = "analytics")]
    pub top: Option<u16>,
    /// Analytics: how long a window is, such as "10 s"
    #[arg(long, value_name = "TIME", requires = "analytics")]
    pub window: Option<String>,
    /// Analytics: counters of a core for each of --by
    #[arg(long, requires = "analytics")]
    pub entries: Option<u16>,
    /// Firewall: a TOML file with the keys `default`, `stateful`, `connections` and `[[rule]]` of `function.firewall`
    #[arg(long, value_name = "FILE")]
    pub firewall: Option<PathBuf>,
}

impl Settings {
    /// The key of the kind, and its table.
    fn kind(&self) -> Result<(&'static str, Value), String> {
        if let Some(collector) = &self.monitor {
            let monitor = object([
                ("collector", json!(collector)),
                ("domain", json!(self.domain)),
                ("active-timeout", json!(self.active_timeout)),
                ("idle-timeout", json!(self.idle_timeout)),
                ("flows", json!(self.flows)),
            ]);
            return Ok(("monitor", monitor));
        }
        if let Some(file) = &self.firewall {
            let name = file.display().to_string();
            let text = std::fs::read_to_string(file).map_err(|error| format!("{name} cannot be read: {error}"))?;
            let firewall = config::firewall_from_text(&text, &name).map_err(|report| report.to_string())?;
            return Ok(("firewall", json!(firewall)));
        }
        let analytics = object([
            ("filter", json!(self.filter)),
            ("by", json!(self.by)),
            ("rank", json!(self.rank)),
            ("top", json!(self.top)),
            ("window", json!(self.window)),
            ("entries", json!(self.entries)),
        ]);
        Ok(("analytics", analytics))
    }
}

/// What `command` asks of the daemon.
pub fn request(command: &FunctionCommand) -> Result<Request, String> {
    match command {
        FunctionCommand::Add(options) => {
            let FunctionAdd { name, tenant, settings } = &**options;
            let function = object([("name", json!(name)), ("tenant", json!(tenant)), settings.kind()?]);
            config::function_from_json(&function).map(|function| Change::FunctionAdd(function).into()).map_err(problems)
        }
        FunctionCommand::Set(options) => {
            let FunctionSet { name, settings } = &**options;
            let change = object([("name", json!(name)), settings.kind()?]);
            config::function_change_from_json(&change)
                .map(|change| Change::FunctionSet(change).into())
                .map_err(problems)
        }
        FunctionCommand::Remove { name } => Ok(Change::FunctionRemove { name: name.clone() }.into()),
        FunctionCommand::List { .. } => Ok(Query::FunctionList.into()),
    }
}
