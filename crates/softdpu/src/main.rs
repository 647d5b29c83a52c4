//! The `softdpu` command line.

#![forbid(unsafe_code)]

mod arguments;
mod attach;
mod bench;
mod check;
mod control_plane;
mod daemon;
mod device_args;
mod function;
mod logging;
mod network;
mod output;
mod plan;
mod run;
mod status;
mod trace;
mod twin;
mod upgrade;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command, DeviceCommand};

fn main() -> ExitCode {
    let Arguments { connection, command } = Arguments::parse();
    let outcome = match command {
        Command::Check { site, json } => return check::check(&site, json),
        Command::Bench(command) => bench::execute(&command),
        Command::Twin(command) => twin::execute(&command),
        Command::Plan(options) => plan::execute(&options),
        Command::Run { .. } if connection.socket.is_some() => {
            Err("--socket is for commands that ask a daemon; the one that it listens at is `api.socket` in [node] of the site file"
                .to_owned())
        }
        Command::Run { site, record } => run::supervisor(&site, record),
        Command::DataPlane => run::data_plane(),
        Command::SupervisorFormats => output::print(&daemon::json_line(&softdpu_supervisor::understood())),
        Command::SupervisorCheck => output::print(&daemon::json_line(&softdpu_supervisor::check(std::io::stdin()))),
        Command::SupervisorResume(left) => run::resume(left),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "softdpu", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
        Command::ControlPlane(command) => control_plane::execute(&connection, command),
        Command::Trace(command) => trace::execute(&connection, &command),
        Command::Device(DeviceCommand::Args(options)) => device_args::print(&connection, &options),
        command => daemon::execute(&connection, command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            crate::output::error_line!("softdpu: {message}");
            ExitCode::FAILURE
        }
    }
}
