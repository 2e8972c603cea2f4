import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadslice.spec import files
from loadslice.spec.arrays import read_npz
from loadslice.spec.errors import InputError, OutputError
from loadslice.spec.language import is_language_file


def write_half(path: Path) -> None:
    with files.replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    files.write_bytes(path, b"old")
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_a_file_is_made_as_the_umask_says_which_is_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", None)  # it is one for all threads
        files.write_bytes(tmp_path / "report.json", b"x")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert (tmp_path / "report.json").stat().st_mode & 0o777 == 0o640


def test_an_unwritable_place_is_one_readable_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="Choose another place"):
        files.write_bytes(tmp_path / "file" / "report.json", b"x")


def test_nothing_is_put_in_the_place_of_a_device_a_pipe_or_a_folder(tmp_path: Path) -> None:
    pipe, folder, link = tmp_path / "pipe", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to("/dev/null")
    for path, what in ((pipe, "a pipe or a device"), (folder, "a folder"), (link, "a pipe or a device")):
        with pytest.raises(OutputError, match=f"cannot be written, it is {what}, not a file. Choose another place"):
            files.write_bytes(path, b"x")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "link", "pipe"]
    assert link.is_symlink()
    assert pipe.is_fifo()


def test_unknown_is_null_never_nan() -> None:
    assert files.encode_json({"x": float("nan")}) == b'{\n  "x": null\n}\n'


def test_a_package_reference_cannot_leave_the_package(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leaves package"):
        files.resolve_model("package:msgspec/../numpy/__init__.py", tmp_path)


def test_a_yaml_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("a: 1\nb: {c: 1, c: 2}\n", encoding="utf-8")
    with pytest.raises(InputError, match="'c' stands twice"):
        files.decode_yaml(path, dict)


@pytest.mark.parametrize("text", ["? [a]\n: 1\n", "{? {a: 1} : 2}", "[{[a, b]: 1, [a, b]: 2}]"])
def test_a_yaml_key_that_is_no_text_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        files.decode_yaml(path, dict)


def test_numpy_scalars_have_a_json_form() -> None:
    assert files.encode_json({"x": np.float64(0.5), "n": np.int64(3)}) == b'{\n  "x": 0.5,\n  "n": 3\n}\n'


def test_yaml_aliases_that_would_fill_memory_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 30)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match="stand for more than"):
        files.decode_yaml(path, dict)


def test_a_yaml_alias_inside_what_it_names_is_refused_and_other_aliases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "alias.yaml"
    path.write_text("a: &a [*a]\n", encoding="utf-8")
    with pytest.raises(InputError, match="stands inside what it names"):
        files.decode_yaml(path, dict)
    path.write_text("a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\n", encoding="utf-8")
    assert files.decode_yaml(path, dict) == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}], "c": {"x": 1, "y": 2}}


class Queue(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 0


class Engine(msgspec.Struct, forbid_unknown_fields=True):
    queues: list[dict[str, Queue]] = []


class Fleet(msgspec.Struct, forbid_unknown_fields=True):
    engines: dict[str, Engine]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("engines: {a: {}, b: {queus: 1}}", "engines.b: "),
        ("engines: {a: {queues: [{}, {x: {limit: 1}, y: {limt: 1}}]}}", "engines.a.queues[1].y: "),
        ("engines: {a: {queues: [{x: {limit: z}}]}, b: {}}", "engines.a.queues[0].x.limit: "),
    ],
)
def test_a_wrong_key_deep_inside_is_named_with_every_name_above_it(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        files.decode_yaml(path, Fleet)
    assert str(caught.value).startswith(f"{path}: {place}")


def test_a_key_that_yaml_takes_for_a_truth_value_stays_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("{on: 1, yes: 2}")
    assert files.decode_yaml(tmp_path / "a.yaml", dict[str, int]) == {"on": 1, "yes": 2}


@pytest.mark.parametrize("read", [files.read_bytes, files.sha256_file, lambda path: read_npz(path), is_language_file])
def test_a_pipe_that_nobody_writes_to_and_a_device_without_an_end_are_not_waited_for(tmp_path: Path, read) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        if read is is_language_file:
            assert not read(path)
            continue
        with pytest.raises((InputError, OSError), match="pipe or a device, not a file"):
            read(path)


def test_a_folder_in_the_place_of_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read, it is a folder, not a file"):
        files.read_bytes(tmp_path)


def test_a_file_that_says_it_is_empty_and_is_not_is_read_as_far_as_is_allowed() -> None:
    with pytest.raises(InputError, match="more than the 10 bytes allowed here"):
        files.read_bytes(Path("/proc/cpuinfo"), max_bytes=10)


def test_a_link_that_leads_to_itself_is_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to("loop.yaml")
    assert files.resolved(loop) == loop
    assert files.resolved(loop / "..") == tmp_path
    with pytest.raises(InputError, match=r"model 'loop\.yaml': no such file"):
        files.resolve_model("loop.yaml", tmp_path)
    with pytest.raises(InputError, match="symbolic links"):
        files.read_bytes(loop)


def test_the_entry_of_a_mapping_that_is_wrong_is_named_in_json_as_in_yaml(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": {"n": [1]}, "b b": {"n": ["x"]}}')
    with pytest.raises(InputError, match=r"b b\.n\[0\]: wants a whole number, not 'x'"):
        files.decode_json(tmp_path / "x.json", dict[str, dict[str, list[int]]])
    (tmp_path / "x.json").write_text('{"a": {"n": ["x"]}, "b": ]')
    with pytest.raises(InputError, match="wants a whole number, not a text"):
        files.decode_json(tmp_path / "x.json", dict[str, dict[str, list[int]]])
