"""Everything that was seen of one placement; what a layer did not measure is ``None``."""

from dataclasses import dataclass, field
from typing import Any

from loadslice.evaluate.layers.abnormal import Abnormal
from loadslice.evaluate.layers.attribution import Attribution
from loadslice.evaluate.layers.correctness import Correctness
from loadslice.evaluate.layers.lone import Lone
from loadslice.evaluate.layers.ramp import Ramp
from loadslice.evaluate.layers.soak import Soak
from loadslice.spec.evaluation import Placement
from loadslice.spec.evaluation_report import State


@dataclass(slots=True)
class EaseSeen:
    """What living with a placement asks; counted from its files unless the evaluation file says otherwise."""

    code_changes: int | None = None
    config_lines: int | None = None
    """Lines of its pipeline file that the reference's does not have."""
    recompiles: bool | None = None
    dynamic_batching: bool | None = None
    clarity: float | None = None


@dataclass(slots=True)
class Seen:
    """One placement."""

    placement: Placement
    reference: bool = False
    state: State = "run"
    why: str | None = None
    emulated: bool = False
    fixed: dict[str, str | None] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    """Engines that run models; empty: unknown."""
    balances: bool = False
    """Several engines share a stage by design, so that lone requests may go to any of them."""
    correctness: Correctness | None = None
    loaded: dict[str, Any] | None = None
    """Answers under load against lone ones, `layers.correctness.under_load`."""
    lone: Lone | None = None
    ramp: Ramp | None = None
    soak: Soak | None = None
    abnormal: Abnormal | None = None
    attribution: Attribution | None = None
    replay: dict[str, Any] | None = None
    observed: dict[str, bool] | None = None
    ease: EaseSeen = field(default_factory=EaseSeen)
    cost_per_hour: float | None = None
    power_w: float | None = None
    times_disturbed: str | None = None
    """What there is to say of the latency table that predictions are made from; ``None``: nothing, or there is none."""
    clock_jump_s: float = 0.0
    """How far the wall clock moved against the steady one meanwhile."""

    @property
    def name(self) -> str:
        """As the file has it."""
        return self.placement.name

    @property
    def median_ms(self) -> float | None:
        """Of single requests."""
        return self.lone.median_ms if self.lone is not None else None

    @property
    def first_ms(self) -> float | None:
        """Median of the first bytes of single requests."""
        if self.lone is None:
            return None
        known = sorted(heard.first_ms for heard in self.lone.heards if heard.completed and heard.first_ms is not None)
        return known[len(known) // 2] if known else None

    @property
    def most_per_s(self) -> float | None:
        """Rate of the ramp's plateau."""
        return self.ramp.knee.throughput_per_s if self.ramp is not None and self.ramp.knee is not None else None

    @property
    def device_use(self) -> float | None:
        """Of the busiest engine that runs models, in the ramp's last step."""
        if self.ramp is None or not self.ramp.busy:
            return None
        known = [share for engine, share in self.ramp.busy.items() if not self.devices or engine in self.devices]
        return max(known) if known else None
