"""Data sets from the hub, or from where an earlier download put them."""

from __future__ import annotations

from pathlib import Path

from foretoken.bench.suites.datasets import files_in
from foretoken.bench.suites.table import DataSet
from foretoken.common.source import snapshot
from foretoken.errors import InputError

CONVERTED = "refs/convert/parquet"  # a branch of every data set, which the hub writes itself


def download(data_set: DataSet) -> list[Path]:
    """The files of a data set: as it has them, else as the hub has converted them. Raises InputError."""
    found = files_in(_snapshot(data_set, None, data_set.files), data_set)
    if not found:
        found = files_in(_snapshot(data_set, CONVERTED, data_set.converted), data_set)
    if not found:
        raise InputError(
            f"{data_set.hub} on the hub holds no {data_set.files} any more; get its rows yourself, and "
            f"give {data_set.name}=FILE"
        )
    return found


def _snapshot(data_set: DataSet, revision: str | None, files: str) -> Path:
    hub, yours = data_set.hub, f"or give the rows that you have: {data_set.name}=FOLDER_OR_FILE"
    explained = {
        "gated": f"{hub} is gated; accept its terms on its page, then log in with `hf auth login`, {yours}",
        "revision": f"{hub} on the hub has neither {data_set.files} nor a converted copy; {yours[3:]}",
        "repository": f"the hub has no data set {hub!r} any more, or it is private; log in, {yours}",
        "hub": f"no hub could be reached for {hub} (WHY); connect, {yours}",
        "download": f"{hub} could not be downloaded (WHY); try again, {yours}",
    }
    return snapshot(hub, InputError, explained, repo_type="dataset", revision=revision, allow_patterns=files)
