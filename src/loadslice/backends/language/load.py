"""Opens a session by the name of its runtime."""

from collections.abc import Callable
from pathlib import Path

from loadslice.backends.language import messages as m
from loadslice.backends.language.base import LanguageSession
from loadslice.backends.language.gguf import converted
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.files import sha256_file
from loadslice.spec.language import WHOLE_BACKENDS


def open_session(order: m.Load) -> tuple[LanguageSession, m.Layout]:
    """Load a model.

    Returns:
        The session, and what its KV means.

    Raises:
        InputError: The runtime is absent or unknown, the model cannot be loaded, or the runtime cannot do what the
            language file asks of it.
    """
    opener = BACKENDS.get(order.backend)
    if opener is None:
        names = ", ".join((*BACKENDS, *WHOLE_BACKENDS))
        raise InputError(f"backend '{order.backend}' is not one of {names}.")
    if order.buckets and order.backend != "openvino-static":
        raise InputError(f"backend '{order.backend}' compiles for no fixed lengths: `buckets` says nothing to it.")
    session, hashed = opener(order)
    known = session.layout
    if known.block != order.block:
        raise InputError(
            f"backend '{order.backend}' on {order.device} has KV blocks of {known.block} tokens, not {order.block}. "
            f"Say `block: {known.block}` in the language file."
        )
    layout = m.Layout(
        model_sha256=sha256_file(hashed),
        layers=known.layers,
        kv_heads=known.kv_heads,
        head_dim=known.head_dim,
        dtype="float32",
        has_neutral=known.has_neutral,
        raw=known.raw,
        raw_bytes_per_block=known.raw_bytes_per_block,
    )
    return session, layout


def _openvino_paged(order: m.Load) -> tuple[LanguageSession, Path]:
    try:
        from loadslice.backends.language.openvino_paged import PagedSession
    except ImportError as error:
        raise MissingExtraError("llm", "a language model") from error
    source = Path(order.model)
    folder = converted(source)
    options = dict(order.options)
    session = PagedSession(
        folder / "openvino_model.xml",
        device=order.device or "CPU",
        threads=order.threads,
        blocks=order.kv_blocks + order.cached_blocks,
        kv_precision=str(options.pop("kv_precision", "f32")),
        options=options,
    )
    return session, _hashed(source, folder)


def _onnxruntime_slots(order: m.Load) -> tuple[LanguageSession, Path]:
    source = Path(order.model)
    _refuse_cache(order)
    if order.device not in ("", "CPU"):
        raise InputError(f"backend 'onnxruntime-slots': device '{order.device}' is not CPU, the only one so far.")
    if source.suffix != ".gguf":
        raise InputError(f"{source}: backend 'onnxruntime-slots' is built from a .gguf file.")
    try:
        from loadslice.backends.language.onnxruntime_slots import SlotSession
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "backend 'onnxruntime-slots'") from error
    session = SlotSession(
        source,
        threads=order.threads,
        rows=order.seats,
        context=order.context,
        block=order.block,
        options=dict(order.options),
    )
    return session, source


def _openvino_static(order: m.Load) -> tuple[LanguageSession, Path]:
    _refuse_cache(order)
    place = "backend 'openvino-static'"
    if order.decodes:
        raise InputError(f"{place}: computes prompts only. Say `roles: [prefill]`.")
    if not order.buckets:
        raise InputError(f"{place}: has no lengths to compile for. Say `buckets: [64, 256]`.")
    if (order.prompt_max or order.context) > order.buckets[-1]:
        raise InputError(
            f"{place}: prompts of {order.prompt_max or order.context} tokens may come and the longest bucket has "
            f"{order.buckets[-1]}. Say `prompt_max: {order.buckets[-1]}`."
        )
    try:
        from loadslice.backends.language.openvino_static import StaticSession
    except ImportError as error:
        raise MissingExtraError("llm", "a language model") from error
    source = Path(order.model)
    folder = converted(source)
    session = StaticSession(
        folder / "openvino_model.xml",
        device=order.device or "CPU",
        threads=order.threads,
        buckets=order.buckets,
        rows=order.seats,
        block=order.block,
        options=dict(order.options),
    )
    return session, _hashed(source, folder)


def _refuse_cache(order: m.Load) -> None:
    if order.cached_blocks:
        raise InputError(f"backend '{order.backend}' shares no blocks: `prefix_tokens` must be 0 there.")


def _hashed(source: Path, folder: Path) -> Path:
    """The file that stands for a model's weights."""
    return source if source.is_file() else folder / "openvino_model.bin"


BACKENDS: dict[str, Callable[[m.Load], tuple[LanguageSession, Path]]] = {
    "openvino-paged": _openvino_paged,
    "openvino-static": _openvino_static,
    "onnxruntime-slots": _onnxruntime_slots,
}
"""By their names in a language file."""
