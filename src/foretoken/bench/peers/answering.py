"""The protocol of a peer's program: lines of JSON. This module imports only Python's own library, because it runs in
every peer's environment, which does not have Foretoken.

    python PROGRAM.py CHECKPOINT WORK THREADS [DRAFT_CHECKPOINT]

The first line describes the program: `{"versions": {...}, "preparation": {what: seconds}, "modes": {NAME: {"of": NAME
or null, "settings": ...}}}`. Here `of` is the mode without speculation whose tokens a mode must give; a mode that could
not be loaded has an `error`. Then the program answers every
`{"mode": NAME, "tokens": [...], "max_new_tokens": N}` with `{"tokens": [N ids], "seconds": S}`, decoded greedily
through end tokens, or with `{"error": ...}`, until its input ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

Generate = Callable[[list[int], int], list[int]]


class Peer:
    """A program's arguments, the modes that it generates in, and its description of itself: `about`."""

    def __init__(self, *packages: str) -> None:
        checkpoint, work, threads, *draft = sys.argv[1:]
        self.checkpoint, self.work, self.threads = Path(checkpoint), Path(work), int(threads)
        self.draft = Path(draft[0]) if draft else None
        versions = {package: version(package) for package in packages}
        self.about: dict[str, Any] = {"versions": versions, "preparation": {}, "modes": {}}
        self._generate: dict[str, Generate] = {}

    def prepare(self, what: str, do: Callable[..., Any], *given: Any) -> Any:
        """Do something that takes a while, and note how long it takes."""
        began = perf_counter()
        result = do(*given)
        self.about["preparation"][what] = round(perf_counter() - began, 2)
        return result

    def offer(self, name: str, settings: str, generate: Generate, of: str | None = None) -> None:
        """Offer a mode. of: the mode that gives the same tokens without speculation."""
        self.about["modes"][name] = {"of": of, "settings": settings}
        self._generate[name] = generate

    def try_to_offer(self, name: str, settings: str, make: Callable[[], Generate], of: str | None = None) -> None:
        """Make a mode and offer it; if making it fails, the program continues without it."""
        try:
            self.offer(name, settings, self.prepare(f"load {name}", make), of)
        except (Exception, SystemExit) as error:  # whatever its engine raises
            self.about["modes"][name] = {"of": of, "settings": settings, **_failed(error)}

    def serve(self, out: Any) -> None:
        """Print the program's description, then answer requests until the input ends."""
        print(json.dumps(self.about), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(self.answer(json.loads(line))), file=out, flush=True)

    def answer(self, asked: dict[str, Any]) -> object:
        """The answer to one request."""
        count = asked["max_new_tokens"]
        try:
            generate = self._generate[asked["mode"]]
            began = perf_counter()
            tokens = generate(asked["tokens"], count)
            seconds = perf_counter() - began
        except Exception as error:  # whatever its engine raises: the measurement goes on with the others
            return _failed(error)
        if len(tokens) < count:
            return {"error": f"{len(tokens)} tokens came; expected {count}"}
        return {"tokens": [int(token) for token in tokens[:count]], "seconds": seconds}


def _failed(error: BaseException) -> dict[str, str]:
    return {"error": f"{type(error).__name__}: {error}"}


def own_output() -> Any:
    """Standard output for the lines of JSON alone: anything else that Python or native code prints goes to standard
    error. Call it before importing an engine."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def made(place: Path, checkpoint: Path, make: Callable[[Path], None], how: str = "") -> Path:
    """A file or folder made of a checkpoint; reused if it was made earlier of the same files in the same way."""
    files = [file for file in sorted(checkpoint.iterdir()) if file.suffix in (".safetensors", ".json")]
    of = json.dumps([how, *([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files)])
    note = place.with_name(f"{place.name}.made-of")
    if not (place.exists() and note.exists() and note.read_text(encoding="utf-8") == of):
        note.unlink(missing_ok=True)
        make(place)
        note.write_text(of, encoding="utf-8")
    return place
