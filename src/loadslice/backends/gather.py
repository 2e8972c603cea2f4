"""From requests to one batch and back: choose a bucket, pad, stack; afterwards hand every request its own rows."""

from collections.abc import Sequence

import numpy as np

from loadslice.backends.base import EngineError, TensorInfo
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


def gather(
    works: Sequence[Work], bucket: Sequence[int] | None, inputs: Sequence[TensorInfo], padded: int = 0
) -> dict[str, Tensor]:
    """Stack the rows of several requests into one batch.

    Args:
        works: Requests, in order.
        bucket: Shape that rows of the first input are padded to, with zeros at the end of each dimension; ``None``:
            the largest shape among the works. Other inputs always take the largest.
        inputs: The model's inputs. A request with one tensor for a model with one input needs no matching name.
        padded: Rows of the batch, zeros after the last request's; fewer than there are: as many as there are.

    Returns:
        Input name -> contiguous rows. A lone request that needs no padding is handed on without a copy.

    Raises:
        StageInputError: A tensor is missing, or tensors of one input differ in type or rank, or exceed the bucket.
    """
    return {
        info.name: _stack(
            info.name, [_tensor(work, info.name, inputs) for work in works], bucket if index == 0 else None, padded
        )
        for index, info in enumerate(inputs)
    }


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
    ends = np.cumsum(rows).tolist()
    return [
        {name: tensor[end - count : end] for name, tensor in outputs.items()}
        for end, count in zip(ends, rows, strict=True)
    ]


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


def _stack(name: str, tensors: list[Tensor], bucket: Sequence[int] | None, padded: int) -> Tensor:
    first = tensors[0]
    for tensor in tensors:
        if tensor.ndim != first.ndim or tensor.dtype != first.dtype:
            raise StageInputError(
                f"input '{name}': {tensor.dtype} of rank {tensor.ndim} cannot be stacked "
                f"on {first.dtype} of rank {first.ndim}."
            )
    largest = [max(sides) for sides in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    target = largest if bucket is None else list(bucket)
    if len(target) != len(largest) or any(side > most for side, most in zip(largest, target, strict=True)):
        raise StageInputError(f"input '{name}' has rows of shape {largest}, more than the bucket {target}.")
    rows = max(padded, sum(tensor.shape[0] for tensor in tensors))
    if len(tensors) == 1 and largest == target and rows == first.shape[0]:
        return np.ascontiguousarray(first)
    # zeros (calloc) leaves padding pages untouched by us; only real rows are written.
    batch = (
        np.full((rows, *target), "", first.dtype) if first.dtype.kind == "O" else np.zeros((rows, *target), first.dtype)
    )
    row = 0
    for tensor in tensors:
        batch[(slice(row, row + tensor.shape[0]), *(slice(side) for side in tensor.shape[1:]))] = tensor
        row += tensor.shape[0]
    return batch
