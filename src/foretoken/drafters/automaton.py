"""A suffix automaton that grows by one token at a time, in amortised constant time.

It recognises every run of tokens that has occurred in a text. After each token it knows the longest end of the text
that has occurred before, and where that earlier occurrence ended. The tokens that follow there are a guess at the
tokens that follow now.

Sources: Blumer et al. 1985 for the automaton; SAM decoding (Hu et al. 2024, arXiv 2411.10666) for its use as a drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.errors import ContractError

_ABSENT = -2
_Change = tuple["dict[int, int] | list[int]", int, int]  # a container, a key, and the value before the change


class SuffixAutomaton:
    """The text so far, its automaton, and the matches of its end.

    A state stands for a set of runs that end at the same places. It has the `length` of the longest of them, a `link`
    to the state of the longest shorter end, and the latest `end` at which it was looked up or made (an index into the
    text). A journal holds the changes that each token made, so that the last tokens can be taken back.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._end: list[int] = [-1]
        self._last = 0
        self._journal: list[tuple[int, int, list[_Change]]] = []  # a token: states and last state before it, changes

    def __len__(self) -> int:
        """The number of states: at most twice the number of tokens."""
        return len(self._link)

    def append(self, token: int) -> None:
        """Add one token to the text."""
        self._journal.append((len(self._link), self._last, []))
        self._touch()
        state = self._new_state({}, self._length[self._last] + 1, len(self.text))
        self.text.append(token)
        at = self._last
        while at >= 0 and token not in self._next[at]:
            self._set(self._next[at], token, state)
            at = self._link[at]
        if at < 0:
            self._link[state] = 0
        else:
            self._link[state] = self._split(at, token)
        self._last = state

    def settle(self) -> None:
        """Make all tokens so far permanent: the journal of their changes is dropped."""
        self._journal.clear()

    def truncate(self, length: int) -> None:
        """Keep only the first `length` tokens. The automaton is then as it was when it had only those. Raises
        ContractError if settled tokens would be dropped."""
        if length < len(self.text) - len(self._journal):
            raise ContractError(f"{len(self.text) - len(self._journal)} tokens are settled; {length} cannot be kept")
        while len(self.text) > length:
            states, self._last, changes = self._journal.pop()
            self.text.pop()
            for where, key, before in reversed(changes):
                if before == _ABSENT:
                    del where[key]
                else:
                    where[key] = before
            for column in (self._next, self._link, self._length, self._end):
                del column[states:]

    def longest_match(self) -> tuple[int, int]:
        """Returns (length, end): the length of the longest end of the text that occurred before, and where that
        occurrence ended. `text[end + 1:]` followed it. The length is 0 if even the last token is new.
        """
        state = self._link[self._last]
        return (self._length[state], self._end[state]) if state > 0 else (0, -1)

    def longest_end(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The same of other tokens: the length of their longest end that occurs in this text, and where it ends here
        last."""
        state = length = 0
        for token in tokens:
            while state and token not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if token in self._next[state]:
                state = self._next[state][token]
                length += 1
        return (length, self._end[state]) if state else (0, -1)

    def _touch(self) -> None:
        """Note that the longest match of the end has now occurred here too, so the next lookup finds this place."""
        state = self._link[self._last]
        if state > 0:
            self._set(self._end, state, len(self.text) - 1)

    def _split(self, at: int, token: int) -> int:
        """The state of the longest earlier run that ends in `token` after `at`, split off from its longer ones."""
        target = self._next[at][token]
        if self._length[target] == self._length[at] + 1:
            return target
        clone = self._new_state(dict(self._next[target]), self._length[at] + 1, self._end[target])
        self._link[clone] = self._link[target]
        self._set(self._link, target, clone)
        while at >= 0 and self._next[at].get(token) == target:
            self._set(self._next[at], token, clone)
            at = self._link[at]
        return clone

    def _set(self, where: dict[int, int] | list[int], key: int, value: int) -> None:
        before = where.get(key, _ABSENT) if isinstance(where, dict) else where[key]
        self._journal[-1][2].append((where, key, before))
        where[key] = value

    def _new_state(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        self._end.append(end)
        return len(self._link) - 1
