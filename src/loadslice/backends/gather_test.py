import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.backends.base import EngineError, TensorInfo
from loadslice.backends.gather import bucket_of, bucket_shape, check_rows, gather, no_rows, scatter
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Batch, Stage
from loadslice.spec.work import StageInputError, Work

X = TensorInfo("x", np.dtype(np.float32), (None, 3, None))
STAGE = Stage(name="s", model="m.onnx", engine="e", buckets=[[3, 4], [3, 8]])


def work(rows: int, width: int, fill: float = 1.0) -> Work:
    return Work({"x": np.full((rows, 3, width), fill, np.float32)}, context="kept")


@pytest.mark.parametrize(("width", "bucket"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_the_smallest_bucket_that_fits_is_chosen_and_none_means_own_shape(width: int, bucket: int) -> None:
    assert bucket_of(STAGE, work(2, width)) == bucket
    assert bucket_shape(STAGE, bucket) == [[3, 4], [3, 8], None][bucket]


def test_a_stage_without_buckets_has_bucket_zero_of_no_shape() -> None:
    stage = Stage(name="s", model="m.onnx", engine="e")
    assert bucket_of(stage, work(1, 99)) == 0
    assert bucket_shape(stage, 0) is None


FIXED = TensorInfo("x", np.dtype(np.float32), (1, 3, 8))


@pytest.mark.parametrize(
    ("info", "batch", "wrong"),
    [
        (X, Batch(size=4), None),
        (FIXED, Batch(size=1), None),
        (FIXED, Batch(size=4), 4),
        (FIXED, Batch(size=4, pad_to=[1, 4]), 4),
        (TensorInfo("x", np.dtype(np.float32), (4, 3, 8)), Batch(size=4, pad_to=[4]), None),
        (TensorInfo("x", np.dtype(np.float32), (4, 3, 8)), Batch(size=2), 2),
    ],
)
def test_batches_that_a_model_of_fixed_rows_cannot_take_are_refused(
    info: TensorInfo, batch: Batch, wrong: int | None
) -> None:
    stage = Stage(name="s", model="m.onnx", engine="e", batch={"e": batch})
    check_rows(stage, "another", [info])
    if wrong is None:
        check_rows(stage, "e", [info])
        return
    said = rf"stage 's': batch\.e asks for {wrong} rows, and its model takes {info.shape[0]} at a time \(input 'x' is "
    with pytest.raises(InputError, match=said):
        check_rows(stage, "e", [info])


def test_a_row_of_another_rank_fits_no_bucket() -> None:
    assert bucket_of(STAGE, Work({"x": np.zeros((1, 3), np.float32)})) == 2


def test_the_bucket_is_the_first_inputs_whatever_the_tensors_order() -> None:
    mask = TensorInfo("mask", np.dtype(np.int64), (None, None))
    both = Work({"mask": np.zeros((1, 99), np.int64), "x": np.zeros((1, 3, 5), np.float32)})
    assert bucket_of(STAGE, both, [X, mask]) == 1
    feeds = gather([both], [3, 8], [X, mask])
    assert feeds["x"].shape == (1, 3, 8)
    assert feeds["mask"].shape == (1, 99)


def test_rows_are_padded_with_zeros_at_the_end_of_every_dimension() -> None:
    feeds = gather([work(1, 2, fill=5), work(2, 3, fill=7)], [3, 4], [X])
    assert feeds["x"].shape == (3, 3, 4)
    assert feeds["x"][:, 0].tolist() == [[5, 5, 0, 0], [7, 7, 7, 0], [7, 7, 7, 0]]


def test_without_a_bucket_rows_are_padded_to_the_largest_among_them() -> None:
    assert gather([work(1, 2), work(2, 6)], None, [X])["x"].shape == (3, 3, 6)


def test_a_lone_request_that_fits_is_not_copied_and_never_changed() -> None:
    one = work(2, 4)
    assert gather([one], [3, 4], [X])["x"] is one.tensors["x"]
    padded = gather([one], [3, 8], [X])["x"]
    padded[:] = -1
    assert (one.tensors["x"] == 1).all()


def test_a_lone_tensor_needs_no_matching_name() -> None:
    chained = Work({"output_of_the_stage_before": np.ones((1, 3, 4), np.float32)})
    assert list(gather([chained], None, [X])) == ["x"]


@pytest.mark.parametrize(
    ("works", "bucket", "message"),
    [
        ([Work({})], None, "input 'x' is missing; the request has no tensors"),
        ([work(1, 9)], [3, 8], "more than the bucket"),
        (
            [work(1, 4), Work({"x": np.ones((1, 3, 4), np.float64)})],
            None,
            "float64 of rank 3 cannot be stacked on float32",
        ),
        ([work(1, 4), Work({"x": np.ones((1, 3), np.float32)})], None, "rank 2"),
    ],
)
def test_what_cannot_be_stacked_is_refused_by_name(works: list[Work], bucket: list[int] | None, message: str) -> None:
    with pytest.raises(StageInputError, match=message):
        gather(works, bucket, [X])


def test_outputs_that_do_not_count_rows_are_the_engines_fault() -> None:
    with pytest.raises(EngineError, match="'y' has shape"):
        scatter({"y": np.zeros((1, 2))}, [1, 1])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8)), min_size=1, max_size=6))
