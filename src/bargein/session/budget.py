"""Counts what turns use, and ends a turn that has used up a budget.

`Accounts` are computed from the events of the log alone and stored with the session's state, so the
totals are known after a restart without reading the log. Each turn has a `Meter`: it sets the
deadline, and checks between two steps whether another budget is used up. A budget stops a turn like
a user does, with a reason that names the budget; only the deadline cuts work in flight.

After a session's budget has ended a turn, the session gets the same budget again: the end of the
turn informs the user, and the user's next message is the permission to continue.
"""

from collections.abc import Callable, Iterator

import msgspec

from bargein.cancel import CancelSource, Cause, Clock, Reason
from bargein.cancel.clock import Timer
from bargein.contracts.budget import Budget, BudgetKind, BudgetScope, Spent
from bargein.contracts.event import (
    BudgetLow,
    BudgetUsedUp,
    CallEnded,
    Event,
    HistoryImported,
    MessageAccepted,
    ModelUsed,
    TurnSettled,
)
from bargein.contracts.tool import CallStatus
from bargein.contracts.value import Value
from bargein.errors import UserError
from bargein.session.limits import weight_of_event

_change = msgspec.structs.replace

LOW_SHARE = 0.8
"""The share of a budget from which on it is low."""

USES = (ModelUsed, CallEnded)


def spent_after(spent: Spent, event: Event) -> Spent:
    """Add an event to an account: a model request or a call is a step."""
    if isinstance(event, ModelUsed):
        return spent.with_request(event.usage)
    if isinstance(event, CallEnded) and event.result.status is not CallStatus.NOT_STARTED:
        return spent.with_call()
    return spent


class Accounts(Value, frozen=True, omit_defaults=True):
    """`spent` is the total; `granted_at` is the total when the session's budget was last granted.
    `grant`: the budget has ended the turn and is granted again at the turn's end. `said_bytes`
    counts all messages that people have sent."""

    spent: Spent = Spent()
    granted_at: Spent = Spent()
    grant: bool = False
    said_bytes: int = 0

    def after(self, event: Event, turn_s: float = 0.0) -> "Accounts":
        """Return the accounts after an event. If it ends a turn, `turn_s` is how long that took."""
        if isinstance(event, MessageAccepted | HistoryImported):
            return _change(self, said_bytes=self.said_bytes + weight_of_event(event))
        if isinstance(event, USES):
            return _change(self, spent=spent_after(self.spent, event))
        if isinstance(event, BudgetUsedUp) and event.scope is BudgetScope.SESSION:
            return _change(self, grant=True)
        if isinstance(event, TurnSettled):
            spent = self.spent.with_time(turn_s)
            granted_at = spent if self.grant else self.granted_at
            return Accounts(spent, granted_at, said_bytes=self.said_bytes)
        return self

    @property
    def of_grant(self) -> Spent:
        """How much of the session's current budget is spent."""
        return self.spent.since(self.granted_at)


