"""`generate` of a transformers model that is loaded, with a draft: attach, detach."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, TypeVar
from weakref import finalize

from foretoken.errors import InputError
from foretoken.integrations.adopted import adopt
from foretoken.integrations.driving import Driver, Generate
from foretoken.settings.load import LoadSettings

M = TypeVar("M")

_DRAFT = "_foretoken"  # the attribute of a model with a draft
_KIND = "_foretoken_kind"  # the attribute of its class: the class without a draft
_COPIED = "a draft is attached to this model; call foretoken.detach(model) before the model is copied or pickled"


def attach(model: M, draft: str = LoadSettings.draft, **settings: Any) -> M:
    """Let a model of transformers generate with a draft. Its `generate` takes what it took, and gives the same tokens,
    but for how floating-point sums are rounded.

    model: such as AutoModelForCausalLM.from_pretrained returns, on the CPU. A draft that was attached before is
    replaced. draft, settings: as in `foretoken.load`, without those that say which files to load and how. Returns the
    model. `model.generate.completions` has the statistics of the last call, and `model.generate.model` is our model.

    Raises UnsupportedModelError for a model that cannot be attached, SettingError or DraftSpecError for a wrong setting
    or draft. The model is then as it was.
    """
    its: Any = model
    own = getattr(model, "__dict__", {}).get("generate")
    if own is not None:
        raise InputError(f"the model has a generate of its own already ({own!r:.60}); take that away first")
    chosen = LoadSettings.of({"draft": draft, **settings})
    made = _Attached(model, _kind_of(model), chosen)
    detach(model)
    kind: Any = made.kind
    its.__dict__[_DRAFT] = made
    its.__class__ = _with_draft(kind)
    return model


def detach(model: M) -> M:
    """Give a model its own `generate` back. Returns the model. Nothing is done if no draft is attached."""
    its: Any = model
    if _kind_of(model) is not type(model):
        its.__class__ = _kind_of(model)
    getattr(model, "__dict__", {}).pop(_DRAFT, None)
    return model


class _Attached:
    """What is attached to a model. It does not hold the model, so that nobody waits for it to be freed."""

    def __init__(self, module: Any, kind: type, settings: LoadSettings) -> None:
        folder = mkdtemp(prefix="foretoken-")  # stands for the model's, if that is not known
        finalize(self, rmtree, folder, ignore_errors=True)
        self.kind = kind
        model, self.guard = adopt(module, Path(folder), settings)
        self.driver = Driver(model)


def _kind_of(model: Any) -> type:
    """A model's class without a draft."""
    found: type = vars(type(model)).get(_KIND, type(model))
    return found


@cache
def _with_draft(kind: type) -> type:
    """A class of models with a draft. It looks like the class of models without one, and its objects without a draft
    behave like theirs: who asks for `type(model)` makes such objects."""
    theirs: Any = kind

    def generate(self: Any) -> Any:
        its: _Attached | None = self.__dict__.get(_DRAFT)
        if its is None:
            return theirs.generate.__get__(self)
        return Generate(its.driver, self, its.kind, partial(its.guard.expect_unchanged, self))

    def reduced(self: Any, protocol: Any) -> Any:
        if _DRAFT in self.__dict__:
            raise InputError(_COPIED)  # the copy would generate with the weights of the original
        return theirs.__reduce_ex__(self, protocol)

    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    its = {"generate": property(generate), "__reduce_ex__": reduced, _KIND: kind}
    return type(kind.__name__, (kind,), {**its, **named})
