"""The OpenAPI document, and what `schemathesis` finds when it asks the server everything that the document says."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.live

CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", 503, 504]
"""
"""A request that asks for an answer within a millisecond is told that it is too late, which is no fault."""


@pytest.fixture(params=["tiny", "text"])
def live(request: pytest.FixtureRequest):
    return request.getfixturevalue(request.param)


def test_every_route_is_in_the_document_and_the_document_has_no_others(live) -> None:
    told = httpx.get(f"{live.server.url}/openapi.json").json()
    routes = {
        (path, method)
        for path, methods in live.server._front.routes.items()
        if not path.startswith(("/admin", "/console"))
        for method in methods
    }
    written = {(path, method.upper()) for path, methods in told["paths"].items() for method in methods}
    raw = {one for one in routes if one[0].startswith("/v1/pipelines/")}
    assert routes - raw <= written <= routes


def test_the_document_names_the_tensors_and_headers(live) -> None:
    told = httpx.get(f"{live.server.url}/openapi.json").json()
    name = live.server.generation.pipeline.pipeline
    asked = told["paths"][f"/v2/models/{name}/infer"]["post"]
    assert {"x-loadslice-deadline-ms", "x-loadslice-priority"} <= {one["name"] for one in asked["parameters"]}
    (tensor,) = told["components"]["schemas"]["InferRequest"]["properties"]["inputs"]["items"]["anyOf"]
    metadata = httpx.get(f"{live.server.url}/v2/models/{name}").json()["inputs"]
    assert tensor["properties"]["name"]["const"] == metadata[0]["name"]


def test_schemathesis_finds_nothing(live, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    ended = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(tmp_path / "schemathesis.toml"), "run",
            f"{live.server.url}/openapi.json", "--max-examples", "15", "--seed", "1",
            "--phases", "examples,coverage,fuzzing", "--exclude-checks", "positive_data_acceptance",
            "--suppress-health-check", "all", "--no-color",
        ],
        capture_output=True, text=True, cwd=tmp_path, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    tried = re.search(r"(\d+) generated", ended.stdout)
    assert tried is not None
    assert int(tried[1]) >= 100
    with capsys.disabled():
        print(f"\nschemathesis tried {tried[1]} requests, 0 faults")
