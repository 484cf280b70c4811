import pytest

from bargein.channels.attachments import FILE_BYTES_MAX, FILES_MAX, confined, fetch_all
from bargein.channels.contract import Offer
from bargein.testing.channel_conformance import FakePlatform

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\windows\\cmd.exe", "cmd.exe"),
        ("..", "file"),
        ("", "file"),
        ("a\x00b\u202egpj.exe", "a_U_0000_b_U_202E_gpj.exe"),
    ],
)
def test_a_name_is_only_a_name(name: str, expected: str) -> None:
    assert confined(name) == expected
    assert len(confined(name * 500)) <= 100


async def test_a_file_that_cannot_be_had_is_named_and_the_others_come() -> None:
    platform = FakePlatform()
    platform.files["here"] = b"data"
    large = Offer("large", "film.mp4", "video/mp4", FILE_BYTES_MAX + 1)
    offers = [Offer("here", "a.txt", "text/plain"), large, Offer("gone", "b.txt", "nonsense")]
    fetched, missing = await fetch_all(platform.open_channel(), offers)
    assert [(each.name, each.data) for each in fetched] == [("a.txt", b"data")]
    assert "film.mp4 has" in missing[0]
    assert "b.txt could not be fetched" in missing[1]


async def test_files_are_bounded_in_number() -> None:
    platform = FakePlatform()
    platform.files["here"] = b"data"
    fetched, missing = await fetch_all(
        platform.open_channel(), [Offer("here", "a.txt", "text/plain")] * (FILES_MAX + 2)
    )
    assert (len(fetched), len(missing)) == (FILES_MAX, 2)
