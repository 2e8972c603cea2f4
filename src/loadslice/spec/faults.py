"""What goes wrong in a run, and how clients behave: two small files that a simulation or a drill reads."""

from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml
from loadslice.spec.pipeline import Pipeline


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine misbehaves for a while."""

    at_s: float
    for_s: float
    engine: str
    kind: Literal["slow", "down", "hang", "crash", "wrong"]
    """slow: ``factor`` times the service time. down, crash: what runs fails, nothing starts. hang: what runs stands
    still, and so does what starts. wrong: answers come in time and are wrong."""
    factor: float = 1.0


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Wait before attempt n + 1: ``base_ms * factor ** (n - 1)``."""

    base_ms: float = 50.0
    factor: float = 2.0
    jitter: bool = True
    """Full jitter: uniform between 0 and that wait."""


class Clients(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How every client behaves."""

    timeout_ms: float
    """How long a client waits for an attempt."""
    attempts: int = 1
    backoff: Backoff = Backoff()
    disconnect_share: float = 0.0
    """Share of attempts whose client leaves at a random time before the timeout and does not come back."""
    cancels: bool = True
    """Whether a client that gives up closes its connection, so that the server hears of it."""
    states_deadline: bool = True
    """Whether requests carry the client's timeout as their deadline."""
    states_attempt: bool = True
    """Whether repeated attempts say so, in ``x-loadslice-attempt``."""


def load_faults(path: Path, pipeline: Pipeline) -> list[Fault]:
    """Read a list of faults for a pipeline.

    Raises:
        InputError: An engine that is not there, or a number out of range.
    """
    faults = decode_yaml(path, list[Fault])
    for index, fault in enumerate(faults):
        place = f"{path}: [{index}]"
        if fault.engine not in pipeline.engines:
            raise InputError(f"{place}.engine: '{fault.engine}' is not an engine here ({', '.join(pipeline.engines)}).")
        if not 0 <= fault.at_s <= 1e9 or not 0 < fault.for_s <= 1e9:
            raise InputError(f"{place}: at_s {fault.at_s:g} and for_s {fault.for_s:g} must be times in seconds.")
        if fault.kind == "slow" and not 0 < fault.factor <= 1e6:
            raise InputError(f"{place}.factor: {fault.factor:g} is not between 0 and 1000000.")
    return faults


def load_clients(path: Path) -> Clients:
    """Read how clients behave.

    Raises:
        InputError: A number out of range.
    """
    clients = decode_yaml(path, Clients)
    for key, value, low, high in (
        ("timeout_ms", clients.timeout_ms, 0.001, 86_400_000),
        ("attempts", clients.attempts, 1, 100),
        ("disconnect_share", clients.disconnect_share, 0, 1),
        ("backoff.base_ms", clients.backoff.base_ms, 0, 86_400_000),
        ("backoff.factor", clients.backoff.factor, 1, 100),
    ):
        if not low <= value <= high:
            raise InputError(f"{path}: {key}: {value:g} is not between {low:g} and {high:g}.")
    return clients
