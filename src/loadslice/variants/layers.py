"""Which layers lose the most to INT8, and what keeping them in high precision gives back.

A cheap proxy orders the layers: what quantising a layer's input and weight does to these two tensors. The first of
that order are then tried for real: only this layer is quantised, and the model's output is compared. The error that
has built up at a layer's output says nothing (rank correlation with the truth between -.4 and .3 where the proxy had
.3 to .8).

The proxy does not know how much of a layer's error reaches the output. On MiniLM it puts one of six like layers 19th of
36 that is in truth the third worst; without it 16 kept layers gave back three quarters of the loss, with it six do. So
layers of the same operator and weight shape as the worst that were found are tried, too, wherever the proxy has them.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from loadslice.backends.base import Session
from loadslice.spec.variant import LayerSensitivity
from loadslice.variants import ort_tools
from loadslice.variants.metrics import SQNR_DB_EQUAL, Outputs, sqnr_db
from loadslice.variants.prepare import Prepared, before_saturation
from loadslice.variants.recorded import Feeds

Open = Callable[[Path], Session]
"""Loads an artefact of ONNX Runtime."""

TRIED_MIN, TRIED_SHARE, TRIED_MAX = 12, 0.5, 48
"""Layers tried one by one: such a share of the proxy's order, at least and at most so many. A decoder has hundreds, and
each try builds and runs the model anew."""

WORST = 4
"""Of the layers tried, those whose like are tried after them."""

PROXY_INPUTS = 4


def rank(
    prepared: Prepared, quantised: Path, ranges: Any, feeds: Sequence[Feeds], open_session: Open
) -> list[LayerSensitivity]:
    """Layers, the most sensitive first; those not tried one by one come after, by the proxy.

    Args:
        prepared: The model.
        quantised: The same in plain INT8.
        ranges: From `loadslice.variants.ort_tools.calibrate`.
        feeds: Inputs to judge by; a handful is enough.
        open_session: Loads an ONNX file in ONNX Runtime.
    """
    proxy = _proxies(prepared, quantised, feeds[:PROXY_INPUTS])
    ordered = sorted(prepared.heavy, key=lambda name: proxy.get(name, SQNR_DB_EQUAL))
    tried = ordered[: min(TRIED_MAX, max(TRIED_MIN, round(TRIED_SHARE * len(ordered))))]
    alone = _one_only(prepared, tried, ranges, feeds, open_session)
    like = _alike(prepared, sorted(alone, key=lambda name: alone[name])[:WORST])
    left = [name for name in ordered if name in like and name not in alone]
    alone |= _one_only(prepared, left[:TRIED_MAX], ranges, feeds, open_session)
    found = [
        LayerSensitivity(
            layer=name,
            kind=prepared.kinds[name],
            proxy_db=_unless_equal(proxy.get(name)),
            alone_db=_unless_equal(alone.get(name)),
        )
        for name in ordered
    ]
    return sorted(found, key=lambda one: SQNR_DB_EQUAL if one.alone_db is None else one.alone_db)


def rungs(layers: int) -> list[int]:
    """How many of the worst layers to keep: few first, half at most."""
    return [count for count in (1, 2, 4, 6, 8, 12, 16, 24, 32) if count <= max(1, layers // 2)]


def recovered_share(plain: float, kept: float, whole: float) -> float | None:
    """Share of the metric lost by plain INT8 that keeping layers gives back; ``None``: nothing was lost."""
    lost = whole - plain
    return (kept - plain) / lost if lost > 1e-6 else None


def _proxies(prepared: Prepared, quantised: Path, feeds: Sequence[Feeds]) -> dict[str, float]:
    errors = ort_tools.local_errors_db(prepared.path, quantised, feeds)
    wanted = set(prepared.heavy)
    found = {}
    for node in onnx.load(prepared.path, load_external_data=False).graph.node:
        if node.name in wanted:
            values = [errors[name] for name in node.input[:2] if name in errors]
            if values:
                found[node.name] = min(values)
    return found


def _alike(prepared: Prepared, worst: Sequence[str]) -> list[str]:
    """Heavy layers of the operator and weight shape of one of ``worst``."""
    graph = onnx.load(prepared.path, load_external_data=False).graph
    dims = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    family = {
        node.name: (node.op_type, next((dims[name] for name in node.input[:2] if name in dims), ()))
        for node in graph.node
        if node.name in prepared.kinds
    }
    wanted = {family[name] for name in worst}
    return [name for name in prepared.heavy if family[name] in wanted]


def _one_only(
    prepared: Prepared, names: Sequence[str], ranges: Any, feeds: Sequence[Feeds], open_session: Open
) -> dict[str, float]:
    """Median signal to noise of the output, dB, when only one layer is quantised."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        model = before_saturation(prepared.path, Path(folder) / "logits.onnx")
        whole = _outputs(open_session(model), feeds)
        for name in names:
            path = ort_tools.quantise(model, ranges, Path(folder) / "one.onnx", only=[name])
            given = _outputs(open_session(path), feeds)
            found[name] = float(np.median([sqnr_db(left, right) for left, right in zip(whole, given, strict=True)]))
    return found


def _outputs(session: Session, feeds: Sequence[Feeds]) -> list[Outputs]:
    try:
        return [session.run(one) for one in feeds]
    finally:
        session.close()


def _unless_equal(value: float | None) -> float | None:
    return None if value is None or value >= SQNR_DB_EQUAL else value
