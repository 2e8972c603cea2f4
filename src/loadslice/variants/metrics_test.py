import numpy as np
import pytest

from loadslice.spec.errors import InputError
from loadslice.variants import metrics
from loadslice.variants.metrics import Judge, parse_floor
from loadslice.variants.recorded import Recorded


def recorded(count: int, labels: list | None = None, counts: list[float] | None = None) -> Recorded:
    feeds = [{"x": np.ones((1, 2), np.float32)} for _ in range(count)]
    return Recorded([str(i) for i in range(count)], feeds, np.array(counts or [1.0] * count), labels)


def test_signal_to_noise_of_a_tenth_is_20_db() -> None:
    source = {"y": np.array([3.0, 4.0])}
    assert metrics.sqnr_db(source, {"y": np.array([3.3, 4.4])}) == pytest.approx(20.0)


def test_what_is_equal_not_finite_or_of_another_shape_has_its_own_figure() -> None:
    source = {"y": np.array([3.0, 4.0])}
    assert metrics.sqnr_db(source, source) == metrics.SQNR_DB_EQUAL
    assert metrics.sqnr_db(source, {"y": np.array([np.nan, 4.0])}) == -100.0
    assert metrics.sqnr_db(source, {"y": np.array([3.0])}) == -100.0
    assert metrics.cosine(source, {"y": np.array([np.inf, 4.0])}) == -1.0


def test_whole_numbers_and_texts_count_by_how_many_are_equal() -> None:
    """A model that answers with classes is not equal to its source for having no floating-point output."""
    source = {"label": np.array([3, 1, 4, 1])}
    assert metrics.cosine(source, source) == 1.0
    assert metrics.cosine(source, {"label": np.array([3, 1, 4, 5])}) == 0.75
    assert metrics.sqnr_db(source, source) == metrics.SQNR_DB_EQUAL
    assert metrics.sqnr_db(source, {"label": np.array([9, 9, 9, 9])}) == 0.0
    texts = {"text": np.array(["a", "b"], object)}
    assert metrics.cosine(texts, {"text": np.array(["a", "c"], object)}) == 0.5


def test_the_largest_of_numbers_that_are_none_is_no_answer() -> None:
    source, given = [{"y": np.array([[0.9, 0.1]])}], [{"y": np.array([[np.nan, np.nan]])}]
    assert Judge("top1", source, recorded(1)).mark(given) == 0.0
    assert Judge("top1", source, recorded(1, labels=[0])).mark(given) == 0.0


def test_the_worst_output_counts() -> None:
    source = {"a": np.array([1.0, 0.0]), "b": np.array([1.0, 0.0])}
    assert metrics.cosine(source, {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])}) == pytest.approx(0.0)


def test_median_over_inputs_is_not_ruled_by_one_bad_input() -> None:
    source = [{"y": np.array([1.0])}] * 3
    given = [{"y": np.array([1.1])}, {"y": np.array([1.01])}, {"y": np.array([-9.0])}]
    assert Judge("cosine", source, recorded(3)).sqnr_db(given) == pytest.approx(20.0)


def test_marks_weigh_inputs_as_often_as_traffic_brings_them() -> None:
    source = [{"y": np.array([1.0, 0.0])}, {"y": np.array([1.0, 0.0])}]
    given = [{"y": np.array([1.0, 0.0])}, {"y": np.array([0.0, 1.0])}]
    assert Judge("top1", source, recorded(2, counts=[3.0, 1.0])).mark(given) == pytest.approx(0.75)


def test_top1_with_labels_is_accuracy_and_without_is_agreement() -> None:
    given = [{"y": np.array([[0.1, 0.9]])}, {"y": np.array([[0.8, 0.2]])}]
    source = [{"y": np.array([[0.9, 0.1]])}, {"y": np.array([[0.9, 0.1]])}]
    assert Judge("top1", source, recorded(2)).mark(given) == 0.5
    judge = Judge("top1", source, recorded(2, labels=[1, 0]))
    assert (judge.mark(given), judge.labelled) == (1.0, True)


def test_a_label_that_is_not_one_class_per_row_is_refused() -> None:
    given = [{"y": np.array([[0.1, 0.9]])}]
    with pytest.raises(InputError, match=r"label \[1, 2, 3\] has 3 values"):
        Judge("top1", given, recorded(1, labels=[[1, 2, 3]])).mark(given)


def test_a_function_of_the_users_own_gets_outputs_and_labels_and_its_fault_is_one_line() -> None:
    given = [{"y": np.array([2.0])}]
    source = [{"y": np.array([3.0])}]
    own = Judge("mine", source, recorded(1, labels=[5]), lambda outputs, labels: outputs[0]["y"][0] + labels[0])
    assert own.mark(given) == 7.0
    broken = Judge("mine", source, recorded(1), lambda outputs, labels: 1 / 0)
    with pytest.raises(InputError, match="--metric mine: fails: ZeroDivisionError"):
        broken.mark(given)
    nothing = Judge("mine", source, recorded(1), lambda outputs, labels: float("nan"))
    with pytest.raises(InputError, match="gives nan"):
        nothing.mark(given)


def test_an_unknown_metric_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InputError, match=r"'bleu' is not known \(there are cosine, top1, sqnr_db\)"):
        Judge("bleu", [], recorded(1))


@pytest.mark.parametrize("text", ["cosine", "cosine>0.9", "cosine>=", "cosine>=x", ">=1", "a b>=1", "top1>=1e999"])
def test_a_floor_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--floor"):
        parse_floor(text)


def test_a_floor_is_read_as_written() -> None:
    assert parse_floor(" top1 >= .95 ") == metrics.Floor("top1", 0.95)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (np.full(1000, 0.1), "shift"),
        (np.where(np.arange(1000) == 7, 5.0, 1e-3), "outliers"),
        (np.tile([0.1, -0.1], 500), "spread"),
        (np.zeros(1000), "none"),
    ],
)
def test_the_kind_of_a_difference_is_told_from_the_error(error: np.ndarray, kind: str) -> None:
    source = [{"y": np.linspace(1, 2, 1000)}]
    (found,) = metrics.differences(source, [{"y": source[0]["y"] + error}], recorded(1))
    assert found.kind == kind
    assert found.category == "x=1x2"
