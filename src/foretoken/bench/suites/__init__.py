"""Suites of prompts, for measurements.

types      a prompt, a suite, and the hash by which two records are compared
opening    from what a user calls a suite to its prompts: `open_suite`
heldout    the suite that is built in, cut from the standard library
table      data sets of the hub, a line each, and how a row of each becomes a prompt
datasets   their files, from the hub or one's own, and the prompts in these
files      prompts in files: one's own, and Spec-Bench's
rows       rows of files that others wrote, and what may be wrong with them
"""

from foretoken.bench.suites.opening import open_suite
from foretoken.bench.suites.types import Prompt, Suite, digest, first, first_turn

__all__ = ["Prompt", "Suite", "digest", "first", "first_turn", "open_suite"]
