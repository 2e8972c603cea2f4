"""Whatever a Parquet file holds, the process that wants it lives on."""

import base64
import multiprocessing
import os
import zlib
from pathlib import Path

import msgspec
import polars as pl
import pytest

from loadslice.spec import journal, parquet
from loadslice.spec.errors import InputError
from loadslice.spec.files import sha256_file

KILLER = (
    "c-nnYO>4qH5Z%NNJa|aK2?lb=rJ_`9jFlt>52J{cmNp3mp|{u=71R`Cwe{Fje@^ec`wRMmI=g!4sl&b*X6C(j*zquELKaLg@1O{bF^M1(vV<HVPbd"
    "(8feLCJ&Om`Y<d3AxcP8_BkU`ekEU#$g+<Y@xrodE1{gCKYf=YpDx*C9^at~Rn-(=TGvH_WzbNM77zNTw><ww&0w^9!hlo%f<l>(I#BlmI<gWzFw"
    "oj%Vd%dq?<UGiupNYUrX*;4=JpL#L6MNF|Ls*e{Q?RPsqA0kfw@<g)velO-C4N$B|PU7wmyQ22FABFHi^d3p%2tN8pY0u|=Q|$77urQxS%{^kL!^-"
    "zwvIy6yQGI#e%#u~j*iP2zJXsl5quDTx>iBiOhzvV+O=}#r;yAMGICiY4d1cv7Xu6^0w&U1}?QjygR!!4&`t22+(xdbK0w6zVDF"
)
"""A column of eight numbers, one bit of its page's header flipped: the reader asks for 2^61 bytes and is ended."""


@pytest.fixture
def killer(tmp_path: Path) -> Path:
    path = tmp_path / "killer.parquet"
    path.write_bytes(zlib.decompress(base64.b85decode(KILLER)))
    return path


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    path = tmp_path / "fine.parquet"
    pl.DataFrame({"items": [1, 2, None]}).write_parquet(path)
    return path


def test_a_file_that_ends_its_reader_is_a_fault_and_others_are_proven_before_and_after(
    killer: Path, fine: Path
) -> None:
    assert parquet.fault([fine]) is None
    assert parquet.fault([fine, killer]) is not None
    again = fine.with_name("again.parquet")
    again.write_bytes(fine.read_bytes())
    assert parquet.fault([again]) is None


def test_a_file_that_was_proven_and_changes_is_proven_anew(killer: Path, fine: Path) -> None:
    assert parquet.fault([fine]) is None
    fine.write_bytes(killer.read_bytes())
    assert parquet.fault([fine]) is not None


def test_what_is_no_parquet_file_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"arrival_s\n0\n" * 10)
    why = parquet.fault([path])
    assert why is not None
    assert "\n" not in why
    path.write_bytes(b"")
    assert parquet.fault([path]) is not None


def test_a_journal_with_such_a_table_is_refused_in_one_line_whatever_its_head_says(killer, tmp_path: Path) -> None:
    head = journal.JournalHead(
        schema=journal.SCHEMA_VERSION,
        pipeline="p",
        basis="measured",
        requests=0,
        outcomes={},
        clean=True,
        span_ns=0,
        pipeline_yaml="",
    )
    # Whoever wrote the tables wrote the head as well: hashes of theirs prove nothing.
    vouched = {"requests": sha256_file(killer)}
    (tmp_path / "journal.json").write_bytes(
        msgspec.json.encode(msgspec.to_builtins(head) | {"tables_sha256": vouched, "sha256": vouched})
    )
    killer.rename(tmp_path / "requests.parquet")
    with pytest.raises(InputError, match=r"requests\.parquet: damaged, or not a Parquet file") as refused:
        journal.load(tmp_path)
    assert "\n" not in str(refused.value)


def test_names_are_taken_as_they_are(fine: Path) -> None:
    odd = fine.with_name("a [1] *\n{b}.parquet")
    fine.rename(odd)
    assert parquet.fault([odd]) is None


def test_a_name_that_is_no_text_is_not_taken_for_damage(fine: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(fine.with_name("a")) + b"\xff.parquet"))
    fine.rename(odd)
    assert parquet.fault([odd]) == "its name is not UTF-8, which its reader needs; rename it"


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        parquet.fault([tmp_path / "absent.parquet"])


def test_a_reader_that_takes_too_long_is_ended(fine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "PROVE_S", 0.0)
    monkeypatch.setattr(parquet, "PROVE_BYTES_PER_S", 1 << 60)
    other = fine.with_name("other.parquet")
    other.write_bytes(fine.read_bytes())
    parquet._PROVER.stop()
    assert parquet.fault([other]) == parquet.DIED


def test_a_reader_that_was_started_ahead_is_the_one_that_reads(fine: Path) -> None:
    parquet._PROVER.stop()
    parquet.get_ready()
    ahead = parquet._PROVER._process
    parquet.get_ready()
    assert parquet.fault([fine]) is None
    assert ahead is not None
    assert parquet._PROVER._process is ahead


def test_a_forked_process_has_a_prover_of_its_own(fine: Path) -> None:
    assert parquet.fault([fine]) is None
    mine = parquet._PROVER._process
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found, theirs = pool.apply(_prove, (fine,))
    assert found is None
    assert mine is not None
    assert theirs != mine.pid
    assert mine.poll() is None


def _prove(path: Path) -> tuple[str | None, int]:
    found = parquet.fault([path])
    process = parquet._PROVER._process
    assert process is not None
    assert os.getpid() != process.pid
    return found, process.pid
