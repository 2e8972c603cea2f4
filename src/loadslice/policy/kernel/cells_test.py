"""Tables by reference: compiled code reads and writes what NumPy would, and refuses what it would misread."""

from typing import Annotated, NamedTuple

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from loadslice.policy.kernel import by_reference, entry, kernel

Int64s = NDArray[np.int64]


@by_reference
class Shelf(NamedTuple):
    boxes: Annotated[Int64s, 3]
    grid: Annotated[Int64s, 2, "rows", "columns"]
    weights: NDArray[np.float64]
    labels: Annotated[Int64s, "rows"]
    count: int
    share: float


@kernel
def bump(row: Int64s, by: int) -> int:
    row[1] += by
    return row.shape[0]


@entry(inlined=False)
def work(shelf: Shelf, place: int) -> float:
    length = bump(shelf.boxes[place], 5)
    part = shelf.grid[place]
    part[2, 1] = shelf.boxes[place, 1] * shelf.count
    shelf.weights[place] = shelf.weights[place + 1] * shelf.share
    return float(length * 100 + shelf.grid.shape[1] * 10 + part.shape[1])


def shelf() -> Shelf:
    return Shelf(np.arange(12).reshape(4, 3), np.zeros((2, 3, 4), np.int64), np.arange(4.0), np.arange(3), 3, 0.5)


@by_reference
class Room(NamedTuple):
    shelf: Shelf
    floor: Annotated[Int64s, 2]
    doors: int


@entry(inlined=False)
def furnish(room: Room, place: int) -> float:
    room.floor[place, 1] = room.shelf.boxes.shape[0] * room.doors
    return work(room.shelf, place)


def test_tuples_in_a_tuple_are_those_that_stand_alone() -> None:
    alone, full = shelf(), Room(shelf(), np.zeros((3, 2), np.int64), 7)
    assert furnish(full, 1) == work(alone, 1)
    assert full.floor.tolist() == [[0, 0], [0, 28], [0, 0]]
    assert full.shelf.boxes.tolist() == alone.boxes.tolist()
    assert full.shelf.weights.tolist() == alone.weights.tolist()


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="NumPy itself takes any of these")
def test_an_array_that_would_be_misread_is_refused_in_a_tuple_in_a_tuple() -> None:
    full = Room(shelf(), np.zeros((3, 2), np.int64), 7)
    furnish(full, 1)
    with pytest.raises(TypeError, match=r"Shelf.labels has 4 cells in dimension 0, not 3 as grid\."):
        furnish(full._replace(shelf=shelf()._replace(labels=np.arange(4))), 1)


def test_cells_are_read_and_written_as_numpy_would() -> None:
    full = shelf()
    assert work(full, 1) == 334
    assert full.boxes.tolist() == [[0, 1, 2], [3, 9, 5], [6, 7, 8], [9, 10, 11]]
    assert full.grid[1, 2].tolist() == [0, 27, 0, 0]
    assert full.grid.sum() == 27
    assert full.weights.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="NumPy itself takes any of these")
@pytest.mark.parametrize(
    "other",
    [
        np.zeros((2, 3, 4), np.float64),
        np.zeros((2, 3, 4), np.int32),
        np.zeros((2, 3, 4), ">i8"),
        np.zeros((4, 3, 2), np.int64).T,
        np.zeros((3, 4), np.int64),
    ],
)
def test_an_array_that_would_be_misread_is_refused(other: Int64s) -> None:
    work(shelf(), 0)
    with pytest.raises(TypeError, match=r"Shelf.grid is not a C-contiguous array of int64 in 3 dimensions"):
        work(shelf()._replace(grid=other), 0)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="NumPy itself takes any of these")
def test_lengths_that_the_source_calls_the_same_must_be() -> None:
    work(shelf(), 0)
    with pytest.raises(TypeError, match=r"Shelf.labels has 4 cells in dimension 0, not 3 as grid\."):
        work(shelf()._replace(labels=np.arange(4)), 0)
    with pytest.raises(TypeError, match=r"Shelf.grid has 3 cells in dimension 0, not 2\."):
        work(shelf()._replace(grid=np.zeros((3, 3, 4), np.int64)), 0)
