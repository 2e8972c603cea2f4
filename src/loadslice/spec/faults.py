"""What goes wrong in a run, and how clients behave: two small files that a simulation or a drill reads."""

from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml
from loadslice.spec.language import Language
from loadslice.spec.pipeline import Pipeline


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine misbehaves for a while."""

    at_s: float
    for_s: float
    engine: str
    kind: Literal["slow", "down", "hang", "crash", "wrong"]
    """slow: ``factor`` times the service time. down, crash: what runs fails, nothing starts. hang: what runs stands
    still, and so does what starts. wrong: answers come in time and are wrong."""
    factor: float | None = None
    """Only for slow, and needed there."""
    detect_ms: float | None = None
    """How long until the server learns of it, for a simulated pipeline: until then work goes to the engine and stands
    still. Down, crash: at once, as a process that ends is noticed, unless this says otherwise. Hang: 2000, a pulse's
    time, after which what runs and waits there goes elsewhere; one that is over sooner is never learned of."""


HANG_DETECT_MS = 2000.0

_ACTS_ON: dict[str, frozenset[str]] = {
    "slow": frozenset({"pace"}),
    "hang": frozenset({"pace", "presence"}),
    "down": frozenset({"presence"}),
    "crash": frozenset({"presence"}),
    "wrong": frozenset({"answers"}),
}
"""Two faults of one engine that act on one thing may not overlap: the end of one would end the other."""

_FACTOR_MAX = 1e6
_AT_S_MAX = 1e9
_WAIT_MS_MAX = 86_400_000


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


def load_faults(path: Path, pipeline: Pipeline | Language) -> list[Fault]:
    """Read a list of faults for a pipeline, or a language file.

    Raises:
        InputError: An engine that is not there, or a number out of range.
    """
    faults = decode_yaml(path, list[Fault])
    for index, fault in enumerate(faults):
        place = f"{path}: [{index}]"
        if fault.engine not in pipeline.engines:
            raise InputError(f"{place}.engine: '{fault.engine}' is not an engine here ({', '.join(pipeline.engines)}).")
        if not 0 <= fault.at_s <= _AT_S_MAX or not 0 < fault.for_s <= _AT_S_MAX:
            raise InputError(f"{place}: at_s {fault.at_s:g} and for_s {fault.for_s:g} must be times in seconds.")
        if fault.kind == "slow" and fault.factor is None:
            raise InputError(f"{place}.factor: missing. Say how many times slower, for instance `factor: 4`.")
        if fault.kind != "slow" and fault.factor is not None:
            raise InputError(f"{place}.factor: {fault.factor:g} says nothing of kind '{fault.kind}'. Leave it out.")
        if fault.factor is not None and not 0 < fault.factor <= _FACTOR_MAX:
            raise InputError(f"{place}.factor: {fault.factor:g} is not between 0 and {_FACTOR_MAX:.0f}.")
        if fault.detect_ms is not None:
            _check_detection(fault, f"{place}.detect_ms", pipeline)
    _refuse_overlaps(faults, path)
    return faults


def _check_detection(fault: Fault, place: str, pipeline: Pipeline | Language) -> None:
    if fault.kind in {"slow", "wrong"} or isinstance(pipeline, Language):
        where = "a language file" if isinstance(pipeline, Language) else f"kind '{fault.kind}'"
        raise InputError(f"{place}: {fault.detect_ms:g} says nothing of {where}. Leave it out.")
    assert fault.detect_ms is not None
    if not 0 <= fault.detect_ms <= _WAIT_MS_MAX:
        raise InputError(f"{place}: {fault.detect_ms:g} is not between 0 and {_WAIT_MS_MAX}.")


def _acts_on(fault: Fault) -> frozenset[str]:
    # Until it is noticed, an engine that is gone stands still.
    return _ACTS_ON[fault.kind] | ({"pace"} if fault.detect_ms else set())


def _refuse_overlaps(faults: list[Fault], path: Path) -> None:
    last: dict[tuple[str, str], int] = {}
    for index in sorted(range(len(faults)), key=lambda index: faults[index].at_s):
        fault = faults[index]
        for key in sorted((fault.engine, thing) for thing in _acts_on(fault)):
            before = last.get(key)
            if before is not None and fault.at_s < faults[before].at_s + faults[before].for_s:
                end_s = faults[before].at_s + faults[before].for_s
                raise InputError(
                    f"{path}: [{index}]: engine '{fault.engine}' is '{faults[before].kind}' until {end_s:g} s by "
                    f"[{before}], so '{fault.kind}' cannot begin at {fault.at_s:g} s. "
                    "Let one end before the next begins."
                )
            last[key] = index


def load_clients(path: Path) -> Clients:
    """Read how clients behave.

    Raises:
        InputError: A number out of range.
    """
    clients = decode_yaml(path, Clients)
    for key, value, low, high in (
        ("timeout_ms", clients.timeout_ms, 0.001, _WAIT_MS_MAX),
        ("attempts", clients.attempts, 1, 100),
        ("disconnect_share", clients.disconnect_share, 0, 1),
        ("backoff.base_ms", clients.backoff.base_ms, 0, _WAIT_MS_MAX),
        ("backoff.factor", clients.backoff.factor, 1, 100),
    ):
        if not low <= value <= high:
            raise InputError(f"{path}: {key}: {value:g} is not between {low:g} and {high:g}.")
    longest_ms = clients.backoff.base_ms * clients.backoff.factor ** max(0, clients.attempts - 2)
    if longest_ms > _WAIT_MS_MAX:
        raise InputError(f"{path}: backoff: the wait before the last attempt grows to {longest_ms:g} ms, over a day.")
    return clients
