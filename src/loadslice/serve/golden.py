"""Golden answers: what a version said to a few inputs when it was added, and whether it still says so.

Every engine of every stage has its part: the inputs go through the pipeline once over each stage's first engine, once
over each one's second, and so on. What differs by more than the tolerance of its version keeps that from serving.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from loadslice.backends.base import EngineError
from loadslice.policy.columns import STABLE
from loadslice.serve.patience import Step, unwatched
from loadslice.serve.request import Batch
from loadslice.serve.runners import opened
from loadslice.serve.stages import LoadedStage
from loadslice.spec.arrays import read_npz
from loadslice.spec.errors import InputError
from loadslice.spec.files import read_bytes
from loadslice.spec.work import Sample, StageError, Tensor, Work

SAMPLES_MAX = 16
DRAWN = 4
"""Inputs that are drawn where a pipeline names none."""
GOLDEN_BYTES_MAX = 64 << 20
TOLERANCE = 1e-3
"""Relative L2 distance of an output from the recorded one: other processors and thread counts round otherwise, by some
1e-6 in fp32 and 1e-4 in fp16; a scale that is off by 2 % shows as up to 2e-2."""

_HEAD = "head.json"


class _Head(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the arrays belong to."""

    tolerance: float
    samples: list[tuple[str, str]]
    """Name and content type; an empty one: tensors."""
    routes: int
    """Times that each sample goes through the pipeline."""


def relative_distance(given: Tensor, kept: Tensor) -> float:
    """How far an output is from another, relative to that one's size: ``|given - kept| / |kept|`` in L2.

    Returns:
        0 for equal ones; inf where shapes, types or texts differ, or only one of two values is finite.
    """
    if given.shape != kept.shape:
        return math.inf
    if given.dtype.kind not in "fc" or kept.dtype.kind not in "fc":
        return 0.0 if bool(np.all(given == kept)) else math.inf
    a, b = given.astype(np.float64), kept.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if bool(same.all()):
        return 0.0
    finite = np.isfinite(a) & np.isfinite(b)
    if not bool((finite | same).all()):
        return math.inf
    gap = float(np.linalg.norm(np.where(finite, a - b, 0.0)))
    size = float(np.linalg.norm(np.where(finite, b, 0.0)))
    return gap / size if size > 0 else math.inf


def distance(given: dict[str, Tensor], kept: dict[str, Tensor]) -> float:
    """The largest `relative_distance` of the outputs of two answers."""
    if set(given) != set(kept):
        return math.inf
    return max((relative_distance(_plain(given[name]), _plain(kept[name])) for name in kept), default=0.0)


def record(
    stages: Sequence[LoadedStage], samples: Sequence[Sample], tolerance: float = TOLERANCE, step: Step = unwatched
) -> bytes:
    """Golden answers of a pipeline that is loaded.

    Args:
        stages: Loaded.
        samples: At most `SAMPLES_MAX` are taken.
        tolerance: `relative_distance` that will be allowed.
        step: Told of each sample before it is asked.

    Returns:
        The contents of ``golden.npz``.

    Raises:
        InputError: It cannot answer its own samples, gives no numbers or texts, or gives too much.
    """
    taken = [sample for sample in samples if stages[0].stage.python is not None or sample.tensors is not None]
    taken = taken[:SAMPLES_MAX]
    if not taken:
        raise InputError("there is no input to record answers to; give the pipeline `inputs: module:function`.")
    arrays: dict[str, Tensor] = {}
    routes = _routes(stages)
    for number, sample in enumerate(taken):
        if sample.tensors is None:
            arrays[f"{number}/body"] = np.frombuffer(sample.body, np.uint8)
        else:
            arrays |= {f"{number}/in/{name}": _plain(tensor) for name, tensor in sample.tensors.items()}
        for route in range(routes):
            step(f"golden input '{sample.name}'")
            outputs = answer(stages, sample.work(), route, sample.name)
            arrays |= {f"{number}/out/{route}/{name}": _plain(tensor) for name, tensor in outputs.items()}
    head = _Head(
        tolerance=tolerance,
        samples=[(sample.name, "" if sample.tensors is not None else sample.content_type) for sample in taken],
        routes=routes,
    )
    arrays[_HEAD] = np.frombuffer(msgspec.json.encode(head), np.uint8)
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **{key.replace("/", "|"): array for key, array in arrays.items()})
    if stream.tell() > GOLDEN_BYTES_MAX:
        raise InputError(f"the golden answers take {stream.tell()} bytes, over {GOLDEN_BYTES_MAX}; give fewer inputs.")
    return stream.getvalue()


