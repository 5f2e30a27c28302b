"""Imports point down: a module may import from layers below its own, from its own package, and the errors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "foretoken"

# the layers of ARCHITECTURE.md
LAYERS: list[set[str]] = [
    {"errors", "common", "settings", "formats"},
    {"protocol"},
    {"trees", "acceptance", "kernels", "text", "results", "offload"},
    {"decoder", "sampling"},
    {"copies", "prices", "trained"},
    {"verification", "drafters", "pace", "rehearsal", "timeline"},
    {"loop", "remote"},
    {"api"},
    {"transcript", "training", "serve", "integrations"},
    {"bench"},
    {"doctor"},
    {"cli"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(tree: ast.AST, *, typing: bool = False) -> Iterator[str]:
    """Foretoken's modules that a tree imports, wherever in a file; those for type checkers only if `typing`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not typing:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("foretoken."))
        elif isinstance(node, ast.ImportFrom) and node.module == "foretoken":
            yield from (f"foretoken.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("foretoken."):
            yield str(node.module)
        else:
            yield from imports_of(node, typing=typing)


def modules() -> list[Path]:
    tops = (SOURCE / "__init__.py", SOURCE / "__main__.py")
    return sorted(path for path in SOURCE.rglob("*.py") if path not in tops)


def test_every_part_has_a_layer_and_every_layer_is_drawn_in_the_architecture() -> None:
    parts = {part_of(path) for path in modules()}
    assert parts == set(LEVEL), "a part without a layer, or a layer without its part"
    drawing = (SOURCE.parent.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for level, names in enumerate(LAYERS):
        line = next(line for line in drawing.splitlines() if line.strip().startswith(f"{level}  "))
        assert set(line.split()[1:]) == names, f"ARCHITECTURE.md draws layer {level} as {line.strip()!r}"


def test_imports_point_down() -> None:
    seen = 0
    for path in modules():
        here = part_of(path)
        for name in imports_of(ast.parse(path.read_text(encoding="utf-8")), typing=True):
            there = name.split(".")[1]
            if there not in LEVEL:  # public names, used by the command line
                assert here == "cli", f"{path.name} imports {name} from the package's top"
                continue
            seen += 1
            assert there in (here, "errors") or LEVEL[there] < LEVEL[here], (
                f"{path.relative_to(SOURCE)} imports {name}: upwards"
            )
    assert seen > 50, "the test no longer sees the imports"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Not within a package either, nor for type checkers alone."""
    names = {".".join(("foretoken", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in modules()}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    below: dict[str, set[str]] = {}
    for name, path in names.items():
        below[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                below[name] |= whole & names.keys() or {node.module} & names.keys()
    assert sum(map(len, below.values())) > 500, "the test no longer sees the imports"
    while below:  # take away who imports nobody that is left, until nobody is left
        free = {name for name, others in below.items() if not others & below.keys()}
        assert free, f"circles of imports among {sorted(below)}"
        below = {name: others for name, others in below.items() if name not in free}


def test_a_drafter_never_sees_the_verifier_nor_the_engine_the_decoder() -> None:
    for path in modules():
        names = set(imports_of(ast.parse(path.read_text(encoding="utf-8")), typing=True))
        if part_of(path) == "drafters":
            assert not any(name.startswith("foretoken.verification") for name in names), path.name
        if part_of(path) == "loop":
            assert not any(name.startswith("foretoken.decoder") for name in names), path.name
