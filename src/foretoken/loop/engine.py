"""The loop. A drafter proposes, the verifier judges, and the drafter observes the verdicts. Sequences join and leave
between rounds.

    admit    the verifier takes a request on, and the drafter begins it
    step     propose -> drop drafts for other rounds, cut the rest to the budget -> one pass over drafts and chunks of
             prompts -> observe -> record
    cancel   both sides forget a sequence

Plain decoding is this loop with a drafter that proposes nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch

from foretoken.acceptance.walk import agreeing
from foretoken.errors import ContractError
from foretoken.loop.schedule import Live, Schedule
from foretoken.pace.fixed import FixedPace
from foretoken.protocol.roles import Drafter, Pace, Verifier
from foretoken.protocol.telemetry import Cost, RoundRecord, Work, together
from foretoken.protocol.types import TARGET, Budget, Draft, Needs, Request, Turn, Verdict
from foretoken.trees.tree import for_turns, longest_path, only


@dataclass(frozen=True)
class _Sent:
    """A pass that was submitted, with the values that its record needs."""

    ticket: int
    sequences: frozenset[int]
    drafts: Sequence[Draft]
    turns: Sequence[Turn]
    dropped: int
    began: float
    proposed: float


@contextmanager
def _gradients_kept() -> Iterator[None]:
    """What fails within it leaves PyTorch's gradients as they were, on or off.

    `torch.no_grad` alone does not see to that: a Ctrl-C between its first lines, or its last, leaves them off for the
    whole thread, which is the caller's.
    """
    on = torch.is_grad_enabled()
    try:
        yield
    except BaseException:
        torch.set_grad_enabled(on)
        raise


class Engine:
    """Runs sequences through a verifier with a drafter.

    budgets: one for each level of the draft, nearest to the target first; or the pace that chooses them for each round.
    schedule: how much a pass may hold. recorder: called with the record of each round.
    """

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter,
        *,
        budgets: Sequence[Budget] | Pace,
        schedule: Schedule | None = None,
        recorder: Callable[[RoundRecord], None] = lambda record: None,
    ) -> None:
        self._verifier = verifier
        self._drafter = drafter
        self._pace = FixedPace(budgets) if isinstance(budgets, Sequence) else budgets
        self._schedule = schedule or Schedule()
        self._recorder = recorder
        self.checked: dict[int, Draft] = {}  # the drafts of the last round, by sequence
        self._live: dict[int, Live] = {}
        self._ended: list[int] = []  # freed at the next step: until then the caller may look at their caches
        self._sent: deque[_Sent] = deque()
        self._rounds = 0

    @property
    def live(self) -> int:
        """How many sequences are under way."""
        return len(self._live)

    @_gradients_kept()
    def admit(self, request: Request) -> None:
        """Take a sequence in. Its prompt is read from the next step on. Raises the error for a wrong request."""
        if any(request.sequence in sent.sequences for sent in self._sent):
            raise ContractError(
                f"sequence {request.sequence} was cancelled, and a pass with it is still under way; give this request "
                "another number"
            )
        has_seen = getattr(self._drafter, "has_seen", None)  # a drafter that keeps features between requests
        seen = 0 if has_seen is None else has_seen(request)
        request = replace(request, needs=self._drafter.needs, seen=seen)
        self._verifier.admit(request)
        behind = self._schedule.behind(request, self._live.values())
        self._live[request.sequence] = Live(request, len(request.prompt), len(request.prompt), behind=behind)
        try:
            self._drafter.begin([request])
        except BaseException:
            self.cancel(request.sequence)
            raise

    def cancel(self, sequence: int) -> None:
        """Drop a sequence, if it is there. The other sequences are not affected."""
        if sequence not in self._live and sequence not in self._ended:
            return
        try:
            self._drafter.end(sequence)
        finally:
            try:
                self._verifier.end(sequence)
            finally:  # last: if the lines before are interrupted, closing the loop cancels this sequence again
                self._live.pop(sequence, None)
                self._ended = [other for other in self._ended if other != sequence]

    def close(self) -> None:
        """Drop all sequences."""
        self._cancel_all([*self._ended, *self._live])

    def _cancel_all(self, sequences: Sequence[int]) -> None:
        """Drop some sequences. If that fails for one, the error is raised after all are dropped."""
        failed: BaseException | None = None
        for sequence in sequences:
            try:
                self.cancel(sequence)
            except BaseException as error:
                failed = error
        try:
            self._drop_what_is_nobodys()
        finally:
            if failed is not None:
                raise failed

    def _drop_what_is_nobodys(self) -> None:
        """Take the results of passes that no sequence waits for any more, so that the verifier does not keep them."""
        while self._sent and not self._live:
            with suppress(Exception):  # nobody waits for the result, or an interrupted round has taken it
                self._verifier.result(self._sent[0].ticket)
            self._sent.popleft()

    def run(self, requests: Sequence[Request]) -> Generator[list[Verdict]]:
        """The verdicts of some requests, round by round. A sequence's last verdict has a finish reason or an error.

        For a loop that has no other sequences. Closing the iterator cancels the requests that are left. Either all
        requests are admitted, or none.
        """
        admitted: list[int] = []
        try:
            for request in requests:
                self.admit(request)
                admitted.append(request.sequence)
            while any(sequence in self._live for sequence in admitted):
                yield self.step()
        finally:
            self._cancel_all(admitted)

    @_gradients_kept()
    def step(self) -> list[Verdict]:
        """One round: a verdict for each sequence that was in the pass. Empty if no pass is under way."""
        for sequence in tuple(self._ended):
            self.cancel(sequence)
        self._drop_what_is_nobodys()
        while len(self._sent) <= self._schedule.ahead and self._submit():
            pass
        if not self._sent:
            if self._live:
                raise ContractError(
                    f"sequence {next(iter(self._live))} has not ended, and nothing can be done for it: its "
                    "verifier, or the pace, is at fault"
                )
            return []
        sent = self._sent[0]
        self.checked = {draft.sequence: draft for draft in sent.drafts}
        waited = time.perf_counter() if self._schedule.ahead else sent.proposed
        try:
            found = self._verifier.result(sent.ticket)
        except BaseException:
            self._break_off(sent)
            raise
        finally:
            self._sent.popleft()
        verdicts, work = self._settle(sent, found)
        self._record(sent, verdicts, work, waited)
        return verdicts

    def _break_off(self, sent: _Sent) -> None:
        """A pass has failed and brings no verdict. Its sequences stay where they were, and guesses are taken back."""
        for sequence in sent.sequences & self._live.keys():
            s = self._live[sequence]
            guessed = bool(s.guessed)
            s.under_way.clear()  # drafts made behind this pass are passed over when they arrive
            if guessed:
                self._drafter.rewind(sequence, s.position)

    # -- into a pass ------------------------------------------------------------------------------------------------

    def _submit(self) -> bool:
        """Start one pass. False if there is nothing to put into it."""
        began = time.perf_counter()
        turns = self._schedule.turns(self._live.values(), self._pace, self._verifier.context_length)
        proposed = self._drafter.propose(turns) if turns else ()
        drafts, dropped = for_turns(turns, proposed, self._verifier.vocab_size)
        chunks = self._schedule.chunks(self._live.values(), sum(1 + len(draft) for draft in drafts))
        if not drafts and not chunks:
            return False
        guesses = [self._foreseen(draft) for draft in drafts]
        drafts = [draft for draft, _ in guesses]
        drafted = time.perf_counter()
        sequences = frozenset([*(draft.sequence for draft in drafts), *(chunk.sequence for chunk in chunks)])
        ticket = self._verifier.submit(drafts, chunks)
        self._sent.append(_Sent(ticket, sequences, drafts, turns, dropped, began, drafted))
        for chunk in chunks:
            self._live[chunk.sequence].under_way.append(None)
        for draft, guess in guesses:
            self._live[draft.sequence].under_way.append(None if guess is None else guess.tokens)
        self._drafter.observe([guess for _, guess in guesses if guess is not None])
        return True

    def _foreseen(self, draft: Draft) -> tuple[Draft, Verdict | None]:
        """The part of a draft to check, and a guessed verdict, if the drafter may draft ahead.

        The guess is that the longest path is right and that its last token is the bonus. That token is held back from
        the check.
        """
        path = longest_path(draft.parents) if self._schedule.ahead and self._drafter.needs == Needs() else []
        if not path:
            return draft, None
        tokens = tuple(draft.tokens[i] for i in path)
        accepted, origins = tuple(path[:-1]), (*(draft.origins[i] for i in path[:-1]), TARGET)
        guess = Verdict(draft.sequence, draft.round, draft.position, accepted, tokens, origins)
        return only(draft, [i for i in range(len(draft)) if i != path[-1]]), guess

    # -- out of a pass ----------------------------------------------------------------------------------------------

    def _settle(self, sent: _Sent, verdicts: Sequence[Verdict]) -> tuple[list[Verdict], Sequence[Work]]:
        """Note where the sequences stand, tell the drafter, and drop the sequences that have ended. Returns the
        verdicts that count, and the drafter's work."""
        # a verdict may still come for a cancelled sequence
        settled = [verdict for verdict in verdicts if verdict.sequence in self._live]
        if not self._schedule.ahead and len(verdicts) < len(sent.drafts):
            judged = {verdict.sequence for verdict in verdicts}
            silent = next(draft.sequence for draft in sent.drafts if draft.sequence not in judged)
            raise ContractError(f"no verdict came for sequence {silent}, whose draft was for its round; end it")
        news = [self._heard(self._live[verdict.sequence], verdict) for verdict in settled]
        for verdict in settled:
            if verdict.last:
                self._ended.append(verdict.sequence)
                del self._live[verdict.sequence]
        work = self._drafter.observe([verdict for verdict in news if verdict is not None])
        return settled, work or ()

    def _heard(self, s: Live, verdict: Verdict) -> Verdict | None:
        """The part of a verdict that is new to the drafter. A wrong guess that the drafter was told is first taken
        back."""
        guess = s.under_way.popleft() if s.under_way else None
        if verdict.error is not None:
            return None
        s.position = verdict.position + len(verdict.tokens)
        s.round = verdict.round + bool(verdict.tokens or verdict.round)
        s.left = verdict.prompt_left
        if guess is None:
            return verdict
        right = agreeing(guess, verdict.tokens)
        if right < len(guess) or (s.under_way and right < len(verdict.tokens)):
            s.under_way.clear()  # drafts made behind a wrong guess are passed over when they arrive
            self._drafter.rewind(verdict.sequence, verdict.position + right)
        if right == len(verdict.tokens):
            return None
        return verdict.behind(right)

    def _record(self, sent: _Sent, verdicts: Sequence[Verdict], told: Sequence[Work], waited: float) -> None:
        judged = {verdict.sequence: verdict for verdict in verdicts if verdict.error is None}
        late = [draft.sequence for draft in sent.drafts if draft.sequence not in judged]
        record = RoundRecord(
            round=self._rounds,
            drafted={draft.sequence: len(draft) for draft in sent.drafts if draft.sequence in judged},
            accepted={s: len(verdict.accepted) for s, verdict in judged.items() if verdict.tokens},
            new_tokens={s: len(verdict.tokens) for s, verdict in judged.items() if verdict.tokens},
            propose_seconds=sent.proposed - sent.began,
            check_seconds=time.perf_counter() - waited,
            dropped=sent.dropped + len(late),
            late=frozenset(late),
            work={draft.sequence: draft.work for draft in sent.drafts if draft.sequence in judged},
            began=sent.began,
            budgets={turn.sequence: turn.budgets for turn in sent.turns if turn.sequence in judged},
            read={s: verdict.read for s, verdict in judged.items() if verdict.read},
            unverified=frozenset(s for s, verdict in judged.items() if verdict.unverified),
            cost=_cost(verdicts, [*told, *(work for draft in sent.drafts for work in draft.work)]),
        )
        self._pace.heard(record)
        self._recorder(record)
        self._rounds += 1


def _cost(verdicts: Sequence[Verdict], work: Sequence[Work]) -> dict[str, Cost]:
    """The cost of a round, by level. Sequences that share work each report it: work of one beginning counts once."""
    passes = [verdict.cost for verdict in verdicts if verdict.cost is not None]
    told = {(its.level, its.began): its.cost for its in work if its.cost}
    return together([*({TARGET: cost} for cost in passes[:1]), *told.values()])
