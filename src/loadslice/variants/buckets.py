"""Fixed shapes that recorded requests are padded to: fewer shapes to compile, more elements computed for nothing.

All distinct shapes start as buckets of their own; the two whose union wastes the fewest elements over recorded traffic
are merged until few enough are left. Greedy, so not the least waste there is; it works for any number of dimensions.
Padding is with zeros at the end, as `loadslice.backends.gather` pads. Whether a model bears that is measured.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from loadslice.backends.base import Session
from loadslice.spec.variant import Bucket, Buckets
from loadslice.spec.work import Tensor
from loadslice.variants import timing
from loadslice.variants.metrics import Judge, Outputs
from loadslice.variants.prepare import fix_shapes
from loadslice.variants.recorded import Feeds, Recorded

BUCKETS_MAX = 4
SHAPES_MAX = 256
"""Distinct shapes that are merged one by one; more are rounded up to multiples of 8 first."""

Shape = tuple[tuple[int, ...], ...]
"""Of every input, in order, without the row dimension."""

OpenAt = Callable[[Path, str], Session]
"""Loads a file in the runtime of that name."""


def choose(shapes: Sequence[Shape], counts: Sequence[float], most: int = BUCKETS_MAX) -> list[Shape]:
    """Buckets for recorded shapes, small first; every shape fits the last one or an earlier one."""
    groups: dict[Shape, dict[Shape, float]] = {}
    for shape, count in zip(shapes, counts, strict=True):
        key = _rounded(shape) if len(set(shapes)) > SHAPES_MAX else shape
        members = groups.setdefault(key, {})
        members[shape] = members.get(shape, 0.0) + count
    while len(groups) > most:
        keys = sorted(groups)
        pairs = [(left, right) for index, left in enumerate(keys) for right in keys[index + 1 :]]
        left, right = min(pairs, key=lambda pair: _extra(groups, *pair))
        merged = groups.pop(left)
        for shape, count in groups.pop(right).items():
            merged[shape] = merged.get(shape, 0.0) + count
        union = _union(left, right)
        for shape, count in groups.pop(union, {}).items():
            merged[shape] = merged.get(shape, 0.0) + count
        groups[union] = merged
    return sorted(groups, key=_elements)


def bucket_of(shape: Shape, buckets: Sequence[Shape]) -> int:
    """Index of the smallest bucket a shape fits; the last one takes what was recorded."""
    for index, bucket in enumerate(buckets):
        if all(
            side <= room for one, most in zip(shape, bucket, strict=True) for side, room in zip(one, most, strict=True)
        ):
            return index
    raise AssertionError(f"no bucket of {buckets} holds the recorded shape {shape}")


def shape_of(feeds: Feeds) -> Shape:
    """Shapes of a request's tensors, without rows."""
    return tuple(tuple(tensor.shape[1:]) for tensor in feeds.values())


def padded(feeds: Feeds, bucket: Shape) -> dict[str, Tensor]:
    """Zeros at the end of every dimension but the rows."""
    return {
        name: np.pad(tensor, [(0, 0), *((0, room - side) for side, room in zip(tensor.shape[1:], most, strict=True))])
        for (name, tensor), most in zip(feeds.items(), bucket, strict=True)
    }


