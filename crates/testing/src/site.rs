//! Site files that several tests begin with.

/// One disk, of a volume in memory.
pub const ONE_DISK: &str = "
[[volume]]
name = \"root\"
memory = { size = \"64 MiB\" }

[[device]]
name = \"disk\"
virtio-blk = { volume = \"root\" }
";
