"""Trees that grow, against trees that are there from the beginning: every node of a scoring tree is listed."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.trees.grow import SHAPES, Growth

Path = tuple[int, ...]


@dataclass(frozen=True)
class Scoring:
    """Which children every node has, and how likely they are: a function of the path. `childless` is how many have
    none, as where the draft's logits are NaN; `ties` makes scores coarse, so that many are equal."""

    seed: int
    ties: bool = False
    childless: float = 0.0

    def children(self, path: Path, width: int) -> tuple[list[int], list[float]]:
        """Likeliest first. Never more than certain, sometimes certain."""
        dice = random.Random(f"{self.seed}{path}")
        if path and dice.random() < self.childless:
            return [], []
        scores = [-dice.choice([0, 1, 2]) / 2 if self.ties else -dice.expovariate(1) for _ in range(width)]
        return dice.sample(range(100), width), sorted(scores, reverse=True)


@dataclass(frozen=True)
class Node:
    path: Path
    score: float


@dataclass(frozen=True)
class Case:
    shape: str
    width: int
    depth: int
    nodes: int
    scoring: Scoring

    def below(self, node: Node) -> list[Node]:
        tokens, scores = self.scoring.children(node.path, self.width)
        return [Node((*node.path, t), node.score + s) for t, s in zip(tokens, scores, strict=True)]

    def levels(self) -> list[list[Node]]:
        """The whole tree, by depth."""
        levels = [[Node((), 0.0)]]
        for _ in range(self.depth):
            levels.append([child for node in levels[-1] for child in self.below(node)])
        return levels[1:]

    def beams(self) -> list[tuple[list[Node], list[Node]]]:
        """By depth: all children that are seen, and those of them that go on."""
        beams, beam = [], [Node((), 0.0)]
        for _ in range(self.depth):
            seen = [child for node in beam for child in self.below(node)]
            beam = sorted(seen, key=lambda node: -node.score)[: self.width]
            beam = [node for node in seen if node in beam]
            beams.append((seen, beam))
        return beams


@dataclass
class Grown:
    growth: Growth
    chosen: list[Node]
    seen: list[Node]


def grow(case: Case) -> Grown:
    """Grow a tree as a drafter does, and look at every step of it."""
    growth = Growth(case.shape, case.width, case.depth, case.nodes)
    nodes: list[Node] = []

    def look_behind(at: int) -> None:
        node = nodes[at] if at >= 0 else Node((), 0.0)
        growth.add(at, *case.scoring.children(node.path, case.width))
        nodes.extend(case.below(node))

    look_behind(-1)
    looked: set[int] = set()
    while frontier := growth.frontier():
        assert case.shape == "full" or len(frontier) <= case.width
        assert not looked & set(frontier), "nobody is looked behind twice"
        assert all(len(nodes[at].path) < case.depth for at in frontier)
        looked.update(frontier)
        for at in frontier:
            look_behind(at)
    assert [tuple(path) for path in _paths(growth)] == [node.path for node in nodes]
    assert growth.scores == [node.score for node in nodes]
    return Grown(growth, [nodes[at] for at in growth.chosen()], nodes)


def _paths(growth: Growth) -> list[Path]:
    paths: list[Path] = []
    for token, parent in zip(growth.tokens, growth.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def best(nodes: list[Node], count: int) -> list[float]:
    return sorted((node.score for node in nodes), reverse=True)[:count]


def cases(
    shapes: tuple[str, ...] = SHAPES, *, ties: bool | None = None, childless: tuple[float, ...] = (0.0,)
) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        st.sampled_from(shapes),
        st.integers(1, 4),
        st.integers(1, 4),
        st.integers(1, 30),
        st.builds(
            Scoring,
            st.integers(0, 10**6),
            st.booleans() if ties is None else st.just(ties),
            st.sampled_from(childless),
        ),
    )


@given(cases(childless=(0.0, 0.3, 0.7)))
@settings(deadline=None, max_examples=200)
def test_what_is_sent_is_a_tree_within_its_bounds(case: Case) -> None:
    grown = grow(case)
    growth, chosen = grown.growth, growth_chosen(grown)
    assert 1 <= len(chosen) <= case.nodes
    assert len(set(chosen)) == len(chosen)
    for place, at in enumerate(chosen):
        assert growth.depths[at] == len(grown.chosen[place].path) <= case.depth
        parent = growth.parents[at]
        assert parent < 0 or parent in chosen[:place], "parents come before children"
        assert growth.scores[at] <= (growth.scores[parent] if parent >= 0 else 0.0)


def growth_chosen(grown: Grown) -> list[int]:
    first = grown.growth.chosen()
    assert grown.growth.chosen() == first, "to ask changes nothing"
    return first


