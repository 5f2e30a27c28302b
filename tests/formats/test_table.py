from __future__ import annotations

import subprocess
import sys

import pytest

from foretoken.errors import SettingError
from foretoken.formats import FORMATS, Format, format_of
from tests.formats.layout import ALL


def test_the_formats_that_there_are() -> None:
    assert {name: (f.bits, f.group, f.block_bytes) for name, f in FORMATS.items()} == {
        "mxfp4": (4, 32, 256),
        "int8": (8, 0, 512),
        "int4": (4, 64, 256),
        "int3": (3, 64, 192),
        "int2": (2, 64, 128),
    }


def test_a_label_leads_back_to_its_format() -> None:
    assert [f.label for f in ALL[:4]] == ["mxfp4", "int8", "int4-g32", "int4-g64"]
    for format in ALL:
        assert format_of(format.label) == format
        assert format_of(format.name, format.group) == format
        assert format_of(format.label, format.group) == format


@pytest.mark.parametrize(
    ("text", "group", "message"),
    [
        (
            "mxpf4",
            None,
            "the format 'mxpf4' is not known; did you mean 'mxfp4'? (known: int2, int3, int4, int8, mxfp4)",
        ),
        ("int5-g64", None, "the format 'int5-g64' is not known; did you mean 'int"),
        ("", None, "the format '' is not known (known: int2, int3, int4, int8, mxfp4)"),
        ("int4-g", None, "the format 'int4-g' is not known; did you mean 'int4'?"),
        ("int4-g65", None, "int4 got groups of 65; expected 32 or 64 or 128"),
        ("int4", 0, "int4 got groups of 0; expected 32 or 64 or 128"),
        ("int4-g64", 32, "the format 'int4-g64' says another group than 32; say one of them"),
        ("mxfp4", 64, "mxfp4 got groups of 64; expected 32, which is all that mxfp4 has"),
        ("int8-g64", None, "int8 has one scale an output, and no groups; leave group out"),
        ("int4-g99999999999", None, "the format 'int4-g99999999999' is not known"),
    ],
)
def test_what_is_no_format_is_refused(text: str, group: int | None, message: str) -> None:
    with pytest.raises(SettingError) as error:
        format_of(text, group)
    assert str(error.value).startswith(message)


def test_a_format_that_is_not_in_the_table_cannot_be_made() -> None:
    with pytest.raises(SettingError, match=r"^int4 has 4 bits, not 3$"):
        Format("int4", 3, 64)
    with pytest.raises(SettingError, match="'fp4' is not known"):
        Format("fp4", 4, 32)


def test_the_table_needs_no_torch() -> None:
    code = "import sys, foretoken.formats; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
