from pathlib import Path

import pytest

from loadslice.spec.errors import InputError
from loadslice.spec.files import sha256_file
from loadslice.spec.variant import load_manifest, sha256_files


def test_one_file_keeps_its_own_hash_and_several_are_one_whatever_their_order(tmp_path: Path) -> None:
    weights, graph = tmp_path / "m.bin", tmp_path / "m.xml"
    weights.write_bytes(b"w")
    graph.write_bytes(b"g")
    assert sha256_files([weights]) == sha256_file(weights)
    both = sha256_files([weights, graph])
    assert both == sha256_files([graph, weights])
    graph.write_bytes(b"G")
    assert sha256_files([weights, graph]) != both


def test_what_is_no_manifest_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text('{"variant": 1}')
    with pytest.raises(InputError, match=r"manifest\.json: variant: wants a mapping"):
        load_manifest(path)
