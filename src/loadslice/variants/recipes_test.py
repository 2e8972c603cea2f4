from loadslice.variants import recipes

SHAPES = [((8,), (8,)), ((64,), (64,)), ((64,), (64,)), ((20,), (20,))]


def test_the_profile_spans_what_was_recorded_and_is_best_at_what_is_frequent() -> None:
    found = recipes.profile_shapes(["ids", "mask"], 16, SHAPES, [1, 2, 2, 3])
    assert found["min"] == {"ids": [1, 8], "mask": [1, 8]}
    assert found["opt"] == {"ids": [8, 64], "mask": [8, 64]}
    assert found["max"] == {"ids": [16, 64], "mask": [16, 64]}


def test_recipes_are_marked_as_not_run() -> None:
    shapes = recipes.profile_shapes(["ids", "mask"], 16, SHAPES, [1, 1, 1, 1])
    for recipe in (recipes.gpu_fp16("m.onnx", shapes), recipes.gpu_tensorrt("m.onnx", shapes)):
        assert recipe["verified"] is False
    assert "--minShapes=ids:1x8,mask:1x8" in recipes.gpu_tensorrt("m.onnx", shapes)["steps"][0]
