"""Weights in 4 bits: what a decoder at batch 1 is as fast as, for a token costs what reading the weights costs."""

from loadslice.spec.variant import Scheme
from loadslice.variants import nncf_tools, ort_tools
from loadslice.variants.bench import Artefact, Workbench

INT4_WAYS = ((128, True, False), (32, True, False), (32, False, False), (32, False, True))
"""Weights that share a scale, whether about 0, and whether the last layer gets 8 bits: the fewest bytes first. The last
layer of a decoder is a quarter of a small one's weights, and nothing after it evens out its errors."""

PRODUCT_SHARE_MIN = 0.5
"""Convolutions have no 4-bit kernels on processors: a model whose weights are theirs stays as it is."""


def build(bench: Workbench) -> list[Artefact]:
    """Weights of matrix products in blocks; a model without such has no INT4 variant."""
    share = bench.prepared.product_share
    if share < PRODUCT_SHARE_MIN:
        bench.notes.append(f"cpu-int4: matrix products hold {share:.0%} of the weights; nothing to gain from 4 bits.")
        return []
    found = [_blocks(bench, *way) for way in INT4_WAYS] + [_groups(bench, *way) for way in INT4_WAYS]
    return [one for one in found if one is not None]


def _blocks(bench: Workbench, group: int, symmetric: bool, ends_in_8_bits: bool) -> Artefact | None:
    """ONNX Runtime's; of the ends only the last product is its own, for tables that are looked up stay as they are."""
    last = bench.prepared.heavy[-1:] if ends_in_8_bits else []
    return bench.attempt(
        f"int4-blocks{_named(group, symmetric, ends_in_8_bits)}", "cpu-int4",
        _scheme(ort_tools.VERSION, group, symmetric),
        lambda out: ort_tools.quantise_blocks(
            bench.prepared.path, out, bits=4, block=group, symmetric=symmetric, in_8_bits=last),
    )  # fmt: skip


def _groups(bench: Workbench, group: int, symmetric: bool, ends_in_8_bits: bool) -> Artefact | None:
    """NNCF's."""
    return bench.attempt(
        f"int4-groups{_named(group, symmetric, ends_in_8_bits)}", "cpu-int4",
        _scheme(nncf_tools.VERSION, group, symmetric),
        lambda out: nncf_tools.compress_weights(
            bench.prepared.path, out, bits=4, group=group, symmetric=symmetric, ends_in_8_bits=ends_in_8_bits), ".xml",
    )  # fmt: skip


def _scheme(tool: str, group: int, symmetric: bool) -> Scheme:
    return Scheme(
        weight_bits=4, activation_bits=32, tool=tool, symmetric=symmetric, group_size=group, operators=["MatMul"]
    )


def _named(group: int, symmetric: bool, ends_in_8_bits: bool) -> str:
    return f"{group}{'' if symmetric else '-zeros'}{'-last8' if ends_in_8_bits else ''}"
