"""What the text says about the code is true: commands, options, examples, tables, names."""

import ast
import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import msgspec
import polars as pl
import pytest

from loadslice.app.cli import COMMANDS, root
from loadslice.spec import budget, device, faults, kinds, latency, pipeline
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.report import Interval
from loadslice.workload import trace

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
TEXTS = sorted(
    [*REPOSITORY.glob("*.md"), *DOCS.glob("*.md"), *(REPOSITORY / "examples").rglob("*.md")],
    key=lambda path: path.as_posix(),
)
PAGES = ("how-it-decides", "metrics", "determinism", "sim-vs-measured", "files", "life-of-a-request")

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"loadslice_docs_{name}", DOCS / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


generate = load("generate")


def command_lines(path: Path) -> Iterator[str]:
    """Whole command lines in fenced blocks."""
    for kind, block in FENCE.findall(path.read_text(encoding="utf-8")):
        if kind not in ("sh", "console", "bash", ""):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if line.startswith("loadslice "):
                yield line


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that some words call, and its arguments."""
    group, rest = root, list(words)
    while isinstance(group, click.Group):
        assert rest, f"a subcommand is missing: {words}"
        name = rest.pop(0)
        found = group.get_command(click.Context(group), name)
        assert found is not None, f"there is no command '{name}'"
        group = found
    return group, rest


LINES = [(path.relative_to(REPOSITORY).as_posix(), line) for path in TEXTS for line in command_lines(path)]


@pytest.mark.parametrize(("place", "line"), LINES, ids=[f"{place}: {line[:60]}" for place, line in LINES])
def test_a_command_line_in_the_text_parses(place: str, line: str) -> None:
    command, arguments = resolve(shlex.split(line, comments=True)[1:])
    command.make_context(line, arguments)


GROUPS = ("trace", "toolchain", "model", "rollout", "token", "env", "watch")
"""Commands of commands, which text may name by themselves."""


def test_commands_named_in_running_text_and_their_options_exist() -> None:
    wrong = []
    for path in TEXTS:
        for code in INLINE.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
            words = code.split()
            if words[0] != "loadslice" or len(words) < 2 or not words[1].isalpha() or "|" in code:
                continue
            if words[1] not in COMMANDS:
                wrong.append(f"{path.name}: {code}")
                continue
            if words[1:] in ([group] for group in GROUPS):
                continue
            command, arguments = resolve(words[1:])
            known = {name for parameter in command.params for name in parameter.opts}
            wrong += [
                f"{path.name}: {code}: {word}" for word in arguments if word.startswith("-") and word not in known
            ]
    assert not wrong


def test_every_command_is_in_the_readme_and_the_readme_has_no_others() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `loadslice (\w+)`", text, re.MULTILINE))
    assert named == set(COMMANDS)


def test_what_messages_say_makes_a_document_is_a_command() -> None:
    assert {command.split()[0] for command in kinds.MADE_BY.values()} <= set(COMMANDS)


def test_characters_wrong_in_the_example_have_one_source() -> None:
    table = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    example = (REPOSITORY / "examples/ocr/README.md").read_text(encoding="utf-8")
    said = set(re.findall(r"([\d.]+) % of characters wrong", example))
    assert said == set(re.findall(r"\| ([\d.]+) % \|$", table, re.MULTILINE))
    assert len(said) == 1


def test_the_readme_says_what_each_plan_computes_in() -> None:
    rows = re.findall(
        r"^\| (ONNX Runtime alone|OpenVINO alone), (\w+) \|", (REPOSITORY / "README.md").read_text(), re.MULTILINE
    )
    assert rows == [("ONNX Runtime alone", "fp32"), ("OpenVINO alone", "bf16")]


def test_make_targets_named_in_the_text_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set()
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)$", text, re.MULTILINE))
    assert {name for pair in named for name in pair if name} <= targets


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_are_there_and_have_something_to_say(name: str) -> None:
    assert len((DOCS / f"{name}.md").read_text(encoding="utf-8").split()) > 200


def test_every_page_answers_a_question_of_the_index() -> None:
    text, _, tree = (DOCS / "index.md").read_text(encoding="utf-8").partition("```{toctree}")
    asked = set(re.findall(r"^\|.*\]\(([\w-]+)\.md\) \|$", text, re.MULTILINE))
    assert asked == set(re.findall(r"^([\w-]+)$", tree, re.MULTILINE))


def test_what_a_page_includes_it_links_to_for_readers_of_the_bare_file() -> None:
    unlinked = [
        f"{path.name}: {file}"
        for path in sorted(DOCS.glob("*.md"))
        for text in [path.read_text(encoding="utf-8")]
        for file in re.findall(r"^```\{include\} (\S+)$", text, re.MULTILINE)
        if f"]({file})" not in text or not (DOCS / file).is_file()
    ]
    assert not unlinked


def test_generated_tables_are_what_the_generator_writes() -> None:
    stale = [
        name
        for name, text in generate.pages().items()
        if not (generate.FOLDER / name).is_file() or (generate.FOLDER / name).read_text(encoding="utf-8") != text
    ]
    left = {path.name for path in generate.FOLDER.glob("*.md")} - set(generate.pages())
    assert not stale, "run `python docs/generate.py` and commit what it writes"
    assert not left


def test_every_module_of_file_types_has_its_section() -> None:
    text = (DOCS / "files.md").read_text(encoding="utf-8")
    included = set(re.findall(r"\{include\} generated/(\w+)\.md", text))
    assert included == set(generate.spec_modules())


def test_local_links_lead_somewhere() -> None:
    broken = []
    for path in TEXTS:
        for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", path.read_text(encoding="utf-8"))):
            if "://" in target or target.startswith("#"):
                continue
            file, _, anchor = target.partition("#")
            found = path.parent / file
            if not found.exists() or (anchor and anchor not in anchors(found)):
                broken.append(f"{path.name}: {target}")
    assert not broken


def anchors(path: Path) -> set[str]:
    """Heading anchors as GitHub and MyST make them."""
    headings = re.findall(r"^#{1,3} (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_tests_named_in_the_text_exist() -> None:
    written = {
        node.name
        for path in [*(REPOSITORY / "src").rglob("*_test.py"), *(REPOSITORY / "tests").rglob("*_test.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    named = {name for path in TEXTS for name in re.findall(r"`(test_\w+)`", path.read_text(encoding="utf-8"))}
    assert named <= written
    assert named, "the pattern finds something"


def test_source_files_named_in_the_text_exist() -> None:
    missing = [
        f"{path.name}: {name}"
        for path in TEXTS
        for name in re.findall(r"`([a-z_/]+/[a-z_]+\.py)`", path.read_text(encoding="utf-8"))
        if not any((folder / name).is_file() for folder in (REPOSITORY, REPOSITORY / "src/loadslice"))
    ]
    assert not missing


def test_python_in_the_text_compiles_and_imports_what_exists() -> None:
    blocks = [
        (path, code) for path in TEXTS for kind, code in FENCE.findall(path.read_text("utf-8")) if kind == "python"
    ]
    assert blocks
    for path, code in blocks:
        for node in ast.walk(ast.parse(code, path.name)):
            if isinstance(node, ast.ImportFrom):
                assert node.module is not None
                module = importlib.import_module(node.module)
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


def section(title: str) -> dict[str, str]:
    """First example of each language under a heading of files.md."""
    text = (DOCS / "files.md").read_text(encoding="utf-8")
    body = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    examples: dict[str, str] = {}
    for kind, block in FENCE.findall(body):
        examples.setdefault(kind, block)
    return examples


def test_the_pipeline_examples_load(tmp_path: Path) -> None:
    quickstart = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    blocks = [section("Pipeline")["yaml"]]
    blocks += [block for kind, block in FENCE.findall(quickstart) if kind == "yaml" and "stages:" in block]
    assert len(blocks) == 2
    for block in blocks:
        (tmp_path / "pipeline.yaml").write_text(block, encoding="utf-8")
        assert pipeline.load(tmp_path / "pipeline.yaml").stages


def test_the_budget_examples_load(tmp_path: Path) -> None:
    quickstart = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    blocks = [section("Budget")["yaml"]]
    blocks += [block for kind, block in FENCE.findall(quickstart) if kind == "yaml" and "slo:" in block]
    assert len(blocks) == 2
    for block in blocks:
        (tmp_path / "budget.yaml").write_text(block, encoding="utf-8")
        assert budget.load(tmp_path / "budget.yaml").slo.p95_ms == 400


def test_the_device_example_loads(tmp_path: Path) -> None:
    (tmp_path / "device.yaml").write_text(section("Device")["yaml"], encoding="utf-8")
    assert device.load_device(tmp_path / "device.yaml").name == "my-npu"


def test_the_faults_and_clients_examples_load(tmp_path: Path) -> None:
    text = (DOCS / "files.md").read_text(encoding="utf-8").partition("\n## Faults and clients\n")[2]
    told, behaviour = [block for _, block in FENCE.findall(text)][:2]
    (tmp_path / "pipeline.yaml").write_text(section("Pipeline")["yaml"], encoding="utf-8")
    (tmp_path / "faults.yaml").write_text(told, encoding="utf-8")
    (tmp_path / "clients.yaml").write_text(behaviour, encoding="utf-8")
    assert len(faults.load_faults(tmp_path / "faults.yaml", pipeline.load(tmp_path / "pipeline.yaml"))) == 2
    assert faults.load_clients(tmp_path / "clients.yaml").attempts == 4


def test_the_latency_example_loads(tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_text(section("Latency table")["json"], encoding="utf-8")
    assert isinstance(latency.load(tmp_path / "latency.json"), LatencyTable)


def test_the_trace_example_reads(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(section("Trace")["json"], encoding="utf-8")
    found = trace.read(tmp_path / "trace.jsonl")
    assert found.frame["arrival_s"].to_list() == [0.0, 0.21]
    assert found.meta["source"] == "our gateway"
    assert isinstance(found.frame, pl.DataFrame)


def test_the_table_of_outcomes_knows_every_ending_in_the_core() -> None:
    """Pairs of outcome and reason, read from the calls that end a request."""
    found = {(Outcome.COMPLETED, Reason.NONE), (Outcome.COMPLETED, Reason.DEGRADED)}
    for path in sorted((REPOSITORY / "src/loadslice/policy").glob("*.py")):
        if path.name.endswith("_test.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "(outcome, reason)":
                for both in ast.walk(node.value):
                    if isinstance(both, ast.Tuple):
                        found |= pairs(*both.elts)
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id == "finish":
                found |= pairs(node.args[2], node.args[3])
            elif node.func.id == "refuse":
                found |= pairs(node.args[3], node.args[4])
    found |= {(Outcome.REJECTED, reason) for reason in refused_at_the_door()}
    assert found == set(generate.endings())


def refused_at_the_door() -> set[Reason]:
    """Reasons that `on_arrival` names; it ends a request that has no row yet by itself."""
    source = (REPOSITORY / "src/loadslice/policy/desk.py").read_text(encoding="utf-8")
    arrival = next(
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "on_arrival"
    )
    names = {node.id for node in ast.walk(arrival) if isinstance(node, ast.Name)}
    return {reason for reason in Reason if reason is not Reason.NONE and reason.name in names}


def pairs(outcome: ast.expr, reason: ast.expr) -> set[tuple[Outcome, Reason]]:
    text = ast.unparse(reason)
    reasons = {one for one in Reason if one is not Reason.NONE and one.name in text}
    if "no_engine_reason" in text:
        reasons |= {Reason.ENGINE_DOWN, Reason.INELIGIBLE}
    outcomes = [
        one for one in Outcome if one is not Outcome.NONE and re.search(rf"\b{one.name}\b", ast.unparse(outcome))
    ]
    return {(one, other) for one in outcomes for other in reasons} - {(Outcome.COMPLETED, other) for other in reasons}


def test_headers_in_the_text_are_those_of_the_code() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in (REPOSITORY / "src/loadslice/serve").glob("*.py")
        if not path.name.endswith("_test.py")
    )
    coded = set(re.findall(r"x-loadslice-[a-z-]+[a-z]", source))
    text = (DOCS / "life-of-a-request.md").read_text(encoding="utf-8")
    assert set(re.findall(r"x-loadslice-[a-z-]+[a-z]", text)) == coded


def test_a_run_of_the_fidelity_benchmark_becomes_a_table_and_unknown_stays_unknown() -> None:
    table = load("tables_sim_vs_measured")
    assert table._number(None) == "unknown"
    assert table._number(0.0) == "0"
    assert table._number(12.3456) == "12.35"
    figure = msgspec.convert(
        {"figure": "p95", "unit": "ms", "predicted": [95.0, 97.0, None], "measured": [99.0, 101.0, None], "error": -4.0,
         "error_size": 4.0, "noise": 1.41, "predicted_95": [{"low": 90.0, "high": 110.0}, None], "covered": 2},
        table.FigureFidelity,
    )  # fmt: skip
    assert (
        table._figure(figure)
        == "95, 97, unknown | 90 to 110, unknown | 99, 101, unknown | -4.00 % | 1.41 % | 4.0 of 2 %, missed"
    )
    wide = msgspec.structs.replace(figure, predicted=[95.0, 97.0], predicted_95=[Interval(low=90.0, high=109.0), None])
    assert table._widths(SimpleNamespace(stretches=[SimpleNamespace(figures=[wide])])) == "unknown, 20.0 %, unknown"
    assert [
        table._verdict(*case) for case in ((2.0, 9.0, 2.0), (2.1, None, 2.0), (9.0, 2.0, 2.0), (2.1, 2.1, 2.0))
    ] == [
        "kept",
        "missed",
        "missed",
        "noise forbids",
    ]
