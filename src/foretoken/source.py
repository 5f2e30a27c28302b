"""From what a user calls a model to the folder that holds it: an embedded model, a folder, or a hub id."""

from __future__ import annotations

from pathlib import Path

from foretoken.errors import ModelNotFoundError, nearest

EMBEDDED = {name: Path(__file__).parent / "models" / name for name in ("stdlib-7m", "stdlib-1m")}
DEFAULT_MODEL = "stdlib-7m"
_WANTED = ["*.json", "*.safetensors", "tokenizer.model"]


def resolve(model: str, revision: str | None = None) -> Path:
    """The folder of a checkpoint. A hub id is downloaded, or found where an earlier download put it."""
    if model in EMBEDDED:
        return EMBEDDED[model]
    folder = _folder(model)
    if folder is not None and folder.is_dir():
        return folder
    if folder is not None and folder.is_file():
        raise ModelNotFoundError(f"{model} is a file, expected the folder of a Hugging Face checkpoint")
    if folder is None or model.count("/") != 1 or model.startswith((".", "/", "~")) or model.endswith("/"):
        raise ModelNotFoundError(
            f"there is no folder {model!r:.80}; expected a checkpoint's folder, a hub id (owner/name) or "
            f"an embedded model{nearest(model, EMBEDDED)}"
        )
    return _download(model, revision)


def _folder(model: str) -> Path | None:
    """The path that a name may be; None for what cannot be one: empty, too long, the home of nobody."""
    if not model:
        return None
    try:
        folder = Path(model).expanduser()
        folder.stat()
    except FileNotFoundError:
        return folder
    except (OSError, RuntimeError, ValueError):
        return None
    return folder


def _download(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=_WANTED))
    except GatedRepoError:
        raise ModelNotFoundError(
            f"{model} is gated; accept its terms on its page, then log in with `hf auth login`"
        ) from None
    except RevisionNotFoundError:
        raise ModelNotFoundError(f"{model} has no revision {revision!r}; expected a branch, tag or commit") from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"the hub has no model {model!r}, or it is private; check the name, or log in"
        ) from None
    except HFValidationError as error:
        raise ModelNotFoundError(f"{model!r} is neither a folder nor a hub id ({error})".splitlines()[0]) from None
    except (LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFoundError(
            f"there is no folder {model!r}, and no hub could be reached to download it ({type(error).__name__}); "
            "connect, or give the folder of a checkpoint"
        ) from None
