"""The target in this process: one pass over the rows of all sequences, drafts and prompts together; then a walk for
each draft; then a commit of the accepted tokens.

This order keeps a sequence sound when a round breaks off. Nothing is committed before every walk has ended, and the
state of a sequence is replaced in one assignment, after its commit. Whatever happens in between, the next draft is
either judged rightly or refused. An error of one sequence (a NaN, a grammar that its library gives up on) ends that
sequence, and is in its verdict. The other sequences have the bits that they would have had without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches, KeptCaches
from foretoken.decoder.checking import Check, Part, run_check
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import joined
from foretoken.decoder.views import Extractor
from foretoken.errors import ContractError, ForetokenError, without_frames
from foretoken.protocol.types import TARGET, Draft, Features, FinishReason, Needs, PromptChunk, Request, Verdict
from foretoken.sampling.sampler import MakeSampler, Sampler
from foretoken.text.stopping import MakeStopsAfter, Watch, limit, never, stop_in
from foretoken.verification.features import FeatureReader, Seen, Tensors, taps_of
from foretoken.verification.judging import JUDGES, by_walk
from foretoken.verification.prefixes import Prefixes
from foretoken.verification.state import Gain, State, expect_readable


class LocalVerifier:
    """A target in this process.

    caches: shared with drafters that draft on views of them. extractors: make features that requests may need.
    samplers: makes the sampler of a request. stops: makes the function that watches a request's tokens for its stop
    strings. rule: judges drafts when sampling. "walk" follows the target's own choices for as long as the draft has
    them; "rejection" is the classical rule, which keeps the distribution but not the tokens. prefixes: keeps what was
    read for other requests, and says how much; None: only conversations are kept.
    """

    def __init__(
        self,
        target: Decoder,
        caches: Caches | None = None,
        *,
        extractors: Sequence[Extractor] = (),
        samplers: MakeSampler = Sampler,
        stops: MakeStopsAfter = never,
        rule: str = "walk",
        prefixes: Prefixes | None = None,
    ) -> None:
        self.caches = Caches() if caches is None else caches
        self.context_length = target.config.context_length
        self.vocab_size = target.config.valid_vocab_size
        self._target = target
        self._features = FeatureReader(target, {extractor.name: extractor for extractor in extractors})
        self.samplers = samplers
        self._stops = stops
        self._judge = JUDGES[rule]
        self._sequences: dict[int, State] = {}
        self._kept: KeptCaches[Seen] = KeptCaches()
        self.prefixes = prefixes
        self._results: dict[int, list[Verdict]] = {}
        self._tickets = itertools.count()

    def admit(self, request: Request) -> None:
        """Take a request on, with the cache that is kept of its conversation. Makes no pass."""
        self.caches.expect_new(request.sequence)
        self._expect_possible(request)
        sampler = self.samplers(request)  # a grammar may be refused
        watch = Watch(request, self._stops)
        cache, seen = self._taken_up(request, self._features.names(request.needs))
        self.caches.open(request.sequence, cache)
        self._sequences[request.sequence] = State(
            request,
            sampler,
            watch,
            list(request.prompt),
            len(request.prompt),
            seen,
            told=request.seen,
        )
        other = None if request.prompt_of is None else self._sequences.get(request.prompt_of)
        if other is not None and other.round:  # it has read the prompt already
            self._prompt_read(other)

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        """Make one pass of the target. The pass is done when this call returns."""
        named = [*(draft.sequence for draft in drafts), *(chunk.sequence for chunk in chunks)]
        if len(set(named)) < len(named):
            raise ContractError("two drafts or chunks came for one sequence; expected one for each")
        drafts = [draft for draft in drafts if self._is_current(draft)]
        chunks = [chunk for chunk in chunks if self._goes_on(chunk.sequence)]
        reading = [chunk.sequence for chunk in chunks]
        for sequence in reading:
            self._begin(self._sequences[sequence])
        parts = [
            *(self._sequences[draft.sequence].check_of(draft, self.caches[draft.sequence]) for draft in drafts),
            *(self._sequences[chunk.sequence].reading_of(chunk, self.caches[chunk.sequence]) for chunk in chunks),
        ]
        ticket = next(self._tickets)
        self._results[ticket] = self._pass(parts, drafts, reading) if parts else []
        return ticket

    def result(self, ticket: int) -> list[Verdict]:
        """The verdicts of a pass. They can be taken once."""
        if ticket not in self._results:
            raise ContractError(f"there is no check with ticket {ticket}, or its result was taken")
        return self._results.pop(ticket)

    def end(self, sequence: int) -> None:
        """Free a sequence, if it is there. The cache of a conversation is kept. With a store of prefixes, so is any
        other."""
        state = self._sequences.get(sequence)
        if state is not None and sequence in self.caches and state.request.conversation is not None:
            self._keep(state.request.conversation, state)
        cache = self.caches.close(sequence)
        for ticket, verdicts in list(self._results.items()):  # a round that was broken off has not taken them
            self._results[ticket] = [verdict for verdict in verdicts if verdict.sequence != sequence]
        self._sequences.pop(sequence, None)  # if the lines before are interrupted, the next call does them again
        if state is not None and cache is not None and state.request.conversation is None:
            self._leave(state, cache)  # last: if this is interrupted, the cache is nobody's

    def forget(self, conversation: int) -> None:
        """Free what is kept of a conversation, if anything is."""
        self._kept.forget(conversation)

    # -- kept from pass to pass, but not by UncachedVerifier --------------------------------------------------------

    def _taken_up(self, request: Request, names: frozenset[str]) -> tuple[Cache, Seen]:
        """The cache and hidden states that a sequence begins with. They come from its conversation, if that has kept a
        cache with the features that the request needs."""
        if request.conversation is not None:
            kept = self._kept.take(request.conversation, request.prompt)
            if kept is not None and kept.more.holds(names, kept.cache.length):
                return kept.cache, kept.more.first(names, kept.cache.length)
        return self._target.new_cache(), Seen(names)

    def _keep(self, conversation: int, state: State) -> None:
        """Keep what a sequence has read for the next request of its conversation."""
        self._kept.put(conversation, self.caches[state.request.sequence], state.text[: state.known], state.seen)

    def _begin(self, state: State) -> None:
        """Before the first chunk of a prompt is read: begin with the longest prefix of it that others have read.

        This is not done when the request is admitted: of prompts that arrive together nothing is read then.
        """
        request = state.request
        if (
            self.prefixes is None
            or request.conversation is not None
            or request.fresh
            or request.prompt_logits  # of every row
            or state.round
            or self.caches[request.sequence].length
        ):
            return
        known = list(self._sequences.values())  # in one step: other threads admit and end sequences meanwhile
        caches = [(other, self.caches.look(other.request.sequence)) for other in known if not other.failed]
        live = [other.read_in(cache) for other, cache in caches if cache is not None]
        found = self.prefixes.begin(request.prompt, state.seen.names, live)
        if found is not None:
            cache, seen = found
            # if these two are interrupted, the cache is still empty, and both are done again
            self._sequences[request.sequence] = replace(state, seen=seen)
            self.caches.replace(request.sequence, cache)

    def _leave(self, state: State, cache: Cache) -> None:
        """Keep what a sequence has read for other requests. If it has failed, nothing is kept that it may have begun
        with: a NaN may lie in keys and values that nobody has looked at."""
        if self.prefixes is None:
            return
        if state.failed:
            self.prefixes.drop(state.request.prompt)
        else:
            self.prefixes.keep(state.read_in(cache))

    def _held(self, state: State) -> int:
        """How many positions a cache must hold before a draft is checked: all but the last token, which is the root."""
        return state.known - 1

    def _commit(self, check: Check, gain: Gain, cache: Cache, *, reading: bool) -> None:
        """Commit the rows of a pass that have become text. reading: whether they belong to the prompt."""
        check.commit(gain.part, gain.path)

    def _prompt_read(self, state: State) -> None:
        """Called when a prompt has been read whole."""
        self._share(state)

    # -- into a pass ------------------------------------------------------------------------------------------------

    def _is_current(self, draft: Draft) -> bool:
        """Whether a draft is for the current round and position of its sequence. Any other draft is passed over: it is
        late, or was made behind a wrong guess, or its sequence has ended meanwhile."""
        state = self._sequences.get(draft.sequence)
        if state is None or state.ended:
            return False
        return state.awaits(draft, self.caches[draft.sequence], self._held(state))

    def _goes_on(self, sequence: int) -> bool:
        """Whether a sequence is under way. A chunk for one that has ended is late."""
        state = self._sequences.get(sequence)
        return state is not None and not state.ended

    # -- the pass ---------------------------------------------------------------------------------------------------

    def _pass(self, parts: Sequence[Part], drafts: Sequence[Draft], reading: Sequence[int]) -> list[Verdict]:
        named = [*(draft.sequence for draft in drafts), *reading]
        needs = [self._sequences[sequence].request.needs for sequence in named]
        layers = self._target.config.num_layers
        gains: list[Gain | Verdict] = []
        try:
            check = run_check(self._target, parts, [tap for need in needs for tap in taps_of(need, layers)])
            for at, sequence in enumerate(named):
                try:
                    gains.append(
                        self._judged(check, at, drafts[at]) if at < len(drafts) else self._read(check, at, sequence)
                    )
                except ForetokenError as error:
                    gains.append(self._failed(sequence, error, check))
        except BaseException:
            for part in parts:
                part.cache.discard()
            raise
        return [gain if isinstance(gain, Verdict) else self._settled(check, gain) for gain in gains]

    def _judged(self, check: Check, at: int, draft: Draft) -> Gain:
        """The gain of a draft: its walk, cut where the sequence stops."""
        state = self._sequences[draft.sequence]
        state.sampler.rewind(state.gained)
        walked = self._judge(check, at, draft, state.sampler, self._target.nan_error)
        gained = walked.gained(draft.tokens)
        origins = (*(draft.origins[i] for i in walked.accepted), TARGET)
        count, reason = self._stop(state, gained)
        accepted = tuple(walked.accepted[:count])
        return Gain(
            draft.sequence, at, check.path(at, accepted, count), gained[:count], accepted, origins[:count], reason
        )

    def _read(self, check: Check, at: int, sequence: int) -> Gain:
        """The gain of a chunk of a prompt: a first token, if it is the last chunk."""
        state, part = self._sequences[sequence], check.parts[at]
        path = range(len(part.text))
        if not part.wanted:
            return Gain(sequence, at, path)
        state.sampler.rewind(0)
        (token,) = by_walk(check, at, _NOTHING_DRAFTED, state.sampler, self._target.nan_error).gained(())
        _, reason = self._stop(state, (token,))
        return Gain(sequence, at, path, (token,), (), (TARGET,), reason)

    def _stop(self, state: State, gained: Sequence[int]) -> tuple[int, FinishReason | None]:
        request = state.request
        before = state.text[len(request.prompt) : state.known]
        room = limit(request, self.context_length) - len(before)
        return stop_in(gained, room, request, state.watch.at(before), complete=state.sampler.complete)

    def _failed(self, sequence: int, error: ForetokenError, check: Check) -> Verdict:
        state = self._sequences[sequence]
        self.caches[sequence].discard()
        self._sequences[sequence] = replace(state, ended=True, failed=True)
        error = without_frames(error)
        return Verdict(sequence, state.round, state.known, (), (), (), error=error, cost=check.rows.cost)

    # -- out of a pass ----------------------------------------------------------------------------------------------

    def _settled(self, check: Check, gain: Gain) -> Verdict:
        """The verdict of a part of the pass. Features that cannot be made end this sequence, and no other."""
        try:
            return self._committed(check, gain)
        except ForetokenError as error:
            return self._failed(gain.sequence, error, check)

    def _committed(self, check: Check, gain: Gain) -> Verdict:
        """Commit a part of the pass and make its verdict. The sequence's state is replaced before anything can fail."""
        state, cache = self._sequences[gain.sequence], self.caches[gain.sequence]
        reading = not state.round
        held = cache.length if reading else state.known - 1  # positions that had been committed before
        self._commit(check, gain, cache, reading=reading)
        rows = len(gain.path) if reading else len(gain.tokens)
        read = state.read + (rows if reading else 0)
        state.text[state.known :] = gain.tokens
        self._sequences[gain.sequence] = now = replace(
            state,
            known=state.known + len(gain.tokens),
            round=state.round + bool(gain.tokens or not reading),
            told=held + rows,
            read=read,
            ended=gain.reason is not None,
        )
        verdict = Verdict(
            gain.sequence,
            round=state.round,
            position=state.known,
            accepted=gain.accepted,
            tokens=gain.tokens,
            origins=gain.origins,
            logits=self._logits(check, gain) if state.request.keep_logits else None,
            prompt_logits=self._prompt_logits(check, gain) if state.request.prompt_logits and reading else None,
            finish_reason=gain.reason,
            cached_tokens=len(state.request.prompt) - read if gain.tokens and reading else 0,
            read=rows if reading else 0,
            prompt_left=0 if gain.tokens or not reading else len(state.request.prompt) - cache.length,
            cost=check.rows.cost,
        )
        if state.request.needs != Needs():
            verdict = replace(verdict, features=self._features_of(state, check, gain, held, rows))
        if reading and gain.tokens:
            self._prompt_read(now)
        return verdict

    def _logits(self, check: Check, gain: Gain) -> torch.Tensor | None:
        """The logits from which each token was chosen: those of each kept row, from the root on."""
        if not gain.tokens:
            return None
        root = len(check.parts[gain.part].text) - 1
        rows = check.rows_of(gain.part, gain.path[root:])
        return joined([check.outputs.logits(row)[None] for row in rows])

    def _prompt_logits(self, check: Check, gain: Gain) -> torch.Tensor:
        """The logits of the prompt's rows that a pass has read."""
        rows = check.rows_of(gain.part, gain.path)
        check.outputs.prepare(rows)
        return joined([check.outputs.logits(row)[None] for row in rows])

    def _features_of(self, state: State, check: Check, gain: Gain, held: int, rows: int) -> Features | None:
        """The features of the last `rows` rows of a part, and of those of the `held` positions before it that the
        drafter was not given yet."""
        request, cache = state.request, self.caches[gain.sequence]
        passed: list[Tensors] = []
        if request.needs.of_passes:
            path = gain.path[len(gain.path) - rows :]
            new = self._features.of_rows(request.needs, check, check.rows_of(gain.part, path))
            passed = [*(state.seen.between(state.told, held) if state.told < held else []), new]
            again = not state.round or request.conversation is not None or self.prefixes is not None
            if again and state.seen.rows == held:  # otherwise a pass broke off before its features were kept
                state.seen.keep(new)
        return self._features.features(request, cache, min(state.told, held), passed)

    def _share(self, state: State) -> None:
        """Copy the cache of a prompt for the sequences that wait for the same prompt. Its last token is left out: from
        that token's row each sequence chooses a first token of its own."""
        request = state.request
        known = list(self._sequences.values())  # in one step: other threads admit and end sequences meanwhile
        waiting = [s for s in known if s.request.prompt_of == request.sequence and not s.round]
        for other in waiting:
            sequence, length = other.request.sequence, len(request.prompt) - 1
            names = other.seen.names
            alike = other.request.prompt == request.prompt and state.seen.holds(names, length)
            if alike and self.caches[sequence].length == 0:  # otherwise the sequence reads the prompt itself
                self.caches.replace(sequence, self.caches[request.sequence].copy(length))
                self._sequences[sequence] = replace(other, seen=state.seen.first(names, length))

    def _expect_possible(self, request: Request) -> None:
        expect_readable(request, self.context_length)
        lacking = self._features.lacking(request.needs)
        if lacking is not None:
            raise ContractError(f"sequence {request.sequence} needs {lacking}")


_NOTHING_DRAFTED = Draft(-1, 0, 0, (), (), ())