def measure(
    model: Path,
    recorded: Recorded,
    held_out: Recorded,
    judge: Judge,
    open_at: OpenAt,
    folder: Path,
    runtimes: Sequence[str],
) -> Buckets | None:
    """Choose buckets and measure what they cost.

    Args:
        model: A prepared model.
        recorded: All inputs: what is chosen by.
        held_out: Inputs ``judge`` marks.
        judge: Compares with the source's answers on inputs as they were.
        open_at: Loads a file.
        folder: For fixed-shape copies of the model; they are removed again.
        runtimes: Backends whose compile time is measured.

    Returns:
        ``None`` when all recorded inputs have one shape.
    """
    shapes = [shape_of(feeds) for feeds in recorded.feeds]
    if len(set(shapes)) < 2:
        return None
    chosen = choose(shapes, recorded.counts.tolist())
    member = np.array([bucket_of(shape, chosen) for shape in shapes])
    held = [bucket_of(shape_of(feeds), chosen) for feeds in held_out.feeds]
    session = open_at(model, "onnxruntime")
    try:
        as_they_were: list[Outputs] = [session.run(feeds) for feeds in held_out.feeds]
        answers = [
            _cropped(session.run(padded(feeds, chosen[index])), whole)
            for feeds, index, whole in zip(held_out.feeds, held, as_they_were, strict=True)
        ]
    finally:
        session.close()
    buckets = []
    for index, bucket in enumerate(chosen):
        inside = member == index
        used = sum(_elements(shapes[i]) * recorded.counts[i] for i in np.flatnonzero(inside))
        room = _elements(bucket) * float(recorded.counts[inside].sum())
        part = [i for i, own in enumerate(held) if own == index]
        own = _judge(judge, held_out, as_they_were, part)
        example = next(feeds for feeds, own_index in zip(recorded.feeds, member, strict=True) if own_index == index)
        buckets.append(
            Bucket(
                shapes={name: list(sides) for name, sides in zip(example, bucket, strict=True)},
                share=float(recorded.counts[inside].sum() / recorded.counts.sum()),
                padded_share=1 - used / room,
                metric=None if own is None else own.mark([answers[i] for i in part]),
                sqnr_db=None if own is None else own.sqnr_db([answers[i] for i in part]),
                compile_s=_compile_s(model, padded(example, bucket), open_at, folder, runtimes),
            )
        )
    total = sum(_elements(chosen[index]) * count for index, count in zip(member, recorded.counts, strict=True))
    waste = 1 - sum(_elements(shape) * count for shape, count in zip(shapes, recorded.counts, strict=True)) / total
    return Buckets(
        buckets=buckets, distinct_shapes=len(set(shapes)), padded_share=float(waste), finding=_finding(buckets, judge)
    )


def _judge(judge: Judge, held_out: Recorded, whole: list[Outputs], part: list[int]) -> Judge | None:
    """Padding is judged against the unpadded answers, bucket by bucket, whatever the labels say."""
    if not part:
        return None
    few = held_out.take(part)
    unlabelled = Recorded(few.names, few.feeds, few.counts, None)
    return Judge("top1" if judge.name == "top1" else "cosine", [whole[i] for i in part], unlabelled)


def _finding(buckets: Sequence[Bucket], judge: Judge) -> str:
    name = "top1" if judge.name == "top1" else "cosine"
    marks = [bucket.metric for bucket in buckets if bucket.metric is not None]
    if not marks:
        return "no held-out input to judge padding by."
    worst = min(marks)
    if worst >= 0.999:
        return f"padding changes no answer that matters here ({name} {worst:.4f} in the worst bucket)."
    return f"padding costs accuracy: {name} {worst:.4f} in the worst bucket. Serve unpadded, or mask it in the model."


def _compile_s(model: Path, feeds: Feeds, open_at: OpenAt, folder: Path, runtimes: Sequence[str]) -> dict[str, float]:
    fixed = folder / "bucket.onnx"
    fix_shapes(model, fixed, {name: list(tensor.shape) for name, tensor in feeds.items()})
    try:
        return {name: timing.seconds(lambda name=name: _first_answer(open_at(fixed, name), feeds)) for name in runtimes}  # type: ignore[misc]
    finally:
        fixed.unlink()


def _first_answer(session: Session, feeds: Feeds) -> None:
    session.run(feeds)
    session.close()


def _cropped(outputs: Outputs, whole: Outputs) -> dict[str, Tensor]:
    """The part of each output that the unpadded input has, too."""
    return {
        name: tensor[tuple(slice(0, side) for side in whole[name].shape)] if tensor.ndim == whole[name].ndim else tensor
        for name, tensor in outputs.items()
    }


def _elements(shape: Shape) -> int:
    return sum(int(np.prod(sides)) for sides in shape)


def _union(left: Shape, right: Shape) -> Shape:
    return tuple(
        tuple(max(a, b) for a, b in zip(one, other, strict=True)) for one, other in zip(left, right, strict=True)
    )


def _extra(groups: dict[Shape, dict[Shape, float]], left: Shape, right: Shape) -> float:
    room = _elements(_union(left, right))
    return sum((room - _elements(key)) * sum(groups[key].values()) for key in (left, right))


def _rounded(shape: Shape) -> Shape:
    return tuple(tuple(-(-side // 8) * 8 for side in sides) for sides in shape)
