//! The `softdpu` command line.

#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod check;
mod daemon;
mod device_args;
mod function;
mod logging;
mod network;
mod run;
mod trace;
mod twin;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command, DeviceCommand};

fn main() -> ExitCode {
    let Arguments { connection, command } = Arguments::parse();
    let outcome = match command {
        Command::Check { site, json } => return check::check(&site, json),
        Command::Bench(command) => bench::execute(&command),
        Command::Twin(command) => twin::execute(&command),
        Command::Run { site, record } => run::supervisor(&site, record),
        Command::DataPlane => run::data_plane(),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "softdpu", &mut std::io::stdout());
            Ok(())
        }
        Command::Trace(command) => trace::execute(&connection, &command),
        Command::Device(DeviceCommand::Args(options)) => device_args::print(&connection, &options),
        command => daemon::execute(&connection, command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("softdpu: {message}");
            ExitCode::FAILURE
        }
    }
}