@given(cases(("beam",), ties=False))
@settings(deadline=None, max_examples=100)
def test_a_beam_is_beam_search(case: Case) -> None:
    kept = [node for _, beam in case.beams() for node in beam]
    likeliest = sorted(kept, key=lambda node: -node.score)[: case.nodes]
    assert grow(case).chosen == [node for node in kept if node in likeliest]


@given(cases(("rerank",), childless=(0.0, 0.3)))
@settings(deadline=None, max_examples=100)
def test_reranking_sends_the_best_of_those_seen(case: Case) -> None:
    grown = grow(case)
    assert best(grown.chosen, 99) == best(grown.seen, case.nodes)
    if not case.scoring.ties and not case.scoring.childless:
        assert grown.seen == [node for seen, _ in case.beams() for node in seen], "what a beam sees"


@given(cases(("best-first",), childless=(0.0, 0.3)))
@settings(deadline=None, max_examples=200)
def test_best_first_sends_the_best_of_the_whole_tree(case: Case) -> None:
    grown = grow(case)
    everything = [node for level in case.levels() for node in level]
    assert best(grown.chosen, 99) == best(everything, case.nodes)
    assert len(grown.chosen) == min(case.nodes, len(everything))


@given(cases(("best-first",), childless=(0.0, 0.3)), st.integers(0, 6), st.integers(1, 4), st.integers(0, 10**6))
@settings(deadline=None, max_examples=200)
def test_a_tree_that_takes_over_another_sends_what_one_sends_that_begins_there(
    case: Case, steps: int, depth: int, seed: int
) -> None:
    """However far the other has grown meanwhile, and to whichever of its nodes the text has come."""
    other, nodes = grow(case).growth, grow(case).seen
    other.depth = 9
    for _ in range(steps):
        for at in other.beyond(1e-9):
            other.add(at, *case.scoring.children(nodes[at].path, case.width))
            nodes.extend(Case("best-first", case.width, 9, 99, case.scoring).below(nodes[at]))
    if not nodes:
        return
    root = random.Random(seed).randrange(len(nodes))
    assert other.find(nodes[root].path) == root
    assert other.find((*nodes[root].path, 100)) is None
    here = Growth("best-first", case.width, depth, case.nodes)
    taken = here.take_over(other, root)
    its = dict(zip(taken.values(), (nodes[at] for at in taken), strict=True))
    assert all(node.path[: len(nodes[root].path)] == nodes[root].path for node in its.values())
    if root not in other._looked:
        assert not taken
        here.add(-1, *case.scoring.children(nodes[root].path, case.width))
        its = dict(enumerate(case.below(nodes[root])))
    while frontier := here.frontier():
        for at in frontier:
            first = len(here.tokens)
            here.add(at, *case.scoring.children(its[at].path, case.width))
            its.update(enumerate(case.below(its[at]), first))
    below, level = [], [nodes[root]]
    for _ in range(depth):
        level = [child for node in level for child in case.below(node)]
        below += level
    expected = best([Node(node.path, node.score - nodes[root].score) for node in below], case.nodes)
    assert best([its[at] for at in here.chosen()], 99) == pytest.approx(
        [score + nodes[root].score for score in expected]
    )
    assert sorted((here.scores[at] for at in here.chosen()), reverse=True) == pytest.approx(expected)


def test_best_first_leaves_most_of_a_large_tree_unseen() -> None:
    case = Case("best-first", 4, 5, 12, Scoring(3))
    assert len(grow(case).seen) < 0.1 * sum(len(level) for level in case.levels())


@given(cases(("best-first",)), st.floats(0, 2))
@settings(deadline=None, max_examples=100)
def test_best_first_ends_when_another_step_would_gain_too_little(case: Case, least: float) -> None:
    growth = Growth("best-first", case.width, case.depth, case.nodes, least=least)
    whole = Growth("best-first", case.width, case.depth, case.nodes)
    for each in (growth, whole):
        each.add(-1, *case.scoring.children((), case.width))
    while frontier := growth.frontier():
        assert frontier == whole.frontier(), "until it ends, it grows as without a limit"
        assert gain(growth, frontier) >= least
        for at in frontier:
            for each in (growth, whole):
                each.add(at, *case.scoring.children(tuple(each.path(at)), case.width))
    rest = whole.frontier()
    assert not rest or gain(growth, rest) < least


def gain(growth: Growth, frontier: list[int]) -> float:
    """What children can add that are as likely as their parents: where the tree is full, one replaces another."""
    likely = sorted((math.exp(score) for score in growth.scores), reverse=True)
    replaced = likely[growth.nodes - 1] if len(likely) >= growth.nodes else 0.0
    return sum(max(0.0, math.exp(growth.scores[at]) - replaced) for at in frontier)


