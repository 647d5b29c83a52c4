use aes::cipher::{BlockCipherEncrypt, KeyInit};
use proptest::prelude::*;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

const KEY_1: &str = "2718281828459045235360287471352662497757247093699959574966967627";
const KEY_2: &str = "3141592653589793238462643383279502884197169399375105820974944592";

/// A vector of IEEE 1619-2018 annex B with a data unit of 512 bytes: 00 to ff, twice. The ciphertext's first 32 and
/// last 16 bytes stand for it.
fn vector(key_bytes: usize, number: u64, first: &str, last: &str) {
    let key = [&bytes(KEY_1)[..key_bytes / 2], &bytes(KEY_2)[..key_bytes / 2]].concat();
    let plain: Vec<u8> = (0..=255).chain(0..=255).collect();
    let xts = Xts::new(&key, 512).unwrap();
    let mut data = plain.clone();
    xts.encrypt(number * SECTOR, &mut data);
    assert_eq!((&data[..32], &data[496..]), (&bytes(first)[..], &bytes(last)[..]));
    xts.decrypt(number * SECTOR, &mut data);
    assert_eq!(data, plain);
}

#[test]
fn vectors_4_5_10_and_14_of_ieee_1619() {
    vector(
        32,
        0,
        "27a7479befa1d476489f308cd4cfa6e2a96e4bbe3208ff25287dd3819616e89c",
        "0a282df920147beabe421ee5319d0568",
    );
    vector(
        32,
        1,
        "bbf9d6a74a7465fee20f42adf9a623fc954f3b55587e8e429eec6f71e738a390",
        "9b1c84a52a6a5dc065db2496fc4e84cb",
    );
    vector(
        64,
        0xff,
        "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b",
        "c4f36ffda9fcea70b9c6e693e148c151",
    );
    vector(
        64,
        0xff_ffff_ffff,
        "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed23",
        "d609d273ad5b0d59631c531f6a0a57b9",
    );
}

/// The mode as IEEE 1619 §5.3 writes it, a block at a time.
fn by_definition(key: &[u8], sector_size: usize, offset: u64, data: &mut [u8]) {
    let (first, second) = key.split_at(key.len() / 2);
    let encrypt = |key: &[u8], block: &mut [u8]| {
        let mut array = Block::try_from(&*block).unwrap();
        match key.len() {
            16 => Aes128::new_from_slice(key).unwrap().encrypt_block(&mut array),
            _ => Aes256::new_from_slice(key).unwrap().encrypt_block(&mut array),
        }
        block.copy_from_slice(&array);
    };
    for (index, sector) in data.chunks_exact_mut(sector_size).enumerate() {
        let number = (offset + (index * sector_size) as u64) / SECTOR;
        let mut tweak = u128::from(number).to_le_bytes();
        encrypt(second, &mut tweak);
        for block in sector.chunks_exact_mut(BLOCK) {
            let with_tweak = |block: &mut [u8], tweak: &[u8]| block.iter_mut().zip(tweak).for_each(|(b, t)| *b ^= t);
            with_tweak(block, &tweak);
            encrypt(first, block);
            with_tweak(block, &tweak);
            let mut carry = 0;
            for byte in &mut tweak {
                let next = *byte >> 7;
                *byte = *byte << 1 | carry;
                carry = next;
            }
            if carry == 1 {
                tweak[0] ^= 0x87;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_run_of_sectors_is_as_by_definition_and_comes_back(
        key in prop_oneof![proptest::collection::vec(any::<u8>(), 32), proptest::collection::vec(any::<u8>(), 64)],
        large in any::<bool>(),
        first in any::<u32>(),
        sectors in 1..40usize,
        seed in any::<u8>(),
    ) {
        prop_assume!(key[..key.len() / 2] != key[key.len() / 2..]);
        let size = if large { 4096 } else { 512 };
        let plain: Vec<u8> = (0..size * sectors).map(|at| (at as u8) ^ (at >> 8) as u8 ^ seed).collect();
        let offset = u64::from(first) * size as u64;
        let xts = Xts::new(&key, size as u32).unwrap();
        let (mut data, mut expected) = (plain.clone(), plain.clone());
        xts.encrypt(offset, &mut data);
        by_definition(&key, size, offset, &mut expected);
        prop_assert!(data == expected);
        xts.decrypt(offset, &mut data);
        prop_assert!(data == plain);
    }
}

#[test]
fn a_key_that_is_none_is_refused_with_the_reason() {
    let key: Vec<u8> = (0..64).collect();
    for found in [0, 1, 16, 31, 33, 48, 63, 65] {
        let refused = Xts::new(&vec![1; found], 512).unwrap_err();
        assert_eq!(refused, KeyError::Length { found });
    }
    assert_eq!(Xts::new(&[7; 32], 512).unwrap_err(), KeyError::EqualHalves);
    assert_eq!(Xts::new(&[7; 64], 4096).unwrap_err(), KeyError::EqualHalves);
    let xts = Xts::new(&key, 4096).unwrap();
    assert_eq!((xts.key_bits(), xts.sector_size()), (512, 4096));
    assert_eq!(format!("{xts:?}"), "Xts(512 bits, sectors of 4096)", "and no byte of the key");
}
