"""A GGUF file as a plain checkpoint for transformers and vLLM: GGUF and FOLDER come as arguments.

Weights are what the file's groups stand for, in float32. Run by `language_peers_bench`, in an interpreter that has
transformers, torch and gguf.
"""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

source, folder = Path(sys.argv[1]), sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
# What was read remembers that it was quantised and cannot be saved: a plain one takes its weights.
said = {
    key: value for key, value in read.config.to_dict().items() if key not in ("quantization_config", "_name_or_path")
}
model = LlamaForCausalLM(LlamaConfig(**said)).to(torch.float32)
model.load_state_dict(read.state_dict(), strict=False)
model.tie_weights()
model.eval().save_pretrained(folder)
tokenizer.save_pretrained(folder)
