"""Bad inputs, many of them, and a count of how many were tried.

    LOADSLICE_FUZZ_EXAMPLES=5000 python -m pytest tests/fuzz

In CI the number is small and the inputs are the same each time; with the variable set they are drawn anew. What fails
is printed as the smallest input that fails.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.live import conftest as live

from loadslice.policy import invariants
from loadslice.serve.limits import Limits
from loadslice.serve.server import Server
from loadslice.spec.pipeline import load

GIVEN = os.environ.get("LOADSLICE_FUZZ_EXAMPLES")
EXAMPLES = int(GIVEN or 60)
KINDS = ("http", "grpc", "files")

settings.register_profile(
    "fuzz",
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=GIVEN is None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Tried:
    """Counts inputs."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Iterator[Tried]:
    """Called once per bad input."""
    counter = Tried()
    yield counter
    record_property("tried", counter.count)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[live.LiveServer]:
    """A server with both fronts and short patience; when all is over nothing is held, open or inside."""
    folder = tmp_path_factory.mktemp("fuzz")
    live.write_model(folder / "double.onnx", "Add", "x", "y")
    live.write_model(folder / "negate.onnx", "Neg", "y", "z")
    (folder / "tiny.yaml").write_text(live.TENSORS)
    limits = Limits(
        body_bytes_max=1 << 20, held_bytes_max=8 << 20, body_timeout_s=1.0, reply_timeout_s=1.0, keepalive_timeout_s=2.0
    )
    running = live.LiveServer(Server(load(folder / "tiny.yaml"), folder, port=0, grpc=0, limits=limits))
    try:
        running.run(running.server.start())
        yield running
        running.run(running.server.drained())
        running.check()
        assert running.server._front.bodies.held_bytes == 0
        running.run(running.server.stop())
        assert running.server._front.active == 0
        assert not running.server._grpc.connections
        invariants.check_idle(running.server.state)
    finally:
        running.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many inputs were tried, and keep it as ``out/fuzz.json`` where the number was chosen."""

    def ours(kind: str) -> list[pytest.TestReport]:
        return [one for one in terminalreporter.stats.get(kind, []) if "fuzz" in Path(one.fspath).parts]

    totals = dict.fromkeys(KINDS, 0)
    for report in ours(""):  # setups and teardowns that went well
        if report.when == "teardown":
            name = Path(report.fspath).name.partition("_")[0]
            totals[name] += sum(value for key, value in report.user_properties if key == "tried")
    if not any(totals.values()):
        return
    faults = len(ours("failed")) + len(ours("error"))
    told = ", ".join(f"{name} {count:,}" for name, count in totals.items())
    terminalreporter.write_line(
        f"fuzz: {sum(totals.values()):,} bad inputs tried ({told}); tests with crashes, hangs or leaks: {faults}"
    )
    if GIVEN is not None:
        out = Path("out")
        out.mkdir(exist_ok=True)
        (out / "fuzz.json").write_text(json.dumps({"inputs": totals, "faults": faults}) + "\n")
