"""Reading and writing files so that nothing is ever left half-written, and bad input is one readable line."""

import contextlib
import errno
import hashlib
import os
import platform
import stat
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import yaml

from loadslice.spec import kinds, validation
from loadslice.spec.errors import InputError, OutputError

T = TypeVar("T")

YAML_BYTES_MAX = 1024 * 1024
"""The largest pipeline file seen is a thousandth of it; ten megabytes take half a minute to refuse."""

YAML_NODES_MAX = 200_000
"""Scalars, lists and mappings once aliases are written out. A file of the largest size has fewer without aliases that
repeat themselves; 80 kB of these can mean billions."""

TEXT_BYTES_MAX = 64 * 1024 * 1024
"""No YAML or JSON document of ours comes near this; a larger one is refused before it is read."""


def reason(error: OSError) -> str:
    """The operating system's own words for an error, without the path twice."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return (error.strerror or str(error)).lower()


def opened(path: Path) -> BinaryIO:
    """Open a file to be read. Pipes may never end, or never begin, and what was read cannot be hashed afterwards.

    Raises:
        OSError: It is not there, may not be read, or is no regular file.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise OSError(errno.EINVAL, f"it is {what}, not a file")
    return path.open("rb")


def resolved(path: Path) -> Path:
    """The path without links; one that leads to itself stays, and who opens it is told by the system."""
    return Path(os.path.realpath(path))


def read_bytes(path: Path, *, max_bytes: int = TEXT_BYTES_MAX) -> bytes:
    """Read a whole small file.

    Raises:
        InputError: The file is absent, unreadable or larger than ``max_bytes``.
    """
    try:
        with opened(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > max_bytes:
                raise InputError(f"{path}: {size} bytes is more than the {max_bytes} allowed here.")
            data = stream.read(max_bytes + 1)  # one that grows meanwhile, or that /proc makes up, has no true size
        if len(data) > max_bytes:
            raise InputError(f"{path}: more than the {max_bytes} bytes allowed here.")
        return data
    except OSError as error:
        raise InputError(f"{path}: cannot be read, {reason(error)}.") from error


def decode_yaml(path: Path, kind: type[T]) -> T:
    """Read a YAML file of one spec type; an unknown or wrong key is refused with its path.

    Raises:
        InputError: Unreadable, not UTF-8, not YAML, or not of this type.
    """
    _refuse_binary(path, kind)
    return decode_yaml_text(read_bytes(path, max_bytes=YAML_BYTES_MAX), str(path), kind)


def _refuse_binary(path: Path, kind: type[Any]) -> None:
    with contextlib.suppress(OSError), opened(path) as stream:  # whoever reads it says why it cannot be
        if (what := kinds.binary(stream.read(kinds.HEAD_BYTES))) is not None:
            raise InputError(f"{path}: this is {what}; {kinds.wanted(kind)} is wanted here.")


def decode_yaml_text(raw: bytes | str, place: str, kind: type[T]) -> T:
    """The same of a text that stands elsewhere, as a journal holds its pipeline.

    Args:
        raw: YAML.
        place: How messages name it.
        kind: The spec type.

    Raises:
        InputError: Too long, not YAML, or not of this type.
    """
    if len(raw) > YAML_BYTES_MAX:
        raise InputError(f"{place}: {len(raw)} bytes is more than the {YAML_BYTES_MAX} allowed here.")
    try:
        found = _load_yaml(raw, place)
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        raise InputError(f"{place}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise InputError(f"{place}: nested too deeply.") from error
    try:
        return msgspec.convert(found, type=kind)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{place}: {kinds.mistaken(found, kind) or validation.told(str(error), found, kind)}"
        ) from error
    except RecursionError as error:
        raise InputError(f"{place}: nested too deeply.") from error


def _load_yaml(raw: bytes | str, place: str) -> Any:
    loader = _UniqueKeys(raw)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}, set()) > YAML_NODES_MAX:
            raise InputError(f"{place}: its aliases (`*name`) stand for more than {YAML_NODES_MAX} values.")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded(node: yaml.Node, sizes: dict[int, int], above: set[int]) -> int:
    """Values that a node stands for once every alias below it is written out.

    Args:
        node: Where to count.
        sizes: What is known already, by identity: an alias is the node itself.
        above: Nodes that contain this one.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    known = sizes.get(id(node))
    if known is not None:
        return known
    if id(node) in above:
        raise ValueError(f"an alias stands inside what it names (line {node.start_mark.line + 1})")
    above.add(id(node))
    inside = node.value if isinstance(node, yaml.SequenceNode) else (part for pair in node.value for part in pair)
    sizes[id(node)] = 1 + sum(_expanded(part, sizes, above) for part in inside)
    above.discard(id(node))
    return sizes[id(node)]


NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that decoding somebody else's JSON raises: wrong types, wrong bytes, nesting without an end."""


