import pytest

from loadslice.serve import extensions


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/v2/models/p/config", "ModelMetadata"),
        ("/v2/models/p/versions/1/stats", "GET /metrics"),
        ("/v2/models/stats", "GET /metrics"),
        ("/v2/models/p/trace/setting", "--otlp"),
        ("/v2/repository/index", "loadslice model"),
        ("/v2/systemsharedmemory/status", "binary extension"),
        ("/v2/cudasharedmemory/region/x/register", "binary extension"),
        ("/v2/logging", "--log-format"),
    ],
)
def test_what_tritons_clients_ask_beyond_the_protocol_names_what_to_ask_instead(path: str, instead: str) -> None:
    said = extensions.of_path(path)
    assert said is not None
    assert "not of the Open Inference Protocol" in said
    assert instead in said


@pytest.mark.parametrize("path", ["/v2", "/v2/models/config2", "/v2/models/p/infer", "/nothing", "/v1/models/p/stats"])
def test_other_paths_are_no_extension(path: str) -> None:
    assert extensions.of_path(path) is None


def test_methods_are_told_by_their_name() -> None:
    said = extensions.of_method("/inference.GRPCInferenceService/ModelStatistics")
    assert said is not None
    assert said.startswith("ModelStatistics is an extension of Triton's")
    assert extensions.of_method("/inference.GRPCInferenceService/Nothing") is None
