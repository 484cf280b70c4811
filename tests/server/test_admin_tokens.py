"""Bearer tokens over the API: who sees them, and who may revoke."""

from __future__ import annotations

from pathlib import Path

import pytest

from bargein.server.access import add_token
from tests.server.stage import serving

pytestmark = pytest.mark.anyio


async def test_tokens_are_listed_without_secrets_and_revoked_by_admins(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        db = stage.gateway.db
        row, ann = await add_token(db, "ann", note="laptop")
        _, reader = await add_token(db, "boss", admin=True, read_only=True)
        assert (await stage.ask("GET", "/v1/admin/tokens", token=ann))[0] == 403
        status, listed = await stage.ask("GET", "/v1/admin/tokens", token=reader)
        assert status == 200
        (shown,) = [each for each in listed["tokens"] if each["principal"] == "ann"]
        assert (shown["id"], shown["note"], shown["revoked_at"]) == (row.id, "laptop", None)
        assert "hash" not in shown
        path = f"/v1/admin/tokens/{row.id}"
        # A token that only reads revokes nothing, and nobody revokes the tokens of others.
        assert (await stage.ask("DELETE", path, token=reader))[0] == 403
        assert (await stage.ask("DELETE", path, token=ann))[0] == 403
        assert (await stage.ask("DELETE", path))[1]["status"] == "done"
        assert (await stage.ask("GET", "/v1/me", token=ann))[0] == 401
        assert (await stage.ask("DELETE", path))[1]["status"] == "too_late"
        assert (await stage.ask("DELETE", "/v1/admin/tokens/none"))[1]["status"] == "too_late"
        entries = (await stage.get("/v1/admin/audit"))["entries"]
        revoked = [each for each in entries if each["action"] == "revoke_token"]
        assert [(each["principal"], each["target"]) for each in revoked] == [("operator", row.id)]
