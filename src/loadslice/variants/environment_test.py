import msgspec
import pytest

from loadslice.variants import environment


def test_the_lock_names_versions_and_leaves_out_what_is_not_installed() -> None:
    lock = environment.lock()
    assert lock.packages["numpy"]
    assert set(lock.packages) <= set(environment.PACKAGES)
    assert lock.cores_usable >= 1


@pytest.mark.parametrize(
    ("isa", "int8", "bf16"),
    [
        (["avx2", "avx512_vnni", "avx512_bf16"], "avx512_vnni", "avx512_bf16"),
        (["amx_bf16", "amx_int8", "avx512_vnni", "avx512_bf16"], "amx_int8", "amx_bf16"),
        (["avx2", "fma"], None, None),
        (None, None, None),
    ],
)
def test_the_best_instructions_there_are_named(isa: list[str] | None, int8: str | None, bf16: str | None) -> None:
    lock = msgspec.structs.replace(environment.lock(), isa=isa)
    offer = environment.cpu_offer(lock)
    assert (offer.int8, offer.bf16) == (int8, bf16)
