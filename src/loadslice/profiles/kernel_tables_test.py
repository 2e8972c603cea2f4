from pathlib import Path

import msgspec
import pytest

from loadslice.profiles.kernel_tables import products, transformer_layers
from loadslice.spec.device import Device, Figure, Peak
from loadslice.spec.errors import InputError

GPU = Device(
    name="g",
    title="G",
    kind="gpu",
    peak_ops_per_s={"fp16": Peak(value=1e14, source="a test", basis="stated", dense=True)},
    bandwidth_bytes_per_s=Figure(value=1e12, source="a test", basis="stated"),
)

OPERATORS = ("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "mlp_up_proj", "mlp_act")
OPERATORS += ("mlp_down_proj", "add")


def layer_table(folder: Path, rows: list[tuple[int, float, int]]) -> Path:
    """Rows of (tokens, each operator's median, tensor-parallel workers); our own numbers in Vidur's columns."""
    columns = [f"time_stats.{name}.{what}" for name in OPERATORS for what in ("median", "std")]
    head = [*columns, "n_head", "n_kv_head", "n_embd", "n_expanded_embd", "use_gated_mlp", "num_tokens"]
    lines = [",".join([*head, "num_tensor_parallel_workers"])]
    for tokens, median, workers in rows:
        figures = [str(value) for _ in OPERATORS for value in (median, median / 10)]
        lines.append(",".join([*figures, "8", "8", "512", "2048", "False", str(tokens), str(workers)]))
    path = folder / "mlp.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_layer_is_the_sum_of_its_kernels_with_their_work(tmp_path: Path) -> None:
    found = list(transformer_layers(layer_table(tmp_path, [(1, 0.01, 1), (1, 5.0, 2), (3, 9.0, 1)]), GPU, "tiny"))
    assert len(found) == 1
    (one,) = found
    assert one.time_ms == pytest.approx(0.08)
    assert (one.launches, one.whole, one.family) == (8, False, "tiny")
    # One token: weights bound it. 512 x (1536 + 512) + 2 x 512 x 2048 weights, and inputs and outputs, of 2 bytes.
    numbers = 512 * 1536 + 512 * 512 + 2 * 512 * 2048 + 512 + 1536 + 2 * 512 + 2 * (512 + 2048)
    assert one.roofline_ms["matmul"] == pytest.approx(numbers * 2 / 1e12 * 1e3, rel=1e-3)
    assert set(one.roofline_ms) == {"matmul", "reduce", "elementwise"}
    assert one.cv == pytest.approx(0.1 * 8**0.5 / 8, rel=0.01)


def test_products_are_summed_over_the_layer_or_what_is_nearest_to_it(tmp_path: Path) -> None:
    lines = ["framework,gemm_dtype,m,n,k,latency"]
    lines += [f"X,float16,1,{n},{k},0.05" for n in (4096, 12288, 16384) for k in (4096, 10240)]
    lines += ["X,fp8,1,4096,4096,0.01"]
    path = tmp_path / "gemm_perf.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (one,) = products(path, GPU)
    assert one.time_ms == pytest.approx(0.2)
    weights = 12288 * 4096 + 4096 * 4096 + 16384 * 4096 + 4096 * 10240
    assert one.roofline_ms["matmul"] == pytest.approx(weights * 2 / 1e12 * 1e3, rel=2e-3)


def test_a_precision_has_its_own_rows_peak_and_bytes(tmp_path: Path) -> None:
    lines = ["framework,gemm_dtype,m,n,k,latency", "X,float16,1,4096,4096,0.05", "X,fp8,1,4096,4096,0.03"]
    path = tmp_path / "gemm_perf.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    fp8 = Peak(value=2e14, source="a test", basis="stated", dense=True)
    both = msgspec.structs.replace(GPU, peak_ops_per_s=GPU.peak_ops_per_s | {"fp8": fp8})
    (half,), (narrow,) = products(path, both), products(path, both, "fp8")
    assert (half.time_ms, narrow.time_ms, narrow.precision) == (pytest.approx(0.2), pytest.approx(0.12), "fp8")
    assert narrow.roofline_ms["matmul"] == pytest.approx(half.roofline_ms["matmul"] / 2, rel=1e-3)
    with pytest.raises(InputError, match="no rows with gemm_dtype sq"):
        list(products(path, both, "int8"))


def test_another_table_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mlp.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="not a table of Vidur's"):
        list(transformer_layers(path, GPU, "x"))
    with pytest.raises(InputError, match="not a table of matrix products"):
        list(products(path, GPU))
