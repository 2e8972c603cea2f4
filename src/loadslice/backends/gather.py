"""From requests to one batch and back: choose a bucket, pad, stack; afterwards hand every request its own rows."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from loadslice.backends.base import EngineError, TensorInfo
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Stage
from loadslice.spec.work import StageInputError, Tensor, Work


def bucket_of(stage: Stage, work: Work, inputs: Sequence[TensorInfo] | None = None) -> int:
    """Index of the first bucket that the work's first input fits into.

    Args:
        stage: Its ``buckets`` are ascending shapes without the row dimension.
        work: What the stage is about to run.
        inputs: The model's inputs, to find the first by name; ``None``: the work's first tensor.

    Returns:
        0 for a stage without buckets; ``len(stage.buckets)`` when none fits and the work runs at its own shape.
    """
    if not stage.buckets:
        return 0
    shape = _first_tensor(work, inputs).shape[1:]
    for index, bucket in enumerate(stage.buckets):
        if len(bucket) == len(shape) and all(side <= most for side, most in zip(shape, bucket, strict=True)):
            return index
    return len(stage.buckets)


def bucket_shape(stage: Stage, index: int) -> list[int] | None:
    """The shape rows are padded to, or ``None`` where they keep their own."""
    return stage.buckets[index] if index < len(stage.buckets) else None


def check_rows(stage: Stage, engine: str, inputs: Sequence[TensorInfo]) -> None:
    """Refuse batches of more or fewer rows than a model takes: they would be run one by one, or not at all.

    Args:
        stage: Its ``batch`` says how many rows go together on each engine.
        engine: The engine the model was loaded on.
        inputs: The model's.

    Raises:
        InputError: The model's row dimension is fixed, and ``batch`` asks for another count.
    """
    batch = stage.batch.get(engine)
    fixed = next((info for info in inputs if info.shape and info.shape[0] is not None), None)
    if batch is None or fixed is None:
        return
    rows = fixed.shape[0]
    wrong = [size for size in batch.pad_to or [batch.size] if size != rows]
    if wrong:
        sides = "x".join("?" if side is None else str(side) for side in fixed.shape)
        raise InputError(
            f"stage '{stage.name}': batch.{engine} asks for {wrong[0]} rows, and its model takes {rows} at a time "
            f"(input '{fixed.name}' is {sides}). Take `batch` out, or export the model with an open first dimension."
        )


class Room(Protocol):
    """Where a runtime wants the rows of a batch, so that it reads them in place."""

    def __call__(self, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Tensor] | None:
        """Memory for inputs of these shapes, in the model's order, holding anything; ``None``: bring your own."""


def gather(
    works: Sequence[Work],
    bucket: Sequence[int] | None,
    inputs: Sequence[TensorInfo],
    padded: int = 0,
    room: Room | None = None,
) -> dict[str, Tensor]:
    """Stack the rows of several requests into one batch.

    Args:
        works: Requests, in order.
        bucket: Shape that rows of the first input are padded to, with zeros at the end of each dimension; ``None``:
            the largest shape among the works. Other inputs always take the largest.
        inputs: The model's inputs. A request with one tensor for a model with one input needs no matching name.
        padded: Rows of the batch, zeros after the last request's; fewer than there are: as many as there are.
        room: Asked for the memory that rows are written to.

    Returns:
        Input name -> contiguous rows. A lone request that needs no padding, and is too large to be worth moving, is
        handed on without a copy.

    Raises:
        StageInputError: A tensor is missing, or tensors of one input differ in type or rank, or exceed the bucket.
    """
    if len(works) == 1 and len(inputs) == 1 and bucket is None:
        alone = _alone(_tensor(works[0], inputs[0].name, inputs), inputs[0], padded, room)
        if alone is not None:
            return alone
    parts = [[_tensor(work, info.name, inputs) for work in works] for info in inputs]
    shapes = tuple(
        [
            _shape(info.name, tensors, bucket if index == 0 else None, padded)
            for index, (info, tensors) in enumerate(zip(inputs, parts, strict=True))
        ]
    )
    if len(works) == 1:
        lone = [tensors[0] for tensors in parts]
        if (room is None or sum([tensor.nbytes for tensor in lone]) > LONE_BYTES_MAX) and all(
            tensor.shape == shape for tensor, shape in zip(lone, shapes, strict=True)
        ):
            return {info.name: np.ascontiguousarray(tensor) for info, tensor in zip(inputs, lone, strict=True)}
    places = None if room is None else room(shapes)
    batch: dict[str, Tensor] = {} if places is None else places
    for info, tensors, shape in zip(inputs, parts, shapes, strict=True):
        if places is not None and tensors[0].dtype != info.dtype:
            raise StageInputError(f"input '{info.name}' is {tensors[0].dtype}, it must be {info.dtype}.")
        if places is None:
            batch[info.name] = _blank(tensors[0].dtype, shape)
        _fill(batch[info.name], tensors, is_blank=places is None)
    return batch


