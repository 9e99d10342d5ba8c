//! Counts of what guests asked.

use crate::{Plan, Refused};
use std::collections::{BTreeMap, BTreeSet};

/// The questions of a network with the same outcome.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The network's name.
    pub network: String,
    /// `answered`, `noted` (nothing is to be answered), `relayed` (to a server outside), or why there is no answer.
    pub outcome: String,
}

/// Questions by network and outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub BTreeMap<Key, u64>);

impl Counts {
    /// Counts a question that was answered, or needed no answer, or was refused.
    pub(crate) fn count(&mut self, network: &str, answered: Result<bool, &Refused>) {
        self.add(
            network,
            match answered {
                Ok(true) => "answered".to_owned(),
                Ok(false) => "noted".to_owned(),
                Err(refused) => refused.to_string(),
            },
        );
    }

    /// Counts a question that servers outside get.
    pub(crate) fn relayed(&mut self, network: &str) {
        self.add(network, "relayed".to_owned());
    }

    fn add(&mut self, network: &str, outcome: String) {
        *self.0.entry(Key { network: network.to_owned(), outcome }).or_default() += 1;
    }

    /// Forgets networks without services.
    pub(crate) fn keep(&mut self, plan: &Plan) {
        let names: BTreeSet<_> = plan.bindings.values().map(|binding| &binding.network.name).collect();
        self.0.retain(|key, _| names.contains(&key.network));
    }
}
