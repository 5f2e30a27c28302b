"""Which draft is fastest for a model on this machine: `foretoken recommend`.

Each draft decodes the same prompts as plain decoding does, in turn (`foretoken.bench.decode`). Copies of the model are
tried only if they fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any

from foretoken.api.automatic import Recommended
from foretoken.api.levels import memory_of_copies
from foretoken.bench import decode
from foretoken.bench.statistics import PLAIN
from foretoken.bench.target import called, expect_honest
from foretoken.common.limits import memory_left
from foretoken.common.progress import many, size
from foretoken.common.source import EMBEDDED, resolve
from foretoken.decoder.config import DecoderConfig, read_config
from foretoken.decoder.shards import deciding_files
from foretoken.drafters.decoders import exists, is_format
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.drafters.table import DRAFTERS
from foretoken.drafters.trained import can_be_sped_up, trained_for
from foretoken.errors import DraftSpecError
from foretoken.settings.drafts import parse_draft
from foretoken.settings.load import AUTO, LoadSettings

LOOKUP = "lookup"
# options of a drafter that was trained for the model, and what is below it; more branches pay where rows cost little
OF_TRAINED = (",lookup", ":k=2,lookup", ":k=4,lookup")
OF_COPIES = ("mxfp4,lookup", "mxfp4:k=2,lookup", "int4:k=2,lookup")
_GAIN = 1.02  # times plain decoding: less is not worth a draft
_ALIKE = 0.97  # of the fastest draft's speed: of drafts as fast as that, the one that takes the least memory is best


@dataclass(frozen=True)
class Row:
    """One draft. speedup: times plain decoding, with its interval of 95 %. bytes: of the weights of model and draft."""

    draft: str
    tokens_per_second: float
    speedup: float
    interval: tuple[float, float]
    bytes: int


@dataclass(frozen=True)
class Found:
    """What a measurement found. prompts: what was completed. left_out: drafts that were not measured, with the reason.
    made: formats of copies in the best draft that were made at the load, because none lies beside the model."""

    rows: Sequence[Row]
    best: Row
    prompts: str
    left_out: dict[str, str] = field(default_factory=dict)
    made: tuple[str, ...] = ()

    @property
    def recommended(self) -> Recommended:
        """What to remember."""
        return Recommended(self.best.draft, float(self.best.speedup))


def candidates(model: str, loading: LoadSettings, also: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """The drafts to measure, and those that are left out, each with the reason. also: drafts that the user names.
    Raises DraftSpecError for one of these that does not suit the model."""
    folder = resolve(model, loading.revision, accept=read_config)
    drafts, left_out = _usual(folder, loading)
    for draft in also:
        if draft == AUTO:
            raise DraftSpecError(f"--also {AUTO} names no draft; leave it out: the usual drafts are measured anyhow")
        rooted = _from_anywhere(draft)
        expect_honest(rooted, loading, folder)
        drafts.append(rooted)
    return list(dict.fromkeys(drafts)), left_out


def _from_anywhere(draft: str) -> str:
    """A draft whose folders are named from the root: what is remembered is used from other folders, too. Raises
    DraftSpecError for a folder that a draft cannot name."""
    rooted = []
    for level in draft.split(","):
        name, *options = level.split(":")
        is_place = name not in DRAFTERS and not is_format(name)
        parts = [_rooted(name) if is_place else name]
        parts += [f"from={_rooted(each[5:])}" if each.startswith("from=") else each for each in options]
        rooted.append(":".join(parts))
    return ",".join(rooted)


def _rooted(place: str) -> str:
    if place in EMBEDDED or not exists(place):
        return place
    found = str(Path(place).expanduser().absolute())
    if set(found) & set(",:"):
        raise DraftSpecError(f"{found!r} has a comma or a colon in it, so no draft can name it; rename the folder")
    return found


def _usual(folder: Path, loading: LoadSettings) -> tuple[list[str], dict[str, str]]:
    """Those that are tried for every model."""
    config, left = read_config(folder), memory_left()
    of_model = sum(path.stat().st_size for path in deciding_files(folder).values())
    drafts, left_out, copies = [LOOKUP], {}, {}
    for trained in trained_for(folder):
        try:
            expect_honest(trained, loading, folder)
            drafts += [f"{trained}{more}" for more in (OF_TRAINED if can_be_sped_up(trained) else ("",))]
        except DraftSpecError as error:
            left_out[trained] = str(error)
    if config.low_bit is not None:
        return drafts, {**left_out, **dict.fromkeys(OF_COPIES, f"the model itself is in {config.low_bit.label}")}
    for draft in OF_COPIES:
        name, *_ = _names(draft)
        copies[name] = _copy_bytes(draft, folder, config)
        needed = of_model + sum(copies.values())  # the copies of all drafts are in memory at once
        if left is not None and needed > left:
            del copies[name]
            left_out[draft] = f"with the model and the other copies it needs {size(needed)}, and {size(left)} are free"
        else:
            drafts.append(draft)
    return drafts, left_out


def _names(draft: str) -> list[str]:
    return [level.name for level in parse_draft(draft)]


def _copy_bytes(draft: str, folder: Path, config: DecoderConfig) -> int:
    return memory_of_copies(find_levels(name_levels(LoadSettings(draft=draft)), folder), config)


def measure(asked: decode.Asked, progress: decode.Progress | None = None) -> tuple[Found, dict[str, Any]]:
    """Measure what `asked.drafts` names; returns what was found, and the record of the measurement."""
    record, _ = decode.measure(asked, progress=progress)
    return judged(record, {called(draft): draft for draft in asked.drafts}), record


def judged(record: dict[str, Any], written: Mapping[str, str] = MappingProxyType({})) -> Found:
    """What a record of decoding recommends. Only drafts that gave plain decoding's tokens count. written: drafts as
    --draft takes them, by their names in the record, where these are others."""
    of_levels = {level["level"]: level["bytes"] for level in record["levels"]}
    rows = [
        Row(
            written.get(run["draft"], run["draft"]),
            run["tokens_per_second"],
            run["speedup_of_total"],
            tuple(run["speedup_interval"]),
            record["model_bytes"] + sum(of_levels.get(called(name), 0) for name in _names(run["draft"])),
        )
        for run in record["runs"]
        if run["identical"]
    ]
    best = best_of(rows)
    made = tuple(
        level["format"]
        for level in record["levels"]
        if level["level"] in _names(best.draft) and level["format"] and not level["from_copy"]
    )
    suite = record["suite"]
    prompts = f"{many(suite['prompts'], 'prompt')} of {suite['name']}, {record['max_new_tokens']} new tokens each"
    return Found(rows, best, prompts, made=made)


def best_of(rows: Iterable[Row]) -> Row:
    """The row to recommend: the fastest, but of those that are about as fast the smallest, and plain decoding where no
    draft gains."""
    rows = list(rows)
    plain = next(row for row in rows if row.draft == PLAIN)
    fastest = max(rows, key=lambda row: row.speedup)
    if fastest.speedup < _GAIN:
        return plain
    return min((row for row in rows if row.speedup >= _ALIKE * fastest.speedup), key=lambda row: row.bytes)


def lines(model: str, found: Found) -> list[str]:
    """A table for people, and what to type."""
    wide = max(len(row.draft) for row in found.rows)
    table = [f"{'draft':<{wide}}  tokens/s  times plain  (95 %)          memory"]
    for row in found.rows:
        low, high = row.interval
        between = "" if row.draft == PLAIN else f"({low:.2f} to {high:.2f})"
        mark = "  <- best" if row is found.best else ""
        table.append(
            f"{row.draft:<{wide}}  {row.tokens_per_second:8.1f}  {row.speedup:11.2f}  {between:<14}  "
            f"{size(row.bytes):>8}{mark}"
        )
    table += [f"{draft}: not measured, {why}" for draft, why in found.left_out.items()]
    table.append(f"Measured on {found.prompts}. Other texts can have another best draft: --prompts FILE.")
    table.append("tokens/s is the median over prompts; times plain compares the time of all prompts together.")
    if found.best.speedup < max(row.speedup for row in found.rows):
        table.append(f"Of drafts within {1 - _ALIKE:.0%} of the fastest, the one that takes the least memory is best.")
    if found.best.draft == PLAIN:
        return [*table, "", f"Plain decoding is best here: --draft {PLAIN}"]
    draft = found.best.draft
    keeping = []
    if Path(model).is_dir():  # beside an embedded model, or one in the hub's cache, nothing should be written
        keeping = [
            "A better copy, which is then not made at each load, takes minutes to hours: "
            f"foretoken quantize {quote(model)} --format {format}{' --quantizer gptq' * (format != 'int8')}"
            for format in found.made
        ]
    return [*table, "", f"Use: foretoken generate --model {quote(model)} --draft {quote(draft)}", *keeping]
