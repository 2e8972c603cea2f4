"""Recorded inputs: what a variant is calibrated on and, on others of them, judged by.

A folder of ``.npz`` files, one request each, an array per model input; beside them ``labels.json`` may say what the
right answer is (file name without suffix -> any JSON value). Whatever is wrong with an input names the file and the
tensor: a calibration set with a NaN in it makes a model whose every answer is wrong, without a word from any
quantiser.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from loadslice.backends.base import TensorInfo, check_feeds
from loadslice.spec.arrays import read_npz
from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_json, reason
from loadslice.spec.work import StageInputError, Tensor

Feeds = Mapping[str, Tensor]

LABELS = "labels.json"

CALIBRATION_MAX = 32
"""More samples did not help any model measured and only widen MinMax ranges."""

JUDGED_MAX, CHOICE_MAX = 400, 200
APART_MIN = 8
"""Fewer inputs are not divided in three: a set of one says nothing."""

SHARE_OF_MEMORY = 0.25


@dataclass(frozen=True)
class Recorded:
    """Inputs in the order of their names.

    Attributes:
        names: File names without suffix.
        feeds: Input name to array, rows first.
        counts: How often each occurs in the recorded traffic, > 0.
        labels: What the right answer is; ``None``: not known.
    """

    names: list[str]
    feeds: list[Feeds]
    counts: npt.NDArray[np.float64]
    labels: list[Any] | None

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> "Recorded":
        """Some of them, in the order of ``indices``."""
        labels = None if self.labels is None else [self.labels[index] for index in indices]
        return Recorded(
            [self.names[index] for index in indices],
            [self.feeds[index] for index in indices],
            self.counts[list(indices)],
            labels,
        )

    def sha256(self) -> str:
        """Of names, types, shapes and bytes."""
        digest = hashlib.sha256()
        for name, feeds in zip(self.names, self.feeds, strict=True):
            for key in sorted(feeds):
                tensor = np.ascontiguousarray(feeds[key])
                digest.update(f"{name}/{key}:{tensor.dtype.str}:{tensor.shape}\n".encode())
                digest.update(tensor.tobytes())
        return digest.hexdigest()


def distinct(recorded: Recorded) -> Recorded:
    """Each input once: those with the contents and label of an earlier one make that one count for more.

    What is recorded repeats itself. Divided as they came, the same input would be calibrated on and judge.
    """
    first: dict[tuple[bytes, str], int] = {}
    counts = np.zeros(len(recorded))
    for index, feeds in enumerate(recorded.feeds):
        label = "" if recorded.labels is None else repr(recorded.labels[index])
        counts[first.setdefault((contents(feeds), label), index)] += recorded.counts[index]
    kept = list(first.values())
    taken = recorded.take(kept)
    return Recorded(taken.names, taken.feeds, counts[kept], taken.labels)


def contents(feeds: Feeds) -> bytes:
    """The same for equal names, types, shapes and values, and for no others."""
    digest = hashlib.sha256()
    for name in sorted(feeds):
        tensor = feeds[name]
        values = repr(tensor.tolist()).encode() if tensor.dtype.kind == "O" else np.ascontiguousarray(tensor).tobytes()
        digest.update(f"{name!r}:{tensor.dtype.str}:{tensor.shape}:{len(values)}\n".encode())
        digest.update(values)
    return digest.digest()


def of_folder(folder: Path, inputs: Sequence[TensorInfo]) -> Recorded:
    """Read and check a folder of ``.npz`` files.

    Args:
        folder: At least two files.
        inputs: Of the model; arrays must be of their types and shapes.

    Raises:
        InputError: Unreadable, empty, too large for memory, or an input that the model cannot take or that says
            nothing: not finite, or one constant in every file.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".npz" and not path.name.startswith("."))
        size = sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise InputError(f"--data {folder}: cannot be read, {reason(error)}.") from error
    allowed = int(psutil.virtual_memory().available * SHARE_OF_MEMORY)
    if size > allowed:
        raise InputError(
            f"--data {folder}: {size} bytes of inputs are more than the {allowed} that can be spared. Give fewer."
        )
    feeds = [_read(path, inputs) for path in paths]
    return checked([path.stem for path in paths], feeds, inputs, _labels(folder, paths), f"--data {folder}")


def checked(
    names: list[str], feeds: list[Feeds], inputs: Sequence[TensorInfo], labels: list[Any] | None, place: str
) -> Recorded:
    """Check inputs from anywhere; see `of_folder`.

    Raises:
        InputError: Fewer than two, one that the model does not take, none that differ, or numbers that are none.
    """
    if len(feeds) < 2:
        raise InputError(
            f"{place}: {len(feeds)} inputs; at least two are needed, one to calibrate on and one to judge by."
        )
    for name, one in zip(names, feeds, strict=True):
        try:
            check_feeds(list(inputs), one)
        except StageInputError as error:
            raise InputError(f"{place}: {name}: {error} Record inputs of this model.") from error
        for key, tensor in one.items():
            if tensor.size == 0:
                raise InputError(f"{place}: {name}: input '{key}' is empty (shape {tensor.shape}).")
            if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
                bad = int(tensor.size - np.isfinite(tensor).sum())
                raise InputError(f"{place}: {name}: input '{key}' has {bad} values that are NaN or infinite.")
    _refuse_constant(feeds, inputs, place)
    return Recorded(names, feeds, np.ones(len(feeds)), labels)


