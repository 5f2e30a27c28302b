"""`generate` of a transformers model that is loaded, with a draft: attach, detach."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, NoReturn, TypeVar
from weakref import finalize

from foretoken.errors import InputError
from foretoken.integrations.adopted import adopt
from foretoken.integrations.driving import Driver
from foretoken.results.completion import Completion
from foretoken.settings.load import LoadSettings

M = TypeVar("M")


class Attached:
    """`generate` of a model to which a draft is attached.

    model: our model of its weights.
    """

    def __init__(self, module: Any, settings: LoadSettings) -> None:
        self._module = module  # a circle, which Python's collector frees, and `detach` breaks
        folder = mkdtemp(prefix="foretoken-")  # stands for the model's, if that is not known
        finalize(self, rmtree, folder, ignore_errors=True)
        self.model, self._guard = adopt(module, Path(folder), settings)
        self._driver = Driver(self.model)

    @property
    def completions(self) -> tuple[Completion, ...]:
        """Of the last call, one for each text, with statistics. A text that a stopping criterion ended may have some
        tokens more here. If several threads generate, it is the last one's."""
        return self._driver.completions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers' `generate`. Raises SettingError for what is not there with a draft, and ModelError if the
        weights have changed."""
        return self._driver.generate(self._module, partial(self._guard.expect_unchanged, self._module), args, kwargs)

    def __deepcopy__(self, memo: object) -> NoReturn:
        """Refused: the copy would generate with the weights of the original."""
        raise InputError(_COPIED)

    def __reduce__(self) -> NoReturn:
        """Refused, for the same reason."""
        raise InputError(_COPIED)


_COPIED = "a draft is attached to this model; call foretoken.detach(model) before the model is copied or pickled"


def attach(model: M, draft: str = LoadSettings.draft, **settings: Any) -> M:
    """Let a model of transformers generate with a draft. Its `generate` takes what it took, and gives the same tokens,
    but for how floating-point sums are rounded.

    model: such as AutoModelForCausalLM.from_pretrained returns, on the CPU; its weights are used where they lie. A
    draft that was attached before is replaced. draft, settings: as in `foretoken.load`, without those that say which
    files to load and how. Returns the model. `model.generate.completions` has the statistics of the last call.

    Raises UnsupportedModelError for a model that cannot be attached, SettingError or DraftSpecError for a wrong setting
    or draft. The model is then as it was.
    """
    own = getattr(model, "__dict__", {}).get("generate")
    if own is not None and not isinstance(own, Attached):
        raise InputError(f"the model has a generate of its own already ({own!r:.60}); take that away first")
    made = Attached(model, LoadSettings.of({"draft": draft, **settings}))
    vars(model)["generate"] = made
    return model


def detach(model: M) -> M:
    """Give a model its own `generate` back. Returns the model. Nothing is done if no draft is attached."""
    if isinstance(getattr(model, "__dict__", {}).get("generate"), Attached):
        del vars(model)["generate"]
    return model