def decode_json(path: Path, kind: type[T]) -> T:
    """Read a JSON file of one spec type.

    Raises:
        InputError: Unreadable, not JSON, or not of this type.
    """
    _refuse_binary(path, kind)
    if not os.path.lexists(path) and (command := kinds.made_by(kind, str(path.parent))) is not None:
        raise InputError(f"{path}: no such file. `{command}` makes one.")
    raw = read_bytes(path)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        found = None
        if len(raw) <= YAML_BYTES_MAX:
            with contextlib.suppress(*NOT_JSON):  # what follows the fault may be no JSON at all
                found = msgspec.json.decode(raw)
        raise InputError(
            f"{path}: {kinds.mistaken(found, kind) or validation.told(str(error), found, kind)}"
        ) from error
    except NOT_JSON as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error


def encode_json(document: Any) -> bytes:
    """One JSON document, two-space indented; NaN and infinity become null, as "unknown" must."""
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=_plain), indent=2) + b"\n"


def _plain(value: Any) -> Any:
    """What msgspec does not know itself: NumPy's scalars. Told by their module, for the recorder imports no NumPy."""
    if type(value).__module__ == "numpy":
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


class _UniqueKeys(yaml.CSafeLoader):
    """YAML as usual, but a key that stands twice is a fault: the last would win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:bool":
                key.tag = "tag:yaml.org,2002:str"  # `on:` is a word here; YAML 1.1 takes it for true
            if not isinstance(key.value, str):
                continue  # a list or a mapping as a key, which no type of ours takes
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key.value}' stands twice (line {key.start_mark.line + 1})"
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` and rename it over ``path`` when the block ends well.

    Raises:
        OutputError: The folder cannot be written to or the disk is full; nothing is left behind. Or what is there is no
            file: renaming over ``/dev/null`` would take it from the whole machine.
    """
    temporary: Path | None = None
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, f"it is {'a folder' if path.is_dir() else 'a pipe or a device'}, not a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _made_beside(path)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written, {reason(error)}. Choose another place.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _made_beside(path: Path) -> Path:
    """An empty file with a name that nobody has, as any other file of this process may be read and written.

    The system sees to that: asking for the umask means setting it, and what other threads make meanwhile, processes
    among it, would be open to everybody.
    """
    while True:
        found = path.with_name(f".{path.name}.{os.urandom(4).hex()}{path.suffix}")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(found, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
            return found


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as hexadecimal.

    Raises:
        InputError: It cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with opened(path) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise InputError(f"{path}: cannot be read, {reason(error)}.") from error
    return digest.hexdigest()


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """Where a file came from: enough to make it again."""

    schema: str
    """Name and version of the document's type, for instance ``latency/1``."""
    loadslice: str
    inputs: dict[str, str] = {}
    """Name of each input and the SHA-256 of its bytes."""
    seed: int | None = None
    tools: dict[str, str] = {}
    """Package versions that shaped the result."""
    machine: dict[str, str | int] = {}


def stamp(
    schema: str,
    *,
    inputs: Mapping[str, Path | None] | None = None,
    seed: int | None = None,
    tools: tuple[str, ...] = (),
) -> Stamp:
    """Stamp a document with the hashes of its inputs and the versions that made it.

    Args:
        schema: ``name/version``.
        inputs: Name -> file, each of which is hashed; ``None``: it was not given, and is left out.
        seed: What random draws started from, if any were made.
        tools: Installed distributions to name; an absent one is left out.
    """
    versions = {}
    for tool in tools:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[tool] = metadata.version(tool)
    return Stamp(
        schema=schema,
        loadslice=metadata.version("loadslice"),
        inputs={name: sha256_file(path) for name, path in (inputs or {}).items() if path is not None},
        seed=seed,
        tools=versions,
        machine={
            "cpu": cpu_model(),
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1),
            "system": f"{platform.system()} {platform.release().partition('-')[0]}",
            "python": platform.python_version(),
        },
    )


def cpu_model() -> str:
    """The processor's name as the operating system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def resolve_model(reference: str, folder: Path) -> Path:
    """The file a ``model:`` entry names.

    Args:
        reference: A path relative to ``folder``, or ``package:NAME/PATH`` for a file inside an installed package.
        folder: The folder of the file that holds the reference.

    Raises:
        InputError: No such file or package, or a path that leaves the package.
    """
    if not reference.startswith("package:"):
        path = resolved(folder / reference)
    else:
        path = _package_file(reference.removeprefix("package:"), reference)
    if not path.is_file():
        raise InputError(f"model '{reference}': no such file ({path}).")
    return path


def _package_file(inside: str, reference: str) -> Path:
    from importlib.util import find_spec

    package, _, relative = inside.partition("/")
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise InputError(
            f"model '{reference}': package '{package}' is not installed. Run `pip install {package.replace('_', '-')}`."
        )
    root = resolved(Path(next(iter(found.submodule_search_locations))))
    path = resolved(root / relative)
    if not path.is_relative_to(root):
        raise InputError(f"model '{reference}': the path leaves package '{package}'.")
    return path
