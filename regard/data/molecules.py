"""Molecules as graphs, by rdkit: atoms are nodes, bonds are edges; and the skeletons that they have in common.

rdkit is the extra `molecules`: it is imported when it is needed.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.checks import need, one_of
from regard.data.graphs import Graph, GraphError

# What is said of an atom, by name; where there is nothing to say, nothing is.
ATOM: dict[str, Callable[[Any], str]] = {
    "element": lambda a: a.GetSymbol(),
    "neighbours": lambda a: f"neighbours={a.GetTotalDegree()}",  # hydrogens among them
    "hydrogens": lambda a: f"hydrogens={a.GetTotalNumHs()}",
    "charge": lambda a: f"charge={a.GetFormalCharge()}" if a.GetFormalCharge() else "",
    "radical": lambda a: f"radical={a.GetNumRadicalElectrons()}" if a.GetNumRadicalElectrons() else "",
    "orbitals": lambda a: f"orbitals={a.GetHybridization()}".lower(),
    "aromatic": lambda a: "aromatic" if a.GetIsAromatic() else "",
    "ring": lambda a: "ring" if a.IsInRing() else "",
    "chirality": lambda a: f"chirality={a.GetProp('_CIPCode')}" if a.HasProp("_CIPCode") else "",
}
BONDS = {"SINGLE": "-", "DOUBLE": "=", "TRIPLE": "#", "AROMATIC": ":"}
ALL = tuple(ATOM)
Places = NDArray[np.float64]


def check_atoms(told: Sequence[str]) -> None:
    """Each is something that can be said of an atom."""
    for name in told:
        one_of(ATOM, **{"data.atoms": name})


@lru_cache(2**14)
def molecule(smiles: str, told: tuple[str, ...] = ALL) -> Graph:
    """The graph of a molecule without its hydrogens.

    >>> molecule("C[O-]", ("element", "charge")).nodes             # doctest: +SKIP
    ('C', 'O charge=-1')
    """
    found = _parsed(smiles)
    atoms = tuple(" ".join(filter(None, (ATOM[name](atom) for name in told))) for atom in found.GetAtoms())
    bonds = list(found.GetBonds())
    edges = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds], np.int64).reshape(-1, 2)
    return Graph(atoms, edges, tuple(map(_kind, bonds)), source=smiles)


def _kind(bond: Any) -> str:
    """What a bond is: as in SMILES, then ~ where it is conjugated, and which way it is turned."""
    stereo = str(bond.GetStereo()).removeprefix("STEREO")
    kind = BONDS.get(str(bond.GetBondType()), str(bond.GetBondType()).lower())
    return f"{kind}{'~' if bond.GetIsConjugated() else ''}{'' if stereo == 'NONE' else stereo.lower()}"


def _parsed(smiles: str) -> Any:
    chem = need("rdkit.Chem", "molecules")
    need("rdkit.RDLogger", "molecules").DisableLog("rdApp.*")  # what it says, the error says
    found = chem.MolFromSmiles(smiles.strip()) if smiles.strip() else None
    if found is None or not found.GetNumAtoms():
        problems = chem.MolFromSmiles(smiles, sanitize=False) if smiles.strip() else None
        why = (
            "" if problems is None else "".join(f" ({p.Message()})" for p in chem.DetectChemistryProblems(problems)[:1])
        )
        raise GraphError(f"{smiles[:60]!r} is no SMILES that can be read{why}")
    return found


def canonical(smiles: str) -> str:
    """The same for the same molecule, however it is written."""
    return str(need("rdkit.Chem", "molecules").MolToSmiles(_parsed(smiles)))


def scaffold(smiles: str) -> str:
    """Its rings and what joins them (Bemis & Murcko, 1996): molecules of one are alike."""
    murcko = need("rdkit.Chem.Scaffolds.MurckoScaffold", "molecules")
    return str(murcko.MurckoScaffoldSmiles(mol=_parsed(smiles), includeChirality=True))


class Reaction(NamedTuple):
    """Molecules before and after, each as SMILES, and what only helps."""

    before: tuple[str, ...]
    beside: str
    after: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Reaction":
        """A text such as CC(=O)O.OCC>>CC(=O)OCC; what stands between the two > only helps."""
        parts = text.strip().split(">")
        if len(parts) != 3 or not parts[0] or not parts[2]:
            raise GraphError(f"{text[:60]!r} is no reaction: write what it begins with >> what comes of it, in SMILES")
        return cls(tuple(parts[0].split(".")), parts[1], tuple(parts[2].split(".")))

    def numbered(self, numbers: Sequence[int]) -> str:
        """The same with a number for each atom, of all molecules one after the other; 0: none."""
        chem, sides, given = need("rdkit.Chem", "molecules"), list[str](), iter(numbers)
        for side in (self.before, self.after):
            found = [_parsed(each) for each in side]
            for atom, number in zip((atom for each in found for atom in each.GetAtoms()), given, strict=False):
                atom.SetAtomMapNum(number)
            sides.append(".".join(chem.MolToSmiles(each, canonical=False) for each in found))
        return f"{sides[0]}>{self.beside}>{sides[1]}"


def drawn(smiles: str) -> Places:
    """(N, 2): where a chemist would draw each atom."""
    found = _parsed(smiles)
    need("rdkit.Chem.rdDepictor", "molecules").Compute2DCoords(found)
    return np.asarray(found.GetConformer().GetPositions())[:, :2]
