from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("nncf", reason="the extra 'squeeze' is not installed")
pytest.importorskip("onnxslim", reason="the extra 'squeeze' is not installed")
pytest.importorskip("openvino", reason="the extra 'squeeze' is not installed")

from loadslice.backends.base import open_backend
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.variant import Squeeze, Target, load_manifest
from loadslice.variants import recorded, specimen
from loadslice.variants.metrics import Score
from loadslice.variants.order import Order
from loadslice.variants.squeeze import squeeze


def run(
    folder: Path, targets: list[Target], *, floor: str | None = None, score: Score | None = None, fragile: bool = False
) -> Squeeze:
    model = specimen.write_model(folder / "small.onnx", fragile=fragile)
    session = open_backend("onnxruntime").load(model, Engine(backend="onnxruntime"))
    found = recorded.of_folder(specimen.write_inputs(folder / "inputs", 20), session.inputs)
    own = None if score is None else ("mine", score)
    order = Order(model, found, targets, folder / "out", floor=floor, score=own, seconds=0.2)
    return squeeze(order, lambda text: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("squeeze")


@pytest.fixture(scope="module")
def fragile(folder: Path) -> Squeeze:
    """A model that plain INT8 ruins, squeezed to INT8 with a floor that plain INT8 misses."""
    return run(folder, ["cpu-int8"], floor="cosine>=0.99", fragile=True)


def test_nothing_below_the_floor_ships_and_only_one_per_target(fragile: Squeeze) -> None:
    shipped = [one for one in fragile.variants if one.shipped]
    assert len(shipped) <= 1
    for one in fragile.variants:
        assert one.metric.variant is not None
        if one.metric.variant < 0.99:
            assert not one.shipped
            assert "below the floor" in one.why


def test_plain_int8_fails_on_the_fragile_layer_and_keeping_it_gives_back_most(fragile: Squeeze) -> None:
    assert fragile.precision is not None
    worst = fragile.precision.layers[0]
    assert worst.alone_db is not None
    assert worst.alone_db < 15
    plain, one_kept = fragile.precision.keep[:2]
    assert plain.cosine < 0.99
    assert one_kept.kept == 1
    assert one_kept.recovered_share is not None
    assert one_kept.recovered_share > 0.5


def test_kept_layers_are_the_worst_and_stay_in_float(fragile: Squeeze) -> None:
    assert fragile.precision is not None
    kept = next(one for one in fragile.variants if one.kept_layers)
    assert kept.kept_layers == [one.layer for one in fragile.precision.layers[: len(kept.kept_layers)]]


def test_every_speedup_is_measured_and_the_front_is_not_empty(fragile: Squeeze) -> None:
    measured = [one for one in fragile.variants if one.speedup_vs_untuned is not None]
    assert measured
    assert all(one.timings and one.timings[0].rounds >= 5 for one in measured)
    assert any(one.on_front for one in measured)
    assert fragile.untuned.speedup_vs_untuned == 1.0


def test_calibration_choice_and_judgement_have_inputs_of_their_own(fragile: Squeeze) -> None:
    assert fragile.calibration is not None
    assert fragile.inputs is not None
    assert fragile.inputs.choice is not None
    sets = [fragile.inputs.calibration, fragile.inputs.choice, fragile.inputs.judgement]
    assert [len(one.names) for one in sets] == [5, 5, 10]
    assert len({name for one in sets for name in one.names}) == 20
    assert set(fragile.calibration.inputs) <= set(fragile.inputs.calibration.names)
    assert fragile.variants[0].metric.inputs == 10
    assert {(one.method, one.inputs) for one in fragile.calibration.trials} == {
        ("coverage", 4), ("random", 4), ("coverage", 5),
    }  # fmt: skip


def test_what_a_kept_layer_gives_back_is_told_on_the_inputs_that_judge_too(fragile: Squeeze) -> None:
    assert fragile.precision is not None
    judged = {step.kept: step.recovered_share_judged for step in fragile.precision.keep}
    built = {len(one.kept_layers) for one in fragile.variants if one.kept_layers}
    assert built
    for kept, share in judged.items():
        assert (share is not None) == (kept in built)


@pytest.mark.parametrize(
    ("flattered", "why"),
    [
        (5, "chosen by other inputs, but on those that judge mine 0.0000 is below the floor mine>=0.995"),
        (10, "not chosen: mine 0.0000 is below the floor mine>=0.995 on the inputs to choose by"),
    ],
)
def test_what_is_right_only_on_some_inputs_does_not_ship(tmp_path: Path, flattered: int, why: str) -> None:
    def score(outputs: list, source: list) -> float:
        untouched = all(given is wanted for given, wanted in zip(outputs, source, strict=True))
        return float(len(outputs) == flattered or untouched)

    result = run(tmp_path, ["cpu-fp32"], score=score)
    assert not any(one.shipped for one in result.variants)
    assert sum(one.why.startswith(why) for one in result.variants) >= 1
    assert all(one.metric.on_choice == float(flattered == 5) for one in result.variants)
    assert result.conclusion.startswith("Keep the model as it is")


def test_too_few_inputs_to_choose_by_are_said_so(tmp_path: Path) -> None:
    model = specimen.write_model(tmp_path / "small.onnx")
    session = open_backend("onnxruntime").load(model, Engine(backend="onnxruntime"))
    found = recorded.of_folder(specimen.write_inputs(tmp_path / "inputs", 6), session.inputs)
    result = squeeze(Order(model, found, ["gpu-fp16"], tmp_path / "out"), lambda text: None)
    assert result.inputs is not None
    assert result.inputs.choice is None
    assert any("6 inputs are too few to choose by a part of their own" in note for note in result.notes)
    assert load_manifest(tmp_path / "out" / "gpu-fp16" / "manifest.json").inputs == result.inputs


def test_buckets_hold_all_recorded_requests(fragile: Squeeze) -> None:
    assert fragile.buckets is not None
    assert fragile.buckets.distinct_shapes == 3
    assert sum(bucket.share for bucket in fragile.buckets.buckets) == pytest.approx(1.0)
    assert all(bucket.compile_s.keys() == {"onnxruntime", "openvino"} for bucket in fragile.buckets.buckets)


def test_what_is_not_here_is_built_unverified_with_a_recipe_and_never_shipped(tmp_path: Path) -> None:
    result = run(tmp_path, ["gpu-fp16", "gpu-tensorrt", "npu-int8"])
    assert {one.target for one in result.variants} == {"gpu-fp16", "gpu-tensorrt", "npu-int8"}
    for one in result.variants:
        assert not one.shipped
        assert one.speedup_vs_untuned is None
        assert "unverified" in one.why
        assert one.path is not None
        assert Path(one.path).is_file()
    for target in ("gpu-fp16", "gpu-tensorrt"):
        recipe = (tmp_path / "out" / target / "recipe.json").read_text()
        assert '"verified": false' in recipe
    assert "image:16x3x48x48" in (tmp_path / "out" / "gpu-tensorrt" / "recipe.json").read_text()


def test_a_manifest_proves_its_file_and_a_changed_file_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, ["gpu-fp16"])
    path = tmp_path / "out" / "gpu-fp16" / "manifest.json"
    manifest = load_manifest(path)
    assert manifest.variant == result.variants[0]
    assert manifest.source_sha256 == result.sha256
    assert manifest.environment.packages.keys() >= {"onnxruntime", "openvino", "nncf"}
    with Path(str(result.variants[0].path)).open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(InputError, match=r"its SHA-256 is .* Run `loadslice squeeze` again"):
        load_manifest(path)


