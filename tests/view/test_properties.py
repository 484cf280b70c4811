"""However the events of a session reach a reader, the picture is the same in the end."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bargein.contracts.event import Recorded
from bargein.contracts.live import AnswerSoFar, Live, OutputSoFar
from bargein.session.broadcast import Watched
from bargein.view import WORDS, CallState, Picture
from tests.view.projection import as_logged, project
from tests.view.streams import simulated

SEEDS = st.integers(0, 39)
PLACES = st.floats(0, 1)

several = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def picture_of(stream: Sequence[Watched]) -> Picture:
    picture = Picture()
    for event in stream:
        picture.apply(event)
    return picture


def recorded(stream: Sequence[Watched]) -> list[Recorded]:
    return [event for event in stream if isinstance(event, Recorded)]


def so_far(picture: Picture) -> list[Live]:
    """What a session tells one who begins to watch it now."""
    told: list[Live] = []
    turn = picture.turn
    if turn is not None and turn.saying:
        answer = turn.saying[-1]
        if answer.words or answer.thought:
            told.append(AnswerSoFar(turn.id, answer.text, answer.reasoning))
    for call in picture.calls.values():
        if call.state is CallState.RUNNING:
            output = call.output
            told.append(OutputSoFar(call.turn, call.id, str(output), output.skipped))
    return told


@several
@given(SEEDS)
def test_the_log_alone_gives_the_same_picture(seed: int) -> None:
    for _, stream in simulated(seed):
        live = as_logged(project(picture_of(stream)))
        assert as_logged(project(picture_of(recorded(stream)))) == live


@several
@given(SEEDS, PLACES)
def test_one_who_joins_in_the_middle_sees_the_same_in_the_end(seed: int, place: float) -> None:
    for _, stream in simulated(seed):
        cut = int(place * len(stream))
        before = picture_of(stream[:cut])
        joined = Picture.of(recorded(stream[:cut]))
        for event in (*so_far(before), *stream[cut:]):
            joined.apply(event)
        assert as_logged(project(joined)) == as_logged(project(picture_of(stream)))


@several
@given(SEEDS, PLACES)
def test_one_who_comes_back_sees_the_same_and_no_event_counts_twice(
    seed: int, place: float
) -> None:
    for _, stream in simulated(seed):
        cut = int(place * len(stream))
        picture = picture_of(stream[:cut])
        left_at = picture.seq
        back_at = (cut + len(stream)) // 2
        picture.rejoin()
        for again in recorded(stream[:back_at]):
            picture.apply(again)
            assert picture.seq >= left_at
        for event in (*so_far(picture_of(stream[:back_at])), *stream[back_at:]):
            picture.apply(event)
        assert as_logged(project(picture)) == as_logged(project(picture_of(stream)))


@several
@given(SEEDS)
def test_words_may_be_left_out(seed: int) -> None:
    for _, stream in simulated(seed):
        silent = [event for event in stream if not isinstance(event, WORDS)]
        assert as_logged(project(picture_of(silent))) == as_logged(project(picture_of(stream)))


@several
@given(SEEDS, st.integers(1, 3))
def test_a_bounded_picture_has_the_end_of_the_whole_one(seed: int, turns_max: int) -> None:
    for _, stream in simulated(seed):
        whole, bounded = picture_of(stream), Picture(turns_max=turns_max)
        for event in stream:
            bounded.apply(event)
        settled = [turn for turn in bounded.turns.values() if turn.outcome is not None]
        assert len(settled) <= turns_max
        assert list(bounded.turns) == list(whole.turns)[-len(bounded.turns) :]
        assert (bounded.inbox, bounded.held) == (whole.inbox, whole.held)
        assert bounded.used == whole.used
        assert [c.id for c in bounded.background_calls] == [c.id for c in whole.background_calls]
        assert [q.id for q in bounded.open_questions] == [q.id for q in whole.open_questions]
        kept = project(bounded)["items"], project(whole)["items"]
        assert isinstance(kept[0], list)
        assert isinstance(kept[1], list)
        assert kept[0] == kept[1][len(kept[1]) - len(kept[0]) :]


@several
@given(SEEDS)
def test_every_word_is_told_once(seed: int) -> None:
    """What a surface that only appends has shown of an answer is what the answer is."""
    from bargein.view import AnswerReplaced, AnswerVoided, ShownAnswer, WordsAdded

    for _, stream in simulated(seed):
        picture = Picture()
        shown: dict[int, str] = {}
        answers: dict[int, ShownAnswer] = {}
        for event in stream:
            for change in picture.apply(event):
                if isinstance(change, WordsAdded):
                    key = id(change.answer)
                    answers[key] = change.answer
                    shown[key] = shown.get(key, "") + change.text
                elif isinstance(change, AnswerReplaced):
                    shown[id(change.answer)] = ""
                elif isinstance(change, AnswerVoided):
                    turn = picture.turns[change.turn]
                    if turn.saying:
                        shown[id(turn.saying[-1])] = ""
        for key, answer in answers.items():
            assert shown[key] == answer.text + answer.unkept
