"""The page's modules, run by node."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WEB = Path(__file__).parents[2] / "regard" / "serving" / "web"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")

TOKENS = """
const token = (text, word, special = false) => ({ text, space: true, word, special });
const source = [{ text: "un", space: true, word: 0 }, { text: "do", space: false, word: 0 },
                { text: "it", space: true, word: 1 }, { text: "</s>", space: false, word: null, special: true }];
const target = [token("hazlo", 0), token("</s>", null, true)];
const [reads, writes] = [{ input: "source", late: false }, { input: "target", late: false }];
const encoder = { queries: reads, keys: reads, causal: false, role: "read" };
const decoder = { queries: writes, keys: { ...writes, late: true }, causal: true, role: "predicted" };
const cross = { queries: writes, keys: reads, causal: false, role: "predicted" };
const colours = scale("linear", 1, "light");
"""


def run(script: str) -> Any:
    """What `out` is after a script that sees every pure module."""
    names = {
        "answer": "changed, cosine, mostChanged, pieces, rowsOf, saidOf",
        "maps": "axes, combineColumns, combineRows, figure, linesOf, readout",
        "colour": "RAMPS, scale, toOklab",
        "geometry": "ems, fitsBeside, heatLayout, laneLayout, short",
        "drawing": "drawing, heatPanel, neuronPanel, sheet",
        "files": "csv, csvLines, mapTable, neuronCsv, neuronNpz, npz, page",
        "atlas": "columnsOf, exactColumns, fromMeasures, sorted, withTwins",
        "charts": "rounded",
        "changes": "board, shareOf",
        "pairs": "besides, besideShown, carried, changes, comparable, counterpart, linked",
        "seen": "fileName, plain, seen as files",
        "sight": "besideOf, sentence, viewShown",
        "state": "createStore, decode, edited, encode, exampleOf, initial, inputsOf, isBase, looking, offOf, partner, "
        "shown, towards",
        "table": "mount as table",
    }
    imports = "\n".join(f'import {{ {what} }} from "{(WEB / name).as_uri()}.js";' for name, what in names.items())
    script = f"{imports}\n{TOKENS}\nlet out;\n{script}\nconsole.log(JSON.stringify(out));"
    assert NODE is not None
    done = subprocess.run([NODE, "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FIGURE = """
  const label = (text, i) => ({ text, members: [i], special: false });
  const rows = ["x\\"y", "<b>&", "猫"].map(label), columns = ["a,b", "שלום"].map(label);
  const weights = Float32Array.of(0.1, 1 / 3, 1e-9, 0.7, 0, 1);
  const seen = { rows, columns, weights, top: 1, role: "reads" };
  const choice = { rows: [0, 2], columns: [], combine: "mean" };
  const said = { title: "t <1>", notes: ["note & more"], titles: { rows: "reads", columns: "looks at" }, corner: "c",
                 facts: [["Model", "<m>"]] };
"""
WEIGHTS = np.array([[0.1, 1 / 3], [1e-9, 0.7], [0, 1]], np.float32)
