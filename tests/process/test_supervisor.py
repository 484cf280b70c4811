"""The supervisor itself says that nobody is left; the helper is only asked if it was killed."""

from __future__ import annotations

import pytest

from bargein.cancel import CancelSource, Cause
from bargein.process import Containment, Means, open_containment
from bargein.process import supervisor as module
from bargein.process.helper_process import HelperProcess
from tests.process.keeper import PATIENT, keep
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
    monkeypatch.setattr(HelperProcess, "ask", lambda *given: asked.append(given))
    kept = await keep(containment, kind, source.token)
    assert (await kept.process.stop()).confirmed
    assert asked == []


async def test_where_a_group_cannot_be_signalled_through_a_pidfd_the_supervisor_is_asked(
    monkeypatch: pytest.MonkeyPatch, source: CancelSource
) -> None:
    """Kernels before 6.9 refuse the flag."""
    monkeypatch.setattr(module, "_TO_GROUP", 1 << 20)
    async with await open_containment("supervisor") as containment:
        kept = await keep(containment, ZOO["family"], source.token)
        source.cancel(Cause.USER_STOP)
        report = await kept.process.stop(PATIENT)
    assert report.confirmed
    assert kept.process.exit is not None
    assert str(kept.process.exit) == "SIGINT"
    assert len(report.processes) == 3