def test_every_request_gets_its_own_rows_back(sizes: list[tuple[int, int]]) -> None:
    works = [work(rows, width, fill=index + 1) for index, (rows, width) in enumerate(sizes)]
    batch = gather(works, [3, 8], [X])["x"]
    parts = scatter({"x": batch}, [one.items for one in works])
    for one, part, (rows, width) in zip(works, parts, sizes, strict=True):
        assert part["x"].shape == (rows, 3, 8)
        assert (part["x"][..., :width] == one.tensors["x"]).all()
        assert (part["x"][..., width:] == 0).all()


def test_no_rows_gives_empty_outputs_of_the_right_types() -> None:
    empty = no_rows(
        [TensorInfo("y", np.dtype(np.float32), (None, None, 7)), TensorInfo("n", np.dtype(np.int64), (None,))]
    )
    assert {name: (tensor.shape, str(tensor.dtype)) for name, tensor in empty.items()} == {
        "y": ((0, 0, 7), "float32"),
        "n": ((0,), "int64"),
    }


def test_a_batch_is_filled_up_to_the_rows_a_model_was_built_for() -> None:
    inputs = [TensorInfo("x", np.dtype(np.float32), (4, 2)), TensorInfo("t", np.dtype(object), (4, 1))]
    work = Work({"x": np.ones((3, 2), np.float32), "t": np.array([["a"], ["b"], ["c"]], object)})
    feeds = gather([work], None, inputs, 4)
    assert feeds["x"].tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
    assert feeds["t"].tolist() == [["a"], ["b"], ["c"], [""]]
    assert gather([work], None, inputs, 2)["x"].shape == (3, 2), "rows are never cut off"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=5),
    st.integers(0, 12),
    st.booleans(),
)
@settings(deadline=None, max_examples=200)
def test_rows_gathered_into_given_memory_are_those_gathered_into_new(sides, padded, has_bucket) -> None:
    """Whatever the memory held before."""
    info = TensorInfo("x", np.dtype(np.float32), (None, None))
    draw = np.random.default_rng(5)
    works = [Work({"x": draw.random(shape, np.float32)}) for shape in sides]
    bucket = [4] if has_bucket else None

    def room(shapes):
        return {"x": np.full(shapes[0], np.nan, np.float32)}

    fresh = gather(works, bucket, [info], padded)
    placed = gather(works, bucket, [info], padded, room)
    np.testing.assert_array_equal(placed["x"], fresh["x"])


def test_a_type_that_the_runtimes_memory_does_not_hold_is_refused() -> None:
    info = TensorInfo("x", np.dtype(np.float32), (None, 2))
    works = [Work({"x": np.ones((1, 2), np.float64)})] * 2
    with pytest.raises(StageInputError, match="input 'x' is float64, it must be float32"):
        gather(works, None, [info], 0, lambda shapes: {"x": np.zeros(shapes[0], np.float32)})
