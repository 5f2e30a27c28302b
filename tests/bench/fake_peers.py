"""Programs that speak as peers do, well and badly."""

from __future__ import annotations

import sys
from pathlib import Path

from foretoken.bench.side_by_side.environments import (
    Environment,
)
from foretoken.bench.side_by_side.peers import PROGRAMS, Peer

# says what a file tells it to: our own tokens, so that a fake can be right without a model; and `print`s beside
GOOD = f"""
import sys
sys.path.insert(0, {str(PROGRAMS)!r})
import json
from pathlib import Path
from answering import Peer, made, own_output

out = own_output()
print("noise on standard output")
known = {{tuple(prompt): tokens for prompt, tokens in json.loads(Path(__file__).with_name("known.json").read_text())}}
peer = Peer()
peer.about["versions"] = {{"fake": "1.0"}}
made(peer.work / "copy", peer.checkpoint, lambda place: place.write_text("made"))

def plain(tokens, count):
    print("more noise")
    return known[tuple(tokens)][:count]

def late(tokens, count):
    right = plain(tokens, count)
    return right[:3] + [right[3] + 1] + right[4:] if count > 3 and len(tokens) == 30 else right

def broken(tokens, count):
    raise ValueError("no such kernel")

def absent():
    raise SystemExit("not on this machine")

peer.offer("plain", "as it is", plain)
peer.offer("right", "drafts", plain, "plain")
peer.offer("late", "drafts badly", late, "plain")
peer.offer("broken", "", broken, "plain")
peer.offer("short", "", lambda tokens, count: [1], "plain")
peer.try_to_offer("absent", "", absent, "plain")
peer.serve(out)
"""
READY = 'import json, sys\nprint(json.dumps({"modes": {"plain": {"of": None, "settings": ""}}}), flush=True)\n'
BAD = {
    "dies": ("import sys\nprint('no memory', file=sys.stderr)\nsys.exit(3)", "ended with exit code 3: no memory"),
    "is killed": ("import os\nos.kill(os.getpid(), 9)", "was ended by SIGKILL"),
    "says garbage": ("print('hello')", "said 'hello', which is no JSON object"),
    "says too little": ("print('{}')", "expected its modes"),
    "is silent": ("import time\ntime.sleep(60)", "said nothing for 1 seconds"),
    "dies when asked": (READY + "sys.stdin.readline(); sys.exit(4)", "ended with exit code 4"),
    "hangs when asked": (READY + "import time\nsys.stdin.readline(); time.sleep(60)", "said nothing for 1 seconds"),
    "answers garbage": (READY + "sys.stdin.readline(); print(7, flush=True)", "said '7', which is no JSON object"),
    "answers too much": (
        READY + "for line in sys.stdin: print(json.dumps({'tokens': [1, 2, 3], 'seconds': 1.0}), flush=True)",
        "tokens and the seconds",
    ),
}


def peer_of(folder: Path, source: str, name: str = "fake") -> Environment:
    program = folder / f"{name}.py"
    program.write_text(source, encoding="utf-8")
    modes = ("plain", "right", "late", "broken", "short", "absent")
    return Environment(Peer(name, modes, program), Path(sys.executable), ())
