//! Longest prefix match beside a list that is searched and beside the crate prefix-trie, over tables that change.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use prefix_trie::PrefixMap;
use softdpu_lpm::{Address, Capacity, Full, Lpm, Prefix, mask};

/// Numbers that look random (xorshift64*), the same in every run.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}

fn prefix(address: IpAddr, length: u8) -> Prefix {
    Prefix::new(mask(address, length), length).expect("masked")
}

/// An address with bits that differ from others' in few places, so that prefixes nest; sometimes in any.
fn address(random: &mut Random, six: bool) -> IpAddr {
    let bits = match random.below(8) {
        0 => random.wide(),
        _ => {
            (u128::from(random.next() & 0xf) << 124)
                | (u128::from(random.next() & 0x7) << 104)
                | u128::from(random.next() & 3) << 96
        }
    };
    if six {
        Ipv6Addr::from_bits(bits | random.wide() & 7).into()
    } else {
        Ipv4Addr::from_bits((bits >> 96) as u32).into()
    }
}

fn some_prefix(random: &mut Random, six: bool) -> Prefix {
    let most = if six { 128 } else { 32 };
    let length = match random.below(10) {
        0 => 0,
        1 => most,
        // Where one node or array ends and the next begins.
        2 | 3 => [6, 8, 9, 12, 16, 17, 18, 19, 24, 25, 30][random.below(11) as usize],
        _ => random.below(u64::from(most) + 1) as u8,
    };
    prefix(address(random, six), length)
}

/// All that is asked of an address, in all ways there are.
fn lookup(lpm: &Lpm<u32>, table: u32, addresses: &[IpAddr]) -> Vec<Option<u32>> {
    fn batch<A: Address>(lpm: &Lpm<u32>, table: u32, addresses: &[A]) -> HashMap<IpAddr, Option<u32>> {
        let keys: Vec<_> = addresses.iter().map(|address| (table, *address)).collect();
        let mut found = vec![Some(u32::MAX); keys.len()];
        lpm.lookup_batch(&keys, &mut found);
        keys.into_iter().map(|(_, address)| address.into()).zip(found).collect()
    }
    let (mut four, mut six) = (Vec::new(), Vec::new());
    for address in addresses {
        match address {
            IpAddr::V4(address) => four.push(*address),
            IpAddr::V6(address) => six.push(*address),
        }
    }
    let (four, six) = (batch(lpm, table, &four), batch(lpm, table, &six));
    let one = |address: &IpAddr| {
        let found = lpm.lookup(table, *address);
        let in_batch = if address.is_ipv4() { four[address] } else { six[address] };
        assert_eq!(found, in_batch, "{address}: alone and in a batch");
        found
    };
    addresses.iter().map(one).collect()
}

/// A list that is searched.
#[derive(Default)]
struct Naive(Vec<(u32, Prefix, u32)>);

impl Naive {
    fn at(&self, table: u32, prefix: Prefix) -> Option<usize> {
        self.0.iter().position(|(t, p, _)| (*t, *p) == (table, prefix))
    }

    fn insert(&mut self, table: u32, prefix: Prefix, value: u32) -> Option<u32> {
        match self.at(table, prefix) {
            Some(at) => Some(std::mem::replace(&mut self.0[at].2, value)),
            None => {
                self.0.push((table, prefix, value));
                None
            }
        }
    }

    fn remove(&mut self, table: u32, prefix: Prefix) -> Option<u32> {
        self.at(table, prefix).map(|at| self.0.swap_remove(at).2)
    }

    fn lookup(&self, table: u32, address: IpAddr) -> Option<u32> {
        let containing = self.0.iter().filter(|(t, prefix, _)| *t == table && prefix.contains(address));
        containing.max_by_key(|(_, prefix, _)| prefix.length()).map(|(_, _, value)| *value)
    }
}

/// The crate prefix-trie: a map for each family.
#[derive(Default)]
struct Tries {
    four: PrefixMap<(u32, u8), u32>,
    six: PrefixMap<(u128, u8), u32>,
}

impl Tries {
    fn insert(&mut self, prefix: Prefix, value: u32) -> Option<u32> {
        match prefix.address() {
            IpAddr::V4(address) => self.four.insert((address.to_bits(), prefix.length()), value),
            IpAddr::V6(address) => self.six.insert((address.to_bits(), prefix.length()), value),
        }
    }

    fn remove(&mut self, prefix: Prefix) -> Option<u32> {
        match prefix.address() {
            IpAddr::V4(address) => self.four.remove(&(address.to_bits(), prefix.length())),
            IpAddr::V6(address) => self.six.remove(&(address.to_bits(), prefix.length())),
        }
    }

    fn lookup(&self, address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(address) => self.four.get_lpm(&(address.to_bits(), 32)).map(|(_, value)| *value),
            IpAddr::V6(address) => self.six.get_lpm(&(address.to_bits(), 128)).map(|(_, value)| *value),
        }
    }
}

