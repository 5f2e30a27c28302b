"""The low-bit formats, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from foretoken.errors import SettingError, nearest, quoted

BLOCK = 32  # inputs of a block
TILE = 16  # outputs of a tile
PLACES = 256  # positions whose keys and values are put into int8 together
GROUPS = (32, 64, 128)  # inputs that may share a scale and a zero point
BITS = {"mxfp4": 4, "int8": 8, "int4": 4, "int3": 3, "int2": 2}


@dataclass(frozen=True)
class Format:
    """A format. group: how many inputs of an output share a scale; 0: all of them.

    Raises SettingError for a combination that is not in the table.
    """

    name: str
    bits: int
    group: int

    def __post_init__(self) -> None:
        if self.name not in BITS:
            raise SettingError(f"the format {quoted(self.name)} is not known{nearest(self.name, BITS)}")
        if self.bits != BITS[self.name]:
            raise SettingError(f"{self.name} has {BITS[self.name]} bits, not {self.bits}")
        if self.group and self.name == "int8":
            raise SettingError("int8 has one scale an output, and no groups; leave group out")
        if self.group not in self.groups:
            raise SettingError(
                f"{self.name} got groups of {self.group}; expected {' or '.join(map(str, self.groups))}"
                + ("" if self.has_zeros else f", which is all that {self.name} has")
            )

    @property
    def has_zeros(self) -> bool:
        """Whether each group has a zero point."""
        return self.name in ("int4", "int3", "int2")

    @property
    def groups(self) -> tuple[int, ...]:
        """The sizes of groups that the format may have."""
        return GROUPS if self.has_zeros else (32,) if self.name == "mxfp4" else (0,)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's codes: 16 outputs by 32 inputs."""
        return TILE * BLOCK * self.bits // 8

    @property
    def label(self) -> str:
        """The format as text: `mxfp4`, `int8`, `int4-g64`."""
        return f"{self.name}-g{self.group}" if self.has_zeros else self.name


FORMATS: dict[str, Format] = {
    "mxfp4": Format("mxfp4", 4, 32),
    "int8": Format("int8", 8, 0),
    **{name: Format(name, BITS[name], 64) for name in ("int4", "int3", "int2")},
}


def format_of(text: str, group: int | None = None) -> Format:
    """The format for a text: a name, or a label such as `int4-g128`.

    group: the inputs of a group, if the text does not say; None: the format's default. Raises SettingError if no such
    format exists, if it has no such groups, or if `group` contradicts the text.
    """
    named = re.fullmatch(r"(.+)-g([0-9]{1,9})", text)
    name = named[1] if named else text
    if name not in FORMATS:
        raise SettingError(f"the format {quoted(text)} is not known{nearest(name, FORMATS)}")
    if named and group is not None and group != int(named[2]):
        raise SettingError(f"the format {quoted(text)} says another group than {group}; say one of them")
    usual = FORMATS[name]
    given = int(named[2]) if named else group
    return usual if given is None else Format(name, usual.bits, given)
