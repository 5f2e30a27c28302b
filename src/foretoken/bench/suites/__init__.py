"""Suites of prompts, for measurements.

types      a prompt, a suite, and the hash by which two records are compared
opening    `open_suite`, which finds the prompts of the suite that a user names
heldout    the built-in suite, cut from the standard library
table      data sets of the hub, a line each, and how a row of each becomes a prompt
datasets   the data sets' files, from the hub or the user's own, and their prompts
files      prompts in files: the user's own, and Spec-Bench's
rows       rows of files that others wrote, and checks of their fields
"""

from foretoken.bench.suites.opening import HELD_OUT, open_suite
from foretoken.bench.suites.types import Prompt, Suite, digest, first, first_turn

__all__ = ["HELD_OUT", "Prompt", "Suite", "digest", "first", "first_turn", "open_suite"]
