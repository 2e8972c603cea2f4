from pathlib import Path

import pytest

from loadslice.spec.errors import InputError
from loadslice.spec.evaluation import LAYERS, load

GOOD = """
version: 1
model: m.onnx
placements:
  - {name: a, built_in: one-engine}
  - {name: b, url: http://127.0.0.1:8000}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "e.yaml"
    path.write_text(text)
    return path


def test_defaults_are_all_six_layers_with_the_first_placement_as_reference(tmp_path: Path) -> None:
    found = load(written(tmp_path, GOOD))
    assert tuple(found.layers) == LAYERS
    assert found.reference_name == "a"
    assert found.varied == "placement"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("placements: []", "placements: 0; give 1 to"),
        ("model: null", "Add `model: FILE.onnx`"),
        ("reference: c", "reference: 'c' is not a placement (a, b)"),
        ("varied: weather", "varied: 'weather' is not one of"),
        ("layers: [replay]", "'replay' needs `trace: FILE`"),
        ("layers: [soak, soak]", "at most once"),
        ("layers: []", "at least one"),
        ("weights: {beauty: 1}", "weights: 'beauty' is not one of"),
        ("repeats: 0", "repeats: 0 is not between"),
        ("timeout_s: .nan", "timeout_s: nan is not between"),
        ("step_s: 1e9", "step_s"),
        ("floors: {metric: 2}", "floors.metric: 2 is not between 0 and 1"),
        ("speed: -1", "speed: -1 is not between"),
        ("unknown: 1", "unknown"),
    ],
)
def test_what_is_wrong_is_refused_with_its_key(tmp_path: Path, change: str, said: str) -> None:
    key = change.partition(":")[0]
    kept = "\n".join(line for line in GOOD.splitlines() if not line.startswith(key))
    if key == "placements":
        kept = "version: 1"
    with pytest.raises(InputError) as error:
        load(written(tmp_path, f"{kept}\n{change}\n"))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ("{name: x}", "give one of pipeline, url and built_in, not 0"),
        ("{name: x, url: http://a, pipeline: p.yaml}", "not 2"),
        ("{name: x, url: 'file:///etc/passwd'}", "not like http://"),
        ("{name: x, url: 'http://[::1'}", "Invalid IPv6 URL"),
        ("{name: x, url: 'http://a:b'}", ".url: 'http://a:b'"),
        ("{name: '../x', url: http://a}", "must be letters, digits"),
        ("{name: x, url: http://a, dilate: 0.5}", "dilate"),
        ("{name: x, url: http://a, fixed: {colour: red}}", "fixed: 'colour' is not one of"),
        ("{name: a, url: http://a}", "'a' is there twice"),
    ],
)
def test_a_placement_that_is_wrong_is_refused(tmp_path: Path, placement: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        load(written(tmp_path, f"{GOOD}  - {placement}\n"))
    assert said in str(error.value)
