"""What was typed and not sent is kept: over a crash, a closed window, a lost connection."""

import os
from hashlib import sha256
from pathlib import Path


class Draft:
    """Written with each change; a write that fails costs only the draft."""

    def __init__(self, home: Path, session_id: str) -> None:
        name = sha256(session_id.encode()).hexdigest()[:16]
        self._path = home / "drafts" / name

    def kept(self) -> str:
        try:
            return self._path.read_text()
        except OSError:
            return ""

    def keep(self, text: str) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = self._path.with_suffix(".new")
            new.write_text(text)
            os.replace(new, self._path)
        except OSError:
            return
