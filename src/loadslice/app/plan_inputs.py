"""What `loadslice plan` is given, read and put together: offers, latency table, pipeline, traffic."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl

from loadslice.app.output import guests, say
from loadslice.app.plan_model import LOCAL, Models, single, together
from loadslice.app.plan_model import asked as asked_of
from loadslice.app.plan_times import To, catalogued, figures, modelled_times, on_devices
from loadslice.backends.probe import usable_cores
from loadslice.graph import devices as catalogue
from loadslice.spec import budget as budgets
from loadslice.spec import latency as latency_file
from loadslice.spec import offers as offers_file
from loadslice.spec import pipeline as pipeline_file
from loadslice.spec import prices as price_file
from loadslice.spec.budget import Budget
from loadslice.spec.currency import check_prices, same_currency
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError
from loadslice.spec.latency import LatencyTable
from loadslice.spec.offers import Box, Offer, Offers
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.prices import Prices

MACHINE, HOST = "machine", "host-of-cards"
HOST_CORES, HOST_CARDS = 16, 4
"""Of a machine that carries offered cards where no offers file states one; said in a warning."""
PROFILE_SECONDS = 20.0


class Given(NamedTuple):
    """Everything that the command line names."""

    trace: Path
    pipeline: Path | None
    models: Models
    budget: Path
    profile: Path | None
    offers: Path | None
    prices: Path | None
    devices: Sequence[str]
    shapes: Mapping[str, list[int]] = {}
    """Of model inputs whose files leave them open, rows first."""


class Read(NamedTuple):
    """The same, read and put together."""

    folder: Path
    """Of the pipeline file, or of the first model."""
    pipeline: Pipeline
    budget: Budget
    latency: LatencyTable
    offers: Offers
    prices: Prices | None
    frame: pl.DataFrame
    warnings: list[str]


def read(given: Given) -> Read:
    """Read everything and put it together.

    Raises:
        InputError: The first file that is wrong, currencies that differ, or devices the budget does not allow.
    """
    from loadslice.app.inputs import with_inputs
    from loadslice.workload import importing

    budget = budgets.load(given.budget)
    prices = price_file.load(given.prices) if given.prices is not None else None
    stated = offers_file.load(given.offers) if given.offers is not None else None
    if stated is not None:
        _check_currency(stated, budget, given)
    added = [_device(name, budget) for name in given.devices]
    warnings: list[str] = []
    frame = importing.load(given.trace).frame
    path, pipeline, latency = _times(given, added, stated)
    if given.models.together:
        pipeline, latency = together(given.models, latency)
        frame = asked_of(frame, given.models, warnings)
    offers = stated if stated is not None else _own(pipeline, latency, warnings)
    for device in added:
        offers = _with_device(offers, device, budget, warnings)
    offers = _precise(_allowed(offers, budget, warnings), pipeline, warnings)
    if prices is not None:
        offers = price_file.apply(prices, offers, budget.money.currency, str(given.prices))
    offers = catalogued(offers, budget.money.currency, warnings)
    with guests():
        frame = with_inputs(frame, pipeline, path.parent)
    return Read(path.parent, pipeline, budget, latency, offers, prices, frame, warnings)


def _times(given: Given, added: Sequence[Device], stated: Offers | None) -> tuple[Path, Pipeline, LatencyTable]:
    """A pipeline and the times of its stages: of a table, else measured here, else modelled."""
    latency = latency_file.load(given.profile) if given.profile is not None else None
    if given.pipeline is not None:
        path, pipelines = given.pipeline, [pipeline_file.load(given.pipeline)]
        if latency is None:
            latency = _measured(path, pipelines[0])
    else:
        path = next(iter(given.models.paths.values())).parent / "pipeline.yaml"
        pipelines = [single(name, model) for name, model in given.models.paths.items()]
    asked = [To(device.name, device) for device in added]
    if latency is None:
        asked.append(To(LOCAL, _local()))
    timed = set() if latency is None else {entry.engine for entry in latency.entries}
    asked += on_devices(stated, timed)
    for pipeline in pipelines:
        latency = modelled_times(path, pipeline, latency, asked, given.shapes)
    assert latency is not None
    return path, pipelines[0], latency


def _local() -> Device:
    """This machine's processor as a device, named as the pipeline's engine is."""
    from loadslice.profiles import product_peak

    say("measuring this machine's peak and bandwidth (a few seconds); the model's times on it are modelled from them")
    return msgspec.structs.replace(product_peak.local_device(), name=LOCAL)


def _measured(path: Path, pipeline: Pipeline) -> LatencyTable:
    """Times of the engines that are here, taken now."""
    from loadslice.app import twins
    from loadslice.evaluate import payloads
    from loadslice.profiles.measure import measure

    if pipeline.inputs is None:
        raise InputError(
            f"{path}: no times are known and none can be taken, for the pipeline names no example `inputs`. "
            "Give a latency table with --profile."
        )
    say(f"measuring {path} on this machine ({PROFILE_SECONDS:.0f} s); give --profile to use a table that is there")
    with guests():
        samples = payloads.from_function(pipeline.inputs, path.parent).samples
    ready = twins.resolved(pipeline, path.parent, keeps_time=False)
    return measure(ready, path.parent, list(samples.values()), seconds=PROFILE_SECONDS, source=path, tell=say)


def _own(pipeline: Pipeline, latency: LatencyTable, warnings: list[str]) -> Offers:
    """The pipeline's own engines, in machines that carry as many of them as the profiled one does."""
    cores = usable_cores()
    if latency.stamp is not None:
        cores = int(latency.stamp.machine.get("cpus", cores))
    here = {name: engine for name, engine in pipeline.engines.items() if _is_here(name, pipeline)}
    asked = sum(engine.threads * engine.max_inflight for engine in here.values())
    # Where the user's own engines share cores, machines that are added are shared as much.
    part = min(1.0, cores / asked) if asked else 1.0
    engines: dict[str, Offer] = {}
    for name, engine in pipeline.engines.items():
        slots = engine.max_inflight
        if name in here:
            # One slot each, so that the search may take as many as are needed.
            engines[name] = Offer(
                kind="cpu",
                box=MACHINE,
                cores=engine.threads * part,
                slots=1,
                price_purchase=None if engine.cost_per_hour else 0.0,
                idle_w=engine.idle_w,
                active_w=engine.active_w,
                price_per_hour=engine.cost_per_hour or None,
            )
            continue
        device = catalogue.find(engine.device) if engine.device is not None else None
        priced = None if device is None else figures(device, "", HOST)
        engines[name] = Offer(
            kind="npu" if device is None else device.kind,
            box=MACHINE,
            cards=1,
            slots=slots,
            device=engine.device,
            price_per_hour=engine.cost_per_hour or None,
            idle_w=engine.idle_w if engine.idle_w is not None or priced is None else priced.idle_w,
            active_w=engine.active_w if engine.active_w is not None or priced is None else priced.active_w,
        )
    cards = HOST_CARDS if len(here) < len(pipeline.engines) else 0
    if cards:
        warnings.append(f"no offers file: a machine is taken to have {cards} places for cards; state it with --offers.")
    boxes = {
        MACHINE: Box(
            cores=cores, cards=cards, idle_w=None, profiled=True, source="the machine the profile was taken on"
        )
    }
    return Offers(version=1, boxes=boxes, engines=engines)


