//! What processes before this one have left, a slice at a time.

use super::Tables;
use crate::kept::Keeper;

impl Tables {
    /// Takes up more of what processes before this one have left: some `budget` connections and as many translations,
    /// at `now`, nanoseconds. Whether that is all. What belongs to no network or exit of these tables is dropped.
    pub fn take_over(&self, now: u64, budget: usize) -> bool {
        let Some(keeper) = &self.keeping.0 else { return true };
        let connections = match self.connections() {
            Some(connections) => connections.take_over(now, budget),
            None => keeper.connections.next_left(budget, |_| keeper.connections.count(false)),
        };
        let translations = self.take_over_translations(keeper, budget);
        connections && translations
    }

    fn take_over_translations(&self, keeper: &Keeper, budget: usize) -> bool {
        keeper.translations.next_left(budget, |record| {
            if !self.nats.iter().any(|nat| nat.take_over(&record.fixed)) {
                keeper.translations.count(false);
            }
        })
    }
}
