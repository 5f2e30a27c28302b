"""From what a user calls a model to the folder that holds it: an embedded model, a folder, or a hub id."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foretoken.common import other_formats
from foretoken.errors import ForetokenError, ModelNotFoundError, SettingError, cut, nearest, quoted

EMBEDDED = {name: Path(__file__).parent.parent / "models" / name for name in ("stdlib-7m", "stdlib-1m")}
TRAINED_FOR = {"moa": "stdlib-7m"}  # embedded drafters, and their models
EMBEDDED_DRAFTERS = {name: EMBEDDED[model].with_name(name) for name, model in TRAINED_FOR.items()}
DEFAULT_MODEL = "stdlib-7m"
_WANTED = ["*.json", "*.safetensors", "tokenizer.model", "chat_template.jinja"]
_UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights


def named_beside(folder: Path, what: str) -> Path:
    """The folder beside a model's for something that was made of it: `llama-moa` beside `llama`."""
    folder = Path(os.path.abspath(folder))
    return folder.parent / f"{folder.name}-{what}"


def resolve(
    model: str | Path, revision: str | None = None, accept: Callable[[Path], object] = lambda folder: None
) -> Path:
    """The folder of a checkpoint. A hub id is downloaded, or found where an earlier download put it.

    `accept` is shown the folder while it holds no more than config.json, and may refuse before weights are fetched.
    """
    if not isinstance(model, str | Path):
        raise SettingError(
            f"the model is {quoted(model)}, expected a checkpoint's folder, a hub id (owner/name) or an embedded model "
            f"(known: {', '.join(sorted(EMBEDDED))})"
        )
    model = str(model)
    folder = EMBEDDED.get(model) or _folder(model)
    if model in EMBEDDED_DRAFTERS and (folder is None or not folder.exists()):  # a folder of the user's comes first
        folder = EMBEDDED_DRAFTERS[model]
    if folder is not None and folder.is_dir():
        if revision is not None:
            raise SettingError(
                f"revision is {quoted(revision)}, but {quoted(model)} is on this machine; revisions are the hub's"
            )
        return folder
    if folder is not None and folder.is_file():
        other = other_formats.found_in(folder) or "is a file, expected the folder of a Hugging Face checkpoint"
        raise ModelNotFoundError(f"{model} {other}")
    if folder is None or model.count("/") != 1 or model.startswith((".", "/", "~")) or model.endswith("/"):
        what = "file" if Path(model).suffix.lower() in other_formats.OF_FILES else "folder"
        raise ModelNotFoundError(
            f"there is no {what} {quoted(model, 80)}; expected a checkpoint's folder, a hub id (owner/name) or "
            f"an embedded model{nearest(model, EMBEDDED)}"
        )
    accept(_download(model, revision, ["config.json"]))
    return _download(model, revision, _WANTED)


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


def _download(model: str, revision: str | None, files: list[str]) -> Path:
    called = quoted(model, 120)  # longer than those of the hub are
    explained = {
        "gated": f"{model} is gated; accept its terms on its page, then log in with `hf auth login`",
        "revision": f"{model} has no revision {quoted(revision)}; expected a branch, tag or commit",
        "repository": f"the hub has no model {called}, or it is private; check the name, or log in",
        "name": f"{called} is neither a folder nor a hub id (WHY)",
        "hub": f"there is no folder {called}, and no hub could be reached to download it (WHY); connect, or give the "
        "folder of a checkpoint",
        "download": f"{model} could not be downloaded (WHY)",
    }
    asked = {"revision": revision, "allow_patterns": files, "ignore_patterns": _UNWANTED}
    return snapshot(model, ModelNotFoundError, explained, **asked)


def snapshot(repository: str, error: type[ForetokenError], explained: Mapping[str, str], **asked: Any) -> Path:
    """The folder of a repository of the hub's, downloaded or found where an earlier download put it.

    Raises `error` with what is `explained` of each thing that may be missing or fail: "gated" (leave), "revision",
    "repository", "name" (of the form that the hub's have), "hub" (a connection), "download"; WHY in it is replaced by
    the reason. asked: as `huggingface_hub.snapshot_download` takes it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(repository, **asked))
    except GatedRepoError:
        why, what = "", "gated"
    except RevisionNotFoundError:
        why, what = "", "revision"
    except RepositoryNotFoundError:
        why, what = "", "repository"
    except HFValidationError as refused:
        why, what = cut(str(refused).partition("\n")[0], 200), "name"
    except (LocalEntryNotFoundError, ConnectionError, TimeoutError) as refused:
        why, what = type(refused).__name__, "hub"
    except OSError as refused:
        why, what = f"{type(refused).__name__}: {cut(' '.join(str(refused).split()), 200)}", "download"
    raise error(explained[what].replace("WHY", why))
