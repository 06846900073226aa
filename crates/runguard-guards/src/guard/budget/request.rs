//! What is asked or told, and what it costs.

use super::settings::Settings;
use crate::input::{Input, PassedCall};
use runguard_core::ledger::{Act, Cost, Limits, REFUSED_IS_FORGOTTEN, Scope, UNSETTLED_IS_SPENT, Unsettled, number_of};
use runguard_core::money::NanoDollars;
use runguard_core::prices::{ServiceTier, UnknownModelError, Usage};

#[derive(Debug)]
pub struct Request {
    pub(super) act: Act,
    pub(super) session_id: String,
    pub(super) budget: String,
    pub(super) parent: Option<String>,
    pub(super) limits: Limits,
    pub(super) max_credits: Option<f64>,
    pub(super) usd: Option<NanoDollars>,
    pub(super) credits: Option<f64>,
    pub(super) tokens: Option<u64>,
    pub(super) key: Option<String>,
    pub(super) model: Option<String>,
    /// What of the model was used, where its price is to be found.
    pub(super) usage: Option<Usage>,
    pub(super) reservation: Option<String>,
    pub(super) scopes: Vec<Scope>,
    /// What becomes of what is set aside when nobody settles it.
    pub(super) unsettled: Unsettled,
    /// Where it is refused, whoever asks will ask for less, or wait.
    pub(super) is_try: bool,
    /// The key that it was asked with.
    pub(super) asked_with: Option<String>,
    pub(super) call: Option<PassedCall>,
}

impl Request {
    /// The limits it brought along, with credits as so many dollars.
    pub(super) fn own_limits(&self, settings: &Settings) -> Limits {
        settings.with_credits(self.limits, self.max_credits)
    }

    pub(super) fn read(input: &Input<'_>, act: Act) -> Self {
        let session_id = input.text("session_id");
        let id = |name: &str| input.optional_text(name).filter(|text| !text.is_empty());
        let limits = Limits { usd: input.dollars("max_usd"), tokens: input.whole("max_tokens"), cap: input.whole("cap").map(calls) };
        let count = |name: &str| input.whole(name).unwrap_or(0);
        let model = id("model");
        // What is given back is not priced.
        let usage = (model.is_some() && act != Act::Release).then(|| Usage {
            input_tokens: count("input_tokens"),
            output_tokens: count("output_tokens"),
            cached_tokens: count("cached_tokens"),
            cache_write_tokens: count("cache_write_tokens"),
            cache_write_1h_tokens: count("cache_write_1h_tokens"),
            audio_input_tokens: count("audio_input_tokens"),
            audio_output_tokens: count("audio_output_tokens"),
            service_tier: id("service_tier").map_or_else(ServiceTier::default, |tier| ServiceTier::named(&tier)),
        });
        Self {
            act,
            budget: id("budget").unwrap_or_else(|| "default".into()),
            // A budget cannot draw on itself.
            parent: id("parent").filter(|parent| *parent != session_id),
            session_id,
            limits,
            max_credits: input.dollars("max_credits").map(NanoDollars::as_dollars),
            usd: input.dollars("usd"),
            credits: input.dollars("credits").map(NanoDollars::as_dollars),
            tokens: input.whole("tokens"),
            key: id("key"),
            model,
            usage,
            reservation: id("reservation_id"),
            scopes: input.scopes("scopes"),
            unsettled: if id("if_unsettled").as_deref() == Some(UNSETTLED_IS_SPENT) { Unsettled::Spent } else { Unsettled::Free },
            is_try: id("if_refused").as_deref() == Some(REFUSED_IS_FORGOTTEN),
            asked_with: input.asked_with.filter(|key| !key.is_empty()).map(str::to_owned),
            call: input.call.cloned(),
        }
    }

    /// What the request says it costs, if it does, and the model that has no price.
    pub(super) fn cost(&self, settings: &Settings) -> (Option<Cost>, Option<UnknownModelError>) {
        let usd = self.usd.or_else(|| self.credits.map(|credits| settings.most_price_of(credits)));
        let (Some(model), Some(usage)) = (&self.model, &self.usage) else {
            let told = usd.is_some() || self.tokens.is_some();
            return (told.then(|| Cost { usd: usd.unwrap_or_default(), tokens: self.tokens.unwrap_or(0) }), None);
        };
        // What the caller knows better than the table.
        if let Some(usd) = usd {
            return (Some(Cost { usd, tokens: usage.total_tokens() }), None);
        }
        let (cost, unpriced) = usage.cost(|| settings.cost_of(model, usage));
        (Some(cost), unpriced)
    }

    pub(super) fn reservation_number(&self) -> Option<u64> {
        self.reservation.as_deref().map(|id| self.number_of_reservation(id))
    }

    /// The number a reservation is known by in events. What a door of this service set aside for a call that it passes on has one that no
    /// caller's id can have: whoever knows its id from an answer, or from the log, does not settle it in the door's place.
    pub(super) fn number_of_reservation(&self, id: &str) -> u64 {
        let [by_caller, by_door] = reservation_numbers(id);
        if self.call.is_some() { by_door } else { by_caller }
    }

    pub(super) fn key_number(&self) -> Option<u64> {
        self.key.as_deref().map(number_of)
    }

    /// A key that is recorded without a cost: the call is yet to be made.
    pub(super) fn asks_for_call(&self) -> bool {
        self.act == Act::Record
            && self.key.is_some()
            && self.usd.is_none()
            && self.credits.is_none()
            && self.tokens.is_none()
            && self.usage.is_none()
    }
}

impl Request {
    /// It tells of what was done already.
    pub(super) fn has_happened(&self) -> bool {
        self.act.is_spent() && !self.asks_for_call()
    }
}

/// As many calls as can be counted.
pub(super) fn calls(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The numbers that a reservation of this id may have: a caller's, and a door's.
pub(super) fn reservation_numbers(id: &str) -> [u64; 2] {
    const BY_DOOR: u64 = 1 << 63;
    let number = number_of(id);
    [number & !BY_DOOR, number | BY_DOOR]
}
