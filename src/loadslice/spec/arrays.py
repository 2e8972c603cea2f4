"""The door to ``.npz`` and ``.npy`` files: whatever is wrong with one is an OSError or a ValueError of one line.

NumPy and zipfile raise what they meet: zlib's errors and zipfile's have no base of their own, a header is parsed as
Python is, with Python's syntax errors, and may ask for any memory.
"""

import contextlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from loadslice.spec.files import opened

ARRAYS_MAX = 100_000
UNPACKED_BYTES_MAX = 4 << 30
"""All arrays of one file together, where the caller knows no better."""


def read_npz(source: Path | bytes, *, unpacked_bytes_max: int = UNPACKED_BYTES_MAX) -> dict[str, NDArray[np.generic]]:
    """Read every array of a file.

    Args:
        source: The file, or what is in it.
        unpacked_bytes_max: A file that unpacks to more is refused before it is unpacked.

    Returns:
        Arrays by name, in the file's order.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no such file, damaged, or too large.
    """
    with _one_line(), _stream(source) as stream:
        with zipfile.ZipFile(stream) as packed:
            infos = packed.infolist()
            unpacked_bytes = sum(info.file_size for info in infos)
        if len(infos) > ARRAYS_MAX or unpacked_bytes > unpacked_bytes_max:
            raise ValueError(f"unpacks to {unpacked_bytes} bytes, more than the {unpacked_bytes_max} allowed here")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def read_npy(path: Path, *, bytes_max: int) -> NDArray[np.generic]:
    """Read the array of an ``.npy`` file.

    Args:
        path: The file.
        bytes_max: A larger array is refused before it is read.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no such file, damaged, or too large.
    """
    with _one_line():
        opened(path).close()  # NumPy would wait for a pipe
        array = np.load(path, allow_pickle=False, mmap_mode="r")
        if not isinstance(array, np.ndarray):
            array.close()
            raise ValueError("an archive of arrays, not an array")
        if array.nbytes > bytes_max:
            raise ValueError(f"{array.nbytes} bytes are more than the {bytes_max} allowed here")
        return np.array(array)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise ValueError(said or type(error).__name__) from error


def _stream(source: Path | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else opened(source)
