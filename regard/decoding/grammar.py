"""Rules by which every output is well-formed, under any weights of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TreeRule:
    """One tree in line, (S (NP XX )NP (VP XX )VP )S, with as many leaves as the source has tokens before its end.

    Every bracket holds something and is closed by its own; nothing stands outside the first one. A bracket opens only
    as long as there is room to close it.

    >>> S, NP, X, EOS = 4, 5, 8, 2
    >>> rule = TreeRule({S: 6, NP: 7}, leaf=X, eos=EOS)
    >>> words = [30, 31, EOS]
    >>> rule.allowed(words, [], room=8), rule.allowed(words, [S], room=7), rule.allowed(words, [S, X], room=6)
    ([4, 5], [8, 4, 5], [8, 4, 5])
    >>> rule.allowed(words, [S, NP, X], room=5)  # X, )NP, )S and the end are 4: no room for both ends of another
    [8, 7]
    >>> rule.allowed(words, [S, NP, X, 7, X], room=3), rule.allowed(words, [S, NP, X, 7, X, 6], room=2)
    ([6], [2])
    """

    brackets: Mapping[int, int]  # each that opens -> the one that closes it
    leaf: int
    eos: int

    def allowed(self, source: Sequence[int], written: Sequence[int], room: int) -> Sequence[int]:
        """The ids that may follow what is written; a `ValueError` if there is no tree of that size."""
        leaves, closing = len(source) - 1, list[int]()
        if leaves < 1:
            raise ValueError("a tree has at least 1 leaf, and the source has no token before its end")
        for token in written:
            if token in self.brackets:
                closing.append(self.brackets[token])
            elif token == self.leaf:
                leaves -= 1
            else:
                closing.pop()
        if not written:
            if room < leaves + 3:  # a bracket, the leaves, its end, and the output's end
                raise ValueError(f"a tree of {leaves} leaves needs {leaves + 3} tokens, and there is room for {room}")
            return [*self.brackets]
        if not closing:
            return [self.eos]
        ids = []
        if leaves:
            ids.append(self.leaf)
            if room >= leaves + len(closing) + 1 + 2:  # what is owed, eos, and both ends of one more
                ids += self.brackets
        if written[-1] not in self.brackets and (not leaves or len(closing) > 1):
            ids.append(closing[-1])
        return ids