def test_a_floor_nobody_meets_ships_nothing_and_shows_the_best(tmp_path: Path) -> None:
    result = run(tmp_path, ["cpu-fp32"], floor="sqnr_db>=1000")
    assert not any(one.shipped for one in result.variants)
    assert all("below the floor sqnr_db>=1000" in one.why for one in result.variants)
    assert not list((tmp_path / "out").glob("cpu-fp32/*"))


def test_a_model_of_convolutions_gets_no_int4_and_is_told_why(tmp_path: Path) -> None:
    result = run(tmp_path, ["cpu-int4"])
    assert not result.variants
    assert any(note.startswith("cpu-int4: matrix products hold 2% of the weights") for note in result.notes)


def test_a_metric_of_the_users_own_decides(tmp_path: Path) -> None:
    def flattering(outputs: list, source: list) -> float:
        pairs = zip(outputs, source, strict=True)
        return float(np.mean([given["scores"].argmax() == wanted["scores"].argmax() for given, wanted in pairs]))

    result = run(tmp_path, ["cpu-fp32"], score=flattering)
    assert result.floor == "mine>=0.995"
    assert all(one.metric.variant == 1.0 for one in result.variants)


def test_labels_that_the_source_never_agrees_with_are_refused(tmp_path: Path) -> None:
    model = specimen.write_model(tmp_path / "small.onnx")
    session = open_backend("onnxruntime").load(model, Engine(backend="onnxruntime"))
    found = recorded.of_folder(specimen.write_inputs(tmp_path / "inputs", 20), session.inputs)
    found = recorded.Recorded(found.names, found.feeds, found.counts, ["cat"] * 20)
    with pytest.raises(
        InputError, match=r"the source model agrees with none of 5 labels \(label 'cat' where it answers \["
    ):
        squeeze(Order(model, found, ["cpu-fp32"], tmp_path / "out"), lambda text: None)


def test_a_floor_for_another_metric_than_the_one_given_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the metric given with --metric is called 'mine'"):
        run(tmp_path, ["cpu-fp32"], floor="cosine>=0.9", score=lambda outputs, source: 1.0)


def test_what_no_longer_passes_does_not_stay_on_disk(tmp_path: Path) -> None:
    assert any(one.shipped or one.path for one in run(tmp_path, ["gpu-fp16", "cpu-fp32"], floor="cosine>=0.9").variants)
    kept = sorted(path.name for path in (tmp_path / "out").rglob("*.onnx"))
    (tmp_path / "out" / "cpu-fp32").mkdir(exist_ok=True)
    (tmp_path / "out" / "cpu-fp32" / "mine.json").write_text("{}")
    run(tmp_path, ["cpu-fp32"], floor="sqnr_db>=1000")
    left = sorted(path.name for path in (tmp_path / "out").rglob("*.onnx"))
    assert left == [name for name in kept if "fp16" in name]
    assert (tmp_path / "out" / "cpu-fp32" / "mine.json").exists()


def test_an_input_that_the_source_itself_cannot_run_is_named(tmp_path: Path) -> None:
    model = specimen.write_model(tmp_path / "small.onnx")
    fixed = tmp_path / "fixed.onnx"
    # The file promises open sides and holds a weight for one: exporters write such models.
    graph = onnx.load(model)
    graph.graph.node.insert(0, onnx.helper.make_node("Add", ["image", "offset"], ["moved"]))
    graph.graph.node[1].input[0] = "moved"
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 3, 16, 16), np.float32), "offset"))
    onnx.save(graph, fixed)
    session = open_backend("onnxruntime").load(fixed, Engine(backend="onnxruntime"))
    found = recorded.of_folder(specimen.write_inputs(tmp_path / "inputs", 20), session.inputs)
    with pytest.raises(InputError, match=r"input 'in-0\d\d': the source model cannot run it: onnxruntime: .*"):
        squeeze(Order(fixed, found, ["cpu-fp32"], tmp_path / "out"), lambda text: None)
