//! No text makes the reader panic, and none is refused without a reason.

use proptest::prelude::*;

use super::*;

/// Pieces of site files, valid and not, to be put together at random.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("[node]\n".to_owned()),
        Just("[[volume]]\n".to_owned()),
        Just("[[device]]\n".to_owned()),
        Just("[[tenant]]\n".to_owned()),
        Just("[network]\n".to_owned()),
        Just("[[network]]\nvni = 7\ncidr = [\"10.0.0.0/8\", \"fd00::/64\"]\n".to_owned()),
        Just("[[network.endpoint]]\naddress = \"fd00::\"\n".to_owned()),
        Just("tap = { network = \"a\", address = \"10.0.0.2\", interface = \"t\" }\n".to_owned()),
        "cidr = \"[0-9a-f:.]{0,9}/[0-9]{1,3}\"\n",
        Just("virtio-net = { network = \"a\", address = [\"fd00::2\"], rate = { packets = 9 } }\n".to_owned()),
        Just("node.underlay = { interface = \"t\", mtu = 700, address = \"fe80::1\" }\n".to_owned()),
        Just("name = \"a\"\n".to_owned()),
        Just("domain = \"ä\"\n".to_owned()),
        Just("memory = { size = \"1 GiB\" }\n".to_owned()),
        Just("file = { path = \"\\u0000\", size = 1e9 }\n".to_owned()),
        Just("nbd = { uri = \"nbd://[\" }\n".to_owned()),
        Just("cores = [1, 1, \"\", 99999999999999999999]\n".to_owned()),
        Just("dataplane.cores = 1979-05-27\n".to_owned()),
        "virtio-blk = \\{ volume = \"[a-z\\\\]{0,3}\", queue-size = -?[0-9_]{1,20} \\}\n",
        "[a-z-]{1,10} = [\\[\\]{}0-9a-z\"]{0,5}\n",
        any::<String>(),
    ]
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let loaded = check(&text);
        prop_assert_eq!(loaded.site.is_none(), loaded.report.has_errors());
        let _ = loaded.report.to_string();
    }

    #[test]
    fn arbitrary_sites_never_panic_and_always_say_why(parts in prop::collection::vec(fragment(), 0..12)) {
        let loaded = check(&parts.concat());
        prop_assert_eq!(loaded.site.is_none(), loaded.report.has_errors());
        let _ = loaded.report.to_string();
        if let Some(site) = loaded.site {
            prop_assert_eq!(self::site(&toml::to_string(&site).unwrap()), site);
        }
    }
}
