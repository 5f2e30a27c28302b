"""Data sets from the hub, or from where an earlier download put them."""

from __future__ import annotations

from pathlib import Path

from foretoken.bench.suites.datasets import files_in
from foretoken.bench.suites.table import DataSet
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
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub, yours = data_set.hub, f"or give the rows that you have: {data_set.name}=FOLDER_OR_FILE"
    try:
        return Path(snapshot_download(hub, repo_type="dataset", revision=revision, allow_patterns=files))
    except GatedRepoError:
        raise InputError(
            f"{hub} is gated; accept its terms on its page, then log in with `hf auth login`, {yours}"
        ) from None
    except RevisionNotFoundError:
        raise InputError(f"{hub} on the hub has neither {data_set.files} nor a converted copy; {yours[3:]}") from None
    except RepositoryNotFoundError:
        raise InputError(f"the hub has no data set {hub!r} any more, or it is private; log in, {yours}") from None
    except (LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:
        raise InputError(f"no hub could be reached for {hub} ({type(error).__name__}); connect, {yours}") from None
    except OSError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{hub} could not be downloaded ({type(error).__name__}: {reason:.200}); try again, {yours}"
        ) from None
