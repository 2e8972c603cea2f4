"""Steps of a study: said as they happen, timed, and kept with how they ended."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from loadslice.app.output import say
from loadslice.app.study_server import ServerError
from loadslice.spec.errors import InputError, OutputError
from loadslice.spec.report import Step

T = TypeVar("T")


@dataclass(slots=True)
class Journey:
    """What was done so far."""

    began_s: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list)
    load_before_1m: dict[str, float | None] = field(default_factory=dict)

    def attempt(self, name: str, action: Callable[[], tuple[T, str]]) -> T | None:
        """Do one step; a fault of its input is recorded and the study goes on without its result.

        Args:
            name: Of the step, unique.
            action: Gives the result and, in a few words, what came of it.

        Raises:
            OutputError: Results cannot be written, so there is no use in going on.
        """
        self.load_before_1m[name] = load_average()
        start_s = time.monotonic()
        say(f"{start_s - self.began_s:6.1f} s  {name} ...")
        try:
            result, detail = action()
        except OutputError:
            raise
        except (InputError, ServerError) as error:
            self._end(name, start_s, "failed", str(error))
            return None
        self._end(name, start_s, "done", detail)
        return result

    def _end(self, name: str, start_s: float, state: str, detail: str) -> None:
        seconds = time.monotonic() - start_s
        self.steps.append(
            Step(name=name, seconds=seconds, state="done" if state == "done" else "failed", detail=detail)
        )
        say(f"          {'' if state == 'done' else 'FAILED: '}{detail} ({seconds:.1f} s)")

    @property
    def failed(self) -> list[Step]:
        """Steps that could not be done."""
        return [step for step in self.steps if step.state == "failed"]


def load_average() -> float | None:
    """Runnable processes over the last minute; ``None`` where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
