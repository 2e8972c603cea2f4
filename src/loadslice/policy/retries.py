"""The retry budget: one for the whole run, spent by every kind of extra attempt.

Each arrival deposits ``budget`` of an attempt; ``per_s`` is granted whatever the traffic; at most ``reserve`` lie
unspent. So in any window, extra attempts <= budget * arrivals + per_s * seconds + reserve.
"""

from loadslice.policy import columns as c
from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import State, Tables

_NS_PER_S = 1_000_000_000

REFILL_NS_MAX = 60 * _NS_PER_S
"""Longest that a client without budget is sent away for; also where arrivals alone refill it."""


@kernel
def deposit(tables: Tables, state: State) -> None:
    """An arrival pays in."""
    balance = state.counters[c.C_BUDGET_PPM] + tables.run[c.W_RETRY_PPM]
    state.counters[c.C_BUDGET_PPM] = min(balance, tables.run[c.W_RETRY_RESERVE_PPM])


@rare
def withdraw(now_ns: int, tables: Tables, state: State) -> bool:
    """Pay for one extra attempt, if the budget has it."""
    per_s_ppm = tables.run[c.W_RETRY_PER_S_PPM]
    reserve = tables.run[c.W_RETRY_RESERVE_PPM]
    # No more at once than the product holds: 77 minutes at one a second. What is left is granted the next time.
    passed_ns = min(now_ns - state.counters[c.C_BUDGET_NS], c.FOREVER // max(1, per_s_ppm))
    granted = passed_ns * per_s_ppm // _NS_PER_S
    if granted > 0:
        state.counters[c.C_BUDGET_NS] += passed_ns
        balance = state.counters[c.C_BUDGET_PPM] + granted
        if balance >= reserve:
            # Time in which nothing more could be saved up is over; kept, it would fill the reserve again and again.
            balance = reserve
            state.counters[c.C_BUDGET_NS] = now_ns
        state.counters[c.C_BUDGET_PPM] = balance
    if state.counters[c.C_BUDGET_PPM] < c.PPM:
        state.counters[c.C_RETRIES_DENIED] += 1
        return False
    state.counters[c.C_BUDGET_PPM] -= c.PPM
    state.counters[c.C_RETRIES] += 1
    return True


@rare
def refill_ns(tables: Tables, state: State) -> int:
    """How long time alone takes to fill a budget that has just denied an attempt up to one."""
    per_s_ppm = tables.run[c.W_RETRY_PER_S_PPM]
    if per_s_ppm == 0 or tables.run[c.W_RETRY_RESERVE_PPM] < c.PPM:
        return REFILL_NS_MAX
    missing_ppm = max(0, c.PPM - state.counters[c.C_BUDGET_PPM])
    return int(min(missing_ppm * _NS_PER_S // per_s_ppm, REFILL_NS_MAX))