def _is_here(name: str, pipeline: Pipeline) -> bool:
    """Runs on the machine's own processor."""
    engine = pipeline.engines[name]
    on_processor = engine.device is None or engine.device.upper().startswith("CPU")
    return engine.backend != "twin" and on_processor


def _check_currency(offers: Offers, budget: Budget, given: Given) -> None:
    """Refuse prices of another currency than the budget's, and those that only fit another unit."""
    own = budget.money.currency
    place = str(given.offers)
    for kind, parts in (("boxes", offers.boxes), ("engines", offers.engines)):
        for name, part in parts.items():
            code = part.currency or offers.currency or own
            same_currency(place, {str(given.budget): own, f"{kind}.{name}": code})
            at = f"{place}: {kind}.{name}"
            check_prices(part.price_purchase, part.price_per_hour, code, f"{at}.price_purchase", f"{at}.price_per_hour")


def _device(name: str, budget: Budget) -> Device:
    device = catalogue.find(name)
    if budget.devices is not None and device.name not in budget.devices:
        raise InputError(
            f"--device {name}: the budget allows {', '.join(budget.devices) or 'none'} only. Add it to `devices`."
        )
    return device


def _with_device(offers: Offers, device: Device, budget: Budget, warnings: list[str]) -> Offers:
    """A device of the catalogue offered as a card."""
    currency = budget.money.currency
    offer = figures(device, currency, HOST)
    if offer.price_purchase is None and offer.price_per_hour is None:
        others = sorted({price.currency for price in [*device.purchase_price, *device.rent_per_hour]})
        known = f"known in {', '.join(others)} only" if others else "nobody states one"
        warnings.append(f"{device.name}: no price in {currency} ({known}); state it with --offers or --prices.")
    boxes = dict(offers.boxes)
    host = next((name for name, box in boxes.items() if box.cards > 0), None)
    if host is None:
        host = HOST
        boxes[HOST] = Box(cores=HOST_CORES, cards=HOST_CARDS)
        warnings.append(
            f"{device.name}: stands in machines of {HOST_CORES} cores and {HOST_CARDS} places for cards, which is "
            "assumed; state your own with --offers."
        )
    engines = {**offers.engines, device.name: msgspec.structs.replace(offer, box=host)}
    return offers_file.check(msgspec.structs.replace(offers, boxes=boxes, engines=engines), "--device")


