"""The errors a user can cause. Inside, a broken promise is an assert."""


class InputError(Exception):
    """Bad input from outside: shown as one line, exit code 2.

    The text names the value, the place and the next command, for instance
    ``pipeline.yaml: stages[1].engines: 'npu9' is not an engine of this file (cpu0, npu0). Add it under `engines:`.``
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class OutputError(InputError):
    """A result cannot be written: a closed folder, a full disk. Going on would lose work."""


class MissingExtraError(InputError):
    """An optional dependency is absent."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': {installing(extra)}.")


def installing(extra: str) -> str:
    """What brings an extra. Not by a name on an index: none has this package, and anybody could take the name."""
    return f"run `python -m pip install -e '.[{extra}]'` in the folder of loadslice"