class Golden:
    """Golden answers read back.

    Args:
        path: ``golden.npz``.

    Raises:
        InputError: It is not what `record` writes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        raw = read_bytes(path, max_bytes=GOLDEN_BYTES_MAX)
        try:
            arrays = read_npz(raw, unpacked_bytes_max=4 * GOLDEN_BYTES_MAX)
            self._arrays = {key.replace("|", "/"): array for key, array in arrays.items()}
            self._head = msgspec.json.decode(self._arrays.pop(_HEAD).tobytes(), type=_Head)
        except (ValueError, KeyError, OSError, RecursionError, msgspec.MsgspecError) as error:
            raise InputError(f"{path}: not golden answers. Add the version again.") from error

    def samples(self) -> list[Sample]:
        """The inputs, as `record` was given them."""
        return [
            Sample(name, content_type, self._bytes(number), tensors=None if content_type else self._inputs(number))
            for number, (name, content_type) in enumerate(self._head.samples)
        ]

    def probation(self, stages: list[LoadedStage], step: Step = unwatched, version: int = STABLE) -> None:
        """Ask a pipeline that is loaded and compare.

        Args:
            stages: Loaded.
            step: Told of each input before it is asked.
            version: Which of its versions is asked, where two are loaded.

        Raises:
            InputError: It fails, or answers something else; names the sample and the distance.
        """
        if self._head.routes != _routes(stages):
            raise InputError(f"{self._path}: recorded over {self._head.routes} routes, there are {_routes(stages)}.")
        for number, sample in enumerate(self.samples()):
            for route in range(self._head.routes):
                step(f"golden input '{sample.name}'")
                given = answer(stages, sample.work(), route, sample.name, version)
                prefix = f"{number}/out/{route}/"
                kept = {
                    key.removeprefix(prefix): array for key, array in self._arrays.items() if key.startswith(prefix)
                }
                gap = distance(given, kept)
                if not gap <= self._head.tolerance:
                    engines = ", ".join(dict.fromkeys(_engine_name(one, route) for one in stages))
                    raise InputError(
                        f"{self._path}: '{sample.name}' on {engines} is answered otherwise than when the version was "
                        f"added: {gap:.3g} from it, {self._head.tolerance:g} are allowed."
                    )

    def _bytes(self, number: int) -> bytes:
        body = self._arrays.get(f"{number}/body")
        return b"" if body is None else body.tobytes()

    def _inputs(self, number: int) -> dict[str, Tensor]:
        prefix = f"{number}/in/"
        return {
            key.removeprefix(prefix): _as_object(array) for key, array in self._arrays.items() if key.startswith(prefix)
        }


def answer(
    stages: Sequence[LoadedStage], work: Work, route: int, name: str, version: int = STABLE
) -> dict[str, Tensor]:
    """Take one input through a pipeline over the engines of a route, each stage in its own version.

    Raises:
        InputError: A stage or an engine fails on it.
    """
    for index, loaded in enumerate(stages):
        runners = loaded.at(version).runners
        engine = list(runners)[min(route, len(runners) - 1)]
        runner = runners[engine]
        try:
            batch = Batch(-1, -1, engine, index, version, loaded.bucket_of(work, version), 0, 0, [], [], [work])
            with opened(runner):
                runner.run(batch, 0)
            if isinstance(batch.results[0], StageError):
                raise batch.results[0]
        except (StageError, EngineError) as error:
            raise InputError(f"stage '{loaded.stage.name}' fails on the golden input '{name}': {error}") from error
        work = batch.results[0]
    return work.tensors


def _routes(stages: Sequence[LoadedStage]) -> int:
    return max(len(loaded.stable.runners) for loaded in stages)


def _engine_name(loaded: LoadedStage, route: int) -> str:
    names = loaded.stage.engine_names
    return names[min(route, len(names) - 1)]


def _plain(tensor: Tensor) -> Tensor:
    """Texts as a file without pickle holds them."""
    if tensor.dtype.kind != "O":
        return tensor
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in tensor.reshape(-1)]
    return np.array(texts, np.str_).reshape(tensor.shape)


def _as_object(tensor: Tensor) -> Tensor:
    return tensor.astype(object) if tensor.dtype.kind == "U" else tensor
