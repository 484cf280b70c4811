"""`/share` and `/unshare`: lets guests into the session on the screen, and out again."""

from typing import TYPE_CHECKING

from bargein.cli.chat.paint import harmless
from bargein.contracts.guests import SharedView
from bargein.errors import UserError

if TYPE_CHECKING:
    from bargein.cli.attached import AttachedEngine
    from bargein.cli.chat.talk import Talk

BORDER = 2
# By whether the upper and the lower square are dark.
HALVES = {(False, False): "█", (False, True): "▀", (True, False): "▄", (True, True): " "}
NOT_INSTALLED = "run  pip install 'bargein[share]'  to share sessions"


async def share(talk: "Talk", rest: str) -> None:
    """Invites a guest, lists them, or says whether one may approve calls."""
    action, _, name = rest.partition(" ")
    engine, session = _opened(talk)
    name = name.strip()
    if action == "list" and not name:
        talk.face.tell("note", in_words(await engine.guests(session)))
    elif action in ("approve", "deny") and name:
        approves = action == "approve"
        await engine.let_approve(session, name, approves=approves)
        may = "may approve calls now" if approves else "may no longer approve calls"
        talk.face.tell("note", harmless(f"{name} {may}"))
    elif action in ("approve", "deny"):
        raise UserError(f"which guest? /share {action} NAME; /share list names them")
    else:
        await invite(talk, rest)


async def invite(talk: "Talk", name: str) -> None:
    """Shows the address for one more guest."""
    engine, session = _opened(talk)
    invited = await engine.invite_guest(session, name)
    shared = invited.shared
    face = talk.face
    face.tell("note", harmless(f"{invited.name} joins this session, reads and talks at"))
    face.tell("plain", invited.address)
    if face.can_draw:
        face.tell("qr", "\n".join(qr_lines(invited.address)))
    why = "its certificate is its own, so a browser warns; compare the SHA-256:"
    face.tell("note", f"{why}\n{shared.fingerprint}")
    limits = ["it works once, within an hour"]
    if shared.here_only:
        limits.append("only this machine reaches it (share.address)")
    who = harmless(invited.name)
    limits += [f"/share approve {who} lets them approve calls", "/unshare ends all of it"]
    face.tell("dim", " · ".join(limits))


async def unshare(talk: "Talk", rest: str) -> None:
    """Ends the sharing of this session."""
    if rest:
        raise UserError("/unshare ends it for all guests; say it without more words")
    engine, session = _opened(talk)
    shared = await engine.guests(session)
    out = await engine.unshare(session)
    if not shared.address:
        raise UserError("this session is not shared; /share invites somebody")
    who = harmless(", ".join(out)) or "nobody had joined"
    talk.face.tell("note", f"not shared any more; out: {who}")


def in_words(shared: SharedView) -> str:
    if not shared.address:
        return "this session is not shared; /share invites somebody"
    lines = [f"shared at {shared.address}", f"  SHA-256 {shared.fingerprint}"]
    for each in shared.guests:
        may = "reads, talks, approves" if each.approves else "reads and talks"
        lines.append(f"  {harmless(each.name)}: {may}")
    lines += [f"  {harmless(each)}: has not joined yet" for each in shared.waiting]
    return "\n".join(lines)


def _opened(talk: "Talk") -> "tuple[AttachedEngine, str]":
    engine, session = talk.opened()
    sharing = engine.sharing
    if sharing is None:
        raise UserError(
            "this terminal runs the agent itself, and only a host or a server shares sessions; "
            "bargein doctor says whether there can be a host here"
        )
    return sharing, session.id


def qr_lines(text: str) -> list[str]:
    """Draws a QR code with half blocks, two rows of it in a line. The light squares are drawn,
    because a terminal is dark more often than not; `qr` of the styles makes it certain. Raises
    `UserError` if the library for it is not installed."""
    try:
        import segno
    except ModuleNotFoundError as error:
        raise UserError(NOT_INSTALLED) from error
    rows = [
        bytes(row) for row in segno.make(text, error="l", micro=False).matrix_iter(border=BORDER)
    ]
    rows += [bytes(len(rows[0]))] * (len(rows) % 2)
    return [
        "".join(HALVES[bool(upper), bool(lower)] for upper, lower in zip(*pair, strict=True))
        for pair in zip(rows[::2], rows[1::2], strict=True)
    ]
