"""Writes ``docs/generated/*.md`` from the code it describes, so that no table of these pages can drift from it.

    python docs/generate.py

`conf.py` runs it before every build; `tests/docs` fails when what is committed is not what it writes. Text comes from
class docstrings, attribute docstrings and, for tables of columns, the comment at the end of a column's line.
"""

import ast
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields as dataclass_fields
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

FOLDER = Path(__file__).parent / "generated"

UNITS = {
    "tokens_per_s": "tokens/s",
    "bytes_per_s": "bytes/s",
    "flop_per_s": "FLOP/s",
    "ops_per_s": "operations/s",
    "flop_per_byte": "FLOP/byte",
    "per_wall_s": "per second of wall time",
    "per_cpu_s": "per second of processor time",
    "per_s": "per second",
    "per_kwh": "money per kWh",
    "per_year": "share a year",
    "flop": "FLOP",
    "flops": "FLOP",
    "macs": "multiply-accumulates",
    "ms": "ms",
    "ns": "ns",
    "s": "s",
    "w": "W",
    "j": "J",
    "pct": "%",
    "bytes": "bytes",
    "bytes_in": "bytes",
    "tokens_in": "tokens",
    "tokens_out": "tokens",
    "share": "0 to 1",
    "utilisation": "0 to 1",
    "characters": "characters",
    "years": "years",
}
"""Part of a name -> unit; the first that fits counts, so longer ones stand first."""

MILLISECONDS = {"LatencyMs", "SendLagMs", "Latency", "Milliseconds"}
"""Types whose numbers are milliseconds by the name of the type."""
UNITLESS = {"family", "cv"}

COLUMN_TITLES = {
    ("trace", "SCHEMA"): "Columns",
    ("journal", "REQUEST_COLUMNS"): "`requests.parquet`",
    ("journal", "STAGE_COLUMNS"): "`stages.parquet`",
    ("journal", "EVENT_COLUMNS"): "`events.parquet`",
    ("replay", "REPLAY_COLUMNS"): "`replay.parquet`",
}


def pages() -> dict[str, str]:
    """Every generated page: file name -> text."""
    found = {f"{name}.md": "\n".join(_module_page(module)) + "\n" for name, module in spec_modules().items()}
    found |= {
        "outcomes.md": "\n".join(_outcomes()) + "\n",
        "events.md": "\n".join(_events()) + "\n",
        "metrics.md": "\n".join(_metrics()) + "\n",
        "limits.md": "\n".join(_limits()) + "\n",
    }
    return found


def write(folder: Path = FOLDER) -> None:
    """Write every page that has changed, and remove those that no code stands behind any more."""
    folder.mkdir(exist_ok=True)
    wanted = pages()
    for name, text in wanted.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in folder.glob("*.md"):
        if path.name not in wanted:
            path.unlink()


def spec_modules() -> dict[str, ModuleType]:
    """Modules of `loadslice.spec` that define file types or tables of columns, by short name."""
    import loadslice.spec

    found = {}
    for info in pkgutil.iter_modules(loadslice.spec.__path__):
        if info.name.endswith("_test"):
            continue
        module = importlib.import_module(f"loadslice.spec.{info.name}")
        if structs(module) or list(_column_tables(module)):
            found[info.name] = module
    return found


def structs(module: ModuleType) -> list[type[msgspec.Struct]]:
    """File types of a module, the whole file's first: a module defines parts before wholes."""
    return [
        kind
        for kind in reversed(list(vars(module).values()))
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and msgspec.Struct in kind.__bases__  # one that adds to another type is made here and never read
        and kind.__module__ == module.__name__
        and not any("DataFrame" in str(field.type) for field in msgspec.structs.fields(kind))
    ]


def _module_page(module: ModuleType) -> Iterator[str]:
    short = module.__name__.rpartition(".")[2]
    source = _source(module)
    for kind in structs(module):
        yield f"### `{kind.__name__}`"
        yield ""
        yield _plain(kind.__doc__ or "")
        yield ""
        yield from _table(("field", "type", "unit", "default", "meaning"), _field_rows(kind, _class_node(source, kind)))
    for name, node, text in _column_tables(module):
        yield f"### {COLUMN_TITLES.get((short, name), f'`{name}`')}"
        yield ""
        rows = list(_column_rows(node, getattr(module, name), _lines(module)))
        yield from _table(("column", "type", "unit", "meaning"), rows)
        if text:
            yield text
            yield ""


