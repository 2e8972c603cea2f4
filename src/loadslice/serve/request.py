"""What the live shell keeps about a request, its passage through each stage, and a batch on its way to a worker."""

from collections.abc import Callable
from dataclasses import dataclass, field

from loadslice.policy.versions import NO_KEY
from loadslice.spec.outcome import VERSIONS as VERSIONS
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import StageError, Work


@dataclass(slots=True, eq=False)
class Passage:
    """One request at one stage, on one engine. Times are nanoseconds; ``None``: it did not come to that."""

    stage: int
    engine: int
    placed: Reason
    bucket: int
    items: int
    enqueued_ns: int
    dispatched_ns: int | None = None
    started_ns: int | None = None
    copy_ns: int | None = None
    compute_ns: int | None = None
    done_ns: int | None = None
    batch_rows: int | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One request inside. The front makes it, the shell changes it."""

    work: Work | None
    bucket: int
    """Shape bucket at the stage it is about to enter."""
    priority: int
    deadline_ns: int
    source: str | None
    source_index: int
    precision: int
    id: str | None
    input: str | None
    received_ns: int
    done: "Callable[[Request], object]"
    """Called once, on the loop's thread, when the outcome is known."""
    attempt: int = 1
    tenant: str | None = None
    tenant_index: int = 0
    """Among the tenants with a guarantee, from 1; 0: none of them."""
    key: int = NO_KEY
    tokens: int = -1
    """Prompt tokens; -1: not known."""
    items: int = 0
    """Rows at the stage it is in, or about to enter."""
    version: int | None = None
    """STABLE or CANARY; ``None``: the pipeline has no canary, or it was refused before it had one."""
    tag: int = -1
    row: int = -1
    arrival_ns: int = -1
    outcome: Outcome = Outcome.NONE
    reason: Reason = Reason.NONE
    hint_ns: int = 0
    fault: StageError | None = None
    stage: int = -1
    """Where it ended."""
    end_ns: int | None = None
    reply_ns: int | None = None
    traceparent: str | None = None
    """The caller's span, as it said it."""
    passages: list[Passage] = field(default_factory=list)
    crashes: int = 0
    """Engine processes that ended while they ran this request."""


@dataclass(slots=True, eq=False)
class Batch:
    """One batch; a worker fills in what came of it."""

    slot: int
    epoch: int
    engine: int
    stage: int
    version: int
    bucket: int
    padded: int
    """Rows that a model which was built for some counts is given; 0: the most it was built for."""
    dispatched_ns: int
    requests: list[Request]
    passages: list[Passage]
    works: list[Work]
    resident: frozenset[int] | None = None
    """Stages whose models are on the engine while this runs; ``None``: its memory is not bounded."""
    started_ns: int = 0
    load_ns: int = 0
    """Time spent loading the model, which is in neither of the others."""
    copy_ns: int = 0
    compute_ns: int = 0
    held: bool = False
    """Its engine's process is waited for when it ends, rather than the requests tried elsewhere."""
    failed: bool = False
    """The engine failed; there are no results."""
    lost: bool = False
    """It failed because the engine's process has ended."""
    results: list[Work | StageError] = field(default_factory=list)
    """One per request: what goes on, or why this one failed."""
    next_buckets: list[int] = field(default_factory=list)
    _rows: int = -1

    @property
    def rows(self) -> int:
        """Rows of the whole batch."""
        if self._rows < 0:
            self._rows = sum([work.items for work in self.works])
        return self._rows
