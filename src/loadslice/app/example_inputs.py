"""Example inputs that a command is given beside a pipeline: a folder of files, or a Python file."""

from pathlib import Path

from loadslice.evaluate import payloads
from loadslice.profiles import samples


def given(path: Path) -> payloads.Inputs:
    """What ``--inputs`` names.

    Args:
        path: A folder, whose ``.npz`` files hold tensors by the names of the model's inputs and whose other files are
            request bodies; or a Python file with ``samples()``.

    Raises:
        InputError: Unreadable, or it gives no samples.
    """
    if not path.is_dir():
        return payloads.from_module(path)
    return payloads.Inputs({sample.name: sample for sample in samples.of_folder(path)})
