import json
from pathlib import Path

import numpy as np
import pytest

from loadslice.backends.base import TensorInfo
from loadslice.spec.errors import InputError
from loadslice.variants import recorded
from loadslice.variants.recorded import distinct, of_folder, split, weighted

INFOS = [TensorInfo("x", np.dtype(np.float32), (None, 3))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(8):
        np.savez(tmp_path / f"in{index}.npz", x=np.full((1, 3), index, np.float32), text=np.array("beside"))
    return tmp_path


def test_files_are_read_in_the_order_of_their_names_and_extra_arrays_are_left_out(folder: Path) -> None:
    found = of_folder(folder, INFOS)
    assert found.names == [f"in{index}" for index in range(8)]
    assert list(found.feeds[2]) == ["x"]
    assert found.labels is None


def test_labels_are_matched_by_name_and_a_missing_one_is_named(folder: Path) -> None:
    (folder / "labels.json").write_text(json.dumps({f"in{index}": index for index in range(8)}))
    assert of_folder(folder, INFOS).labels == list(range(8))
    (folder / "labels.json").write_text(json.dumps({"in0": 1}))
    with pytest.raises(InputError, match=r"no label for 'in1' \(7 of 8"):
        of_folder(folder, INFOS)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, 4), np.float32), "in3: input 'x' has shape 1x4, it must be \\?x3"),
        (np.zeros((1, 3), np.float64), "in3: input 'x' is float64, it must be float32"),
        (np.array([[1, np.nan, np.inf]], np.float32), "in3: input 'x' has 2 values that are NaN or infinite"),
        (np.zeros((0, 3), np.float32), "in3: input 'x' is empty"),
    ],
)
def test_an_input_that_the_model_cannot_take_is_named(folder: Path, array: np.ndarray, message: str) -> None:
    np.savez(folder / "in3.npz", x=array)
    with pytest.raises(InputError, match=message):
        of_folder(folder, INFOS)


def test_one_constant_in_every_file_is_refused(tmp_path: Path) -> None:
    for index in range(4):
        np.savez(tmp_path / f"{index}.npz", x=np.full((1, 3), 0.5, np.float32))
    with pytest.raises(InputError, match=r"'x' is 0.5 everywhere in all 4 files"):
        of_folder(tmp_path, INFOS)


def test_a_small_constant_beside_a_larger_input_that_varies_is_kept(folder: Path) -> None:
    """Detectors are given the scale of the picture, which may be 1 in every request."""
    infos = [*INFOS, TensorInfo("scale", np.dtype(np.float32), (None, 2))]
    for index in range(8):
        np.savez(folder / f"in{index}.npz", x=np.full((1, 3), index, np.float32), scale=np.ones((1, 2), np.float32))
    assert len(of_folder(folder, infos)) == 8
    for index in range(8):
        np.savez(folder / f"in{index}.npz", x=np.ones((1, 3), np.float32), scale=np.full((1, 2), index, np.float32))
    with pytest.raises(InputError, match=r"'x' is 1\.0 everywhere in all 8 files"):
        of_folder(folder, infos)


def test_a_folder_without_inputs_or_with_a_damaged_one_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read, no such file"):
        of_folder(folder / "absent", INFOS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="0 inputs; at least two"):
        of_folder(tmp_path / "empty", INFOS)
    whole = (folder / "in1.npz").read_bytes()
    (folder / "in1.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"in1\.npz"):
        of_folder(folder, INFOS)


def test_a_trace_weighs_the_inputs_it_names_and_drops_the_others(folder: Path) -> None:
    found = weighted(of_folder(folder, INFOS), {"in1": 5, "in4.npz": 2, "elsewhere": 9}, "--data t.parquet")
    assert found.names == ["in1", "in4"]
    assert found.counts.tolist() == [5.0, 2.0]


def test_a_trace_that_names_none_of_the_inputs_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"t.parquet: its column `input` names a, b; 0 of 8"):
        weighted(of_folder(folder, INFOS), {"a": 1, "b": 1}, "--data t.parquet")


def plain(sizes: list[int]) -> recorded.Recorded:
    feeds = [{"x": np.zeros((1, size))} for size in sizes]
    return recorded.Recorded([str(i) for i in range(len(sizes))], feeds, np.ones(len(sizes)), None)


@pytest.mark.parametrize(
    ("inputs", "parts"), [(8, [2, 2, 4]), (9, [2, 2, 5]), (20, [5, 5, 10]), (2000, [500, 200, 400])]
)
def test_no_input_is_calibrated_on_chosen_by_and_judged_by(inputs: int, parts: list[int]) -> None:
    found = split(plain([1] * inputs), seed=3)
    assert found.choice is not None
    names = [one.names for one in (found.pool, found.choice, found.judged)]
    assert [len(one) for one in names] == parts
    assert len({name for one in names for name in one}) == sum(parts)


def test_an_input_that_was_recorded_several_times_is_one_that_counts_for_more() -> None:
    """As they came, nearly all of these would judge what they were calibrated on. The last has a label of its own."""
    draw = np.random.default_rng(0)
    feeds = [{"x": draw.standard_normal((1, 3))} for _ in range(10)] * 9
    labels = [index % 10 for index in range(89)] + [77]
    repeated = recorded.Recorded([f"in{index}" for index in range(90)], feeds, np.full(90, 2.0), labels)
    found = distinct(repeated)
    assert found.names == [*(f"in{index}" for index in range(10)), "in89"]
    assert found.counts.tolist() == [18.0] * 9 + [16.0, 2.0]


@pytest.mark.parametrize("inputs", [2, 3, 7])
def test_too_few_inputs_are_not_divided_in_three_and_the_judges_stay_apart(inputs: int) -> None:
    found = split(plain([1] * inputs), seed=0)
    assert found.choice is None
    assert not set(found.pool.names) & set(found.judged.names)
    assert len(found.pool) + len(found.judged) == inputs


def test_all_parts_get_short_and_long_inputs() -> None:
    found = split(plain([1] * 12 + [100] * 12), seed=0)
    assert found.choice is not None
    shares = [sum(feeds["x"].size == 100 for feeds in one.feeds) for one in (found.pool, found.choice, found.judged)]
    assert shares == [3, 3, 6]


def test_the_hash_of_a_set_changes_with_any_value(folder: Path) -> None:
    before = of_folder(folder, INFOS)
    np.savez(folder / "in0.npz", x=np.full((1, 3), 0.25, np.float32))
    assert of_folder(folder, INFOS).sha256() != before.sha256()
    assert before.sha256() == before.take(range(8)).sha256()
