"""What the questions are answered from: every fact with where it comes from. A fact nobody knows is ``None``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from loadslice.spec.budget import Budget
from loadslice.spec.device import Kind
from loadslice.spec.inspection import DeviceFit, Inspection
from loadslice.spec.portrait import LatencyClass, Portrait

T = TypeVar("T")

Basis = Literal["measured", "modelled", "stated"]


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value and where it comes from."""

    value: T
    evidence: str
    basis: Basis


@dataclass(frozen=True, slots=True)
class NpuMatch:
    """One model on one NPU."""

    device: str
    supported_flops_share: float
    """0 to 1."""
    unsupported_nodes: int
    fits: Literal["onchip", "device", "no"] | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Evidence for one decision. Only the budget is always there."""

    budget: Budget
    parameters: Fact[float] | None = None
    rate_per_s: Fact[float] | None = None
    """Of the busiest minute."""
    rows: Fact[float] | None = None
    """Rows of a request, 99th percentile: what a batch holds without waiting for others."""
    offline_share: Fact[float] | None = None
    """Of requests that nobody waits for."""
    npu: Fact[NpuMatch] | None = None
    """The NPU that matches best."""
    utilisation: Fact[float] | None = None
    """Of the engine that serves today, 0 to 1, measured in the busiest hour."""
    gpu_box_w: Fact[float] | None = None
    """Of the smallest box with a GPU at full load."""
    cpu_box_w: Fact[float] | None = None
    models: int = 1

    @property
    def latency_limit_ms(self) -> float:
        """The tightest limit that is promised."""
        return min(self.budget.slo.latency_limits_ms.values())

    @property
    def experienced(self) -> bool:
        """Somebody here has run more than one kind of engine in production."""
        return self.budget.people.heterogeneous_experience


def gather(
    budget: Budget,
    *,
    portrait: Portrait | None = None,
    inspections: Sequence[Inspection] = (),
    npus: Sequence[str] = (),
    rate_per_s: float | None = None,
    rows: float | None = None,
    utilisation: float | None = None,
    box_w: Mapping[Kind, float] | None = None,
) -> Facts:
    """Facts from files.

    Args:
        budget: Always there.
        portrait: Rates, sizes, latency classes, sampled utilisation.
        inspections: One for each model.
        npus: Names of the NPUs among the devices they were inspected for.
        rate_per_s: Of the busiest bucket, where there is no portrait.
        rows: 99th percentile of a request's rows, where there is no portrait.
        utilisation: Of the engine that serves today, where a simulation or a profile says so.
        box_w: Kind (cpu, gpu) -> watts at full load of the smallest box that carries one.
    """
    watts: Mapping[Kind, float] = box_w or {}
    return Facts(
        budget=budget,
        parameters=_parameters(budget, inspections),
        rate_per_s=_rate(portrait, rate_per_s),
        rows=_rows(portrait, rows),
        offline_share=_offline(budget, portrait),
        npu=best_npu(inspections, npus),
        utilisation=_utilisation(portrait, utilisation),
        gpu_box_w=_box_w(watts.get("gpu"), "GPU"),
        cpu_box_w=_box_w(watts.get("cpu"), "processor"),
        models=max(1, len(inspections)),
    )


def _parameters(budget: Budget, inspections: Sequence[Inspection]) -> Fact[float] | None:
    known = [one.parameters for one in inspections if one.parameters is not None]
    if known and len(known) == len(inspections):
        return Fact(float(max(known)), f"{si(max(known))} parameters, counted in the model's file", "measured")
    stated = budget.model.parameters
    return None if stated is None else Fact(stated, f"{si(stated)} parameters, stated in the budget", "stated")


def _rate(portrait: Portrait | None, rate_per_s: float | None) -> Fact[float] | None:
    if portrait is not None and portrait.rate_per_s.peak_1m is not None:
        peak = portrait.rate_per_s.peak_1m
        return Fact(peak, f"{peak:.3g} requests/s in the busiest minute of the trace", "measured")
    if portrait is not None and portrait.rate_per_s.mean is not None and rate_per_s is None:
        mean = portrait.rate_per_s.mean
        return Fact(mean, f"{mean:.3g} requests/s on average; the trace is too short for a busiest minute", "measured")
    if rate_per_s is None:
        return None
    return Fact(rate_per_s, f"{rate_per_s:.3g} requests/s in the busiest part of the trace", "measured")


def _rows(portrait: Portrait | None, rows: float | None) -> Fact[float] | None:
    if portrait is not None and portrait.items is not None:
        return Fact(portrait.items.p99, f"99 of 100 requests bring at most {portrait.items.p99:g} rows", "measured")
    return None if rows is None else Fact(rows, f"99 of 100 requests bring at most {rows:g} rows", "measured")


def _offline(budget: Budget, portrait: Portrait | None) -> Fact[float] | None:
    latency = portrait.dimensions.latency if portrait is not None else None
    if latency is not None:
        offline: LatencyClass = "offline"
        share = latency.share.get(offline, 0.0)
        return Fact(share, f"{share:.0%} of the requests may take longer than 5 s ({latency.basis})", "measured")
    if budget.scenario == "offline":
        return Fact(1.0, "the budget's scenario is offline", "stated")
    return None


def best_npu(inspections: Sequence[Inspection], npus: Sequence[str]) -> Fact[NpuMatch] | None:
    """The NPU on which the worst of the models matches best; ``None``: nobody could say."""
    found: list[tuple[NpuMatch, str]] = []
    for device in npus:
        fits = [one.devices[device] for one in inspections if device in one.devices]
        known = [fit for fit in fits if fit.supported_flops_share is not None]
        if not known or len(known) < len(inspections):
            continue
        worst = min(known, key=lambda fit: fit.supported_flops_share or 0.0)
        found.append((_match(device, worst, known), worst.source or "no source"))
    if not found:
        return None
    match, source = max(found, key=lambda one: (one[0].supported_flops_share, one[0].fits == "onchip"))
    stays = {"onchip": "fits on chip", "device": "fits its memory but not its chip", "no": "does not fit"}
    fits_text = stays[match.fits] if match.fits is not None else "unknown whether it fits"
    text = f"{match.device} runs {match.supported_flops_share:.1%} of the work"
    text += f", {match.unsupported_nodes} nodes fall back" if match.unsupported_nodes else ""
    return Fact(match, f"{text}; the model {fits_text} ({source})", "modelled")


def _match(device: str, worst: DeviceFit, all_fits: Sequence[DeviceFit]) -> NpuMatch:
    order = ("no", "device", "onchip")
    sizes = [fit.fits for fit in all_fits]
    least = None if any(size is None for size in sizes) else min((size for size in sizes if size), key=order.index)
    unsupported = sum(len(fit.unsupported or []) for fit in all_fits)
    return NpuMatch(device, worst.supported_flops_share or 0.0, unsupported, least)


def _utilisation(portrait: Portrait | None, utilisation: float | None) -> Fact[float] | None:
    if utilisation is not None:
        return Fact(utilisation, f"{utilisation:.0%} busy in its busiest hour", "measured")
    sampled = portrait.utilisation if portrait is not None else None
    if sampled is None:
        return None
    keys = [key for key in sampled.series if key.startswith("gpu") and key.endswith("_pct") and "memory" not in key]
    keys = keys or [key for key in sampled.series if key.startswith("cpu") and key.endswith("_pct")]
    if not keys:
        return None
    busiest = max(sampled.series[key].p95 for key in keys) / 100.0
    return Fact(busiest, f"{', '.join(keys)}: 95 % of the samples at or below {busiest:.0%}", "measured")


def _box_w(value: float | None, what: str) -> Fact[float] | None:
    if value is None:
        return None
    return Fact(value, f"the smallest box with a {what} draws {value:.3g} W at full load", "modelled")


def si(value: float) -> str:
    """A count of parameters as people say it."""
    for factor, prefix in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if value >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.0f}"
