"""What a profile says of emulated engines: their sheets' times. Nothing of theirs is timed here.

Timing a twin would measure this processor, which computes the twin's numbers, and make every engine beside it slower
than it will be beside the real device.
"""

from collections.abc import Iterator, Sequence

from loadslice.backends.twin import TwinSession
from loadslice.profiles.chain import Step
from loadslice.spec.latency import Entry, Milliseconds
from loadslice.spec.pipeline import Stage
from loadslice.spec.twin import TwinTime


def entries(steps: Sequence[Step], on: Sequence[str] | None = None) -> list[Entry]:
    """One entry for every batch that a twin was built for.

    Args:
        steps: Loaded.
        on: Engines to tell of; ``None``: all.
    """
    return [
        _entry(step.stage, name, session, known, shape)
        for step in steps
        for name, session in step.sessions.items()
        if isinstance(session, TwinSession) and (on is None or name in on)
        for known in session.sheet.times
        for shape in _shapes(step.stage, known)
    ]


def _shapes(stage: Stage, known: TwinTime) -> Iterator[list[int] | None]:
    """Shapes that a latency table gives this time to: the buckets that the device's own shape contains."""
    if not stage.buckets or known.shape is None:
        yield None
        return
    for bucket in stage.buckets:
        if all(side <= most for side, most in zip(bucket, known.shape, strict=True)):
            yield bucket


def _entry(stage: Stage, engine: str, session: TwinSession, known: TwinTime, shape: list[int] | None) -> Entry:
    ms = round(known.ms, 6)
    times = Milliseconds(p50=ms, p90=ms, p99=ms, samples=[ms])
    sheet = session.sheet
    return Entry(
        variant=stage.variant_id,
        engine=engine,
        batch=known.rows,
        shape=shape,
        latency_ms=times,
        contended_ms=times,  # a device of its own is not slowed by what this machine does
        energy_j=known.energy_j,
        basis="emulated",
        source=f"twin of {sheet.device} at {sheet.precision}; {sheet.times_basis}: {sheet.times_source}",
    )
