//! A guest's device as `softdpu device args` prints it, without the arguments of the guest's memory.

use crate::{Accel, Failure, Qemu};

/// QEMU's arguments for one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDevice {
    arguments: Vec<String>,
}

impl GuestDevice {
    /// A device that is none of softdpu's: QEMU's own, to prove the harness with.
    pub fn new(arguments: &[&str]) -> GuestDevice {
        GuestDevice { arguments: arguments.iter().map(|&argument| argument.to_owned()).collect() }
    }

    /// From what `softdpu device args` printed. A guest has its memory once, whatever the number of its devices, so the
    /// arguments for that are left out: [`GuestSpec`](crate::GuestSpec) has its own.
    pub(crate) fn parse(text: &str) -> Result<GuestDevice, Failure> {
        if let Some(quote) = text.chars().find(|c| matches!(c, '\'' | '"' | '#')) {
            return Err(Failure::new(format!(
                "`softdpu device args` printed a {quote}, which is not understood here: {text}"
            )));
        }
        let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "\\").collect();
        let mut arguments = Vec::new();
        for pair in words.chunks(2) {
            let &[option, value] = pair else {
                return Err(Failure::new(format!("`softdpu device args` printed an option without a value: {text}")));
            };
            let memory = match option {
                "-m" => true,
                "-object" => value.starts_with("memory-backend-"),
                "-machine" => value.starts_with("memory-backend="),
                _ => false,
            };
            if !memory {
                arguments.extend([option.to_owned(), value.to_owned()]);
            }
        }
        if arguments.is_empty() {
            return Err(Failure::new(format!("`softdpu device args` printed no device: {text}")));
        }
        Ok(GuestDevice { arguments })
    }

    /// The arguments, one for each word.
    ///
    /// Some versions of QEMU die without KVM when a vhost-user interface with MSI-X starts
    /// ([`Qemu::has_msix_without_kvm`]). There the interface gets INTx, whatever number of vectors it asks for, and the
    /// arguments are softdpu's otherwise. An interface that QEMU serves itself is left as it is.
    pub(crate) fn arguments(&self, accel: Accel, qemu: &Qemu) -> Vec<String> {
        let qemus_own =
            self.arguments.iter().any(|argument| argument.starts_with("stream,") || argument.starts_with("tap,"));
        let interface = |argument: &str| argument.starts_with("virtio-net-pci,") && !qemus_own;
        let msix = accel == Accel::Kvm || qemu.has_msix_without_kvm();
        let fit = |argument: &String| match msix {
            false if interface(argument) => format!("{argument},vectors=0"),
            _ => argument.clone(),
        };
        self.arguments.iter().map(fit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "-object memory-backend-memfd,id=softdpu-memory,size=1073741824B,share=on \\\n\
        -machine memory-backend=softdpu-memory \\\n-m 1073741824B \\\n\
        -chardev socket,id=softdpu-nic,path=/tmp/nic.sock \\\n-device virtio-net-pci,netdev=softdpu-nic\n";

    #[test]
    fn the_memorys_arguments_are_left_out() {
        let device = GuestDevice::parse(PRINTED).unwrap();
        let wanted =
            ["-chardev", "socket,id=softdpu-nic,path=/tmp/nic.sock", "-device", "virtio-net-pci,netdev=softdpu-nic"];
        assert_eq!(device, GuestDevice::new(&wanted));
    }

    #[test]
    fn what_is_no_device_is_refused() {
        assert!(GuestDevice::parse("-m 1G").unwrap_err().to_string().contains("no device"));
        assert!(GuestDevice::parse("-chardev").unwrap_err().to_string().contains("without a value"));
        assert!(GuestDevice::parse("# acme0 is an interface of this host").unwrap_err().to_string().contains('#'));
    }

    #[test]
    fn an_interface_has_no_msix_vectors_without_kvm_on_an_old_qemu() {
        let [old, new] = ["7.2.22", "10.0.13"].map(Qemu::of_version);
        let device = GuestDevice::parse(PRINTED).unwrap();
        let last = |accel, qemu| device.arguments(accel, qemu).last().unwrap().clone();
        assert_eq!(last(Accel::Tcg, &old), "virtio-net-pci,netdev=softdpu-nic,vectors=0");
        assert_eq!(last(Accel::Tcg, &new), "virtio-net-pci,netdev=softdpu-nic");
        assert_eq!(last(Accel::Kvm, &old), "virtio-net-pci,netdev=softdpu-nic");
        // QEMU takes the last of two.
        let pairs = GuestDevice::parse(&PRINTED.replace("netdev=softdpu-nic", "netdev=softdpu-nic,mq=on,vectors=6"));
        assert!(pairs.unwrap().arguments(Accel::Tcg, &old).last().unwrap().ends_with(",vectors=6,vectors=0"));
        let own = ["-netdev", "stream,id=n0", "-device", "virtio-net-pci,netdev=n0,vectors=4"];
        assert_eq!(GuestDevice::new(&own).arguments(Accel::Tcg, &old).last().unwrap(), own[3]);
    }
}
