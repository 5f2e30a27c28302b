"""The loaded model: it generates, streams and holds conversations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, overload

from foretoken.api.audit import audit
from foretoken.api.chat import Chat, Reading
from foretoken.api.checkpoint import Checkpoint
from foretoken.api.pacing import price_at_start
from foretoken.api.requests import Requests, several
from foretoken.api.trusted import changed, trusted
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import joined
from foretoken.errors import BatchError, ForetokenError, SettingError, without_frames
from foretoken.loop.beside import Beside
from foretoken.loop.engine import Engine
from foretoken.loop.generating import Ended, Event, Prepare, generating
from foretoken.loop.output import Cancelled, Generation, Output, Piece, Stream, exhausted
from foretoken.loop.schedule import Schedule
from foretoken.pace.fixed import FixedPace
from foretoken.prices.plain import plain_speed
from foretoken.protocol.roles import Drafter, Pace, Verifier
from foretoken.protocol.telemetry import Cost, RoundRecord
from foretoken.protocol.types import TARGET, Budget, Request
from foretoken.remote.client import RemoteVerifier
from foretoken.results.completion import Completion
from foretoken.results.stats import summarise
from foretoken.sampling.sampler import MakeSampler
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings
from foretoken.text.messages import Prompt
from foretoken.verification.local import LocalVerifier
from foretoken.verification.meanwhile import MeanwhileVerifier
from foretoken.verification.prefixes import Prefixes


@dataclass(frozen=True)
class Far:
    """What holds if the target is on a host. ahead: how many rounds are drafted while a check is under way. at_once:
    how many texts the host takes on from one client; None: any number. pace: of texts that may go on without it."""

    ahead: int = 0
    at_once: int | None = None
    pace: Callable[[Pace], Pace] = lambda pace: pace


def _forget(verifier: Verifier, drafter: Drafter, conversation: int) -> None:
    verifier.forget(conversation)
    drafter.forget(conversation)


class Model:
    """A target and the draft that speeds it up. Made by `foretoken.load`.

    `name` is the caller's name for the model, `folder` the folder where it was found, and `settings` the settings of
    the load. `files` are the files that decide its output, as they were when they were read; None for a model that was
    not read from files. `levels` are the names of the draft's levels, nearest to the target first. `budgets` says how
    much each level may draft in a round, and `pace` chooses how much it does. `decoders` holds the decoders of the
    levels by these names, and the `target`. far: what holds if these checks are made elsewhere.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        verifier: Verifier,
        drafter: Drafter,
        *,
        budgets: Mapping[str, Budget],
        pace: Pace | None = None,
        decoders: Mapping[str, Decoder] | None = None,
        settings: LoadSettings,
        far: Far | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.far = far or Far()
        self.target = checkpoint.target
        self.tokenizer = checkpoint.tokenizer
        self.end_tokens = checkpoint.end_tokens
        self.name = checkpoint.name
        self.folder = checkpoint.folder
        self.files = checkpoint.files
        self.budgets = dict(budgets)
        self.pace = pace or FixedPace(tuple(budgets.values()))
        self.promise = self.target.promise
        self.draft = settings.draft
        self.settings = settings
        self._verifier = verifier
        self.drafter = drafter
        self.levels = tuple(name for name in budgets if name != "none")
        self.decoders = {TARGET: self.target, **(decoders or {})}
        mapped = (decoder.weights.mapped for decoder in self.decoders.values())
        self.mapped = list(dict.fromkeys(files for files in mapped if files is not None))  # copies share their model's
        self._requests = Requests(self, verifier, settings.rule)
        self._conversations = itertools.count()
        self._shares = 0  # the fewest tokens of a prompt that are taken over from another one; 0: none are

    @property
    def num_speculative_tokens(self) -> int:
        """The most tokens that the first level drafts in a round."""
        return next(iter(self.budgets.values())).rows

    @property
    def is_here(self) -> bool:
        """Whether the target is in this process, not on a host."""
        return not isinstance(self._verifier, RemoteVerifier)

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and output may have together."""
        return self._verifier.context_length

    def __repr__(self) -> str:
        return f"<foretoken.Model {self.name}, draft {self.draft!r}, promise {self.promise!r}>"

    def generate(self, prompt: Prompt, chosen: GenerateSettings | None = None, /, **settings: Any) -> Completion:
        """Continue a prompt. Settings: a `GenerateSettings`, or its fields by name.

        prompt: text, token ids, or messages, each with a `role` and a `content`. The chat template writes messages as
        text, and the model answers them.

        Raises PromptError or SettingError for a prompt or a setting that cannot be used, GrammarError for a grammar,
        and NumericsError at a NaN.
        """
        stream = self.stream(prompt, chosen, **settings)
        for _ in stream:
            pass
        return stream.completion

    def completions(
        self, prompt: Prompt, chosen: GenerateSettings | None = None, /, **settings: Any
    ) -> list[Completion]:
        """`n` continuations of a prompt, which share the passes of the model. Each is the same as it would be alone."""
        chosen = GenerateSettings.chosen(chosen, settings)
        run = self._run(self._requests.of(prompt, chosen), chosen)
        return exhausted(run)

    @overload
    def generate_many(
        self,
        prompts: Iterable[Prompt],
        chosen: GenerateSettings | None = None,
        /,
        *,
        as_completed: Literal[False] = False,
        at_once: int = 8,
        **settings: Any,
    ) -> list[Completion]: ...

    @overload
    def generate_many(
        self,
        prompts: Iterable[Prompt],
        chosen: GenerateSettings | None = None,
        /,
        *,
        as_completed: Literal[True],
        at_once: int = 8,
        **settings: Any,
    ) -> Iterator[tuple[int, Completion]]: ...

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        chosen: GenerateSettings | None = None,
        /,
        *,
        as_completed: bool = False,
        at_once: int = 8,
        **settings: Any,
    ) -> list[Completion] | Iterator[tuple[int, Completion]]:
        """Continue many prompts, which share the passes of the model. Item i of the result is the same, bit for bit, as
        `generate(prompts[i])`, and all items together come sooner than one after the other.

        prompts: each as in `generate`. as_completed: return an iterator of (index, completion) instead, in the order of
        completion; closing the iterator cancels the rest. at_once: how many prompts are generated side by side; each
        needs memory for its keys and values. Settings: as in `generate`.

        If some prompts fail, the others are finished first. Then one `BatchError` is raised: its `completions` has a
        completion for each prompt, None for those that failed, and its `errors` has the reasons by index.
        """
        chosen = GenerateSettings.chosen(chosen, settings)
        prompts = several(prompts, chosen, as_completed, at_once)
        (any_prompt,) = self._requests.of((0,), chosen)
        try:
            self._verifier.admit(any_prompt)  # refuses what is wrong for every prompt before any is begun
        finally:
            self._verifier.end(any_prompt.sequence)
        done = self._many(prompts, chosen, at_once)
        if as_completed:
            return done
        found = dict(done)
        return [found[index] for index in sorted(found)]

    def stream(self, prompt: Prompt, chosen: GenerateSettings | None = None, /, **settings: Any) -> Stream:
        """The same as `generate`, piece by piece. Iterate the stream; then its `completion` has the whole. Closing the
        stream cancels the generation; then its `completion` has what had come."""
        chosen = GenerateSettings.chosen(chosen, settings)
        if chosen.n != 1:
            raise SettingError(f"n is {chosen.n}, and here comes one completion; ask `completions` for several")
        return Stream(self._run(self._requests.of(prompt, chosen), chosen))

    def recheck(
        self, prompt: Prompt, done: Completion, chosen: GenerateSettings | None = None, /, **settings: Any
    ) -> Stream:
        """A text whose host went away (its `finish_reason` is "disconnected"), generated once more. What it has is the
        draft, if lookup drafts, so the host checks many tokens at once. Settings: as before; the seed is `done`'s.

        Raises what `stream` raises, and RemoteError at its first piece if the host is not there.
        """
        chosen = GenerateSettings.chosen(chosen, settings).again(done.seed)
        return Stream(self._run(self._requests.of(prompt, chosen, predicted=done.tokens), chosen))

    def chat(self, system: str | None = None, *, plain: bool = False) -> Chat:
        """A conversation, which keeps what the model has read from one turn to the next.

        system: the system message. plain: without a chat template, the model continues the text. Raises PromptError if
        the model has no tokenizer, or no chat template where one is needed.
        """
        conversation = next(self._conversations)
        reading = Reading(
            self.tokens_of,
            lambda prompt, its, predicted: self._run(self._requests.of(prompt, its, conversation, predicted), its),
            partial(_forget, self._verifier, self.drafter, conversation),
        )
        return Chat(reading, self.tokenizer, name=self.name, system=system, plain=plain)

    def _run(self, requests: Sequence[Request], settings: GenerateSettings) -> Generation:
        """Yields pieces as they come, each with the index of its request. Returns the completions."""
        done: dict[int, Completion] = {}
        left: list[tuple[int, Ended]] = []
        prompts = [partial(self.prepared, request, settings) for request in requests]
        with closing(self.events(prompts, len(prompts), left)) as run:
            try:
                for index, event in run:
                    if isinstance(event, Piece):
                        yield index, event
                    else:
                        done[index] = self.completion(event, settings)
            except Cancelled:
                run.close()
                done |= {index: self.completion(ended, settings) for index, ended in left}
        return [done[index] for index in range(len(requests))]

    def _many(
        self, prompts: Sequence[Prompt], settings: GenerateSettings, at_once: int
    ) -> Generator[tuple[int, Completion]]:
        """Yields completions as they are done, with the indices of their prompts. Raises BatchError at the end if some
        failed."""

        def prepare(prompt: Prompt) -> tuple[Request, Output]:
            (request,) = self._requests.of(prompt, settings)
            return self.prepared(request, settings)

        completions: list[Completion | None] = [None] * len(prompts)
        errors: dict[int, ForetokenError] = {}
        with closing(self.events([partial(prepare, prompt) for prompt in prompts], at_once)) as run:
            for index, event in run:
                if isinstance(event, Piece):
                    continue
                try:
                    done = self.completion(event, settings)
                except ForetokenError as error:
                    errors[index] = without_frames(error)  # an audit's frames hold a pass
                    continue
                completions[index] = done
                yield index, done
        if errors:
            raise BatchError(completions, errors)

    def prepared(self, request: Request, settings: GenerateSettings) -> tuple[Request, Output]:
        """A request, and what will hold its output."""
        return request, Output(request, self.tokenizer, settings)

    def events(
        self,
        prompts: Sequence[Prepare],
        at_once: int,
        left: list[tuple[int, Ended]] | None = None,
        given_up: Container[int] = (),
    ) -> Generator[Event]:
        """A loop of this call's own (`loop/generating.py` says what comes of it). left: if the loop is closed, the
        prompts under way are added to it. given_up: prompts that the caller has enough of; it may grow."""
        at_once = min(at_once, self.far.at_once or at_once)
        return trusted(generating(self.engine, prompts, at_once, left, given_up), len(prompts), self.mapped)

    def engine(
        self,
        recorder: Callable[[RoundRecord], None],
        beside: Beside | None = None,
    ) -> Engine:
        """A loop over this model's sequences. There may be only one at a time. beside: as in `Schedule`."""
        s = self.settings
        # with the rejection rule the text depends on the draft, so the draft must not depend on other sequences
        shared = s.shared_rows if s.rule == "walk" and isinstance(self.pace, FixedPace) else None
        usual = tuple(self.budgets.values())
        schedule = Schedule(s.rows_per_pass, s.prefill_chunk, shared, self.far.ahead, beside, usual, self._shares)
        return Engine(
            self._verifier,
            self.drafter,
            budgets=self.far.pace(self.pace),
            schedule=schedule,
            recorder=recorder,
        )

    def keep_prefixes(self, most_positions: int) -> Prefixes | None:
        """From now on, keep what requests have read for others that begin alike. None if the target is not here, or
        keeps no keys and values."""
        verifier = self._verifier
        if type(verifier) is not LocalVerifier:
            return None
        verifier.prefixes = Prefixes(most_positions)
        self._shares = verifier.prefixes.least
        return verifier.prefixes

    def sample_with(self, change: Callable[[MakeSampler], MakeSampler]) -> None:
        """From now on, let `change` say which sampler chooses the tokens of a request. Drafters guess with their own.
        Raises SettingError if the target is on a host."""
        near = self._verifier.near if isinstance(self._verifier, MeanwhileVerifier) else self._verifier
        if not isinstance(near, LocalVerifier):
            raise SettingError("the model is on a host, which chooses its tokens itself; load it here")
        near.samplers = change(near.samplers)

    def expect_possible(self, request: Request) -> None:
        """Raise GrammarError for a grammar that cannot be followed. It may take a while to read; it is then known."""
        if request.sampling.constraint is not None and isinstance(self._verifier, LocalVerifier):
            self._verifier.samplers(request)

    def requests(self, prompt: Prompt, settings: GenerateSettings) -> list[Request]:
        """One request for each completion of a prompt, for a loop that `engine` has made. Raises PromptError or
        SettingError."""
        return self._requests.of(prompt, settings)

    def completion(self, ended: Ended, settings: GenerateSettings) -> Completion:
        """The completion of a sequence that has ended in a loop. Raises the error that ended it, or its audit."""
        if ended.error is not None:
            raise ended.error
        request, output, records = ended.request, ended.output, ended.records
        assert request is not None
        assert output is not None
        assert records is not None
        assert output.finish_reason is not None
        tokens = tuple(piece.token for piece in output.pieces)
        sampled = request.sampling.temperature > 0
        stats = summarise(records, request.sequence, self.levels)
        plain = plain_speed(records, request.sequence, price_at_start(self.target))
        stats = replace(stats, plain_tokens_per_second=plain)
        if stats.cost:  # decoders that had nothing to do are listed, too
            stats = replace(stats, cost={name: stats.cost.get(name, Cost()) for name in self.decoders})
        # the audit shares nothing with the generation: it reads the whole prompt itself
        number = self._requests.new_sequence()
        again = replace(request, sequence=number, conversation=None, prompt_of=None, fresh=True)
        whole = output.finish_reason != "cancelled"
        audited = audit(self._verifier, again, tokens) if settings.audit and whole else None
        if audited is not None and (error := changed(self.mapped)) is not None:
            raise error
        promise = "none" if output.unverified else self.promise
        return Completion(
            tokens=tokens,
            text="".join(piece.text for piece in output.pieces),
            finish_reason=output.finish_reason,
            origins=tuple(piece.origin for piece in output.pieces),
            # the rejection rule keeps the distribution, and promises nothing about the tokens
            promise="algorithmic" if sampled and self.settings.rule == "rejection" else promise,
            draft=self.draft,
            stats=stats,
            arithmetic=self.target.arithmetic,
            threads=self.target.threads,
            seed=request.sampling.seed if sampled else None,
            stop_string=output.stop_string,
            prompt_tokens=len(request.prompt) + len(request.private[-1:]),
            cached_tokens=output.cached_tokens,
            unverified=output.unverified,
            logprobs=None if settings.logprobs is None else tuple(output.logprobs),
            prompt_logprobs=None if settings.prompt_logprobs is None else tuple(output.prompt_logprobs),
            logits=joined(output.logits) if output.logits else None,
            logits_sha256=output.digest.hexdigest() if settings.hash_logits else None,
            audit=audited,
            rounds=tuple(records) if settings.keep_rounds else None,
        )

    def describe(self, token: int) -> str:
        """A token for people to read: its text in quotes, or its number if it has no text of its own."""
        known = self.tokenizer is not None and 0 <= token < self.target.config.vocab_size
        text = self.tokenizer.decode([token]) if self.tokenizer is not None and known else ""
        return f"token {token}" if not text or "\ufffd" in text else repr(text)

    def tokens_of(self, prompt: Prompt) -> tuple[int, ...]:
        """The tokens of a prompt. Raises PromptError if there are none, if the model does not know one, or if the
        context has no room for one more."""
        return self._requests.tokens_of(prompt)