def _field_rows(kind: type[msgspec.Struct], node: ast.ClassDef) -> Iterator[tuple[str, ...]]:
    meanings = _attribute_texts(node)
    types = {item.target.id: ast.unparse(item.annotation) for item in node.body if _is_attribute(item)}
    for field in msgspec.structs.fields(kind):
        yield (
            f"`{field.encode_name}`",
            f"`{types[field.name]}`",
            _unit(field.name, kind.__name__),
            _default(field),
            meanings.get(field.name, ""),
        )


def _is_attribute(item: ast.stmt) -> Any:
    return isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)


def _attribute_texts(node: ast.ClassDef) -> dict[str, str]:
    """The string that stands below an attribute, as its meaning."""
    found = {}
    for item, following in zip(node.body, node.body[1:], strict=False):
        if _is_attribute(item) and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[item.target.id] = _plain(str(following.value.value))  # type: ignore[attr-defined]
    return found


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f"`{'null' if field.default is None else _value(field.default)}`"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{_value(field.default_factory())}`"
    return "required"


def _value(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        return "{}"
    return msgspec.json.encode(value).decode()


def _unit(name: str, kind: str = "") -> str:
    if kind in MILLISECONDS and name not in UNITLESS:
        return "ms"
    padded = f"_{name}_"
    return next((unit for part, unit in UNITS.items() if f"_{part}_" in padded), "")


def _column_tables(module: ModuleType) -> Iterator[tuple[str, ast.Dict, str]]:
    """Dictionaries of Parquet columns: name, source, and the text below."""
    body = ast.parse(_source(module)).body
    for item, following in zip(body, [*body[1:], None], strict=True):
        if not (_is_attribute(item) and "DataType" in ast.unparse(item.annotation)):  # type: ignore[attr-defined]
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = _plain(str(following.value.value))
        yield item.target.id, item.value, text  # type: ignore[attr-defined]


def _column_rows(node: ast.Dict, columns: dict[str, Any], lines: list[str]) -> Iterator[tuple[str, ...]]:
    comments = {
        key.value: lines[key.lineno - 1].partition("  # ")[2].strip()
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    for name, kind in columns.items():
        yield f"`{name}`", f"`{kind}`", _unit(name), comments.get(name, "")


def _outcomes() -> Iterator[str]:
    from loadslice.serve.refusals import of_outcome
    from loadslice.spec.outcome import Outcome

    rows = []
    for (outcome, reason), text in endings().items():
        if outcome is Outcome.COMPLETED:
            rows.append(("`completed`", "`none`", "200", "", text))
            continue
        refusal = of_outcome(outcome, reason, 0, None)
        hint = "yes" if refusal.retry_after_ns is not None else ""
        rows.append((f"`{outcome.name.lower()}`", f"`{reason.name.lower()}`", str(refusal.status), hint, text))
    yield from _table(("outcome", "reason", "HTTP", "Retry-After", "when"), rows)


def endings() -> dict[tuple[Any, Any], str]:
    """Every way a request ends; `tests/docs` holds it against the calls that end one."""
    from loadslice.spec.outcome import Outcome, Reason

    return {
        (Outcome.COMPLETED, Reason.NONE): "The last stage is done.",
        (Outcome.COMPLETED, Reason.DEGRADED): "A stage that would have refused it has a degraded reply.",
        (
            Outcome.REJECTED,
            Reason.QUEUE_FULL,
        ): "At the first stage: the queue is at its limit and holds no lower class.",
        (Outcome.REJECTED, Reason.TABLE_FULL): "`max_requests` are inside.",
        (Outcome.REJECTED, Reason.RETRY_BUDGET): "A repeated attempt of a client that the retry budget does not cover.",
        (Outcome.REJECTED, Reason.DRAINING): "The server is stopping.",
        (Outcome.SHED, Reason.QUEUE_FULL): "The same at a later stage: it had been admitted.",
        (Outcome.SHED, Reason.DISPLACED): "A request of a higher class took its place in a full queue.",
        (Outcome.SHED, Reason.HOPELESS): "Wait and service, as estimated now, end after its deadline.",
        (Outcome.EXPIRED, Reason.DEADLINE): "Its deadline has passed, waiting or running.",
        (Outcome.EXPIRED, Reason.STAGE_TIMEOUT): "The stage's `timeout_ms` has passed and it could not be moved.",
        (Outcome.FAILED, Reason.INELIGIBLE): "No engine of the stage takes its bucket, rows or precision.",
        (Outcome.FAILED, Reason.ENGINE_DOWN): "Engines would take it, and all of them are down.",
        (Outcome.FAILED, Reason.ENGINE_FAILED): "The runtime failed on its batch and it could not be moved.",
        (
            Outcome.FAILED,
            Reason.STAGE_FAILED,
        ): "The stage refused or broke on it (400 or 415 where the client is to blame).",
        (Outcome.CANCELLED, Reason.CLIENT_GONE): "The client left, or the server's drain time was up.",
    }


def _events() -> Iterator[str]:
    from loadslice.policy import desk, events

    rows = []
    for number, name in enumerate(events.EVENT_NAMES):
        function = getattr(desk, f"on_{name}", None)
        if function is None:
            rows.append(
                (str(number), f"`{name}`", "", "One member's rows and bucket at the next stage; -1 rows: failed.")
            )
            continue
        plain = getattr(function, "py_func", function)
        code = plain.__code__
        arguments = [
            one for one in code.co_varnames[: code.co_argcount] if one not in ("now_ns", "tables", "state", "results")
        ]
        rows.append((str(number), f"`{name}`", ", ".join(f"`{one}`" for one in arguments), _first(plain.__doc__)))
    yield from _table(("kind", "event", "arguments", "meaning"), rows)


def _metrics() -> Iterator[str]:
    from loadslice.policy.tables import fresh, lower
    from loadslice.serve.clock import Clock
    from loadslice.serve.metrics import BOUNDS_S, Metrics
    from loadslice.spec.pipeline import Engine, Pipeline, Stage

    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines={"e": Engine(backend="python")},
        stages=[Stage(name="s", variant="s", engine="e")],
    )
    tables = lower(pipeline)
    rows = []
    for family in Metrics(pipeline, tables, fresh(tables, 1), Clock()).collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        rows.append((f"`{name}`", family.type, labels, family.documentation))
    yield from _table(("name", "type", "labels", "meaning"), rows)
    yield f"Upper bounds of histogram buckets, seconds: {', '.join(f'{bound:g}' for bound in BOUNDS_S)}."
    yield ""


def _limits() -> Iterator[str]:
    from loadslice.serve import limits

    node = _class_node(_source(limits), limits.Limits)
    meanings = _attribute_texts(node)
    rows = [
        (f"`{field.name}`", f"{field.default:,}", _unit(field.name), meanings.get(field.name, ""))
        for field in dataclass_fields(limits.Limits)
    ]
    yield from _table(("limit", "value", "unit", "meaning"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A Markdown table; columns that nobody filled are left out."""
    kept = list(rows)
    used = [index for index in range(len(head)) if any(row[index] for row in kept)]
    yield "| " + " | ".join(head[index] for index in used) + " |"
    yield "| " + " | ".join("---" for _ in used) + " |"
    for row in kept:
        yield "| " + " | ".join(row[index].replace("|", "\\|") for index in used) + " |"
    yield ""


def _source(module: ModuleType) -> str:
    assert module.__file__ is not None
    return Path(module.__file__).read_text(encoding="utf-8")


def _lines(module: ModuleType) -> list[str]:
    return _source(module).splitlines()


def _class_node(source: str, kind: type) -> ast.ClassDef:
    return next(
        item for item in ast.parse(source).body if isinstance(item, ast.ClassDef) and item.name == kind.__name__
    )


def _plain(text: str) -> str:
    """A docstring as one paragraph of Markdown."""
    return " ".join(text.replace("``", "`").split())


def _first(text: str | None) -> str:
    """The first paragraph of a docstring."""
    return _plain((text or "").partition("\n\n")[0])


if __name__ == "__main__":
    write()
    sys.stdout.write(f"{FOLDER}\n")