LONE_BYTES_MAX = 1 << 14
"""Moving so little into a runtime's own memory costs less than having the runtime look at new memory."""


def _alone(tensor: Tensor, info: TensorInfo, padded: int, room: Room | None) -> dict[str, Tensor] | None:
    """The most frequent case, a request alone, without what only others need."""
    if padded > len(tensor):
        return None
    if room is None or tensor.nbytes > LONE_BYTES_MAX:
        return {info.name: np.ascontiguousarray(tensor)}
    if tensor.dtype != info.dtype:
        return None
    batch = room((tensor.shape,))
    if batch is not None:
        batch[info.name][...] = tensor
    return batch


def _shape(name: str, tensors: list[Tensor], bucket: Sequence[int] | None, padded: int) -> tuple[int, ...]:
    """Shape of the batch."""
    first = tensors[0]
    sides, dtype = first.shape[1:], first.dtype
    rows = 0
    is_even = True
    for tensor in tensors:
        if tensor.ndim != first.ndim or (tensor.dtype is not dtype and tensor.dtype != dtype):
            raise StageInputError(
                f"input '{name}': {tensor.dtype} of rank {tensor.ndim} cannot be stacked "
                f"on {first.dtype} of rank {first.ndim}."
            )
        shape = tensor.shape
        rows += shape[0]
        is_even = is_even and shape[1:] == sides
    largest = sides if is_even else tuple(max(side) for side in zip(*(one.shape[1:] for one in tensors), strict=True))
    target = largest if bucket is None else tuple(bucket)
    if len(target) != len(largest) or any(side > most for side, most in zip(largest, target, strict=True)):
        raise StageInputError(f"input '{name}' has rows of shape {list(largest)}, more than the bucket {list(target)}.")
    return (max(padded, rows), *target)


def _blank(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Tensor:
    # zeros (calloc) leaves padding pages untouched by us; only real rows are written.
    return np.full(shape, "", dtype) if dtype.kind == "O" else np.zeros(shape, dtype)


def _fill(batch: Tensor, tensors: list[Tensor], *, is_blank: bool) -> None:
    """Write rows one after the other, and zeros wherever the batch is larger and not blank."""
    sides = batch.shape[1:]
    rows = sum([len(tensor) for tensor in tensors])
    is_even = all(tensor.shape[1:] == sides for tensor in tensors)
    if not is_blank and (rows < len(batch) or not is_even):
        batch[rows if is_even else 0 :] = 0
    if is_even:
        if len(tensors) == 1:
            batch[:rows] = tensors[0]
        else:
            np.concatenate(tensors, out=batch if rows == len(batch) else batch[:rows])
        return
    row = 0
    for tensor in tensors:
        batch[(slice(row, row + len(tensor)), *(slice(side) for side in tensor.shape[1:]))] = tensor
        row += len(tensor)


def scatter(outputs: dict[str, Tensor], rows: Sequence[int]) -> list[dict[str, Tensor]]:
    """Split a batch's outputs by request.

    Args:
        outputs: Output name -> rows of the whole batch.
        rows: Rows of each request, in the order they were gathered.

    Returns:
        One dictionary per request; views of ``outputs``.

    Raises:
        EngineError: An output's dimension 0 does not count the rows that went in.
    """
    for name, tensor in outputs.items():
        if tensor.ndim == 0 or tensor.shape[0] != sum(rows):
            raise EngineError(
                f"output '{name}' has shape {tensor.shape} for {sum(rows)} rows; dimension 0 must count rows."
            )
    if len(rows) == 1:
        return [outputs]
    shares = []
    start = 0
    for count in rows:
        end = start + count
        shares.append({name: tensor[start:end] for name, tensor in outputs.items()})
        start = end
    return shares


def no_rows(outputs: Sequence[TensorInfo]) -> dict[str, Tensor]:
    """The outputs of a batch without rows; lengths that only a run would tell are 0."""
    return {info.name: np.empty((0, *(side or 0 for side in info.shape[1:])), info.dtype) for info in outputs}


def _first_tensor(work: Work, inputs: Sequence[TensorInfo] | None) -> Tensor:
    if inputs is not None:
        return _tensor(work, inputs[0].name, inputs)
    if not work.tensors:
        raise StageInputError("the request has no tensors for this stage.")
    return next(iter(work.tensors.values()))


def _tensor(work: Work, name: str, inputs: Sequence[TensorInfo]) -> Tensor:
    if name in work.tensors:
        return work.tensors[name]
    if len(inputs) == len(work.tensors) == 1:
        return next(iter(work.tensors.values()))
    raise StageInputError(f"input '{name}' is missing; the request has {', '.join(work.tensors) or 'no tensors'}.")
