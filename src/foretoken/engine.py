"""The loop. A drafter proposes, the verifier judges, what is beyond a stop is cut off, the drafter hears what happened.

    begin    verifier.begin, drafter.begin: the prompts are read, each sequence has its first token
    round    propose -> keep what is for this round and within the budget -> check -> cut -> observe -> record

Plain decoding is this loop with a drafter that proposes nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from foretoken.stopping import cut, limit
from foretoken.trees.tree import clip
from foretoken.types import Draft, Drafter, Request, RoundRecord, Turn, Verdict, Verifier


@dataclass
class _Live:
    request: Request
    stops_after: Callable[[int], bool]
    position: int  # of the next new token
    round: int = 1


class Engine:
    """Runs requests through a verifier with a drafter. Holds no state between runs."""

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter,
        *,
        num_speculative_tokens: int,
        recorder: Callable[[RoundRecord], None] = lambda record: None,
    ) -> None:
        self._verifier = verifier
        self._drafter = drafter
        self._num_speculative_tokens = num_speculative_tokens
        self._recorder = recorder

    def run(
        self, requests: Sequence[Request], stops_after: Callable[[int, int], bool] = lambda sequence, token: False
    ) -> Generator[list[Verdict]]:
        """Verdicts round by round, the first round being the prompts'; each sequence's last has a finish reason.

        stops_after(sequence, token) is told of each new token, in order, before anybody else is, and says whether the
        sequence stops with it (at a stop string).

        Closing the iterator cancels what is left. Every sequence that began is ended on both sides, whatever happens.
        """
        with ExitStack() as ending:
            began = time.perf_counter()
            verdicts = self._verifier.begin(requests)
            for request in requests:
                ending.callback(self._verifier.end, request.sequence)
                ending.callback(self._drafter.end, request.sequence)
            self._drafter.begin(requests)
            live = {r.sequence: _Live(r, partial(stops_after, r.sequence), len(r.prompt)) for r in requests}
            verdicts = self._settle(live, verdicts)
            self._record(0, [], verdicts, began, began)
            yield verdicts
            for number in itertools.count(1):
                for verdict in verdicts:
                    if verdict.finish_reason is not None:  # its memory is free for the others
                        self._drafter.end(verdict.sequence)
                        self._verifier.end(verdict.sequence)
                if not live:
                    return
                began = time.perf_counter()
                turns = [self._turn(s) for s in live.values()]
                drafts, dropped = self._admit(turns, self._drafter.propose(turns))
                proposed = time.perf_counter()
                ticket = self._verifier.submit(drafts)
                verdicts = self._settle(live, self._verifier.result(ticket))
                self._record(number, drafts, verdicts, began, proposed, dropped)
                yield verdicts

    def _turn(self, s: _Live) -> Turn:
        """The last token of the rest is always a bonus, so the draft need not reach it."""
        left = limit(s.request, self._verifier.context_length) - (s.position - len(s.request.prompt))
        rows = self._num_speculative_tokens
        return Turn(s.request.sequence, s.round, s.position, rows=rows if left > 1 else 0, depth=min(rows, left - 1))

    def _admit(self, turns: Sequence[Turn], proposed: Sequence[Draft]) -> tuple[list[Draft], int]:
        """One draft for each turn, empty if none came, cut to the budget; and how many were late or repeated."""
        now = {turn.sequence: (turn.round, turn.position) for turn in turns}
        current: dict[int, Draft] = {}
        for draft in proposed:
            if now.get(draft.sequence) == (draft.round, draft.position):
                current.setdefault(draft.sequence, draft)
        vocab_size = self._verifier.vocab_size
        drafts = [clip(current.get(t.sequence, t.chain((), "")), t.rows, t.depth, vocab_size) for t in turns]
        return drafts, len(proposed) - len(current)

    def _settle(self, live: dict[int, _Live], verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Cut the verdicts, let the caches follow, tell the drafter, and drop the sequences that have finished."""
        settled = []
        for verdict in verdicts:
            s = live[verdict.sequence]
            whole, verdict = verdict, cut(verdict, s.request, self._verifier.context_length, s.stops_after)
            s.position = verdict.position + len(verdict.tokens)
            s.round = verdict.round + 1
            if len(verdict.tokens) < len(whole.tokens):
                self._verifier.truncate(verdict.sequence, s.position - 1)
            if verdict.finish_reason is not None:
                del live[verdict.sequence]
            settled.append(verdict)
        self._drafter.observe(settled)
        return settled

    def _record(
        self,
        number: int,
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        began: float,
        proposed: float,
        dropped: int = 0,
    ) -> None:
        self._recorder(
            RoundRecord(
                round=number,
                drafted={draft.sequence: len(draft) for draft in drafts},
                accepted={verdict.sequence: len(verdict.accepted) for verdict in verdicts},
                new_tokens={verdict.sequence: len(verdict.tokens) for verdict in verdicts},
                propose_seconds=proposed - began,
                check_seconds=time.perf_counter() - proposed,
                dropped=dropped,
                work={draft.sequence: draft.work for draft in drafts},
                began=began,
            )
        )
