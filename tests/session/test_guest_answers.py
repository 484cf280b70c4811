"""What a guest may answer: what allows nothing."""

from __future__ import annotations

import pytest

from bargein.contracts.permission import Standing
from bargein.contracts.tool import Question, QuestionKind
from bargein.session.rules.questions import standing_for


@pytest.mark.parametrize("kind", list(QuestionKind))
@pytest.mark.parametrize("needed", list(Standing))
def test_only_a_question_that_allows_nothing_is_a_guests_to_answer(
    kind: QuestionKind, needed: Standing
) -> None:
    is_plain = kind is QuestionKind.QUESTION and needed in (Standing.GUEST, Standing.WRITER)
    question = Question("Which?", kind, answerable_by=needed)
    covered = Standing.GUEST.covers(standing_for(question))
    assert covered == (is_plain or needed is Standing.GUEST)