@given(cases(("best-first",)), st.lists(st.floats(0, 0.9), min_size=99, max_size=99))
@settings(deadline=None, max_examples=100)
def test_no_other_number_of_nodes_is_worth_more_beyond_its_dues(case: Case, steps: list[float]) -> None:
    dues = [0.0, *itertools.accumulate(steps)]
    growth = Growth("best-first", case.width, case.depth, case.nodes, dues=dues)
    growth.add(-1, *case.scoring.children((), case.width))
    while frontier := growth.frontier():
        for at in frontier:
            growth.add(at, *case.scoring.children(tuple(growth.path(at)), case.width))
    chosen = growth_chosen(Grown(growth, [], []))
    likely = sorted((math.exp(score) for score in growth.scores), reverse=True)[: case.nodes]
    worth = [sum(likely[:count]) - dues[count] for count in range(1, len(likely) + 1)]
    assert sum(math.exp(growth.scores[at]) for at in chosen) - dues[len(chosen)] == pytest.approx(max(worth))


def test_a_tree_ends_where_no_other_node_would_be_worth_its_due() -> None:
    def grown(dues: tuple[float, ...]) -> int:
        growth, passes = Growth("best-first", 1, 9, 9, least=0.3, dues=dues), 0
        growth.add(-1, [1], [math.log(0.9)])
        while frontier := growth.frontier():
            passes += 1
            growth.add(frontier[0], [1], [math.log(0.9)])
        return passes

    assert grown(()) == 9 - 1, "to the full depth: 0.9 ** 9 is more than 0.3"
    assert grown((0.0, *(0.5 * count for count in range(1, 12)))) == 2, "0.9 ** 3 - 0.5 is less"


def test_a_node_that_was_guessed_needs_no_other_step() -> None:
    growth = Growth("best-first", 1, 3, 5)
    growth.add(-1, [7, 8], [math.log(0.9), math.log(0.1)])
    assert growth.guessed(-1, 9) is None, "the root has no such child"
    assert growth.guessed(-1, 7) == 0
    growth.add(0, [5, 6], [math.log(0.8), math.log(0.2)])
    assert growth.guessed(0, 5) == 2
    growth.add(2, [1, 2], [math.log(0.6), math.log(0.4)])
    assert growth.guessed(2, 1) is None, "it is as deep as the tree may be"
    assert growth.path(4) == [7, 5, 1]
    assert growth.frontier() == [3], "neither 0 nor 2 again"


@given(cases(("full",)), st.integers(0, 10**6))
@settings(deadline=None, max_examples=100)
def test_the_form_of_a_full_tree_is_decided_by_no_score(case: Case, seed: int) -> None:
    def form(scoring: Scoring) -> list[tuple[int, int]]:
        grown = grow(Case("full", case.width, case.depth, case.nodes, scoring))
        chosen = growth_chosen(grown)
        assert chosen == list(range(len(chosen))), "a node's number is its place"
        return [(grown.growth.parents[at], grown.growth.depths[at]) for at in chosen]

    everything = [node for level in case.levels() for node in level]
    assert form(case.scoring) == form(Scoring(seed, ties=True))
    assert grow(case).chosen == everything[: case.nodes], "breadth first"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_root_without_children_sends_nothing(shape: str) -> None:
    growth = Growth(shape, 3, 4, 10)
    growth.add(-1, [], [])
    assert growth.frontier() == []
    assert growth.chosen() == []


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tree_of_width_1_is_a_chain(shape: str) -> None:
    case = Case(shape, 1, 4, 10, Scoring(5))
    assert [len(node.path) for node in grow(case).chosen] == [1, 2, 3, 4]


def test_a_score_above_certainty_counts_as_certain() -> None:
    growth = Growth("rerank", 2, 2, 4)
    growth.add(-1, [7], [1e-9])  # rounding in a logarithm of a probability
    growth.add(0, [8], [0.0])
    assert growth.scores == [0.0, 0.0]
    assert growth.chosen() == [0, 1], "of equals the parent comes first"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tree_whose_nodes_have_no_children_is_grown(shape: str) -> None:
    growth = Growth(shape, width=2, depth=4, nodes=8)
    growth.add(-1, [5, 6, 7, 8], [-0.1, -0.2, -0.3, -0.4])
    asked: list[int] = []
    while frontier := growth.frontier():  # none is given children, as where the draft's logits are NaN
        asked += frontier
    assert len(asked) == len(set(asked))
    sent = growth.chosen()
    assert growth.frontier() == []
    assert growth.chosen() == sent, "to ask once more changes nothing"
    assert len(sent) == len(set(sent))
    if shape == "beam":
        assert sent == [0, 1], "runners-up do not go on in a beam's place"