def weighted(recorded: Recorded, counts: Mapping[str, int], place: str) -> Recorded:
    """The inputs that a trace names, each as often as it does.

    Args:
        recorded: Inputs; a trace may name one with or without its suffix.
        counts: Input name to requests.
        place: What to call the trace in an error.

    Raises:
        InputError: The trace names none of them.
    """
    by_name = {name: index for index, name in enumerate(recorded.names)}
    found = {
        by_name[name.removesuffix(".npz")]: count
        for name, count in counts.items()
        if name.removesuffix(".npz") in by_name
    }
    if len(found) < 2:
        shown = ", ".join(list(counts)[:3]) or "none"
        raise InputError(
            f"{place}: its column `input` names {shown}; {len(found)} of {len(recorded)} inputs are of such a name. "
            "At least two are needed."
        )
    chosen = sorted(found)
    kept = recorded.take(chosen)
    return Recorded(kept.names, kept.feeds, np.array([found[index] for index in chosen], np.float64), kept.labels)


@dataclass(frozen=True)
class Parts:
    """Recorded inputs by what they are used for; no input is in two parts.

    Attributes:
        pool: May be calibrated on.
        choice: Candidates are chosen by them; ``None``: there are too few, and those of ``pool`` must do.
        judged: What was chosen is judged by them and by nothing else.
    """

    pool: Recorded
    choice: Recorded | None
    judged: Recorded


def split(recorded: Recorded, seed: int) -> Parts:
    """Half of the inputs to judge by, a quarter to calibrate on and a quarter to choose by.

    Shapes are split alike: every part gets its share of short and long ones, common and rare. With fewer than
    `APART_MIN` inputs half are calibrated on and chosen by.

    Returns:
        At least one input each; at most `JUDGED_MAX` and `CHOICE_MAX`.
    """
    draw = np.random.default_rng(seed)
    shuffled = draw.permutation(len(recorded))
    by_size = shuffled[np.argsort([_elements(recorded.feeds[index]) for index in shuffled], kind="stable")]

    def some(indices: npt.NDArray[np.int64], most: int) -> Recorded:
        few = draw.choice(indices, most, replace=False) if len(indices) > most else indices
        return recorded.take(sorted(few))

    judged = some(by_size[0::2], JUDGED_MAX)
    if len(recorded) < APART_MIN:
        return Parts(recorded.take(sorted(by_size[1::2])), None, judged)
    return Parts(recorded.take(sorted(by_size[1::4])), some(by_size[3::4], CHOICE_MAX), judged)


def _elements(feeds: Feeds) -> int:
    return sum(tensor.size for tensor in feeds.values())


def _read(path: Path, inputs: Sequence[TensorInfo]) -> Feeds:
    try:
        found = read_npz(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not an .npz file of arrays, or damaged ({error}). Record it again.") from error
    # A file may carry more than the model reads, such as the text its tokens came from.
    wanted = {info.name for info in inputs}
    return {name: tensor for name, tensor in found.items() if name in wanted}


def _labels(folder: Path, paths: Sequence[Path]) -> list[Any] | None:
    file = folder / LABELS
    if not file.exists():
        return None
    labels = decode_json(file, dict[str, Any])
    missing = [path.stem for path in paths if path.stem not in labels]
    if missing:
        raise InputError(f"{file}: no label for '{missing[0]}' ({len(missing)} of {len(paths)} inputs have none).")
    return [labels[path.stem] for path in paths]


def _refuse_constant(feeds: Sequence[Feeds], inputs: Sequence[TensorInfo], place: str) -> None:
    """Refuse inputs that never change: every range taken from them would be a point.

    A small one beside a larger one that varies may: a scale, a threshold.
    """
    constant = {
        info.name: bool(all((one[info.name] == _first_value(feeds, info.name)).all() for one in feeds))
        for info in inputs
    }
    varying = max(
        (_elements_at_most(feeds, name) for name, is_constant in constant.items() if not is_constant), default=0
    )
    for info in inputs:
        if constant[info.name] and info.dtype.kind == "f" and _elements_at_most(feeds, info.name) >= varying:
            raise InputError(
                f"{place}: input '{info.name}' is {_first_value(feeds, info.name)} everywhere in all {len(feeds)} "
                "files. Give recorded inputs."
            )
    if not varying:
        raise InputError(f"{place}: every input is the same constant in all {len(feeds)} files. Give recorded inputs.")


def _first_value(feeds: Sequence[Feeds], name: str) -> Any:
    """The first value of an input."""
    return feeds[0][name].flat[0]


def _elements_at_most(feeds: Sequence[Feeds], name: str) -> int:
    """Elements of an input in its largest file."""
    return max(one[name].size for one in feeds)
