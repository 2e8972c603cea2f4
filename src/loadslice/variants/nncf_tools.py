"""NNCF's quantisers on OpenVINO models: the only module of this room that imports nncf and openvino.

Results are OpenVINO files (``.xml`` with a ``.bin`` beside it). NNCF can write ONNX, too; OpenVINO then computed wrong
answers from some of those files, so that way is not taken.
"""

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadslice.spec.errors import MissingExtraError

try:
    import nncf
    import openvino as ov
except ModuleNotFoundError as error:
    raise MissingExtraError("squeeze", f"quantising for OpenVINO ({error.name})") from error

from loadslice.variants.recorded import Feeds

VERSION: str = f"nncf {nncf.__version__}"
GROUP_SIZE = 128


def quantise(model: Path, feeds: Sequence[Feeds], out: Path, *, attention: bool, keep: Sequence[str] = ()) -> Path:
    """Static INT8.

    Args:
        model: A prepared ``.onnx`` file.
        feeds: The calibration set.
        out: The ``.xml`` file to write.
        attention: The model is a transformer; saying so took MiniLM's cosine from .53 to .9965.
        keep: Node names to leave as they are.
    """
    with _quiet():
        quantised = nncf.quantize(
            ov.Core().read_model(model),
            nncf.Dataset(feeds, dict),
            subset_size=len(feeds),
            model_type=nncf.ModelType.TRANSFORMER if attention else None,
            ignored_scope=nncf.IgnoredScope(names=list(keep)) if keep else None,
        )
        ov.save_model(quantised, out, compress_to_fp16=False)
    return out


def compress_weights(
    model: Path, out: Path, *, bits: int, group: int = GROUP_SIZE, symmetric: bool = True, ends_in_8_bits: bool = False
) -> Path:
    """Weights in 4 bits by groups, or in 8 bits by channel; activations stay as they are.

    Args:
        model: A prepared model.
        out: The ``.xml`` file to write.
        bits: 4 or 8.
        group: Weights that share a scale, of 4 bits.
        symmetric: About 0, of 4 bits; else every group has a zero point of its own.
        ends_in_8_bits: Tables of embeddings and the last layer get 8 bits, by channel.
    """
    core = ov.Core()
    with _quiet():
        if bits == 4:
            modes = nncf.CompressWeightsMode
            compressed = nncf.compress_weights(
                core.read_model(model),
                mode=modes.INT4_SYM if symmetric else modes.INT4_ASYM,
                group_size=group,
                ratio=1.0,
                all_layers=not ends_in_8_bits,
            )
        else:
            compressed = nncf.compress_weights(core.read_model(model), mode=nncf.CompressWeightsMode.INT8_SYM)
        ov.save_model(compressed, out, compress_to_fp16=False)
    return out


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """NNCF prints progress bars on standard output, which is ours."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
