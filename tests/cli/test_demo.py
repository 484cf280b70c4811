"""`bargein demo` plays to its end, and what it shows is true."""

import re
from pathlib import Path

import psutil
import pytest

from tests.cli.recording import Camera, picture
from tests.cli.screen import Screen
from tests.process import zoo


@pytest.mark.timeout(240)
def test_the_demo_plays_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    screen = Screen("demo", "--fast", home=tmp_path, script="", rows=120)
    try:
        screen.wait_for("the model is scripted")
        below = psutil.Process(screen.pid).children(recursive=True)
        text = screen.wait_for("`bargein` is the real thing", within_s=150)
        camera = Camera()
        camera.look(screen.display, 0.0)
        camera.end(1.0)
        assert screen.exit_code() == 0
    finally:
        screen.close()
    assert len(re.findall(r"■ stopped in \d+ ms", text)) == 3
    assert re.search(r"\./server stopped \(\d processes\)", text)
    assert "nobody is left, says the kernel" in text
    assert text.index("> keep the symbols") < text.index("> then add a line to the changelog")
    assert [each for each in below if zoo.runs(each.pid)] == []
    assert not (tmp_path / "data").exists()
    drawn = picture(camera.shown, 1.0)
    assert drawn.count("<text") == drawn.count("<animate")
    assert "scripted" in drawn
