"""The six ways a request ends, and the rows a journal keeps."""

from enum import IntEnum


class Outcome(IntEnum):
    """How a request ended. Exactly one per request, delivered once."""

    NONE = 0
    """Not yet ended."""
    COMPLETED = 1
    FAILED = 2
    REJECTED = 3
    SHED = 4
    EXPIRED = 5
    CANCELLED = 6


OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome if outcome is not Outcome.NONE)
"""Names in code order, as they stand in JSON."""


class Reason(IntEnum):
    """Why a request ended the way it did, or why it was placed where it was."""

    NONE = 0
    PREFERRED = 1
    FAILOVER = 2
    QUEUE_FULL = 3
    TABLE_FULL = 4
    DISPLACED = 5
    HOPELESS = 6
    DEADLINE = 7
    STAGE_TIMEOUT = 8
    INELIGIBLE = 9
    ENGINE_FAILED = 10
    STAGE_FAILED = 11
    CLIENT_GONE = 12
    DRAINING = 13
    ENGINE_DOWN = 14
    RETRY = 15
    """Placed again on the engine that failed it, no other having spare quota."""
    RETRY_BUDGET = 16
    """A client's repeated attempt that the retry budget does not cover."""
    RULE = 17
    """Placed where the first rule that holds says."""
    FASTEST = 18
    """Placed where it is expected to end first."""
    CHEAPEST = 19
    """Placed where it costs least among the engines expected to meet its deadline."""
    DEGRADED = 20
    """Completed with the stage's degraded reply instead of being refused."""


VERSIONS = ("stable", "canary")
"""Names of the two versions that may serve side by side, by their number in the core."""

REASONS = tuple(reason.name.lower() for reason in Reason)
