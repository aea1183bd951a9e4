"""Models of other programs, by what their files are, as the engine in `foreign.py` reads them. Nothing in them is run.

A directory of Hugging Face's is read as it is; the weights of one may be an ONNX graph. A .gguf has everything, and so
have whisper.cpp's .bin, chytorch's .pt and files of word vectors; llama2.c's .bin has its tokenizer.bin beside it,
OpenAI's Whisper its .tiktoken, CTranslate2's its tokenizer.json: of these, such a directory is made for as long as it
takes.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from regard.convert import gguf, graphs, llama2c, rxnmap, vectors, whisper
from regard.convert.theirs import Theirs
from regard.files import write_whole

CONFIG = "config.json"
BINS = ((whisper.is_ggml, whisper.read_ggml), (whisper.is_ct2, whisper.read_ct2))
READERS: Mapping[str, Callable[[Path], Theirs]] = {
    ".gguf": gguf.read,
    ".pt": lambda path: (rxnmap.read if rxnmap.is_one(path) else whisper.read_pt)(path),
    ".bin": lambda path: next((read for is_one, read in BINS if is_one(path)), llama2c.read)(path),
    ".vec": vectors.read,
    ".txt": vectors.read,
}
KNOWN = (
    "a directory of Hugging Face's or faster-whisper's, or a .gguf, .onnx, .pt of Whisper or rxnmap, .bin of llama2.c "
    "or whisper.cpp, or .vec or .txt of word vectors"
)


@contextmanager
def opened(source: Path) -> Iterator[tuple[Path, dict[str, Tensor] | None]]:
    """A directory of Hugging Face's, and its tensors if they are in no file of theirs."""
    found = _found(source)
    if found.is_dir():
        graph = graphs.within(found)
        yield found, graphs.read(graph) if graph else None
    elif found.suffix == ".onnx":
        beside = next((path for path in (found.parent, found.parent.parent) if (path / CONFIG).is_file()), None)
        if beside is None:
            raise ValueError(f"{found} needs a {CONFIG} beside it, which says what model it is")
        yield beside, graphs.read([found])
    else:
        theirs = READERS[found.suffix](found)
        with tempfile.TemporaryDirectory(prefix="regard-") as made:
            for name, said in theirs.files.items():
                write_whole(Path(made) / name, said if isinstance(said, str) else json.dumps(said))
            try:
                yield Path(made), theirs.tensors
            except ValueError as error:
                raise ValueError(re.sub(rf"{re.escape(made)}(/[\w.]+)?", lambda _: str(found), str(error))) from None


def _found(source: Path) -> Path:
    """What a person names, or the file with everything that is in it."""
    if not source.exists():
        raise ValueError(f"{source} is not there: name {KNOWN}")
    if not source.is_dir():
        if source.suffix not in (*READERS, ".onnx"):
            raise ValueError(f"{source} cannot be imported: name {KNOWN}")
        return source
    if (binary := source / "model.bin").is_file() and whisper.is_ct2(binary):
        return binary
    whole = [
        *sorted(source.glob("*.gguf")),
        *source.glob("model.bin"),
        *sorted(source.glob("*.pt")),
        *source.glob("*.vec"),
    ]
    if (source / CONFIG).is_file() or not whole:
        return source
    if len(whole) > 1:
        raise ValueError(f"{source} holds several models: name one, such as {whole[0]}")
    return whole[0]
