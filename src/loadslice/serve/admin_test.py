"""Administration without a transport."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from loadslice.serve.access import Access
from loadslice.serve.admin import BODY_BYTES_MAX, Admin, decode, without_folders
from loadslice.serve.administration import Guard
from loadslice.serve.refusals import RefusalError
from loadslice.spec import access
from loadslice.spec.access import Tokens
from loadslice.spec.errors import InputError


class Order(msgspec.Struct, forbid_unknown_fields=True):
    factor: float


async def refusing(_body: bytes) -> dict:
    raise InputError("/home/somebody/repo/m/3: 'models/a.onnx' is not the file that was added.")


def test_what_cannot_be_done_says_why_without_folders() -> None:
    admin = Admin()
    admin.add("POST", "/admin/reload", refusing)
    status, document = asyncio.run(admin.answer("POST", "/admin/reload", b""))
    assert (status, document) == (409, {"error": "3: 'models/a.onnx' is not the file that was added."})
    assert asyncio.run(admin.answer("GET", "/admin", b"")) == (
        200,
        {"paths": ["GET /admin", "POST /admin/reload"]},
    )


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/a/b/c.yaml: stages[0]: bad", "c.yaml: stages[0]: bad"),
        ("pipeline.yaml: no 'x'", "pipeline.yaml: no 'x'"),
        ("--tokens /etc/l/tokens.yaml: gone", "--tokens tokens.yaml: gone"),
        ("no such file (/tmp/x/y.onnx).", "no such file (y.onnx)."),
        ("100 requests/s are too many", "100 requests/s are too many"),
        ("a file of /", "a file of /"),
    ],
)
def test_folders_are_left_out_of_messages(text, left) -> None:
    assert without_folders(text) == left


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"factor": 1, "other": 2}', b'{"factor": "x"}', b"[" * 100_000, b"\xff", b'{"factor": NaN}']
)
def test_a_body_of_another_form_is_refused(body) -> None:
    with pytest.raises(RefusalError) as refused:
        decode(body, Order)
    assert refused.value.status == 400


def test_a_large_body_is_refused_before_it_is_read() -> None:
    with pytest.raises(RefusalError) as refused:
        asyncio.run(Admin().answer("GET", "/admin", b" " * (BODY_BYTES_MAX + 1)))
    assert refused.value.status == 413


def test_tokens_are_read_again_beside_the_loop(tmp_path, monkeypatch) -> None:
    readers = []

    def load(_path: Path) -> Tokens:
        readers.append(threading.current_thread())
        return Tokens(version=1)

    monkeypatch.setattr(access, "load", load)
    guard = Guard(Access(None), tokens_file=tmp_path / "tokens.yaml")
    assert asyncio.run(guard.reload()) == {"tokens": None}
    assert readers != [threading.current_thread()]
    assert not guard.access.is_open
