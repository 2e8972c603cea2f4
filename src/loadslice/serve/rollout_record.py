"""What is remembered of a rollout, and what it needs of a repository."""

import asyncio
import logging
import sqlite3
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from loadslice.serve.rollout_analysis import Evidence, Finding
from loadslice.serve.serving import Serving
from loadslice.serve.state_file import StateFile
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON
from loadslice.spec.rollout import Decision, RolloutPlan, RolloutState

log = logging.getLogger(__name__)

NAME = "rollout"


class Versions(Protocol):
    """A repository, as far as a rollout needs one."""

    def beside(self, version: str) -> Serving:
        """The current version with another one as its canary.

        Raises:
            InputError: That one is not what was added, or differs in more than models.
        """

    def adopt(self, version: str) -> None:
        """Make a version the current one."""

    def revert(self) -> None:
        """Make the version current that was before.

        Raises:
            InputError: There is none.
        """


class Record(msgspec.Struct, kw_only=True):
    """What is remembered of a rollout."""

    state: RolloutState = "none"
    step: int = 0
    """As in the core: 0 no traffic, 1 the first."""
    since: str | None = None
    """When that step, or the end, began."""
    dwelt_s: float = 0.0
    """Served at this step, by a clock that nobody sets."""
    candidate: str | None = None
    """Version of the repository; ``None``: the canaries of the pipeline file."""
    towards: RolloutState = "none"
    """State that the repository is being told of; ``none``: there is nothing that it may, or may not, know."""
    about: str = ""
    """`fingerprint` of what is stable."""
    plan: RolloutPlan = RolloutPlan()
    evidence: Evidence = msgspec.field(default_factory=Evidence)
    why: str = ""
    """Why it ended."""
    last: dict[str, Finding] = {}
    """What the signals said when it ended."""
    decision: Decision = "inconclusive"

    @property
    def dwell_s(self) -> float:
        """How long this step has to last."""
        numbers = self.plan.dwell_s
        return numbers[min(max(self.step, 1), len(numbers)) - 1]

    def weight(self, steps: list[float], serves: str | None) -> float:
        """Share of the traffic that the candidate gets.

        Args:
            steps: Of the pipeline.
            serves: Version of the repository that is stable now: `loadslice model use` may have chosen another since.
        """
        if self.state == "running":
            return steps[self.step - 1] if self.step else 0.0
        return float(self.state == "promoted" if self.candidate is None else serves == self.candidate)

    def status(
        self, finding: Finding, found: dict[str, Finding], steps: list[float], serves: str | None
    ) -> dict[str, Any]:
        """What `loadslice rollout status --json` prints.

        Args:
            finding: What follows from all signals.
            found: What each of them says.
            steps: As `weight`.
            serves: As `weight`.
        """
        return {
            "state": self.state,
            "step": self.step,
            "weight": self.weight(steps, serves),
            "since": self.since,
            "candidate": self.candidate,
            "serves": serves,
            "dwelt_s": self.dwelt_s,
            "dwell_s": self.dwell_s if self.state == "running" else None,
            "analysis": {name: msgspec.to_builtins(one) for name, one in found.items()},
            "decision": finding.decision if self.state != "none" else "inconclusive",
            "why": finding.why if self.state != "none" else "no rollout has been started",
        }


def read(file: StateFile) -> Record:
    """What is remembered; nothing of a file that is not there. Blocks.

    Raises:
        InputError: It cannot be read.
    """
    raw = file.read(NAME)
    if raw is None:
        return Record()
    try:
        record = msgspec.json.decode(raw, type=Record)
    except NOT_JSON as error:
        raise InputError(f"--state: the rollout in it cannot be read, {error}. Remove it.") from error
    record.evidence.values = {}  # of a clock that has ended; they are posted again
    return record


def write(file: StateFile, record: Record, at: str, event: str = "", detail: str = "") -> "Future[None]":
    """Have a record written down.

    Returns:
        As `StateFile.write`; what follows from an event waits for it.
    """
    # Windows of times that are not full yet are not worth their size.
    evidence = msgspec.structs.replace(record.evidence, windows={})
    raw = msgspec.json.encode(msgspec.structs.replace(record, evidence=evidence))
    return file.write(NAME, raw, at, event, detail)


def complain(written: "Future[None]") -> None:
    """Log that something could not be written which nobody waits for."""
    if (error := written.exception()) is not None:
        log.error("the state file cannot be written: %s", error)


async def waited(written: "Future[None]") -> None:
    """Until it is on the disk; whoever is cancelled here leaves it to be written.

    Raises:
        InputError: It could not be written.
    """
    try:
        await asyncio.shield(asyncio.wrap_future(written))
    except (sqlite3.Error, OSError) as error:
        raise InputError(f"--state: cannot be written, {error}.") from error
