//! `make demo`: a stock Debian guest lives on softdpu's disks, through a kill of the data plane, a growing disk and a
//! second boot; then guests of two tenants live on its networks. Prints a table and ends with 0 only if every step
//! held.

#![forbid(unsafe_code)]

mod disk;
mod network;
mod table;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use softdpu_tests::{Accel, Failure, Lab, ServerKind};

use crate::table::Table;

/// Every step of the guest is done within this time on a busy machine without KVM.
const DEADLINE: Duration = Duration::from_secs(120);

/// Boots Debian guests on softdpu's disks and networks and shows that they work.
#[derive(Parser)]
struct Options {
    /// Serve with something else (`qsd`), to prove the demonstration itself: nothing is killed or grown then.
    #[arg(long, hide = true, default_value = "softdpu")]
    server: ServerKind,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let mut table = Table::default();
    let start = Instant::now();
    table.print_head();
    let result = Lab::open("demo").and_then(|lab| {
        let result = demonstrate(options.server, &lab, &mut table);
        lab.close(result.is_err());
        result
    });
    table.print_sum(start.elapsed());
    match result {
        Ok(()) => {
            println!("\nEverything held.");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("\nThe demonstration failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn demonstrate(kind: ServerKind, lab: &Lab, table: &mut Table) -> Result<(), Failure> {
    let accel = table.row("choose how to run the guest", || {
        let accel = Accel::detect();
        Ok((accel, if accel == Accel::Kvm { "KVM" } else { "TCG: KVM was not found to work here" }.to_owned()))
    })?;
    disk::demonstrate(kind, accel, lab, table)?;
    if kind != ServerKind::Softdpu {
        table.skipped("networks of two tenants", "only softdpu has them");
        return Ok(());
    }
    network::demonstrate(accel, lab, table)
}

fn expect(what: &str, found: u64, expected: u64) -> Result<(), Failure> {
    if found == expected { Ok(()) } else { Err(Failure::new(format!("{what}: {found}, expected {expected}"))) }
}
