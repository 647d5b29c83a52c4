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
[[device]]
name = \"other\"
virtio-blk = { volume = \"b\", read-only = true }
";

fn args(name: &str) -> DeviceArgs {
    let loaded = crate::config::parse(SITE, "site.toml", Path::new("/run"), None);
    device_args(&loaded.site.unwrap_or_else(|| panic!("{}", loaded.report)), name).unwrap()
}

#[test]
fn qemu_shares_the_guests_memory_and_quotes_the_path() {
    assert_eq!(
        render(&args("1st"), Format::Qemu, DEFAULT_MEMORY).unwrap(),
        "-object memory-backend-memfd,id=softdpu-memory,size=1073741824B,share=on \\\n\
         -machine memory-backend=softdpu-memory \\\n\
         -m 1073741824B \\\n\
         -chardev 'socket,id=softdpu-1st,path=/run/a,,b & '\\''c'\\''.sock' \\\n\
         -device vhost-user-blk-pci,chardev=softdpu-1st,num-queues=2,queue-size=128\n"
    );
}

#[test]
fn libblkio_and_scripts_get_the_socket() {
    let args = args("2nd");
    assert_eq!(
        render(&args, Format::Libblkio, DEFAULT_MEMORY).unwrap(),
        "driver=virtio-blk-vhost-user,path=/run/run/softdpu/2nd.sock,cache.direct=on\n"
    );
    let env = render(&args, Format::Env, DEFAULT_MEMORY).unwrap();
    assert!(env.contains("SOFTDPU_SOCKET=/run/run/softdpu/2nd.sock\n"), "{env}");
}

#[test]
fn a_domain_has_all_the_devices_of_its_guest_and_no_other() {
    let text = render(&args("2nd"), Format::Libvirt { fragment: false }, DEFAULT_MEMORY).unwrap();
    assert_eq!(text.matches("<disk ").count(), 2);
    assert!(text.contains("<target dev='vda'") && text.contains("<target dev='vdb'"), "{text}");
    assert!(text.contains("a,b &amp; &apos;c&apos;.sock"), "{text}");
    assert!(device_args(&Site::default(), "x").is_none());
}

#[test]
fn libvirts_own_schema_accepts_the_domain() {
    let folder = tempfile::tempdir().unwrap();
    let fragment = render(&args("1st"), Format::Libvirt { fragment: true }, DEFAULT_MEMORY).unwrap();
    let full = render(&args("1st"), Format::Libvirt { fragment: false }, DEFAULT_MEMORY).unwrap();
    let indented: String = fragment.lines().map(|line| format!("    {line}\n")).collect();
    assert!(full.contains(&indented), "the fragment is what the domain has");
    let file = folder.path().join("domain.xml");
    let validate = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Command::new("virt-xml-validate").arg(&file).arg("domain").output()
    };
    match validate(&full) {
        Err(_) => eprintln!("SKIPPED: virt-xml-validate is not installed (Debian: libvirt-clients, libxml2-utils)"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}\n{full}");
            let broken = validate(&full.replace("queues=", "queuse=")).unwrap();
            assert!(!broken.status.success(), "the schema is not looked at");
        }
    }
}
