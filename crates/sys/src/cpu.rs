//! Instructions that this build may not count on, because not every processor of the family has them.

/// Work that is compiled twice: for any processor, and for those that count bits in one instruction.
pub trait Work {
    /// What it gives.
    type Output;

    /// Does it. To be `#[inline(always)]`, and so is what it calls: only what ends up inside is compiled twice.
    fn run(self) -> Self::Output;
}

/// Runs `work` as compiled for a processor that counts bits in one instruction (POPCNT, LZCNT, BMI) where this is one;
/// else as compiled for any.
#[inline]
pub fn counting_bits<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
    {
        // SAFETY: the processor has all that the function is compiled for.
        return unsafe { with_counting(work) };
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt,lzcnt,bmi1,bmi2")]
fn with_counting<W: Work>(work: W) -> W::Output {
    work.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(u64);

    impl Work for Count {
        type Output = (u32, u32);

        #[inline(always)]
        fn run(self) -> (u32, u32) {
            (self.0.count_ones(), self.0.leading_zeros())
        }
    }

    #[test]
    fn both_ways_count_the_same() {
        for bits in [0, 1, 0x8000_0000_0000_0001, u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(counting_bits(Count(bits)), Count(bits).run());
        }
    }
}
