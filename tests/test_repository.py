"""What the repository promises of itself."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import foretoken

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()]


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == foretoken.__version__
    assert f"## {foretoken.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_readme_names_every_part_of_the_package() -> None:
    package = ROOT / "src" / "foretoken"
    for path in package.iterdir():
        if path.name.startswith("_") or path.suffix in (".so", ".pyd"):
            continue
        name = f"{path.name}/" if path.is_dir() else path.name
        assert re.search(rf"^\s+{re.escape(name)}\s+\S", README, re.MULTILINE), f"README's tree lacks {name}"


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_the_python_in_the_documents_runs(name: str) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    assert code
    if any("json_schema=" in block for block in code):
        pytest.importorskip("llguidance", reason="the extra 'grammar' is not installed")
    done = subprocess.run(
        [sys.executable, "-c", "".join(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_record_names_the_code_that_it_was_measured_with() -> None:
    records = [path for path in tracked() if path.suffix == ".json" and ROOT / "results" in path.parents]
    commits = {path.name: json.loads(path.read_text(encoding="utf-8")).get("commit") for path in records}
    assert commits
    for name, commit in commits.items():
        assert re.fullmatch(r"[0-9a-f]{12}(-dirty-[0-9a-f]{8})?", commit or ""), (
            f"{name} is of commit {commit}: code that was changed needs a hash of the changes; measure it again"
        )


def test_every_setting_of_python_is_in_its_document() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for settings in (foretoken.LoadSettings, foretoken.GenerateSettings):
        for field in dataclasses.fields(settings):
            assert re.search(rf"^\| `{field.name}` \| `{re.escape(repr(field.default))}` \| \w", text, re.MULTILINE), (
                field.name
            )


def test_links_within_the_documents_lead_somewhere() -> None:
    found = 0
    for path in tracked():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                found += 1
                assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"
    assert found > 5


def test_no_file_hides_too_much() -> None:
    for path in tracked():
        if path.suffix in (".py", ".cpp", ".h") and "src" in path.parts:
            lines = len(path.read_text(encoding="utf-8").splitlines())
            assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines: what does it hide?"


def test_documents_are_in_utf8_and_end_with_a_line_break() -> None:
    for path in tracked():
        if path.suffix in (".md", ".py", ".toml", ".txt"):
            assert path.read_text(encoding="utf-8").endswith("\n"), path.relative_to(ROOT)
