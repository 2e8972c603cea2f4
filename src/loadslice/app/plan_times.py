"""Times and figures of devices that are not here, for what is offered.

Times are modelled; price, power and memory are the catalogue's where no file states them.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadslice.app.output import guests, say
from loadslice.graph import devices as catalogue
from loadslice.spec.device import Device, PeakPrecision, part_of, power_curve, purchase_price, rent_per_hour
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model, resolved
from loadslice.spec.latency import Entry, LatencyTable
from loadslice.spec.offers import Offer, Offers
from loadslice.spec.pipeline import Pipeline

ROWS = (1, 2, 4, 8)
"""Row counts that are modelled; a simulator joins them by straight lines."""


class To(NamedTuple):
    """An engine whose times are to be modelled."""

    engine: str
    """Its name in the latency table."""
    device: Device
    precision: PeakPrecision | None = None
    """That models would be converted to; ``None``: their own where the device has it."""


def on_devices(offers: Offers | None, timed: AbstractSet[str]) -> list[To]:
    """Offered engines on devices of the catalogue of which no times are known.

    Args:
        offers: Checked; ``None``: there are none.
        timed: Engines of the latency table.

    Raises:
        InputError: A device that the catalogue does not have.
    """
    found: dict[str, To] = {}
    for name, offer in ({} if offers is None else offers.engines).items():
        times = offer.times or name
        if offer.device is None or times in timed or times in found:
            continue
        device = catalogue.find(offer.device)
        if device.kind == "cpu" and offer.cores:
            device = part_of(device, max(1, round(offer.cores)))
        found[times] = To(times, device, offer.precision)
    return list(found.values())


def modelled_times(
    path: Path,
    pipeline: Pipeline,
    latency: LatencyTable | None,
    asked: Sequence[To],
    shapes: Mapping[str, list[int]],
) -> LatencyTable | None:
    """The table with modelled times; what was measured stays.

    Args:
        path: Of the pipeline file, whose folder models are found from.
        pipeline: Stages without a model file stay without times.
        latency: What is known so far.
        asked: Engines.
        shapes: Of inputs that model files leave open, rows first.

    Raises:
        InputError: A model that cannot be modelled there, and which figure or shape is missing.
    """
    if not asked:
        return latency
    from loadslice.profiles import modelled

    return modelled.with_modelled(latency, list(_entries(path, pipeline, asked, shapes)))


def _entries(path: Path, pipeline: Pipeline, asked: Sequence[To], shapes: Mapping[str, list[int]]) -> Iterator[Entry]:
    from loadslice.app.modelled import _Ask, _fixed_rows, _of_stage
    from loadslice.profiles import calibration

    known = calibration.shipped()
    walked: dict[str, dict[str, list[int]]] | None = None
    for one in asked:
        for stage in pipeline.stages:
            if stage.model is None:
                continue
            model = resolve_model(stage.model, resolved(path).parent)
            given = dict(shapes)
            if not stage.buckets and _is_open(model, given) and pipeline.inputs is not None:
                walked = _walked(path, pipeline) if walked is None else walked
                given = walked.get(stage.name, {}) | given
            fixed = _fixed_rows(model)
            ask = _Ask(known, given, ROWS if fixed is None else (fixed,), None, one.precision)
            try:
                yield from _of_stage(path, stage, one.engine, one.device, ask)
            except InputError as error:
                raise InputError(f"engine '{one.engine}' has no times, and none can be modelled: {error}") from error


def _is_open(model: Path, given: Mapping[str, list[int]]) -> bool:
    """An input's sides beyond the rows are not known."""
    from loadslice.graph.inputs import declared_shape
    from loadslice.graph.load import load
    from loadslice.graph.shapes import model_inputs

    declared = {info.name: declared_shape(info) or [] for info in model_inputs(load(model).graph)}
    return any(
        name not in given and not all(isinstance(side, int) for side in sides[1:]) for name, sides in declared.items()
    )


def _walked(path: Path, pipeline: Pipeline) -> dict[str, dict[str, list[int]]]:
    """Stage -> input of its model -> shape of one row, as the pipeline's first example input meets them."""
    from loadslice.app.study_models import _walked_shapes
    from loadslice.evaluate import payloads

    assert pipeline.inputs is not None
    say("finding the shapes that models meet: one example input goes through the pipeline")
    with guests():
        samples = payloads.from_function(pipeline.inputs, path.parent).samples
        found = _walked_shapes(pipeline, path.parent, next(iter(samples.values())))
    return {stage: {name: [1, *sides] for name, sides in tensors.items()} for stage, tensors in found.items()}


def figures(device: Device, currency: str, box: str) -> Offer:
    """A device's price, power and memory as an offer's, one card of the box."""
    curve = power_curve(device)
    bought = purchase_price(device, currency) if currency else None
    rented = rent_per_hour(device, currency) if currency and bought is None else None
    price = bought or rented
    return Offer(
        kind=device.kind,
        box=box,
        cards=1,
        device=device.name,
        price_purchase=None if bought is None else bought.value,
        price_per_hour=None if rented is None else rented.value,
        idle_w=None if curve is None else curve.idle_w,
        active_w=None if curve is None else curve.active_w,
        memory_bytes=None if device.memory_bytes is None else device.memory_bytes.value,
        source=None if price is None else price.source,
    )


def catalogued(offers: Offers, currency: str, warnings: list[str]) -> Offers:
    """Offers with the catalogue's power, memory and price of their device where no file states one.

    A price is taken for cards in machines that are bought; a rented machine's card may or may not be in its rent.
    """
    known = catalogue.catalogue()
    engines = {}
    for name, offer in offers.engines.items():
        device = known.get(offer.device or "")
        if device is None:
            engines[name] = offer
            if offer.device is not None and not offer.device.endswith((".yaml", ".yml")):
                warnings.append(
                    f"'{name}': the catalogue has no device '{offer.device}'; only what the files state is known of it."
                )
            continue
        if device.kind == "cpu" and device.cores is not None and 0 < offer.cores <= device.cores.value:
            device = part_of(device, max(1, round(offer.cores)))
        engines[name] = _filled(offer, figures(device, currency, offer.box), offers)
    return msgspec.structs.replace(offers, engines=engines)


def _filled(offer: Offer, known: Offer, offers: Offers) -> Offer:
    changes: dict[str, float | str | None] = {}
    if offer.memory_bytes is None:
        changes["memory_bytes"] = known.memory_bytes
    if offer.idle_w is None and offer.active_w is None:
        changes |= {"idle_w": known.idle_w, "active_w": known.active_w}
    unpriced = offer.price_purchase is None and offer.price_per_hour is None
    if unpriced and offers.boxes[offer.box].price_per_hour is None:
        changes |= {"price_purchase": known.price_purchase, "price_per_hour": known.price_per_hour}
        if known.source is not None:
            changes["source"] = f"the device catalogue: {known.source}"
    return msgspec.structs.replace(offer, **changes)
