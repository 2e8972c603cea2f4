"""Opens a session by the name of its runtime."""

from pathlib import Path

from loadslice.backends.language import messages as m
from loadslice.backends.language.base import LanguageSession
from loadslice.backends.language.gguf import converted, sha256_of
from loadslice.spec.errors import InputError

BACKENDS = ("openvino-paged",)
"""Names in a language file."""


def open_session(order: m.Load) -> tuple[LanguageSession, m.Layout]:
    """Load a model.

    Returns:
        The session, and what its KV means.

    Raises:
        InputError: The runtime is absent or unknown, or the model cannot be loaded.
    """
    if order.backend != "openvino-paged":
        raise InputError(f"backend '{order.backend}' is not one of {', '.join(BACKENDS)}.")
    try:
        from loadslice.backends.language.openvino_paged import PagedSession
    except ImportError as error:
        raise InputError("language models need the extra `llm`: pip install 'loadslice[llm]'.") from error
    source = Path(order.model)
    folder = converted(source)
    options = dict(order.options)
    precision = str(options.pop("kv_precision", "f32"))
    session = PagedSession(
        folder / "openvino_model.xml",
        device=order.device or "CPU",
        threads=order.threads,
        blocks=order.kv_blocks + order.cached_blocks,
        kv_precision=precision,
        options=options,
    )
    known = session.layout
    layout = m.Layout(
        model_sha256=sha256_of(source if source.is_file() else folder / "openvino_model.bin"),
        layers=known.layers,
        kv_heads=known.kv_heads,
        head_dim=known.head_dim,
        dtype="float32",
        has_neutral=known.has_neutral,
        raw=known.raw,
        raw_bytes_per_block=known.raw_bytes_per_block,
    )
    return session, layout
