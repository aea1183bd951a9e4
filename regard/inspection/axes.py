"""What stands along the two sides of an attention's maps: decided here, for every view of them (decision 0020).

Rows of a map are positions that look (queries), columns those that are looked at (keys). A position of a text that a
model writes has read one token and predicts the next: as a row it is named by what it predicts, as a column by what it
has read. A position of a text that is only read is named by its token, that of a picture by the place of its patch.
"""

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import NamedTuple, Protocol, TypeVar

from torch import Tensor, nn

from regard.core.blocks import DecoderLayer
from regard.core.outputs import HeadConfig
from regard.core.stems import Patches
from regard.inspection.taps import attentions

START, END = "<s>", "</s>"
KINDS = ("encoder", "decoder", "cross")
Item = TypeVar("Item")


class Axis(NamedTuple):
    """One side of a map: the positions of an input, by its name."""

    input: str
    late: bool = False  # named by the token before the one that is predicted there

    def along(self, given: Mapping[str, Sequence[Item]], start: Item) -> Sequence[Item]:
        """What stands along it, where `given` has of each input what is read, or predicted if the model writes it.

        >>> Axis("target", late=True).along({"target": ["un", "gato", "</s>"]}, "<s>")
        ['<s>', 'un', 'gato']
        """
        return [start, *given[self.input][:-1]] if self.late else given[self.input]


class Axes(NamedTuple):
    """Both sides of the maps of an attention, and whether a query sees only the keys up to its own position."""

    queries: Axis
    keys: Axis
    causal: bool = False

    @property
    def kind(self) -> str:
        """What the attention is for a person: encoder, decoder or cross."""
        return "cross" if self.queries.input != self.keys.input else "decoder" if self.causal else "encoder"

    @property
    def role(self) -> str:
        """Whether rows are named by the tokens "read" at each position, or "predicted" there."""
        return "predicted" if self.keys.late or self.kind == "cross" else "read"


class Grid(NamedTuple):
    """A picture along an axis: tokens that stand before its patches, and these line by line. The frames of a video may
    be one picture, each below the one before.

    >>> Grid(1, 2, 2).texts()
    ['[class]', '0,0', '0,1', '1,0', '1,1']
    >>> Grid(0, 2, 2, times=2).texts()
    ['0:0,0', '0:0,1', '1:0,0', '1:0,1']
    """

    tokens: int
    rows: int
    columns: int
    times: int = 1  # of a video, which share the rows

    @property
    def places(self) -> int:
        """How many there are."""
        return self.tokens + self.rows * self.columns

    def texts(self) -> list[str]:
        """What each place is called: a patch by its row and column, of a video after its time."""
        tokens = ["[class]", "[teacher]", *(f"[{i}]" for i in range(2, self.tokens))][: self.tokens]
        high, lines = self.rows // self.times, list[str]()
        for row in range(self.rows):
            time = f"{row // high}:" if self.times > 1 else ""
            lines += [f"{time}{row % high},{column}" for column in range(self.columns)]
        return tokens + lines


class Taught(Protocol):
    """Tensors by name, right-padded: the inputs of a model (B, S), and `labels` (B, T), what it must say."""

    @property
    def inputs(self) -> Mapping[str, Tensor]: ...

    def __getitem__(self, name: str, /) -> Tensor: ...


def inputs(model: nn.Module) -> list[str]:
    """The names of what a model reads, without which it cannot do, and of what its towers do; one that it writes as
    well is the last."""
    own = [each.name for each in signature(model.forward).parameters.values() if each.default is Parameter.empty]
    towers = getattr(model, "towers", {}).values()
    return [*(name for name, _ in towers if name not in own), *own]


def axes(model: nn.Module) -> dict[str, Axes]:
    """The axes of every attention of a model, by name: by what it is handed, and the layer that it is in; a model of
    several towers says itself what each of them reads, and whether from left to right.

    >>> from regard.models.transformer import Transformer, TransformerConfig
    >>> found = axes(Transformer(TransformerConfig.tiny(100, encoder_layers=1, decoder_layers=1)))
    >>> found["decoder.layers.0.cross_attention"].queries.input, found["decoder.layers.0.cross_attention"].keys.input
    ('target', 'source')
    >>> [each.kind for each in found.values()]
    ['encoder', 'decoder', 'cross']
    """
    names, towers = inputs(model), getattr(model, "towers", {})
    head: HeadConfig | None = getattr(model, "head", None)
    writes = head is None or head.kind == "tokens"  # a decoder that classifies, say, reads
    looks_back = {id(part) for layer in model.modules() if isinstance(layer, DecoderLayer) for part in layer.modules()}
    found = {}
    for name, attention in attentions(model).items():
        if attention.cross:
            found[name] = Axes(Axis(names[-1]), Axis(names[0]))
        elif id(attention) in looks_back:
            found[name] = Axes(Axis(names[-1]), Axis(names[-1], late=writes), causal=True)
        elif tower := towers.get(name.partition(".")[0]):
            found[name] = Axes(Axis(tower[0]), Axis(tower[0]), causal=tower[1])
        else:
            found[name] = Axes(Axis(names[0]), Axis(names[0]))
    return found


def grids(model: nn.Module) -> dict[str, Grid]:
    """How the patches of what a model sees lie, by the name of that input, the first; {} where it sees nothing."""
    stems = [stem for stem in model.modules() if isinstance(stem, Patches)]
    times = getattr(getattr(model, "config", None), "times", 1)
    sizes = ((0 if stem.tokens is None else len(stem.tokens), *stem.grid) for stem in stems)
    of_stem = (Grid(tokens, times * rows, columns, times) for tokens, rows, columns in sizes)
    return dict(zip(inputs(model), of_stem, strict=False))


def layer_of(name: str) -> int:
    """The number of an attention's layer, by its name; where layers have no numbers, there is one.

    >>> layer_of("decoder.layers.2.cross_attention"), layer_of("decoder.cross_attention")
    (2, 0)
    """
    return int(next(filter(str.isdigit, name.split(".")), 0))
