"""A recipe: everything about a training run. Its task says which sections are like what; rooms own their settings."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from regard.adaptation.change import TAUGHT, read
from regard.checks import one_of
from regard.data.tokenizers import Tokenizer, TokensConfig
from regard.models import storage
from regard.models.family import FAMILIES, configure, family, family_of, named, presets
from regard.models.seer import joined
from regard.tasks.task import FIRST, TASKS, Task, task
from regard.training.config import TrainConfig
from regard.training.distillation import DistilConfig

ANY = 2**16  # a vocabulary, where the true one is not known yet and does not matter
BEGUN = " from"  # after the name of a family: a model of it that begins as another
FROM_TOKENS = ("vocabulary", "source_vocabulary", "pad")  # what a model has of its tokens


@cache
def keys_of(name: str) -> dict[str, Any]:
    """The settings of a family that a recipe may change, and their types."""
    return {key: kind for key, kind in get_type_hints(family(name).config).items() if key not in FROM_TOKENS}


def begun(base: str, sees: str | None) -> Any:
    """The config of a model that begins as that of a directory, or, to see, as those of two."""
    return storage.config(base) if sees is None else joined(storage.config(base), storage.config(sees))


@dataclass(frozen=True)
class ModelConfig:
    """A preset, which is of some family of models, and what differs from it; in YAML both stand side by side.

    >>> ModelConfig("tiny", {"positions": "rope", "heads": 4}).changes  # 4 heads are tiny's own
    {'positions': 'rope'}
    >>> ModelConfig("tiny", {"dropout": 0.3}).build(vocabulary=8000).dropout
    0.3
    """

    preset: str = "small"
    changes: Mapping[str, Any] = field(default_factory=dict)
    base: str | None = None  # `from` in YAML: a model directory, with whose weights, settings and tokens it begins
    sees: str | None = None  # and, where that is a language model, another one, by whose weights it is to see

    def __post_init__(self) -> None:
        if self.base is None:
            one_of(presets(), **{"model.preset": self.preset})
        for key in FROM_TOKENS:
            if key in self.changes:
                raise ValueError(f"model.{key} comes from the tokens: leave it out")
        full, own = self.build(ANY), self._own(ANY)  # checks the changes
        changed = {key: x for key in keys_of(self.family) if (x := getattr(full, key)) != getattr(own, key)}
        object.__setattr__(self, "changes", changed)

    @property
    def family(self) -> str:
        """The family it is of."""
        return family_of(self.preset) if self.base is None else named(begun(self.base, self.sees))

    def _own(self, vocabulary: int) -> Any:
        return configure(self.preset, vocabulary=vocabulary) if self.base is None else begun(self.base, self.sees)

    def build(self, vocabulary: int) -> Any:
        """The config of a model over so many tokens."""
        return self._own(vocabulary).but(**self.changes)

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that it must have; None: one is learnt."""
        return None if self.base is None else Tokenizer.load(Path(self.base) / "tokenizer.json")

    def task(self) -> dict[str, Any]:
        """What the model that it begins with, or sees by, is for, if that is known."""
        known = None if self.base is None else storage.purpose(self.sees or self.base)
        return {} if known is None else known.task

    def settings(self) -> dict[str, Any]:
        """Every key with its value, as in YAML."""
        full = self.build(ANY)
        begin = {"preset": self.preset} if self.base is None else {"from": self.base}
        begin |= {} if self.sees is None else {"sees": self.sees}
        return begin | {key: getattr(full, key) for key in keys_of(self.family)}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Side by side in YAML, apart in the dataclass; the preset says which keys there are."""

        def of(name: str, begins: bool) -> CoreSchema:
            own = list(family(name).presets)
            needed = cls.preset not in own  # without it, the model is of the default preset's family
            settings = {"preset": core_schema.typed_dict_field(core_schema.literal_schema(own), required=needed)}
            if begins:
                settings = {"from": core_schema.typed_dict_field(core_schema.str_schema())}
            if begins and name == "seer":
                settings["sees"] = core_schema.typed_dict_field(core_schema.str_schema(), required=False)
            for key, kind in keys_of(name).items():
                settings[key] = core_schema.typed_dict_field(handler.generate_schema(kind), required=False)
            return core_schema.typed_dict_schema(settings, extra_behavior="forbid")

        def checked(given: Any) -> Any:
            if isinstance(given, dict) and isinstance(given.get("preset"), str):
                one_of(presets(), **{"model.preset": given["preset"]})
                if "from" in given:
                    raise ValueError("model.from and model.preset each say what a model is: leave one of them out")
            if isinstance(given, dict) and isinstance(given.get("from"), str):
                begun(given["from"], given.get("sees"))  # or why not
            elif isinstance(given, dict) and "sees" in given:
                raise ValueError("model.sees is what a language model is to see by: name that one by model.from")
            if isinstance(given, dict) and given.get("kept_heads") == "":  # as every recipe of an older regard says
                given = {key: value for key, value in given.items() if key != "kept_heads"}
            return given

        tags = {name: of(name, False) for name in FAMILIES} | {name + BEGUN: of(name, True) for name in FAMILIES}
        families = core_schema.tagged_union_schema(
            tags, lambda given: family_named(given) + (BEGUN if isinstance(given, dict) and "from" in given else "")
        )
        return core_schema.no_info_after_validator_function(
            lambda given: cls(
                given.pop("preset", cls.preset),
                base=given.pop("from", None),
                sees=given.pop("sees", None),
                changes=given,
            ),
            core_schema.no_info_before_validator_function(checked, families),
        )


def family_named(model: Any) -> str:
    """The family of what stands under `model`, be it right or wrong."""
    preset = model.get("preset") if isinstance(model, dict) else None
    if isinstance(model, dict) and isinstance(base := model.get("from"), str):
        with suppress(ValueError):
            return named(begun(base, model.get("sees")))
    return family_of(preset if isinstance(preset, str) and preset in presets() else ModelConfig.preset)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about a training run."""

    description: str = ""  # one line, for people
    task: Any = None  # what the model is for
    data: Any  # where examples come from
    tokens: TokensConfig = field(default_factory=TokensConfig)  # how text becomes sub-words
    model: ModelConfig = field(default_factory=ModelConfig)  # what is trained
    changes: tuple[dict[str, Any], ...] = ()  # what is added to it, and alone learns: [{lora: {rank: 8}}]
    train: TrainConfig  # how it is trained
    distil: DistilConfig = field(default_factory=DistilConfig)  # by whom it is taught, beside its labels
    decode: Any = None  # how it is used
    evaluate: Any = None  # how it is judged

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # here and in every section

    def __post_init__(self) -> None:
        sections = task(FIRST if self.task is None else self.task.name).sections
        for name in ("task", "decode", "evaluate"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(sections, name)())
        purpose, its = self.purpose(), family(self.model.family)
        if not purpose.can(its.model, its.heads):
            able = [name for name in TASKS if task(name).can(its.model, its.heads)]
            can = f"it can {', '.join(able)}"
            raise ValueError(f"task.name = {purpose.name}: a model like {self.model.preset} cannot do it; {can}")
        purpose.check(self)
        taught = [isinstance(change, TAUGHT) for change in read(self.changes)]
        if taught and (self.model.base is None or not all(taught)):
            names = ", ".join(name for each in self.changes for name in each)
            raise ValueError(
                f"changes = {names}: they add to a model that stays as it is, so it is named by model.from"
                if self.model.base is None
                else f"changes = {names}: in a recipe they add parameters; make the others by a verb"
            )

    def settings(self) -> dict[str, Any]:
        """Every key with its value, as in YAML."""
        return {**asdict(self), "model": self.model.settings(), "changes": list(self.changes)}

    @property
    def origin(self) -> str | None:
        """The model directory whose tokens it has, if any: that of the model it begins with, or else of its teacher."""
        return self.model.base or self.distil.teacher

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that it must have; None: one is learnt."""
        return None if self.origin is None else Tokenizer.load(Path(self.origin) / "tokenizer.json")

    def purpose(self) -> Task:
        """The task itself."""
        return task(self.task.name).of(self)
