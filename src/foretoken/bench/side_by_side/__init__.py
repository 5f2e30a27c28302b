"""Foretoken beside other engines on the same weights and prompts: `foretoken bench peers`.

peers         which there are: the packages that they are installed from, their programs
environments  a virtual environment for each
process       a peer's program while it runs, and between its turns stands still
measuring     prompts, in turn
rows          what is said of each way to decode
tables        a record as Markdown
"""

from foretoken.bench.side_by_side.tables import table

__all__ = ["table"]
