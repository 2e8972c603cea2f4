"""Why a language model's prompt was computed where it was."""

from enum import IntEnum


class Route(IntEnum):
    """One answer of the router."""

    NONE = 0
    """Nowhere: no engine that is up can take it."""
    ONLY_LOCAL = 1
    """No other engine takes prompts of this length and reaches the decoding one."""
    ONLY_REMOTE = 2
    """The decoding engine takes no prompts of this length."""
    POLICY_LOCAL = 3
    POLICY_REMOTE = 4
    SHORT = 5
    """Local: fewer tokens to compute than the policy's length."""
    LONG = 6
    """Remote: at least that many."""
    BUSY = 7
    """Local: long, but the prefilling engine's backlog is over the policy's load."""
    LOCAL_FASTER = 8
    REMOTE_FASTER = 9
    """Remote: first token expected sooner there, delay of the sequences that decode counted."""
    FALLBACK = 10
    """Computed again at the decoding engine: a hand-over failed, or the sequence was preempted or lost its engine."""
    SPARING = 11
    """Remote: local would be faster, but as many tokens as may have come late at the decoding engine for prompts."""


ROUTES = tuple(route.name.lower() for route in Route)
"""Names in code order, as they stand in headers, metrics and journals."""
