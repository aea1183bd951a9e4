"""chytorch's .pt of a reaction mapper: a Graphormer that reads molecules, and layers that read all of a reaction's side
by side (Nugmanov et al., 2022).

Theirs has a table for atoms and one for their neighbours, hydrogens among them; ours has one for all words. Theirs has
rows for padding, for what no path joins, and for distances from 0 to 10; the virtual node is as far as what none joins.
"""

import zipfile
from pathlib import Path
from typing import Any

import torch

from regard.convert.theirs import Theirs
from regard.convert.vocabularies import listed
from regard.files import regular_size

OURS = "molecule_encoder."  # before the names of what is read
ELEMENTS = (  # by their numbers, from 1 on
    "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb "
    "Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au "
    "Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts "
    "Og"
)
LAYERS, HEADS = 8, 16  # of each kind, and of a molecule's: no tensor tells


def is_one(path: Path) -> bool:
    """Whether a .pt is one."""
    try:
        with zipfile.ZipFile(path) as held:
            about = next(name for name in held.namelist() if name.endswith("/data.pkl"))
            return OURS.encode() in held.read(about)
    except (OSError, StopIteration, zipfile.BadZipFile):
        return False


def read(path: Path) -> Theirs:
    """What is read of it, by their names; the tables are made ours."""
    regular_size(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        atoms, near, far = (found.pop(f"{OURS}{name}_encoder.weight") for name in ("atoms", "centrality", "spatial"))
        found["sides.weight"] = found.pop("role_encoder.weight")[1:]
        (_, width), distances = atoms.shape, len(far) - 2  # from 0 on
        known = [f"<{i}>" for i in range(3)] + ELEMENTS.split()
        if len(atoms) != len(known) or far.shape[1] != HEADS:
            raise ValueError
    except Exception:  # of pickle, of zip, of many kinds
        raise ValueError(f"{path} is damaged, or no reaction mapper of chytorch's: its tables are others") from None
    words = [*known, "<3>", "<4>", *(f"neighbours={n}" for n in range(len(near) - 2))]
    found["stem.tokens.weight"] = torch.cat([atoms, near])
    found["stem.virtual"] = atoms[1:2] + near[:1]
    found["between.distance.weight"] = torch.cat([far[2:], far[1:2], far[1:2]])
    about: dict[str, Any] = {
        "model_type": "chytorch",
        "vocab_size": len(words),
        "d_model": width,
        "d_ff": len(found[f"{OURS}layer.linear1.weight"]),
        "heads": HEADS,
        "layers": LAYERS,
        "distances": distances,
        "across": LAYERS,
        "atoms": ["element", "neighbours"],
    }
    files = {"config.json": about, "tokenizer.json": listed(words, unknown="<2>", cut=r"\S+")}
    return Theirs(files | {"tokenizer_config.json": {"pad_token": "<0>", "unk_token": "<2>"}}, found)
