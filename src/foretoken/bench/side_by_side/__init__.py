"""Foretoken beside other engines on the same weights and prompts: `foretoken bench peers`.

peers         the engines: the packages that they are installed from, their programs
environments  a virtual environment for each engine
process       a peer's program, which is stopped between its turns
measuring     decodes prompts in turn
rows          the figures of each way to decode
tables        a record as Markdown
picture       a record as a picture
"""

from foretoken.bench.side_by_side.tables import table

__all__ = ["table"]
