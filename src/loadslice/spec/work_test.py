import numpy as np
import pytest

from loadslice.spec.work import RawInput, StageError, StageInputError, Work


def test_items_are_the_rows_of_the_tensors() -> None:
    assert Work({"x": np.zeros((4, 2)), "y": np.zeros(4)}).items == 4
    assert Work({"x": np.zeros((0, 2))}).items == 0


def test_a_raw_request_is_one_item() -> None:
    assert Work(context=RawInput("image/png", b"")).items == 1


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": np.zeros((4, 2)), "y": np.zeros(3)}, "'y' has 3 rows where 'x' has 4"),
        ({"x": np.float32(1)}, "'x' must be an array"),
        ({"x": np.array(1.0)}, "'x' must be an array"),
        ({"x": [1, 2]}, "'x' must be an array"),
        (None, "must be a dict of arrays by name, not NoneType"),
        ([1], "must be a dict of arrays by name, not list"),
        ({1: np.zeros(1)}, "tensor 1 must be named by a text"),
    ],
)
def test_tensors_that_are_not_rows_are_refused_by_name(tensors: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Work(tensors).check()


def test_only_bad_input_is_the_clients_fault() -> None:
    assert StageInputError("not an image").client_fault
    assert not StageError("broken").client_fault
    assert StageInputError("text/html", unsupported_type=True).unsupported_type
    assert str(StageError("two\nlines")) == "two lines"
