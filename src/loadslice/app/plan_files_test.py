import msgspec

from loadslice.app.plan_files import not_served, text
from loadslice.plan.fleet.specimen import pipeline
from loadslice.spec.pipeline import Engine


def test_a_fleet_of_times_alone_is_said_to_be_for_the_simulator() -> None:
    only_times = pipeline()
    assert not_served(only_times)[0] == "engine 'cpu' has no backend and no device"
    assert not_served(only_times)[-1] == "stage 'classify' has no model"
    assert "as `simulate` takes it. For `serve`: engine 'cpu' has no backend" in text(only_times)


def test_a_fleet_of_engines_and_models_is_one_that_serves() -> None:
    bare = pipeline()
    engines = dict.fromkeys(bare.engines, Engine(backend="onnxruntime"))
    stages = [msgspec.structs.replace(stage, variant=None, model="classify.onnx") for stage in bare.stages]
    whole = msgspec.structs.replace(bare, engines=engines, stages=stages)
    assert not_served(whole) == []
    assert "as `serve` and `simulate` take it" in text(whole)