#[test]
fn ten_thousand_rule_sets_that_change_answer_as_a_list_that_is_searched_and_as_prefix_trie() {
    for seed in 0..10_000 {
        let mut random = Random::new(seed);
        let mut lpm = Lpm::new(Capacity::worst_case(2, 64)).unwrap();
        let mut naive = Naive::default();
        let mut tries = [Tries::default(), Tries::default()];
        for step in 0..1 + random.below(60) as u32 {
            let (table, six) = (random.below(2) as u32, random.below(2) == 0);
            let known = naive.0.get(random.below(80) as usize).map(|(table, prefix, _)| (*table, *prefix));
            let (table, prefix) = known.unwrap_or_else(|| (table, some_prefix(&mut random, six)));
            let trie = &mut tries[table as usize];
            let (was, expected) = if random.below(3) == 0 {
                (lpm.remove(table, prefix), [naive.remove(table, prefix), trie.remove(prefix)])
            } else {
                let was = lpm.insert(table, prefix, step).expect("there is room");
                (was, [naive.insert(table, prefix, step), trie.insert(prefix, step)])
            };
            assert_eq!([was; 2], expected, "seed {seed}, {prefix}");
            let mut addresses: Vec<_> = (0..3).map(|_| address(&mut random, six)).collect();
            addresses.push(prefix.address());
            for table in 0..2 {
                let found = lookup(&lpm, table, &addresses);
                let expected: Vec<_> = addresses.iter().map(|address| naive.lookup(table, *address)).collect();
                assert_eq!(found, expected, "seed {seed}, step {step}, {addresses:?}");
                let trie = &tries[table as usize];
                let expected: Vec<_> = addresses.iter().map(|address| trie.lookup(*address)).collect();
                assert_eq!(found, expected, "prefix-trie: seed {seed}, step {step}, {addresses:?}");
            }
        }
        assert_eq!(lpm.usage().routes, naive.0.len());
        for (table, prefix, value) in &naive.0 {
            assert_eq!(lpm.get(*table, *prefix), Some(*value));
        }
        for (table, prefix, value) in naive.0 {
            assert_eq!(lpm.remove(table, prefix), Some(value), "seed {seed}, {prefix}");
        }
        let usage = lpm.usage();
        assert_eq!((usage.routes, usage.nodes, usage.values), (0, 1, 0), "seed {seed}: all is given back");
    }
}

/// A table that crosses both sizes from which on it has an array, up and down, beside prefix-trie.
fn large(six: bool, most: usize) {
    let mut random = Random::new(7 + u64::from(six));
    let mut lpm = Lpm::new(Capacity { tables: 1, routes: most, nodes: 1 << 23 }).unwrap();
    let mut tries = Tries::default();
    let mut present = Vec::new();
    let mut growing = true;
    for step in 0..(most * 3) as u32 {
        growing = if growing { present.len() < most * 9 / 10 } else { present.len() < 1000 };
        if random.below(5) == 0 || !growing {
            let at = random.below(present.len().max(1) as u64) as usize;
            if let Some(prefix) = present.get(at).copied() {
                present.swap_remove(at);
                assert_eq!(lpm.remove(0, prefix), tries.remove(prefix), "{prefix}");
            }
        } else {
            let address: IpAddr = if six {
                Ipv6Addr::from_bits(random.wide() >> 6 | 1 << 125).into()
            } else {
                Ipv4Addr::from_bits(random.next() as u32).into()
            };
            let length = match random.below(20) {
                0 => random.below(20) as u8,
                1..=6 => 17 + random.below(8) as u8,
                _ if six => 20 + random.below(109) as u8,
                _ => 16 + random.below(17) as u8,
            };
            let prefix = prefix(address, length);
            let expected = tries.insert(prefix, step);
            assert_eq!(lpm.insert(0, prefix, step), Ok(expected), "{prefix}");
            if expected.is_none() {
                present.push(prefix);
            }
        }
        if step % 4096 == 0 {
            let addresses: Vec<IpAddr> = (0..500)
                .map(|at| {
                    let near = present.get(random.below(present.len().max(1) as u64) as usize);
                    match near {
                        Some(prefix) if at % 5 != 0 => near_by(*prefix, &mut random),
                        _ if six => Ipv6Addr::from_bits(random.wide() >> 3 | 1 << 125).into(),
                        _ => Ipv4Addr::from_bits(random.next() as u32).into(),
                    }
                })
                .collect();
            let expected: Vec<_> = addresses.iter().map(|address| tries.lookup(*address)).collect();
            assert_eq!(lookup(&lpm, 0, &addresses), expected, "step {step}, {} routes", present.len());
            if step % (4096 * 16) == 0 {
                lpm.settle();
                assert_eq!(lookup(&lpm, 0, &addresses), expected, "step {step}, {} routes, whole", present.len());
                assert_eq!(lookup(&lpm.clone(), 0, &addresses), expected, "a copy answers the same");
            }
        }
    }
    for prefix in present {
        assert!(lpm.remove(0, prefix).is_some());
    }
    let usage = lpm.usage();
    assert_eq!((usage.routes, usage.nodes, usage.values), (0, 1, 0), "all is given back");
}

