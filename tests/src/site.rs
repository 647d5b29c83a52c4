//! Site files of tests, put together table by table.

use std::fmt;

/// A site file. Tables stand in the order of the calls, and [`with`](Self::with) adds keys to the last one.
///
/// What a test is not about is left to softdpu's defaults. Values are TOML; its literal strings (`'acme'`) need no
/// escapes in Rust's.
#[derive(Clone, Debug)]
pub struct Site(String);

impl Site {
    /// `[node]`, with a data plane on these CPUs.
    pub fn on(cores: &[u32]) -> Site {
        Site(format!("[node]\ndataplane = {{ cores = {cores:?} }}\n"))
    }

    /// Adds lines to the table that was added last.
    pub fn with(mut self, lines: &str) -> Site {
        self.0 += lines.trim_end();
        self.0.push('\n');
        self
    }

    fn table(mut self, kind: &str, keys: fmt::Arguments<'_>) -> Site {
        self.0 += &format!("\n{kind}\n{keys}\n");
        self
    }

    /// A `[[tenant]]` of each name.
    pub fn tenants<const N: usize>(self, names: [&str; N]) -> Site {
        names.into_iter().fold(self, |site, name| site.table("[[tenant]]", format_args!("name = '{name}'")))
    }

    /// A `[[network]]`, and its prefixes.
    pub fn network(self, name: &str, vni: u32, prefixes: &[&str]) -> Site {
        self.table("[[network]]", format_args!("name = '{name}'\nvni = {vni}\ncidr = {prefixes:?}"))
    }

    /// A `[[network.endpoint]]` of the last network: the guest with these addresses is on another host.
    pub fn endpoint(self, addresses: &[&str], mac: &str, host: &str) -> Site {
        let keys = format_args!("address = {addresses:?}\nmac = '{mac}'\nhost = '{host}'");
        self.table("[[network.endpoint]]", keys)
    }

    /// A `[[volume]]`. `backend` is the key that says what it is kept in.
    pub fn volume(self, name: &str, backend: &str) -> Site {
        self.table("[[volume]]", format_args!("name = '{name}'\n{backend}"))
    }

    /// A `[[device]]`. `interface` is the key that says what it is: `virtio-blk`, `virtio-net` or `tap`.
    pub fn device(self, name: &str, interface: &str) -> Site {
        self.table("[[device]]", format_args!("name = '{name}'\n{interface}"))
    }

    /// A TAP `acme0` in the network acme, with the MAC address 02:5d:00:00:00:0NUMBER. `more` is what else it has, with
    /// a comma before it.
    pub fn tap(self, name: &str, number: u8, addresses: &[&str], more: &str) -> Site {
        let mac = format!("02:5d:00:00:00:0{number}");
        let keys = format!("network = 'acme', address = {addresses:?}, mac = '{mac}', interface = 'acme0'{more}");
        self.device(name, &format!("tap = {{ {keys} }}"))
    }

    /// The tenant of the table that was added last.
    pub fn of(self, tenant: &str) -> Site {
        self.with(&format!("tenant = '{tenant}'"))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_stand_in_order_and_keys_belong_to_the_last_one() {
        let site = Site::on(&[0, 1])
            .with("underlay = { interface = 'wire' }\n")
            .tenants(["acme"])
            .network("blue", 7, &["10.0.0.0/16", "fd00::/64"])
            .of("acme")
            .endpoint(&["10.0.0.2"], "02:00:00:00:00:02", "192.0.2.2");
        let expected = "[node]\ndataplane = { cores = [0, 1] }\nunderlay = { interface = 'wire' }\n\n[[tenant]]\n\
                        name = 'acme'\n\n[[network]]\nname = 'blue'\nvni = 7\ncidr = [\"10.0.0.0/16\", \"fd00::/64\"]\n\
                        tenant = 'acme'\n\n[[network.endpoint]]\naddress = [\"10.0.0.2\"]\n\
                        mac = '02:00:00:00:00:02'\nhost = '192.0.2.2'\n";
        assert_eq!(site.to_string(), expected);
    }
}
