"""Engines that keep their KV to themselves: prompts go in, tokens come out, nothing can be handed over.

OpenVINO GenAI's continuous batching schedules within its own pipeline. The owner of the token desk still admits, routes
and ends: a step here waits until each of its sequences has its next token. What such an engine draws beyond the
likeliest token depends on its own random numbers.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_never

import numpy as np

from loadslice.backends.language import messages as m
from loadslice.backends.language.base import KvLayout
from loadslice.backends.language.calibrate import Tell, measured_costs, tell_nobody
from loadslice.backends.language.gguf import converted
from loadslice.backends.language.measured import Measured
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.files import sha256_file
from loadslice.spec.language import WHOLE_BACKENDS

IDLE_STEPS_MAX = 100_000
"""Steps of the pipeline that may bring no token before the engine is taken for broken."""


class GenaiPipeline:
    """OpenVINO GenAI's pipeline, one request per sequence.

    Args:
        folder: Converted model.
        order: Sizes and options.

    Raises:
        InputError: The extra is absent, or the pipeline does not load.
    """

    def __init__(self, folder: Path, order: m.Load) -> None:
        os.environ.setdefault("OPENVINO_TELEMETRY", "0")
        try:
            import openvino as ov
            import openvino_genai as genai
        except ImportError as error:
            raise MissingExtraError("llm", "a language model") from error
        self._ov, self._genai = ov, genai
        self._context = order.context
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = order.kv_blocks + order.seats
        scheduler.max_num_seqs = order.seats
        scheduler.max_num_batched_tokens = max(order.context, 256)
        scheduler.dynamic_split_fuse = True
        config = {
            "INFERENCE_NUM_THREADS": order.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "ENABLE_CPU_PINNING": "NO",
            **order.options,
        }
        try:
            self._pipeline = genai.ContinuousBatchingPipeline(
                os.fspath(folder), scheduler, order.device or "CPU", config
            )
        except RuntimeError as error:
            words = str(error).strip().splitlines()[-1][:200]
            raise InputError(f"{folder}: does not load with OpenVINO GenAI: {words}") from error
        self._handles: dict[int, Any] = {}
        self._unread: dict[int, deque[int]] = {}
        self._next = 0
        self.vocabulary = max(self._pipeline.get_tokenizer().get_vocab().values()) + 1

    def begin(self, sequence: int, tokens: Sequence[int], sampling: m.Sampling) -> None:
        """Have a sequence continued."""
        config = self._genai.GenerationConfig()
        # Who ends it is the owner, who reads stop texts and tokens.
        config.ignore_eos = True
        config.max_new_tokens = max(1, self._context - len(tokens))
        if sampling.temperature > 0:
            config.do_sample = True
            config.temperature, config.top_p = sampling.temperature, max(sampling.top_p, 1e-6)
            config.rng_seed = sampling.seed & (2**31 - 1)
        config.presence_penalty, config.frequency_penalty = sampling.presence_penalty, sampling.frequency_penalty
        prompt = self._ov.Tensor(np.asarray([tokens], np.int64))
        self._handles[sequence] = self._pipeline.add_request(self._next, prompt, config)
        self._unread[sequence] = deque()
        self._next += 1

    def next_tokens(self, sequences: Sequence[int]) -> list[int]:
        """The next token of each."""
        for _ in range(IDLE_STEPS_MAX):
            for sequence in sequences:
                handle = self._handles[sequence]
                if not self._unread[sequence] and handle.can_read():
                    for output in handle.read().values():
                        self._unread[sequence].extend(output.generated_ids)
            if all(self._unread[sequence] for sequence in sequences):
                return [self._unread[sequence].popleft() for sequence in sequences]
            self._pipeline.step()
        raise RuntimeError("the pipeline brings no tokens")

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        handle = self._handles.pop(sequence, None)
        if handle is not None:
            handle.cancel()
            del self._unread[sequence]


class WholeEngine:
    """Obeys one owner, as `worker.Engine` does, with an engine that keeps its KV to itself.

    Args:
        order: What to load.
        tell: As `measured_costs` has it.

    Raises:
        InputError: It cannot be loaded, or is asked for what it cannot do.
    """

    def __init__(self, order: m.Load, tell: Tell = tell_nobody) -> None:
        assert order.backend in WHOLE_BACKENDS
        if order.cached_blocks:
            raise InputError(f"backend '{order.backend}' keeps what it wants: `prefix_tokens` must be 0 there.")
        source = Path(order.model)
        folder = converted(source)
        self._pipeline = GenaiPipeline(folder, order)
        layout = KvLayout(0, 0, 0, order.block, "", 0, has_neutral=False, sequences=order.seats)
        said = m.Layout(
            model_sha256=sha256_file(source if source.is_file() else folder / "openvino_model.bin"),
            layers=0,
            kv_heads=0,
            head_dim=0,
            dtype="float32",
            has_neutral=False,
            raw="kept by its engine",
            raw_bytes_per_block=0,
        )
        costs = measured_costs(
            Measured(self._pipeline, layout, order.kv_blocks),  # type: ignore[arg-type]  # what is measured, it has
            said,
            order.context,
            measure=order.measure,
            tell=tell,
        )
        self._numbers: dict[int, int] = {}
        self.ready = m.Ready(said, self._pipeline.vocabulary, *costs, 0)

    def obey(self, message: m.ToEngine) -> m.FromEngine | None:
        """Do what one message says; ``None``: there is nothing to answer."""
        if isinstance(message, m.Step):
            return self._step(message)
        if isinstance(message, m.Begin):
            self._pipeline.release(message.row)
            self._pipeline.begin(message.row, message.tokens, message.sampling)
            self._numbers[message.row] = message.number
            return None
        if isinstance(message, m.Release):
            if self._numbers.get(message.row) == message.number:
                del self._numbers[message.row]
                self._pipeline.release(message.row)
            return None
        if isinstance(message, m.Export | m.Import):
            what = "export" if isinstance(message, m.Export) else "import"
            reason = "this engine keeps its KV to itself"
            return m.Broken(what, message.row, message.number, message.epoch, message.slot, reason)  # type: ignore[arg-type]
        if isinstance(message, m.Ping):
            return m.Pong(message.number)
        if isinstance(message, m.Load | m.Stop):
            raise SystemExit
        assert_never(message)

    def changes(self) -> None:
        """Of a prefix cache: it has none that its owner knows of."""

    def _step(self, step: m.Step) -> m.FromEngine:
        began_ns = time.perf_counter_ns()
        rows = [row for row, _, samples in step.rows if samples]
        drawn, lost = [], []
        for row, token in zip(rows, self._pipeline.next_tokens(rows), strict=True):
            if 0 <= token < self._pipeline.vocabulary:
                drawn.append(m.Drawn(row, self._numbers[row], token))
            else:
                lost.append((row, f"the engine gave token {token}, beyond its vocabulary"))
        return m.Stepped(step.epoch, tuple(drawn), time.perf_counter_ns() - began_ns, 0, lost=tuple(lost))
