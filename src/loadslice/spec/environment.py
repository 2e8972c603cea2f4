"""The environment a measurement was made in: what must be the same before two measurements may be compared."""

from pathlib import Path

import msgspec

from loadslice.spec.files import decode_json

SCHEMA = "environment/1"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """One machine as it stands; what cannot be read here is ``None`` or absent."""

    processor: str
    processors: int
    """That this process may run on."""
    system: str
    """Name and release of the operating system."""
    memory_bytes: int | None
    driver: dict[str, str]
    """Accelerator driver -> version; empty: none is loaded."""
    runtime: dict[str, str]
    """Installed runtime -> version."""
    toolchain: dict[str, str]
    """Vendors' compilers that are installed."""
    clock_policy: dict[str, str]
    """Governor, limits and boost of the processor's clock."""
    memory_clock: str | None
    power_policy: dict[str, str]
    """Power caps and profiles."""
    cooling: dict[str, str]
    """Cooling device -> kind and present step."""
    clock_source: str | None
    """What the operating system reads time from."""
    stamp: dict[str, str] = {}
    """Of the file: schema and version of loadslice."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it was."""

    variable: str
    key: str
    before: str | None
    now: str | None


class EnvironmentCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A lock compared with this machine."""

    same: bool
    differences: list[Difference]
    unknown: list[str]
    """Variables that cannot be read here, so that nobody can say whether they are the same."""


def load(path: Path) -> Environment:
    """Read a lock.

    Raises:
        InputError: Unreadable or not one.
    """
    return decode_json(path, Environment)


_NESTED = ("driver", "runtime", "toolchain", "clock_policy", "power_policy", "cooling")


def compare(before: Environment, now: Environment, *, varied: str | None = None) -> EnvironmentCheck:
    """Everything that differs, but for one variable that is meant to."""
    found = []
    for variable in ("processor", "processors", "system", "memory_bytes", "memory_clock", "clock_source"):
        was, is_now = getattr(before, variable), getattr(now, variable)
        if was != is_now:
            found.append(Difference(variable=variable, key=variable, before=_text(was), now=_text(is_now)))
    for variable in _NESTED:
        was, is_now = getattr(before, variable), getattr(now, variable)
        found += [
            Difference(variable=variable, key=key, before=was.get(key), now=is_now.get(key))
            for key in sorted(set(was) | set(is_now))
            if was.get(key) != is_now.get(key)
        ]
    found = [one for one in found if one.variable != varied and (varied, one.variable) != ("processor", "processors")]
    unknown = [name for name in ("memory_clock", "clock_source") if getattr(now, name) is None]
    unknown += [name for name in ("clock_policy", "power_policy", "cooling") if not getattr(now, name)]
    return EnvironmentCheck(same=not found, differences=found, unknown=unknown)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def words(difference: Difference) -> str:
    """One difference in words."""
    name = difference.variable if difference.key == difference.variable else f"{difference.variable} {difference.key}"
    return f"{name}: was {difference.before or 'absent'}, is {difference.now or 'absent'}"
