//! What is done to a budget, and the words in which a service is asked for it: whoever asks and whoever answers take them from here.

use crate::reason::named;

named! {
    /// What is done to a budget: a route each.
    Act {
        /// Asks whether there is enough left. Nothing is counted.
        Check = "check", "Asked about",
        /// Tells of what was spent. A key without a cost asks for a call.
        Record = "record", "Recorded",
        /// Sets an estimate aside.
        Reserve = "reserve", "Set aside",
        /// Settles what was set aside, for what it cost.
        Commit = "commit", "Settled",
        /// Gives back what was set aside.
        Release = "release", "Given back",
    }
}

impl Act {
    /// Where a service is asked for it.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Check => "/guard/budget/check",
            Self::Record => "/guard/budget/record",
            Self::Reserve => "/guard/budget/reserve",
            Self::Commit => "/guard/budget/commit",
            Self::Release => "/guard/budget/release",
        }
    }

    /// Whether its cost was spent, and not only asked about.
    pub const fn is_spent(self) -> bool {
        matches!(self, Self::Record | Self::Commit)
    }

    /// Whether it asks if something may be spent.
    pub const fn asks(self) -> bool {
        matches!(self, Self::Check | Self::Reserve)
    }

    /// Whether it says what became of a reservation.
    pub const fn settles(self) -> bool {
        matches!(self, Self::Commit | Self::Release)
    }
}

/// Of a reservation that nobody settles in its time: it was paid.
pub const UNSETTLED_IS_SPENT: &str = "spent";
/// Of a refusal: nothing is left of it.
pub const REFUSED_IS_FORGOTTEN: &str = "forgotten";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_act_is_asked_for_under_its_own_name() {
        for act in Act::ALL {
            assert_eq!(act.path(), format!("/guard/budget/{act}"));
        }
    }
}