/// An address in a prefix, or just outside.
fn near_by(prefix: Prefix, random: &mut Random) -> IpAddr {
    match prefix.address() {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() ^ (random.next() as u32 & (host << 1 | 1))).into()
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() ^ (random.wide() & (host << 1 | 1))).into()
        }
    }
}

#[test]
fn a_large_ipv4_table_grows_and_shrinks_and_answers_as_prefix_trie() {
    large(false, 400_000);
}

#[test]
fn a_large_ipv6_table_grows_and_shrinks_and_answers_as_prefix_trie() {
    large(true, 60_000);
}

#[test]
fn a_million_changes_leave_nothing_behind() {
    let mut random = Random::new(3);
    let mut lpm = Lpm::new(Capacity::worst_case(100, 2000)).unwrap();
    let mut present: Vec<(u32, Prefix)> = Vec::new();
    let mut most = 0;
    for step in 0..1_000_000u32 {
        if present.len() == 2000 || (!present.is_empty() && random.below(2) == 0) {
            let at = random.below(present.len() as u64) as usize;
            let (table, prefix) = present.swap_remove(at);
            assert!(lpm.remove(table, prefix).is_some());
        } else {
            let six = random.below(2) == 0;
            let (table, prefix) = (random.below(100) as u32, some_prefix(&mut random, six));
            if lpm.insert(table, prefix, step).unwrap().is_none() {
                present.push((table, prefix));
            }
        }
        if step == 500_000 {
            most = lpm.usage().bytes;
        }
    }
    // What the first half took is enough for the second, but for a change of shape.
    assert!(lpm.usage().bytes <= most + most / 4, "{} B, {most} B half way", lpm.usage().bytes);
    for (table, prefix) in present {
        assert!(lpm.remove(table, prefix).is_some());
    }
    let usage = lpm.usage();
    assert_eq!((usage.routes, usage.nodes, usage.values), (0, 1, 0));
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let of = |text: &str| text.parse::<Prefix>().unwrap();
    let mut lpm = Lpm::new(Capacity { tables: 1, routes: 2, nodes: 1000 }).unwrap();
    assert_eq!(lpm.insert(1, of("10.0.0.0/8"), 1), Err(Full::Table { table: 1, tables: 1 }));
    assert_eq!((lpm.remove(1, of("10.0.0.0/8")), lpm.lookup(1, "10.0.0.1".parse().unwrap())), (None, None));
    lpm.insert(0, of("10.0.0.0/8"), 1).unwrap();
    lpm.insert(0, of("::/0"), 2).unwrap();
    for more in ["10.1.0.0/16", "0.0.0.0/0", "2001:db8::/32"] {
        assert_eq!(lpm.insert(0, of(more), 3), Err(Full::Routes(2)), "{more}");
    }
    assert_eq!(lpm.insert(0, of("::/0"), 4), Ok(Some(2)), "a change needs no room");
    assert_eq!(lpm.lookup(0, "10.1.0.1".parse().unwrap()), Some(1));
    assert_eq!(lpm.lookup(0, "192.0.2.1".parse().unwrap()), None);
    assert_eq!(lpm.lookup(0, "2001:db8::1".parse().unwrap()), Some(4));
}

#[test]
fn running_out_of_nodes_half_way_changes_nothing() {
    // Each of these needs nodes of its own down to its last bits.
    let mut random = Random::new(5);
    let mut lpm = Lpm::new(Capacity { tables: 1, routes: 1000, nodes: 256 }).unwrap();
    let mut naive = Naive::default();
    let mut refused = 0;
    for value in 0..200 {
        let six = prefix(Ipv6Addr::from_bits(random.wide()).into(), 128 - (value % 90) as u8);
        let before = lpm.usage();
        match lpm.insert(0, six, value) {
            Ok(old) => assert_eq!(old, naive.insert(0, six, value)),
            Err(full) => {
                assert!(matches!(full, Full::Nodes), "{full}");
                assert_eq!(lpm.usage(), before);
                refused += 1;
            }
        }
        for (_, prefix, value) in &naive.0 {
            assert_eq!(lpm.lookup(0, prefix.address()), Some(*value));
        }
    }
    assert!(refused > 0 && !naive.0.is_empty(), "{refused} refused");
}

#[test]
fn ten_thousand_tables_of_a_hundred_routes_take_less_than_512_mib() {
    let mut random = Random::new(9);
    let mut lpm = Lpm::new(Capacity { tables: 10_000, routes: 1_000_000, nodes: 1 << 24 }).unwrap();
    for table in 0..10_000 {
        for value in 0..100 {
            let (address, length) = (random.next() as u32, [16, 20, 24, 24, 26, 28, 32][random.below(7) as usize]);
            lpm.insert(table, prefix(Ipv4Addr::from_bits(address >> 8 | 0x0a00_0000).into(), length), value).unwrap();
        }
    }
    let usage = lpm.usage();
    assert!(usage.routes > 900_000 && usage.bytes < 512 << 20, "{usage:?}");
}
