"""What answers requests once everything is loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from loadslice.serve.admission import Admission
from loadslice.serve.answer import Answer
from loadslice.serve.degraded import DegradedReplies
from loadslice.serve.envelope import EnvelopeReader
from loadslice.serve.health import Health
from loadslice.serve.limits import Limits
from loadslice.serve.metrics import Metrics
from loadslice.serve.oip_plan import Plans
from loadslice.serve.request import Request
from loadslice.serve.shell import Shell
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import twins


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Service:
    """What answers requests once everything is loaded."""

    shell: Shell
    admission: Admission
    metrics: Metrics
    health: Health
    degraded: DegradedReplies
    outputs: list[dict[str, Any]]
    """Of the last stage, in the protocol's words; empty: known only from a reply."""
    record: Callable[[Request], None]
    """Keeps a request that has been replied to."""
    pipeline: Pipeline
    envelopes: EnvelopeReader
    stage_names: list[str]
    """Quoted, as headers carry them."""
    engine_names: list[str]
    emulated: frozenset[str]
    """Those of them that are emulated."""
    plans: Plans
    answer: Answer

    @classmethod
    def of(cls, pipeline: Pipeline, limits: Limits, **parts: Any) -> "Service":
        """What answers for one pipeline.

        Args:
            pipeline: Checked.
            limits: What clients may ask.
            parts: The other fields, down to `record`.
        """
        return cls(
            **parts,
            pipeline=pipeline,
            envelopes=EnvelopeReader(pipeline, limits),
            stage_names=[quote(stage.name) for stage in pipeline.stages],
            engine_names=[quote(name) for name in pipeline.engines],
            emulated=frozenset(quote(name) for name in twins(pipeline)),
            plans=Plans(),
            answer=Answer(pipeline),
        )