def _allowed(offers: Offers, budget: Budget, warnings: list[str]) -> Offers:
    """Offers whose device the budget allows."""
    if budget.devices is None:
        return offers
    kept = {
        name: offer for name, offer in offers.engines.items() if offer.device is None or offer.device in budget.devices
    }
    warnings += [
        f"'{name}': its device '{offer.device}' is not among the budget's `devices`."
        for name, offer in offers.engines.items()
        if name not in kept
    ]
    if not kept:
        raise InputError("every offered engine has a device that the budget's `devices` do not allow. Add one there.")
    return msgspec.structs.replace(offers, engines=kept)


def _precise(offers: Offers, pipeline: Pipeline, warnings: list[str]) -> Offers:
    """Offers whose device computes at the precision they are to run at; the others are named and left out."""
    known = catalogue.catalogue()
    kept: dict[str, Offer] = {}
    for name, offer in offers.engines.items():
        engine = pipeline.engines.get(offer.times or name)
        wanted = offer.precision or (engine.precision if engine is not None and offer.device is not None else None)
        device = known.get(offer.device or "")
        if device is None or wanted is None or not device.peak_ops_per_s or _computes(device, wanted):
            kept[name] = offer
            continue
        warnings.append(
            f"'{name}' is left out: {device.name} states no {wanted} rate ({', '.join(device.peak_ops_per_s)}). "
            "Give it a variant of a precision it has, or a device file that states one."
        )
    if not kept:
        raise InputError(f"no offered engine computes at its precision: {' '.join(warnings)}")
    return msgspec.structs.replace(offers, engines=kept)


def _computes(device: Device, precision: str) -> bool:
    return precision in device.peak_ops_per_s or (precision in ("bf16", "fp16") and "fp16" in device.peak_ops_per_s)


def shown(value: float | None, unit: str = "") -> str:
    """A figure, or that it is unknown."""
    if value is None or math.isnan(value):
        return "unknown"
    return f"{value:,.0f}{unit}" if 1e4 <= abs(value) < 1e12 else f"{value:,.4g}{unit}"
