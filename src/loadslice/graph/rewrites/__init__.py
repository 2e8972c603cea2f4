"""Rewrites that buy coverage: each an object with requires, call and ensures, proved against ONNX Runtime.

One file per rewrite. `requires` says in words why a model is not one for it; `call` returns a new model; `ensures` is
what must hold afterwards. `proof.prove` runs the model before and after on the same random inputs.
"""

import re
from collections.abc import Mapping
from typing import Protocol

import onnx

from loadslice.graph.rewrites.edit import Rewritten
from loadslice.graph.rewrites.gelu import FuseGelu
from loadslice.graph.rewrites.hard_sigmoid import HardSigmoidToClip
from loadslice.graph.rewrites.layer_norm import FuseLayerNorm, SplitLayerNorm
from loadslice.graph.rewrites.opset import LiftOpset
from loadslice.graph.rewrites.shapes import FoldConstants, StaticShapes
from loadslice.spec.errors import InputError

LIFT = re.compile(r"lift-opset-(\d{1,3})$")
LIFT_DEFAULT = 17
"""Old enough for every toolchain here, new enough for LayerNormalization."""


class Rewrite(Protocol):
    """One rewrite."""

    @property
    def name(self) -> str:
        """As `loadslice rewrite --pass` takes it."""

    @property
    def title(self) -> str:
        """What it does, for a person."""

    def requires(self, model: onnx.ModelProto) -> str | None:
        """Why a model is not one for this rewrite; ``None`` when it is."""

    def call(self, model: onnx.ModelProto) -> Rewritten:
        """A rewritten copy and how many nodes changed.

        Raises:
            InputError: The model passes `requires` and still cannot be rewritten.
        """

    def ensures(self, after: onnx.ModelProto) -> None:
        """Assert what holds afterwards."""


def available(shapes: Mapping[str, list[int]]) -> list[Rewrite]:
    """Every rewrite, at the given input shapes, in the order that helps."""
    return [
        StaticShapes(shapes),
        FoldConstants(),
        LiftOpset(LIFT_DEFAULT),
        HardSigmoidToClip(),
        FuseLayerNorm(),
        SplitLayerNorm(),
        FuseGelu(),
    ]


def find(name: str, shapes: Mapping[str, list[int]]) -> Rewrite:
    """A rewrite by name; ``lift-opset-N`` for any N.

    Raises:
        InputError: No such rewrite.
    """
    lift = LIFT.match(name)
    if lift is not None:
        return LiftOpset(int(lift[1]))
    rewrites = {rewrite.name: rewrite for rewrite in available(shapes)}
    if name not in rewrites:
        raise InputError(f"--pass '{name[:60]}': no such rewrite; there are {', '.join(rewrites)} (any number).")
    return rewrites[name]


def apply(rewrite: Rewrite, model: onnx.ModelProto) -> Rewritten:
    """Run one rewrite with its promises checked.

    Raises:
        InputError: The model is not one for it.
    """
    reason = rewrite.requires(model)
    if reason is not None:
        raise InputError(f"--pass {rewrite.name}: {reason}.")
    result = rewrite.call(model)
    rewrite.ensures(result.model)
    return result
