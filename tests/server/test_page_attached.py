"""Files to send with a message: pasted, dropped and chosen; read and bounded by the page."""

from __future__ import annotations

import struct
import zlib

import pytest
from playwright.sync_api import expect

from bargein.contracts.event import MessageAccepted
from bargein.contracts.model import Image, Text
from bargein.models.script import Say, Wait
from tests.server.page_house import House
from tests.server.page_visit import Visit, until

# Makes files in the browser and hands them over as a paste or as a drop does.
GIVE = """async ([kind, files]) => {
  const data = new DataTransfer();
  for (const [name, type, bytes] of files) {
    const text = Uint8Array.from(atob(bytes), (each) => each.charCodeAt(0));
    data.items.add(new File([text], name, { type }));
  }
  const words = document.getElementById("words");
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  words.dispatchEvent(event);
}"""


def picture(width: int, height: int) -> bytes:
    """A PNG of one colour."""

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x20\x60\xa0" * width) * height)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", rows), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def give(visit: Visit, kind: str, *files: tuple[str, str, bytes]) -> None:
    from base64 import b64encode

    named = [[name, media, b64encode(data).decode()] for name, media, data in files]
    visit.page.evaluate(GIVE, [kind, named])


def sent(visit: Visit) -> list[MessageAccepted]:
    return [each.event for each in visit.log() if isinstance(each.event, MessageAccepted)]


def test_a_pasted_picture_reaches_the_model(house: House, visit: Visit) -> None:
    house.script([Say("It is blue.")])
    small = picture(8, 6)
    give(visit, "paste", ("blue.png", "image/png", small))
    chips = visit.page.locator(".attached li")
    expect(chips).to_contain_text("blue.png")
    expect(chips.locator("canvas")).to_be_visible()
    visit.say("What is this?")
    expect(visit.answers.last).to_have_text("It is blue.")
    expect(chips).to_have_count(0)
    (accepted,) = sent(visit)
    assert accepted.message.content == (Text("What is this?"), Image("image/png", small))
    expect(visit.page.locator(".message .words")).to_contain_text("What is this?")
    expect(visit.page.locator(".message .file")).to_have_text(f"picture · png · {len(small)} B")
    visit.page.reload()
    expect(visit.page.locator(".message .file")).to_have_text(f"picture · png · {len(small)} B")
    expect(visit.page.locator(".message").get_by_role("button", name="Edit")).to_be_hidden()


def test_a_picture_that_waits_cannot_be_lost_by_a_change(house: House, visit: Visit) -> None:
    house.script([Say("Busy"), Wait("with pictures")], [Say("Seen.")])
    visit.say("Go")
    expect(visit.answers.last).to_have_text("Busy")
    give(visit, "paste", ("blue.png", "image/png", picture(8, 6)))
    expect(visit.page.locator(".attached li")).to_have_count(1)
    visit.queue("And this")
    row = visit.page.locator(".waiting")
    expect(row.get_by_role("button", name="Remove")).to_be_visible()
    expect(row.get_by_role("button", name="Edit")).to_be_hidden()
    visit.words.press("Alt+ArrowUp")
    expect(visit.words).to_have_value("")
    house.open_gate("with pictures")
    expect(visit.answers.last).to_have_text("Seen.")


def test_a_large_picture_is_made_smaller_and_needs_no_words(house: House, visit: Visit) -> None:
    house.script([Say("Seen.")])
    give(visit, "drop", ("wide.png", "image/png", picture(4000, 200)))
    expect(visit.page.locator(".attached li")).to_have_count(1)
    visit.words.press("Enter")
    expect(visit.answers.last).to_have_text("Seen.")
    (accepted,) = sent(visit)
    (image,) = accepted.message.content
    assert isinstance(image, Image)
    assert image.media_type == "image/jpeg"
    assert len(image.data) < 1024 * 1024


def test_a_dropped_text_goes_along_with_the_words(house: House, visit: Visit) -> None:
    house.script([Say("Read.")], [Say("Read again.")])
    give(visit, "drop", ("notes.txt", "text/plain", b"one\ntwo <b>"), ("a.py", "", b"x = 1"))
    chips = visit.page.locator(".attached li")
    expect(chips).to_have_count(2)
    chips.nth(1).get_by_role("button", name="Remove a.py").click()
    expect(chips).to_have_count(1)
    visit.say("Sum this up")
    expect(visit.answers.last).to_have_text("Read.")
    (accepted,) = sent(visit)
    assert accepted.message.text == 'Sum this up\n\n<file name="notes.txt">\none\ntwo <b>\n</file>'
    file = visit.page.locator(".message details.file")
    expect(file.locator("pre")).to_be_hidden()
    file.locator("summary").click()
    expect(file.locator("pre")).to_have_text("one\ntwo <b>")


@pytest.mark.parametrize(
    ("name", "media", "data", "problem"),
    [
        ("x.bin", "application/octet-stream", b"\xff\xfe\0\1", "neither text nor a picture"),
        ("x.png", "image/png", b"no picture", "cannot be read as a picture"),
        ("x.txt", "text/plain", b"a" * (256 * 1024 + 1), "too long"),
    ],
)
def test_what_no_model_could_read_is_refused(
    visit: Visit, name: str, media: str, data: bytes, problem: str
) -> None:
    give(visit, "paste", (name, media, data))
    expect(visit.page.locator(".toast").get_by_text(problem)).to_be_visible()
    expect(visit.page.locator(".attached li")).to_have_count(0)


def test_files_stay_with_the_session_that_they_are_for(visit: Visit) -> None:
    give(visit, "paste", *[(f"{number}.txt", "text/plain", b"x") for number in range(9)])
    chips = visit.page.locator(".attached li")
    expect(chips).to_have_count(8)
    expect(visit.page.locator(".toast").get_by_text("At most 8 files")).to_be_visible()
    first = visit.session
    visit.new_session()
    expect(chips).to_have_count(0)
    with visit.following():
        visit.page.evaluate("(id) => { location.hash = `#/s/${id}`; }", first)
    expect(chips).to_have_count(8)
    visit.page.reload()
    until(lambda: visit.page.evaluate("() => document.readyState") == "complete", "it is loaded")
