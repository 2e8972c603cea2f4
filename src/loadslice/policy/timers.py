"""When each engine must be looked at, as a tree of minima: the first of all stands at its root."""

from loadslice.policy.kernel import kernel
from loadslice.policy.layout import State


@kernel
def set_timer(state: State, engine: int, at_ns: int) -> None:
    """Note when an engine must be looked at, and carry it up the tree."""
    node = state.timers.shape[0] // 2 + engine
    if state.timers[node] == at_ns:
        return
    state.timers[node] = at_ns
    earliest = at_ns
    # Up to the root always: where a change ends nobody can guess, and a wrong guess costs more than a few levels.
    while node > 1:
        earliest = min(earliest, state.timers[node ^ 1])
        node >>= 1
        state.timers[node] = earliest


@kernel
def hasten(state: State, engine: int, at_ns: int) -> None:
    """Have an engine looked at no later than this."""
    if at_ns < state.timers[state.timers.shape[0] // 2 + engine]:
        set_timer(state, engine, at_ns)
