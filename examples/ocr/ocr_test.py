"""The example reads what it drew, on either engine, and refuses what is no image."""

import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2", reason="the extras example, onnxruntime and openvino are not installed")
pytest.importorskip("PIL", reason="the extras example, onnxruntime and openvino are not installed")
pytest.importorskip("onnxruntime", reason="the extras example, onnxruntime and openvino are not installed")
pytest.importorskip("openvino", reason="the extras example, onnxruntime and openvino are not installed")

from PIL import Image

from loadslice.profiles.chain import close, open_steps, walk
from loadslice.spec.functions import load_function
from loadslice.spec.pipeline import load
from loadslice.spec.work import RawInput, Sample, StageInputError, Work

pytestmark = pytest.mark.skipif(
    find_spec("rapidocr_onnxruntime") is None, reason="the models are missing: make install"
)

FOLDER = Path(__file__).parent
WRONG_CHARACTERS_MAX = 0.01

samples = load_function("ocr_inputs:samples", FOLDER)
assign = load_function("ocr_inputs:assign", FOLDER)
score = load_function("ocr_inputs:score", FOLDER)
prepare = load_function("ocr_stages:prepare", FOLDER)


def read_all(pipeline_name: str, inputs: list[Sample]) -> list[list[str]]:
    steps = open_steps(load(FOLDER / pipeline_name), FOLDER)
    try:
        return [list(walk(sample, steps)[-1].tensors["text"]) for sample in inputs]
    finally:
        close(steps)


@pytest.fixture(scope="module")
def answers() -> dict[str, list[list[str]]]:
    return {name: read_all(f"pipeline.{name}.yaml", samples()) for name in ("onnxruntime", "openvino")}


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_at_most_one_character_in_a_hundred_is_wrong(answers: dict[str, list[list[str]]], name: str) -> None:
    marks = [score(sample.truth, texts) for sample, texts in zip(samples(), answers[name], strict=True)]
    wrong, characters = np.sum(marks, axis=0)
    assert wrong / characters <= WRONG_CHARACTERS_MAX


def test_the_engines_agree_with_each_other(answers: dict[str, list[list[str]]]) -> None:
    marks = [score(first, second) for first, second in zip(answers["onnxruntime"], answers["openvino"], strict=True)]
    wrong, characters = np.sum(marks, axis=0)
    assert wrong / characters <= WRONG_CHARACTERS_MAX


def test_an_image_without_text_goes_through_with_no_rows() -> None:
    steps = open_steps(load(FOLDER / "pipeline.yaml"), FOLDER)
    answer = walk(Sample("blank", "image/png", image_bytes(np.full((100, 200, 3), 255, np.uint8))), steps)[-1]
    assert {name: tensor.shape for name, tensor in answer.tensors.items()} == {
        "text": (0,),
        "confidence": (0,),
        "box": (0, 4, 2),
    }


def test_boxes_lie_in_the_image_and_confidences_are_shares() -> None:
    steps = open_steps(load(FOLDER / "pipeline.yaml"), FOLDER)
    sample = samples()[-1]
    answer = walk(sample, steps)[-1].tensors
    width, height = Image.open(io.BytesIO(sample.body)).size
    assert answer["box"].shape == (len(sample.truth), 4, 2)
    assert (answer["box"] >= 0).all()
    assert (answer["box"] < [width, height]).all()
    assert ((answer["confidence"] > 0.5) & (answer["confidence"] <= 1)).all()


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 2000, 3), (40, 33, 3)])
def test_images_of_any_shape_are_prepared_with_sides_of_32(shape: tuple[int, int, int]) -> None:
    body = image_bytes(np.zeros(shape, np.uint8))
    x = prepare(Work(context=RawInput("image/png", body))).tensors["x"]
    assert x.shape[2] % 32 == x.shape[3] % 32 == 0
    assert max(x.shape) <= 960


@pytest.mark.parametrize(
    ("content_type", "body", "unsupported_type"),
    [
        ("text/plain", b"hello", True),
        ("image/png", b"", False),
        ("image/png", b"not an image", False),
        ("image/png", b"\x89PNG\r\n\x1a\n" + bytes(40), False),
    ],
)
def test_what_is_no_image_is_the_clients_fault(content_type: str, body: bytes, unsupported_type: bool) -> None:
    with pytest.raises(StageInputError) as caught:
        prepare(Work(context=RawInput(content_type, body)))
    assert caught.value.unsupported_type is unsupported_type


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    body = io.BytesIO()
    Image.new("1", (8000, 8000)).save(body, "PNG")
    with pytest.raises(StageInputError, match="8000x8000 pixels"):
        prepare(Work(context=RawInput("image/png", body.getvalue())))


def test_tensors_are_refused_where_an_image_is_due() -> None:
    with pytest.raises(StageInputError, match="takes an image"):
        prepare(Work({"x": np.zeros((1, 3, 32, 32), np.float32)}))


def test_the_same_seed_draws_the_same_inputs() -> None:
    first, second = samples(), samples()
    assert first == second
    assert len({sample.name for sample in first}) == len(first) == 32
    assert [len(sample.truth) for sample in first] == sorted(len(sample.truth) for sample in first)


def test_longer_prompts_become_images_of_more_lines_evenly() -> None:
    tokens_in = np.random.default_rng(0).permutation(3200)
    names = np.array(assign(tokens_in))
    assert sorted(set(names)) == [f"img-{n:02d}" for n in range(32)]
    assert set(np.unique(names, return_counts=True)[1]) == {100}
    assert names[np.argmin(tokens_in)] == "img-00"
    assert names[np.argmax(tokens_in)] == "img-31"


def test_equal_prompts_become_the_same_image() -> None:
    assert set(assign(np.full(10, 7))) == {"img-16"}
    assert assign(np.zeros(0)) == []


@pytest.mark.parametrize(
    ("truth", "texts", "wrong"),
    [
        (["Room 25", "due"], ["Room25", "due"], 0),
        (["Room 25"], ["Ro0m 25"], 1),
        (["abc", "def"], ["abc"], 3),
        (["abc"], ["abc", "x"], 1),
        (["abc"], [], 3),
    ],
)
def test_wrong_characters_are_counted_without_spaces(truth: list[str], texts: list[str], wrong: int) -> None:
    assert score(truth, texts) == (wrong, len("".join(truth).replace(" ", "")))


def image_bytes(pixels: np.ndarray) -> bytes:
    body = io.BytesIO()
    Image.fromarray(pixels).save(body, "PNG")
    return body.getvalue()
