"""Foretoken makes a language model answer faster. The output stays that of plain decoding, token for token.

    import foretoken
    model = foretoken.load("PATH_OR_ID", draft="lookup")
    print(model.generate("def add(", max_new_tokens=64).text)

`LoadSettings` lists the settings of `load`, and `GenerateSettings` those of `generate`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from foretoken.common.version import VERSION

if TYPE_CHECKING:
    from foretoken.api.build import load
    from foretoken.api.chat import Chat
    from foretoken.api.model import Model
    from foretoken.api.remote import connect
    from foretoken.errors import (
        AwayError,
        BatchError,
        CheckpointError,
        ContractError,
        DraftSpecError,
        ForetokenError,
        GrammarError,
        InputError,
        ModelError,
        ModelNotFoundError,
        NativeError,
        NumericsError,
        PromptError,
        RemoteError,
        SettingError,
        TranscriptError,
        UnsupportedModelError,
    )
    from foretoken.integrations.attached import attach, detach
    from foretoken.integrations.causal_lm import ForCausalLM
    from foretoken.kernels import explain
    from foretoken.loop.output import Piece, Stream
    from foretoken.protocol.telemetry import Cost, RoundRecord, Work
    from foretoken.results.completion import Audit, Completion, TokenLogprobs
    from foretoken.results.stats import LevelStats, Stats
    from foretoken.settings.generate import GenerateSettings
    from foretoken.settings.load import LoadSettings
    from foretoken.transcript.record import record
    from foretoken.transcript.verify import Verification, verify

__version__ = VERSION

# the module of each public name: the module is imported at the name's first use, so that `import foretoken` is instant
_HOMES = {
    "foretoken.api.build": ("load",),
    "foretoken.api.chat": ("Chat",),
    "foretoken.errors": (
        "AwayError",
        "BatchError",
        "CheckpointError",
        "ContractError",
        "DraftSpecError",
        "ForetokenError",
        "GrammarError",
        "InputError",
        "ModelError",
        "ModelNotFoundError",
        "NativeError",
        "NumericsError",
        "PromptError",
        "RemoteError",
        "SettingError",
        "TranscriptError",
        "UnsupportedModelError",
    ),
    "foretoken.integrations.attached": ("attach", "detach"),
    "foretoken.integrations.causal_lm": ("ForCausalLM",),
    "foretoken.kernels": ("explain",),
    "foretoken.api.model": ("Model",),
    "foretoken.api.remote": ("connect",),
    "foretoken.loop.output": ("Piece", "Stream"),
    "foretoken.results.completion": ("Audit", "Completion", "TokenLogprobs"),
    "foretoken.settings.generate": ("GenerateSettings",),
    "foretoken.settings.load": ("LoadSettings",),
    "foretoken.results.stats": ("LevelStats", "Stats"),
    "foretoken.protocol.telemetry": ("Cost", "RoundRecord", "Work"),
    "foretoken.transcript.record": ("record",),
    "foretoken.transcript.verify": ("Verification", "verify"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Audit",
    "AwayError",
    "BatchError",
    "Chat",
    "CheckpointError",
    "Completion",
    "ContractError",
    "Cost",
    "DraftSpecError",
    "ForCausalLM",
    "ForetokenError",
    "GenerateSettings",
    "GrammarError",
    "InputError",
    "LevelStats",
    "LoadSettings",
    "Model",
    "ModelError",
    "ModelNotFoundError",
    "NativeError",
    "NumericsError",
    "Piece",
    "PromptError",
    "RemoteError",
    "RoundRecord",
    "SettingError",
    "Stats",
    "Stream",
    "TokenLogprobs",
    "TranscriptError",
    "UnsupportedModelError",
    "Verification",
    "Work",
    "attach",
    "connect",
    "detach",
    "explain",
    "load",
    "record",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'foretoken' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
