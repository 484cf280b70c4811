"""The supervisor itself says that nobody is left; the helper is only asked if it was killed."""

from __future__ import annotations

import pytest

from bargein.cancel import CancelSource
from bargein.process import Containment, Means
from bargein.process import supervisor as module
from tests.process.keeper import keep
from tests.process.zoo import ZOO, Kind

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


@pytest.mark.parametrize("means", [Means.SUPERVISOR], ids=str)
@pytest.mark.parametrize("kind", ZOO.values(), ids=ZOO)
async def test_the_helper_is_not_asked(
    means: Means,
    containment: Containment,
    source: CancelSource,
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(module, "Question", lambda *given: asked.append(given))
    kept = await keep(containment, kind, source.token)
    assert (await kept.process.stop()).confirmed
    assert asked == []
