"""From a GGUF file to what OpenVINO runs: converted once, kept in the user's cache by the file's hash."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from loadslice.backends.language.weights import GgufWeights
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.files import sha256_file

CONVERT_S = 900.0
TOKENIZER_FILES = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")


def cache_folder() -> Path:
    """Where converted models are kept."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "loadslice" / "language"


def converted(path: Path) -> Path:
    """The folder of a model for OpenVINO: ``openvino_model.xml`` and its tokenizer.

    Args:
        path: A ``.gguf`` file, an ``.xml`` file, or a folder that holds one.

    Raises:
        InputError: Not one of these, truncated, or of a kind that the converter does not know.
    """
    return _with(path, ("openvino_model.xml", *TOKENIZER_FILES))


def tokenizer_folder(path: Path) -> Path:
    """The folder of a model's tokenizer; the model itself may be elsewhere.

    Args:
        path: As for `converted`.

    Raises:
        InputError: See `converted`.
    """
    return _with(path, TOKENIZER_FILES)


def _with(path: Path, names: tuple[str, ...]) -> Path:
    if path.is_dir():
        folder = path
    elif path.suffix == ".xml":
        folder = path.parent
    elif path.suffix == ".gguf":
        folder = _from_gguf(path)
    else:
        raise InputError(f"{path}: is neither a .gguf file, nor an .xml file, nor a folder with openvino_model.xml.")
    for name in names:
        if not (folder / name).is_file():
            raise InputError(f"{folder}: has no {name}.")
    return folder


def _from_gguf(path: Path) -> Path:
    name = sha256_file(path)
    folder = cache_folder() / name
    if (folder / "openvino_detokenizer.xml").is_file():
        return folder
    GgufWeights(path).check_whole()
    if importlib.util.find_spec("openvino_genai") is None:
        raise MissingExtraError("llm", "a language model")
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        link = scratch / "model.gguf"
        link.symlink_to(path.resolve())  # the converter writes beside what it reads
        # In a process of its own: on a file that it does not understand the converter may end its process.
        command = [sys.executable, "-P", "-m", "loadslice.backends.language.gguf", os.fspath(link)]
        environment = os.environ | {"OPENVINO_TELEMETRY": "0", "DO_NOT_TRACK": "1"}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=CONVERT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise InputError(f"{path}: was not converted within {CONVERT_S:.0f} s.") from error
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {done.returncode}"]
            raise InputError(f"{path}: cannot be converted, of an unknown kind or damaged ({words[-1][:160]}).")
        link.unlink()
        try:
            scratch.rename(folder)
        except OSError:
            if not (folder / "openvino_detokenizer.xml").is_file():  # another process was first: its copy is as good
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def main() -> None:
    """Convert the file that is named; its folder gets the result."""
    import openvino_genai

    try:
        openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
    except RuntimeError as error:
        sys.exit(str(error).strip().splitlines()[-1])


if __name__ == "__main__":
    main()
