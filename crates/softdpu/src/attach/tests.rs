//! What is printed for each kind of device, and that libvirt's own schema takes it.

use super::*;
use std::process::Command;

const SITE: &str = "
[[volume]]
name = \"a\"
null = { size = \"1 GiB\" }
[[volume]]
name = \"b\"
null = { size = \"1 GiB\" }
[[device]]
name = \"1st\"
domain = \"vm\"
virtio-blk = { volume = \"a\", queues = 2, queue-size = 128, socket = \"a,b & 'c'.sock\" }
[[device]]
name = \"2nd\"
domain = \"vm\"
virtio-blk = { volume = \"b\" }
[[network]]
name = \"vpc\"
vni = 7
cidr = [\"10.0.0.0/16\", \"10.1.0.0/24\", \"fd00:5d::/64\"]
mtu = 1450
[[device]]
name = \"nic\"
domain = \"vm\"
virtio-net = { network = \"vpc\", address = \"10.0.0.2\", mac = \"02:5d:00:00:00:02\", queues = 4, queue-size = 2048 }
[[device]]
name = \"plain\"
virtio-net = { network = \"vpc\", address = \"10.0.0.3\", mac = \"02:5d:00:00:00:03\", queue-size = 256, mtu = 1400, packed = false }
[[device]]
name = \"port\"
tap = { network = \"vpc\", address = [\"10.0.0.5\", \"fd00:5d::5\"], mac = \"02:5d:00:00:00:05\", interface = \"acme0\" }
[[device]]
name = \"port2\"
tap = { network = \"vpc\", address = \"10.0.0.6\", interface = \"acme1\" }
[[device]]
name = \"other\"
virtio-blk = { volume = \"b\", read-only = true }
";

fn args(name: &str) -> DeviceArgs {
    let loaded = softdpu_site::parse(SITE, "site.toml", Path::new("/run"), None);
    softdpu_api::device_args(&loaded.site.unwrap_or_else(|| panic!("{}", loaded.report)), name).unwrap()
}

#[test]
fn qemu_shares_the_guests_memory_and_quotes_the_path() {
    assert_eq!(
        render(&args("1st"), Format::Qemu(Reconnect::Seconds), DEFAULT_MEMORY).unwrap(),
        "-object memory-backend-memfd,id=softdpu-memory,size=1073741824B,share=on \\\n\
         -machine memory-backend=softdpu-memory \\\n\
         -m 1073741824B \\\n\
         -chardev 'socket,id=softdpu-1st,path=/run/a,,b & '\\''c'\\''.sock,reconnect=1' \\\n\
         -device vhost-user-blk-pci,chardev=softdpu-1st,num-queues=2,queue-size=128,packed=on\n"
    );
}

#[test]
fn qemu_connects_again_in_the_words_of_its_version() {
    let printed = |version: &str| format!("QEMU emulator version {version}\nCopyright (c) 2003-2022 Fabrice Bellard\n");
    for (text, wanted) in [
        (printed("7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"), Some(Reconnect::Seconds)),
        (printed("10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)"), Some(Reconnect::Milliseconds)),
        ("9.1".to_owned(), Some(Reconnect::Seconds)),
        ("11".to_owned(), Some(Reconnect::Milliseconds)),
        ("newest".to_owned(), None),
        (String::new(), None),
    ] {
        assert_eq!(Reconnect::of_version(&text), wanted, "{text}");
    }
    for name in ["1st", "nic"] {
        let text = render(&args(name), Format::Qemu(Reconnect::Milliseconds), DEFAULT_MEMORY).unwrap();
        assert!(text.contains(",reconnect-ms=1000") && !text.contains("reconnect="), "{text}");
    }
    let full = render(&args("1st"), Format::Domain(Accel::Kvm), DEFAULT_MEMORY).unwrap();
    assert_eq!(full.matches("<reconnect enabled='yes' timeout='1'/>").count(), 3, "two disks, an interface");
}

#[test]
fn libblkio_and_scripts_get_the_socket() {
    let args = args("2nd");
    assert_eq!(
        render(&args, Format::Libblkio, DEFAULT_MEMORY).unwrap(),
        "driver=virtio-blk-vhost-user,path=/run/run/softdpu/2nd.sock,cache.direct=on\n"
    );
    let env = render(&args, Format::Env, DEFAULT_MEMORY).unwrap();
    assert!(env.contains("SOFTDPU_DEVICE_SOCKET=/run/run/softdpu/2nd.sock\n"), "{env}");
    assert!(!env.contains(softdpu_api::SOCKET_VARIABLE), "{env}");
}

#[test]
fn a_domain_has_all_the_devices_of_its_guest_and_no_other() {
    let text = render(&args("2nd"), Format::Domain(Accel::Kvm), DEFAULT_MEMORY).unwrap();
    assert_eq!(text.matches("<disk ").count(), 2);
    assert!(text.contains("<target dev='vda'") && text.contains("<target dev='vdb'"), "{text}");
    assert!(text.contains("a,b &amp; &apos;c&apos;.sock"), "{text}");
    assert!(softdpu_api::device_args(&softdpu_site::Site::default(), "x").is_none());
}

#[test]
fn a_domain_has_the_type_that_the_machine_can_run() {
    let folder = tempfile::tempdir().unwrap();
    let kvm = folder.path().join("kvm");
    let domain = |accel| render(&args("2nd"), Format::Domain(accel), DEFAULT_MEMORY).unwrap();
    assert!(domain(Accel::of(&kvm)).starts_with("<domain type='qemu'>\n"));
    std::fs::write(&kvm, "").unwrap();
    assert!(domain(Accel::of(&kvm)).starts_with("<domain type='kvm'>\n"));
}

#[test]
fn qemu_gets_the_interface_with_what_the_network_says_of_it() {
    let text = render(&args("nic"), Format::Qemu(Reconnect::Seconds), DEFAULT_MEMORY).unwrap();
    let (memory, interface) = text.split_once("-chardev").unwrap();
    assert_eq!(
        memory,
        render(&args("2nd"), Format::Qemu(Reconnect::Seconds), DEFAULT_MEMORY)
            .unwrap()
            .split_once("-chardev")
            .unwrap()
            .0
    );
    assert_eq!(
        interface,
        " socket,id=softdpu-nic,path=/run/run/softdpu/nic.sock,reconnect=1 \\\n\
         -netdev vhost-user,id=softdpu-nic,chardev=softdpu-nic,queues=4 \\\n\
         -device virtio-net-pci,netdev=softdpu-nic,mac=02:5d:00:00:00:02,mrg_rxbuf=on,mq=on,vectors=10,\
         rx_queue_size=1024,tx_queue_size=1024,packed=on,host_mtu=1450\n"
    );
    let plain = render(&args("plain"), Format::Qemu(Reconnect::Seconds), DEFAULT_MEMORY).unwrap();
    assert!(
        plain.ends_with("virtio-net-pci,netdev=softdpu-plain,mac=02:5d:00:00:00:03,mrg_rxbuf=on,rx_queue_size=256,tx_queue_size=256,host_mtu=1400\n"),
        "{plain}"
    );
}

#[test]
fn a_tap_is_configured_rather_than_attached() {
    let args = args("port");
    assert_eq!(args.devices.len(), 1, "another TAP is not of the same guest");
    let text = render(&args, Format::Qemu(Reconnect::Seconds), DEFAULT_MEMORY).unwrap();
    let commands: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        commands,
        [
            "ip link set dev acme0 address 02:5d:00:00:00:05 mtu 1450 up",
            "ip address add 10.0.0.5/16 dev acme0",
            "ip address add fd00:5d::5/64 dev acme0 nodad",
            "ip route add 10.1.0.0/24 via 10.0.0.1 dev acme0",
        ]
    );
    let error = render(&args, Format::Domain(Accel::Kvm), DEFAULT_MEMORY).unwrap_err();
    assert_eq!(error, AttachError::HostInterface("port".into()));
    assert!(render(&args, Format::Env, DEFAULT_MEMORY).unwrap().contains("SOFTDPU_INTERFACE=acme0\n"));
}

#[test]
fn scripts_get_the_interfaces_addresses_and_libblkio_gets_none() {
    let env = render(&args("nic"), Format::Env, DEFAULT_MEMORY).unwrap();
    for line in ["SOFTDPU_NETWORK=vpc", "SOFTDPU_ADDRESS=10.0.0.2", "SOFTDPU_MAC=02:5d:00:00:00:02", "SOFTDPU_QUEUES=4"]
    {
        assert!(env.lines().any(|found| found == line), "{line}\n{env}");
    }
    let error = render(&args("nic"), Format::Libblkio, DEFAULT_MEMORY).unwrap_err();
    assert_eq!(error, AttachError::NotADisk("nic".into()));
}

#[test]
fn libvirts_own_schema_accepts_the_domain() {
    let folder = tempfile::tempdir().unwrap();
    let fragment = render(&args("1st"), Format::Element, DEFAULT_MEMORY).unwrap();
    let full = render(&args("1st"), Format::Domain(Accel::Kvm), DEFAULT_MEMORY).unwrap();
    let indented: String = fragment.lines().map(|line| format!("    {line}\n")).collect();
    assert!(full.contains(&indented), "the fragment is what the domain has");
    let interface = render(&args("nic"), Format::Element, DEFAULT_MEMORY).unwrap();
    let indented: String = interface.lines().map(|line| format!("    {line}\n")).collect();
    assert!(full.contains(&indented) && interface.contains("<mtu size='1450'/>"), "{interface}");
    let file = folder.path().join("domain.xml");
    let validate = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Command::new("virt-xml-validate").arg(&file).arg("domain").output()
    };
    match validate(&full) {
        Err(_) => softdpu_testing::skip(
            "libvirts_own_schema_accepts_the_domain",
            "virt-xml-validate is not installed (Debian: libvirt-clients, libxml2-utils)",
        ),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}\n{full}");
            for (right, wrong) in [
                ("queues='2'", "queuse='2'"),
                ("rx_queue_size", "queue_size"),
                ("<mtu size", "<mtu siez"),
                ("<reconnect", "<recnonect"),
                ("packed='on'", "packed='no'"),
            ] {
                let broken = validate(&full.replace(right, wrong)).unwrap();
                assert!(!broken.status.success(), "the schema does not look at {right}");
            }
        }
    }
}

#[test]
fn what_the_networks_page_shows_is_what_is_printed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/networks.md");
    let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let shown: Vec<&str> = text
        .split("$ softdpu device args ")
        .skip(1)
        .map(|rest| rest.split_once('\n').unwrap().1.split("```").next().unwrap())
        .collect();
    let examples: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    let site = |device: &str| {
        let example = examples.iter().find(|example| example.contains(&format!("\"{device}\""))).unwrap();
        softdpu_site::parse(example, "site.toml", Path::new("/srv/site"), None).site.unwrap()
    };
    for (shown, device) in shown.iter().zip(["host-port", "vm1-nic"]) {
        let args = softdpu_api::device_args(&site(device), device).unwrap();
        assert_eq!(*shown, render(&args, Format::Qemu(Reconnect::Seconds), DEFAULT_MEMORY).unwrap());
    }
    let line = text.lines().find(|line| line.starts_with("device      vm1-nic")).unwrap();
    assert!(softdpu_site::summary(&site("vm1-nic")).lines().any(|printed| printed == line), "{line}");
}
