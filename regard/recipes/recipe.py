"""A recipe: everything about a training run. Its task says which sections are like what; rooms own their settings."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, get_type_hints

from pydantic import ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from regard.checks import one_of
from regard.data.tokenizers import TokensConfig
from regard.models.family import FAMILIES, family, family_of, presets
from regard.tasks.task import FIRST, TASKS, Task, task
from regard.training.config import TrainConfig

ANY = 2**16  # a vocabulary, where the true one is not known yet and does not matter
FROM_TOKENS = ("vocabulary", "source_vocabulary", "pad")  # what a model has of its tokens


@cache
def keys_of(name: str) -> dict[str, Any]:
    """The settings of a family that a recipe may change, and their types."""
    return {key: kind for key, kind in get_type_hints(family(name).config).items() if key not in FROM_TOKENS}


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

    def __post_init__(self) -> None:
        one_of(presets(), **{"model.preset": self.preset})
        for key in FROM_TOKENS:
            if key in self.changes:
                raise ValueError(f"model.{key} comes from the tokens: leave it out")
        full = self.build(ANY)  # checks the changes
        own = presets()[self.preset](ANY)
        keys = keys_of(family_of(self.preset))
        changed = {key: getattr(full, key) for key in keys if getattr(full, key) != getattr(own, key)}
        object.__setattr__(self, "changes", changed)

    def build(self, vocabulary: int) -> Any:
        """The config of a model over so many tokens."""
        return presets()[self.preset](vocabulary, **self.changes)

    def settings(self) -> dict[str, Any]:
        """Every key with its value, as in YAML."""
        full = self.build(ANY)
        return {"preset": self.preset, **{key: getattr(full, key) for key in keys_of(family_of(self.preset))}}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Side by side in YAML, apart in the dataclass; the preset says which keys there are."""

        def of(name: str) -> CoreSchema:
            own = list(family(name).presets)
            needed = cls.preset not in own  # without it, the model is of the default preset's family
            settings = {"preset": core_schema.typed_dict_field(core_schema.literal_schema(own), required=needed)}
            for key, kind in keys_of(name).items():
                settings[key] = core_schema.typed_dict_field(handler.generate_schema(kind), required=False)
            return core_schema.typed_dict_schema(settings, extra_behavior="forbid")

        def checked(given: Any) -> Any:
            if isinstance(given, dict) and isinstance(given.get("preset"), str):
                one_of(presets(), **{"model.preset": given["preset"]})
            if isinstance(given, dict) and given.get("kept_heads") == "":  # as every recipe of an older regard says
                given = {key: value for key, value in given.items() if key != "kept_heads"}
            return given

        families = core_schema.tagged_union_schema({name: of(name) for name in FAMILIES}, family_named)
        return core_schema.no_info_after_validator_function(
            lambda given: cls(given.pop("preset", cls.preset), given),
            core_schema.no_info_before_validator_function(checked, families),
        )


def family_named(model: Any) -> str:
    """The family of what stands under `model`, be it right or wrong."""
    preset = model.get("preset") if isinstance(model, dict) else None
    return family_of(preset if isinstance(preset, str) and preset in presets() else ModelConfig.preset)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about a training run."""

    description: str = ""  # one line, for people
    task: Any = None  # what the model is for
    data: Any  # where examples come from
    tokens: TokensConfig = field(default_factory=TokensConfig)  # how text becomes sub-words
    model: ModelConfig = field(default_factory=ModelConfig)  # what is trained
    train: TrainConfig  # how it is trained
    decode: Any = None  # how it is used
    evaluate: Any = None  # how it is judged

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # here and in every section

    def __post_init__(self) -> None:
        sections = task(FIRST if self.task is None else self.task.name).sections
        for name in ("task", "decode", "evaluate"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(sections, name)())
        purpose, model = self.purpose(), family(family_of(self.model.preset)).model
        if not issubclass(model, purpose.needs):
            able = [name for name in TASKS if issubclass(model, task(name).needs)]
            can = f"it can {', '.join(able)}"
            raise ValueError(f"task.name = {purpose.name}: a model like {self.model.preset} cannot do it; {can}")
        purpose.check(self)

    def settings(self) -> dict[str, Any]:
        """Every key with its value, as in YAML."""
        return {**asdict(self), "model": self.model.settings()}

    def purpose(self) -> Task:
        """The task itself."""
        return task(self.task.name).of(self)
