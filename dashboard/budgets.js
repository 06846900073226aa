// How budgets stand: those that many share, a run's, and those the log has seen.

import { badge, bar, el, foreign } from './dom.js';
import { compact, count, dollars, duration, percent } from './words.js';

const tokens = (amount) => `${compact(amount)} tokens`;

/// Dollars and tokens, each with how it is shown; limits may be null.
const amounts = (budget) => [
  { spent: budget.spent_usd, reserved: budget.reserved_usd, limit: budget.limit_usd, left: budget.remaining_usd, shown: dollars },
  { spent: budget.spent_tokens, reserved: budget.reserved_tokens, limit: budget.limit_tokens, left: budget.remaining_tokens, shown: tokens },
];

/// The limit that is nearest decides the bar: red when it is used up.
const kindOf = (share) => (share >= 1 ? 'blocked' : share >= 0.8 ? 'would' : 'accent');

function state({ spent, limit, left, shown }) {
  if (limit === null) return `${shown(spent)}, no limit`;
  return left === undefined || left === null ? `${shown(spent)} of ${shown(limit)}` : `${shown(left)} left of ${shown(limit)}`;
}

function budgetBar(budget) {
  const [usd, counted] = amounts(budget);
  // Without any limit dollars are what people ask about.
  const limited = [usd, counted].filter(({ limit }) => limit !== null);
  const shown = limited.length ? limited : [usd];
  const share = Math.max(0, ...limited.map(({ spent, limit }) => (limit ? spent / limit : 1)));
  const hints = [
    limited.length ? `${percent(share)} spent` : 'spent',
    budget.limit_tokens === null && budget.spent_tokens && limited.length ? tokens(budget.spent_tokens) : null,
    budget.overdue_usd ? `${dollars(budget.overdue_usd)} of it overdue` : null,
    ...shown.map(({ reserved, shown: words }) => (reserved ? `${words(reserved)} set aside` : null)),
    budget.renews_at_ms ? `anew in ${duration(Math.max(60, Math.ceil((budget.renews_at_ms - Date.now()) / 60_000) * 60))}` : null,
  ];
  return el('li', null, el('div', null,
    el('span', { class: 'what' }, foreign(budget.budget ?? budget.scope, 40), ' ', el('span', { class: 'hint' }, foreign(budget.name || budget.tenant || '', 40)),
      budget.refused ? badge('blocked', `${count(budget.refused)} blocked`) : null),
    el('span', { class: 'n' }, shown.map(state).join(' · ')),
    bar(share, kindOf(share)),
    el('span', { class: 'hint below' }, hints.filter(Boolean).join(', '))));
}

export const budgetBars = (budgets, most = budgets.length) => el('ul', { class: 'bars budgets' }, budgets.slice(0, most).map(budgetBar));
