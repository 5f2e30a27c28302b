from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from foretoken.common.source import DEFAULT_MODEL, EMBEDDED, resolve
from foretoken.errors import ModelNotFoundError, SettingError, UnsupportedModelError

KNOWN = "(known: stdlib-1m, stdlib-7m)"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, so that no folder near the tests is found by its name."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(model: str, revision: str | None = None) -> str:
    """What is said about a model that cannot be found."""
    with pytest.raises(ModelNotFoundError) as error:
        resolve(model, revision)
    return str(error.value)


@pytest.mark.parametrize("given", [None, 3, b"stdlib-7m"])
def test_what_names_no_model_is_refused(given: Any) -> None:
    with pytest.raises(SettingError) as error:
        resolve(given)
    assert str(error.value) == (
        f"the model is {given!r}, expected a checkpoint's folder, a hub id (owner/name) or an embedded model {KNOWN}"
    )


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_models_are_found_by_name(name: str) -> None:
    import foretoken

    assert foretoken.__file__ is not None
    assert resolve(name) == Path(foretoken.__file__).parent / "models" / name


def test_the_default_model_is_an_embedded_one() -> None:
    assert DEFAULT_MODEL in EMBEDDED


def test_an_embedded_model_is_found_even_beside_a_folder_of_its_name(elsewhere: Path) -> None:
    (elsewhere / DEFAULT_MODEL).mkdir()
    assert resolve(DEFAULT_MODEL) == EMBEDDED[DEFAULT_MODEL]
    assert resolve(f"./{DEFAULT_MODEL}") == Path(DEFAULT_MODEL)  # the folder, to who asks for it


def test_a_folder_is_itself(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "owner" / "name").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(elsewhere))
    for given in ("owner", "owner/name", "./owner/name/", str(elsewhere / "owner")):
        assert resolve(given) == Path(given)
    assert resolve("~/owner") == elsewhere / "owner"


def test_a_file_is_not_a_folder(elsewhere: Path) -> None:
    (elsewhere / "model.safetensors").touch()
    expected = "model.safetensors is a file, expected the folder of a Hugging Face checkpoint"
    assert refusal("model.safetensors") == expected
    # nor is what would lie within it
    assert refusal("./model.safetensors/x").startswith("there is no folder './model.safetensors/x'; ")


def test_a_near_miss_of_an_embedded_model_is_told() -> None:
    assert refusal("stdlib-7") == (
        "there is no folder 'stdlib-7'; expected a checkpoint's folder, a hub id (owner/name) or an embedded model"
        f"; did you mean 'stdlib-7m'? {KNOWN}"
    )


@pytest.mark.parametrize("given", ["/no/such", "./no", "../no", "no", "no/", "a/b/c", "~/no", "a\nb", "a\0b", "/a"])
def test_what_can_be_no_hub_id_must_be_a_folder(given: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(elsewhere))
    assert refusal(given) == (
        f"there is no folder {given!r}; expected a checkpoint's folder, a hub id (owner/name) or an embedded model "
        f"{KNOWN}"
    )


@pytest.mark.parametrize("given", ["a b/c", "-a/b", "a--b/c", "a/b.git", "x/" + "y" * 99, "a\nb/c"])
def test_what_is_neither_a_folder_nor_a_hub_id_is_refused_in_one_line(given: str) -> None:
    message = refusal(given)
    assert message.startswith(f"{given!r} is neither a folder nor a hub id (")
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("revision", [None, "v1"])
def test_a_hub_id_without_a_hub_is_refused_at_once(revision: str | None) -> None:
    began = time.perf_counter()
    assert refusal("no-such-owner/no-such-model", revision) == (
        "there is no folder 'no-such-owner/no-such-model', and no hub could be reached to download it "
        "(LocalEntryNotFoundError); connect, or give the folder of a checkpoint"
    )
    assert time.perf_counter() - began < 5  # no waiting for a network, no trying again


def test_a_hub_id_becomes_the_folder_of_its_snapshot(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def snapshot(model: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append((model, revision, allow_patterns))
        assert ignore_patterns == ["*/*", "consolidated*"]
        return str(elsewhere)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve("owner/name", "v1") == elsewhere
    # the configuration alone, which may be refused; then what loading reads, and no weights in other formats
    assert asked == [
        ("owner/name", "v1", ["config.json"]),
        ("owner/name", "v1", ["*.json", "*.safetensors", "tokenizer.model", "chat_template.jinja"]),
    ]


def test_a_model_that_is_refused_is_not_downloaded(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def snapshot(*args: Any, allow_patterns: list[str], **kwargs: Any) -> str:
        asked.append(allow_patterns)
        return str(elsewhere)

    def refuse(folder: Path) -> NoReturn:
        raise UnsupportedModelError("not this one")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(UnsupportedModelError):
        resolve("owner/name", None, refuse)
    assert asked == [["config.json"]]


def test_a_revision_of_what_is_on_this_machine_is_refused() -> None:
    with pytest.raises(SettingError, match="revision is 'v1', but 'stdlib-7m' is on this machine"):
        resolve("stdlib-7m", "v1")


ANSWER: Any = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (
            hub_errors.GatedRepoError("403\nlong", response=ANSWER),
            "owner/name is gated; accept its terms on its page, then log in with `hf auth login`",
        ),
        (
            hub_errors.RevisionNotFoundError("404\nlong", response=ANSWER),
            "owner/name has no revision 'v1'; expected a branch, tag or commit",
        ),
        (
            hub_errors.RepositoryNotFoundError("401\nlong", response=ANSWER),
            "the hub has no model 'owner/name', or it is private; check the name, or log in",
        ),
        (
            hub_errors.HfHubHTTPError("500\nlong", response=ANSWER),
            "owner/name could not be downloaded (HfHubHTTPError: 500 long)",
        ),
        (
            ConnectionResetError("by peer"),
            "there is no folder 'owner/name', and no hub could be reached to download it (ConnectionResetError); "
            "connect, or give the folder of a checkpoint",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_the_hub_says_is_told_in_one_line(
    failure: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(*args: Any, **kwargs: Any) -> NoReturn:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert refusal("owner/name", "v1") == message


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ModelNotFoundError):
        resolve("")


def test_the_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(ModelNotFoundError):
        resolve("~no-such-user/model")


def test_a_name_too_long_for_a_folder_is_refused() -> None:
    # as when somebody gives the prompt where the model is expected
    with pytest.raises(ModelNotFoundError):
        resolve("def add(a, b): " * 40)