class Meter:
    """The meter of one turn. `accounts` returns the current accounts of its session, `spent` what
    the turn itself has used so far."""

    def __init__(
        self,
        turn_id: str,
        source: CancelSource,
        clock: Clock,
        *,
        accounts: Callable[[], Accounts],
        spent: Callable[[], Spent],
        log: Callable[[BudgetLow], None],
    ) -> None:
        self._turn_id = turn_id
        self._source = source
        self._clock = clock
        self._accounts = accounts
        self._spent = spent
        self._log = log
        self._told_low: set[tuple[BudgetScope, BudgetKind]] = set()
        self.began_at = clock.now()
        self._budget = Budget()
        self._session_budget = Budget()
        self._timers: list[Timer] = []
        self._ended_by: dict[Reason, BudgetUsedUp] = {}

    def limit(self, budget: Budget, session_budget: Budget) -> None:
        """Set what the turn may use. Its time counts from the start of the turn."""
        self._budget, self._session_budget = budget, session_budget
        # A session's budget that was low before this turn was told then.
        self._told_low = {(low.scope, low.kind) for low in self._low()}
        if budget.time_s is not None:
            self._set_deadline(BudgetScope.TURN, budget.time_s, budget.time_s)
        if session_budget.time_s is not None:
            left_s = session_budget.time_s - self._accounts().of_grant.time_s
            self._set_deadline(BudgetScope.SESSION, session_budget.time_s, left_s)

    @property
    def elapsed_s(self) -> float:
        return self._clock.now() - self.began_at

    @property
    def spent(self) -> Spent:
        """The usage of this turn so far."""
        return self._spent()

    def check(self) -> None:
        """Cancel the turn if a budget is used up, and log which has come to be low. Called between
        two steps."""
        for low in self._low():
            if (low.scope, low.kind) not in self._told_low:
                self._told_low.add((low.scope, low.kind))
                self._log(low)
        for scope, budget, spent in self._scopes():
            found = _used_up(budget, spent)
            if found is not None:
                reason = self._reason(Cause.BUDGET, scope, *found)
                self._source.cancel(reason)
                return

    def _scopes(self) -> tuple[tuple[BudgetScope, Budget, Spent], ...]:
        return (
            (BudgetScope.TURN, self._budget, self.spent),
            (BudgetScope.SESSION, self._session_budget, self._accounts().of_grant),
        )

    def _low(self) -> Iterator[BudgetLow]:
        """Yield the budgets of which most is used."""
        for scope, budget, spent in self._scopes():
            used = {
                BudgetKind.STEPS: (budget.steps, spent.steps),
                BudgetKind.TOKENS: (budget.tokens, spent.tokens),
                BudgetKind.COST: (budget.cost, spent.priced),
                BudgetKind.TIME: (budget.time_s, spent.time_s + self.elapsed_s),
            }
            for kind, (limit, amount) in used.items():
                if limit is not None and amount >= LOW_SHARE * limit:
                    yield BudgetLow(self._turn_id, scope, kind, limit, amount)

    @property
    def ended_by(self) -> BudgetUsedUp | None:
        """The budget that ended the turn, if one did."""
        reason = self._source.token.reason
        return self._ended_by.get(reason) if reason is not None else None

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _set_deadline(self, scope: BudgetScope, limit_s: float, left_s: float) -> None:
        reason = self._reason(Cause.DEADLINE, scope, BudgetKind.TIME, limit_s)
        when = self.began_at + max(left_s, 0.0)
        source = self._source
        self._timers.append(self._clock.call_at(when, lambda: source.cancel(reason)))

    def _reason(self, cause: Cause, scope: BudgetScope, kind: BudgetKind, limit: float) -> Reason:
        amounts = {
            BudgetKind.STEPS: f"{limit:,.0f} steps",
            BudgetKind.TOKENS: f"{limit:,.0f} tokens",
            BudgetKind.COST: f"${limit:,.2f}" if limit >= 0.01 else f"${limit:g}",
            BudgetKind.TIME: f"{limit:g} s",
        }
        detail = f"the {scope} has used its {amounts[kind]}; send a message to go on"
        reason = Reason(cause, detail)
        self._ended_by[reason] = BudgetUsedUp(self._turn_id, scope, kind, limit)
        return reason


def _used_up(budget: Budget, spent: Spent) -> tuple[BudgetKind, float] | None:
    if budget.steps is not None and spent.steps >= budget.steps:
        return BudgetKind.STEPS, budget.steps
    if budget.tokens is not None and spent.tokens >= budget.tokens:
        return BudgetKind.TOKENS, budget.tokens
    if budget.cost is None:
        return None
    if spent.cost is None:
        raise UserError(
            "a budget of cost cannot be enforced, because the price of a model in use is not "
            "known; set BARGEIN_PRICE, or a budget of tokens instead"
        )
    return (BudgetKind.COST, budget.cost) if spent.cost >= budget.cost else None
