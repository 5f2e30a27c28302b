from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import foretoken
from foretoken import errors


def test_the_public_names_are_sorted_and_named_once() -> None:
    assert foretoken.__all__ == sorted(set(foretoken.__all__))


@pytest.mark.parametrize("name", foretoken.__all__)
def test_every_public_name_is_the_object_of_that_name_where_it_lives(name: str) -> None:
    value = getattr(foretoken, name)
    assert value.__name__ == name
    assert getattr(import_module(value.__module__), name) is value
    assert value.__module__.startswith("foretoken.")


def test_what_is_public_is_what_is_found_and_what_type_checkers_see() -> None:
    assert set(foretoken.__all__) == set(foretoken._HOME_OF)
    assert foretoken.__file__ is not None
    tree = ast.parse(Path(foretoken.__file__).read_text(encoding="utf-8"))
    seen = {
        (node.module, alias.name)
        for branch in tree.body
        if isinstance(branch, ast.If)  # TYPE_CHECKING
        for node in ast.walk(branch)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {(module, name) for name, module in foretoken._HOME_OF.items()}


def test_every_error_is_public() -> None:
    of_ours = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert len(of_ours) > 10
    assert of_ours <= set(foretoken.__all__)


def test_a_star_import_brings_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from foretoken import *", names)
    del names["__builtins__"]
    assert sorted(names) == foretoken.__all__


def test_dir_lists_the_public_names_and_the_version() -> None:
    assert dir(foretoken) == sorted([*foretoken.__all__, "__version__"])


def test_the_version_is_that_of_the_installed_package() -> None:
    assert foretoken.__version__ == importlib.metadata.version("foretoken")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError) as error:
        foretoken.laod  # noqa: B018
    assert str(error.value) == "module 'foretoken' has no attribute 'laod'"
    assert not hasattr(foretoken, "__wrapped__")
    with pytest.raises(ImportError, match="cannot import name 'laod' from 'foretoken'"):
        exec("from foretoken import laod")


HEAVY = ("numpy", "torch", "transformers", "tokenizers", "huggingface_hub", "typer", "rich")


@pytest.mark.parametrize(
    ("statement", "may_bring"),
    [
        ("import foretoken", ()),
        # what needs no arithmetic brings none
        ("from foretoken import LoadSettings, GenerateSettings, Stats, Completion, ForetokenError", ()),
        ("import foretoken.cli.app", ("typer", "rich")),
    ],
)
def test_importing_brings_nothing_heavy(statement: str, may_bring: tuple[str, ...]) -> None:
    # in a process of its own, because this one has imported everything already
    program = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stdout.split()) <= set(may_bring)
