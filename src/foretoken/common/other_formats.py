"""What a user may have instead of a checkpoint of safetensors, and what to do with it."""

from __future__ import annotations

import json
from pathlib import Path

from foretoken.common.files import read_bytes
from foretoken.errors import quoted

_GGUF = (
    "GGUF, llama.cpp's format, which Foretoken does not read; name the checkpoint that it was made of (safetensors), "
    "and make a low-bit copy of that with `foretoken quantize`"
)
_PICKLES = (
    "PyTorch's pickles, which may run a program when they are read, so Foretoken never reads them; write them as "
    "safetensors with transformers: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
)
_BY_SUFFIX = {".gguf": _GGUF, ".bin": _PICKLES, ".pt": _PICKLES, ".pth": _PICKLES, ".ckpt": _PICKLES}
OF_FILES = (".safetensors", *_BY_SUFFIX)  # how names of files with weights end
_ADAPTER = "adapter_config.json"


def found_in(place: Path) -> str | None:
    """What a file is, or what a folder without safetensors holds, in a sentence that goes on behind its name; None if
    that is unknown."""
    if place.is_file():
        what = _BY_SUFFIX.get(place.suffix.lower())
        return None if what is None else f"is {what}"
    if (place / _ADAPTER).is_file():
        return _adapter(place / _ADAPTER)
    for suffix, what in _BY_SUFFIX.items():
        for file in sorted(place.glob(f"*{suffix}")):
            return f"holds {file.name}, which is {what}"
    return None


def _adapter(file: Path) -> str:
    try:
        base = json.loads(read_bytes(file))["base_model_name_or_path"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        base = None
    of = f" of {quoted(base, 80)}" if isinstance(base, str) else ""
    return (
        f"is a LoRA adapter{of}, which is no model by itself; merge it into its model with peft: "
        "AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW_FOLDER), and add the "
        "tokenizer's files"
    )
