use std::collections::HashMap;
use std::os::fd::AsFd;

use proptest::prelude::*;
use softdpu_sys::words::OwnWords;

use super::layout::Layout;
use super::*;

const KIND: u64 = 7;

type Own = Table<2, 3>;
type Before = Predecessor<2, 3>;

fn all(before: &Before) -> Vec<Record<2, 3>> {
    let numbers = std::iter::successors(before.next(0), |number| before.next(number + 1));
    numbers.filter_map(|number| before.record(number)).collect()
}

fn tail(key: u64) -> [u64; 3] {
    [key, key * 2, key * 3]
}

#[test]
fn what_was_inserted_is_found_and_what_was_removed_is_not() {
    let (file, own) = Own::new("records", KIND, 5_000).unwrap();
    let before = Before::open(file.as_fd(), KIND).unwrap();
    assert_eq!(before.seed(), own.seed());
    let hash = |key: u64| mix(key ^ own.seed()[0], own.seed()[1] | 1);
    let places: Vec<Place> = (0..5_000).map(|key| own.insert(hash(key), &[key, 1], &tail(key)).unwrap()).collect();
    let find = |key: u64| before.chain(hash(key), 64).find(|record| record.fixed[0] == key);
    for key in 0..5_000 {
        assert_eq!(find(key), Some(Record { fixed: [key, 1], tail: Some(tail(key)) }), "{key}");
    }
    for key in (0..5_000).step_by(2) {
        own.remove(places[key as usize]);
        own.update(places[key as usize + 1], &tail(9));
    }
    for key in 0..5_000 {
        assert_eq!(find(key).map(|record| record.tail), (key % 2 == 1).then_some(Some(tail(9))), "{key}");
    }
    assert_eq!(all(&before).len(), 2_500);
    assert!((0..2_500).all(|key| own.insert(hash(key * 2), &[key * 2, 2], &tail(1)).is_some()), "their room is free");
}

#[test]
fn a_full_table_keeps_what_it_has() {
    let (file, own) = Own::new("records", KIND, 10).unwrap();
    let kept = (0..1_000).filter(|key| own.insert(*key, &[*key, 0], &tail(0)).is_some()).count();
    assert!((10..200).contains(&kept), "{kept}");
    let before = Before::open(file.as_fd(), KIND).unwrap();
    assert_eq!(all(&before).len(), kept);
}

#[test]
fn another_kind_or_shape_is_not_read() {
    let (file, _own) = Own::new("records", KIND, 10).unwrap();
    assert!(matches!(Before::open(file.as_fd(), KIND + 1), Err(NotRead::Format)));
    assert!(matches!(Predecessor::<3, 2>::open(file.as_fd(), KIND), Err(NotRead::Format)));
    let (file, _words) = OwnWords::create("nothing", 100).unwrap();
    assert!(matches!(Before::open(file.as_fd(), KIND), Err(NotRead::Format)));
}

/// A file with the header of a table, and whatever else.
fn forged(header: &[(usize, u64)], words: &[u64], count: usize) -> Result<Before, NotRead> {
    let format = Format { kind: KIND, fixed: 2, tail: 3 };
    let layout = Layout { format, shards: 2, slots: 8, chains: 4, seed: [1, 2] };
    let (file, own) = OwnWords::create("forged", count).unwrap();
    words.iter().enumerate().for_each(|(at, word)| own.store(at, *word));
    layout.header().into_iter().enumerate().for_each(|(at, word)| own.store(at, word));
    header.iter().for_each(|(at, word)| own.store(*at, *word));
    Before::open(file.as_fd(), KIND)
}

#[test]
fn lengths_that_lead_out_of_the_file_are_refused() {
    assert!(forged(&[], &[], 200).is_ok());
    for (at, word) in [(4, 3), (4, 0), (4, u64::MAX), (5, 1 << 30), (5, u64::MAX), (6, 0), (6, 1 << 40), (6, 1 << 29)] {
        assert!(matches!(forged(&[(at, word)], &[], 200), Err(NotRead::Layout)), "{at} {word}");
    }
    assert!(matches!(forged(&[], &[], 100), Err(NotRead::Layout)), "the file is shorter");
}

proptest! {
    /// Whatever is in the file: reading ends, and gives only what has its check.
    #[test]
    fn any_file_can_be_read(words in prop::collection::vec(prop_oneof![Just(0), 0_u64..40, any::<u64>()], 0..200)) {
        let before = forged(&[], &words, 200).unwrap();
        for hash in (0..8).map(|at| at << 32 | at) {
            prop_assert!(before.chain(hash, 100).count() <= 100);
        }
        prop_assert!(all(&before).len() <= 16);
    }

    /// A writer that ends between two steps leaves all records but those that it was about to insert or to remove.
    #[test]
    fn all_is_found_after_any_steps(steps in prop::collection::vec((0_u64..30, any::<bool>()), 0..200)) {
        let (file, own) = Own::new("records", KIND, 64).unwrap();
        let before = Before::open(file.as_fd(), KIND).unwrap();
        let mut model = HashMap::new();
        for (key, inserts) in steps {
            // Few chains.
            let hash = (key % 3) << 32;
            match model.remove(&key) {
                Some(place) if inserts => {
                    own.update(place, &tail(key + 1));
                    model.insert(key, place);
                }
                Some(place) => own.remove(place),
                None => drop(model.insert(key, own.insert(hash, &[key, 0], &tail(key)).unwrap())),
            }
            for key in 0..30 {
                let found = before.chain((key % 3) << 32, 64).any(|record| record.fixed[0] == key && record.tail.is_some());
                prop_assert_eq!(found, model.contains_key(&key), "{}", key);
            }
        }
    }
}

#[test]
fn a_torn_change_costs_what_changes_and_a_torn_record_is_none() {
    let format = Format { kind: KIND, fixed: 2, tail: 3 };
    let layout = Layout { format, shards: 2, slots: 8, chains: 4, seed: [1, 2] };
    let at = layout.record(3);
    let mut words = vec![0; 200];
    words[layout.chain(1)] = 4;
    let mut put = |from: usize, part: &[u64]| {
        words[from] = check(part);
        words[from + 1..=from + part.len()].copy_from_slice(part);
    };
    put(at + layout::FIXED_CHECK, &[5, 6]);
    put(at + layout.tail_check(), &tail(5));
    let found = |words: &[u64]| forged(&[], words, 200).unwrap().chain(1 << 32, 9).next();
    assert_eq!(found(&words), Some(Record { fixed: [5, 6], tail: Some(tail(5)) }));
    for word in 0..4 {
        let mut torn = words.clone();
        torn[at + layout.tail_check() + word] ^= 1;
        assert_eq!(found(&torn), Some(Record { fixed: [5, 6], tail: None }));
    }
    for word in 0..3 {
        let mut torn = words.clone();
        torn[at + layout::FIXED_CHECK + word] ^= 1;
        assert_eq!(found(&torn), None);
    }
}
