"""Engines from tables of kernels, on a table that was made for it."""

from pathlib import Path

import pytest

from loadslice.graph.devices import find
from loadslice.profiles.language_fit import expected_ms
from loadslice.profiles.language_kernels import kernel_engine, stated_engine
from loadslice.spec.errors import InputError
from loadslice.spec.language import LanguageEngine, StepCost

A100 = find("nvidia-a100-sxm-80gb")
COLUMNS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
PREFILL = LanguageEngine(backend="cuda", roles=("prefill",))
DECODE = LanguageEngine(backend="cuda", seats=32)


def table(folder: Path, ms_of_token: float = 0.001, ms_of_layer: float = 0.08) -> Path:
    """Every kernel takes the same: a base and a price per token."""
    heads = [f"time_stats.{name}.{kind}" for name in COLUMNS for kind in ("median", "std")]
    shape = "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers"
    lines = [",".join([*heads, shape])]
    for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        each = (ms_of_layer + ms_of_token * tokens) / len(COLUMNS)
        lines.append(",".join([*(f"{each},0.0" for _ in COLUMNS), f"32,8,4096,11008,32000,True,{tokens},1"]))
    path = folder / "mlp.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_step_is_all_layers_of_a_table_and_is_labelled_as_modelled(tmp_path: Path) -> None:
    engine = kernel_engine(table(tmp_path), A100, 32, PREFILL)
    assert engine.basis == "modelled"
    assert "nvidia-a100" in engine.source
    output_ms = 4096 * 32000 * 2 / 2.039e12 * 1e3
    said_ms = expected_ms(engine.cost, engine.shape, 1024, 0, 0, 0)
    assert said_ms == pytest.approx(32 * (0.08 + 1.024) + output_ms, rel=0.02)


def test_attention_of_those_who_decode_reads_their_kv(tmp_path: Path) -> None:
    path = table(tmp_path)
    decoding = kernel_engine(path, A100, 32, DECODE)
    assert decoding.kv_bytes_per_token == 2 * 32 * 1024 * 2
    assert decoding.cost.attend_ns == pytest.approx(decoding.kv_bytes_per_token / 2.039e12 * 1e9, rel=0.01)
    prompts = kernel_engine(path, A100, 32, PREFILL)
    assert prompts.cost.prompt_attend_ns is not None
    assert 0 < prompts.cost.prompt_attend_ns < prompts.cost.attend_ns


def test_other_tables_devices_and_engines_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="Vidur"):
        kernel_engine(other, A100, 32, PREFILL)
    with pytest.raises(InputError, match="cost"):
        stated_engine(PREFILL)
    stated = stated_engine(LanguageEngine(backend="x", cost=StepCost(step_ms=1, token_us=2, row_us=3)))
    assert stated.basis == "modelled"
    assert "states" in stated.source
