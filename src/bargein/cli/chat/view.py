"""What is on the screen, as data: from the session's events to lines that scroll away and lines
that stay at the bottom. Draws nothing itself, so that it is tested without a terminal."""

import textwrap
from collections.abc import Callable, Iterable, Mapping

from msgspec import structs

from bargein.cli.chat.asking import asked_in_lines
from bargein.cli.chat.before import Answered, Called, Noted, Piece, UserSpoke, background_over
from bargein.cli.chat.doings import Doings, RunningCall, beside, short_id
from bargein.cli.chat.markdown import Block, OpenMarkdown
from bargein.cli.chat.paint import WIDTH_MIN, Painter, clipped, folded, harmless, last_lines
from bargein.cli.receipts import in_words, worded
from bargein.contracts.event import (
    AssistantSaid,
    BackgroundEnded,
    CallDetached,
    CallEnded,
    ChildEnded,
    ChildStarted,
    Compressed,
    Event,
    MessageAccepted,
    MessageEdited,
    MessagesTaken,
    MessageWithdrawn,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.live import (
    AnswerSoFar,
    AnswerVoid,
    ReasoningDelta,
    StepBegan,
    StepOver,
    TextDelta,
)
from bargein.contracts.message import Message
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import CallStatus, Question
from bargein.session.broadcast import Watched
from bargein.session.state import Lane, SessionState

TOOL_LINES = 4
TOOL_LINES_KEPT = 6
WHY_LINES = 4
WAITING_LINES = 4
QUESTION_LINES = 8
OPEN_BLOCK_CHARACTERS_MAX = 6000


class View:
    """`scroll` takes finished lines, which the terminal then keeps. `keys` are those that the hints
    name, by their actions."""

    def __init__(
        self,
        painter: Painter,
        scroll: Callable[[str], None],
        doings: Doings,
        now: Callable[[], float],
        keys: Mapping[str, str],
    ) -> None:
        self._painter = painter
        self._scroll = scroll
        self._doings = doings
        self._now = now
        self._keys = keys
        self.width = 80
        self.height = 24
        self.shell: RunningCall | None = None
        self.forget()

    def forget(self) -> None:
        """Another session is looked at."""
        self._answer = OpenMarkdown()
        self._thinking = False
        self._model_asked = False
        self._accepted: dict[str, Message] = {}
        self._last = ""
        self._drawn: tuple[Block, int, list[str]] | None = None

    # What scrolls

    def show(self, event: Watched) -> None:
        call = self._doings.see(event)
        match event:
            case TextDelta():
                self._thinking = False
                self._add_blocks(self._answer.add(event.text))
            case AnswerSoFar():
                self._answer = OpenMarkdown()
                self._add_blocks(self._answer.add(event.text))
            case ReasoningDelta():
                self._thinking = True
            case AnswerVoid():
                self._answer.finish()
                words = f"asking {event.model} again in {event.delay_s:.1f} s: {event.cause}"
                self.note("warn", words)
            case StepBegan(kind=StepKind.MODEL):
                self._model_asked = True
            case StepBegan():
                self._end_answer()
            case StepOver(kind=StepKind.TOOL):
                if event.call_id not in self._doings.background:
                    status = CallStatus(event.status)
                    self._call_over(event.name, status, event.summary, event.unsuccessful, call)
            case StepOver():
                self._model_asked = False
                self._end_answer()
            case Recorded(event=CallEnded() | BackgroundEnded() as over):
                self._recorded_over(over, call)
            case Recorded():
                self._show_recorded(event)
            case _:
                pass

    def _show_recorded(self, recorded: Recorded) -> None:
        match recorded.event:
            case MessageAccepted(message=message):
                if message.sender != "background":
                    self._accepted[message.id] = message
            case MessageEdited(message=edited, content=content) if edited in self._accepted:
                message = self._accepted[edited]
                self._accepted[edited] = structs.replace(message, content=content)
            case TurnStarted(messages=taken) | MessagesTaken(messages=taken):
                self._messages_taken(taken)
            case AssistantSaid() as said:
                for text in self._doings.unheard(said):
                    self._end_answer()
                    self._add_blocks([*self._answer.add(text), *self._answer.finish()])
            case TurnSettled() as settled:
                self._turn_over(settled)
            case QuestionAsked(question=question):
                self._keep_question(question)
            case QuestionClosed(answer=answer) if answer is not None:
                self.note("dim", f"answered: {harmless(answer)}")
            case MessageWithdrawn(message=withdrawn):
                self._accepted.pop(withdrawn, None)
            case event:
                self._show_aside(event)

    def _show_aside(self, event: Event) -> None:
        """What goes on beside the turn."""
        match event:
            case ChildStarted(child=child, task=task):
                self._end_answer()
                symbol = self._painter.symbols.child
                self._item(
                    "call",
                    self._painter.styled("note", f"{symbol} {short_id(child)}: {one_line(task)}"),
                )
            case ChildEnded(child=child, outcome=outcome, summary=summary):
                symbol = self._painter.symbols.child
                told = one_line(summary)
                told = told if told.startswith(outcome) else f"{outcome}: {told}".rstrip(": ")
                words = f"{symbol} {short_id(child)} {told}"
                self._item("call", self._painter.styled("note", words))
            case Compressed(tokens_before=before, tokens_after=after):
                self.note(
                    "dim", f"what the model sees was made shorter: {before} to {after} tokens"
                )
            case CallDetached(call_id=call):
                self._end_answer()
                title = self._doings.background.get(call, "it")
                words = f"{title} goes on in the background as {call}"
                self.note("note", harmless(words), kind="call")
            case _:
                pass

    def _messages_taken(self, taken: tuple[str, ...]) -> None:
        """Words are shown where they are heard: at the start of a turn, or where they join it."""
        for message in [self._accepted.pop(each) for each in taken if each in self._accepted]:
            self._end_answer()
            self._user(message.text)

    def _user(self, text: str) -> None:
        lines = harmless(text).split("\n")
        if len(lines) > 12:
            lines = [*lines[:8], f"[{len(lines) - 9} more lines]", lines[-1]]
        self._item("user", self._painter.styled("user", "\n".join(f"> {line}" for line in lines)))

    def note(self, style: str, words: str, *, kind: str = "note") -> None:
        """Words of the program's own, broken where they may be."""
        lines = [part for line in words.split("\n") for part in wrapped(line, self.width)]
        self._item(kind, "\n".join(self._painter.styled(style, line) for line in lines))

    def _item(self, kind: str, text: str) -> None:
        """Something finished. Things of a kind stand together, others have air between them."""
        apart = self._last and (kind != self._last or kind in ("text", "user"))
        self._last = kind
        self._scroll(("\n" if apart else "") + text + "\n")

    def _add_blocks(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            going_on = self._last == "listing"
            if going_on:
                self._last = "code"
            self._item("code" if going_on else "text", self._painter.block(block, self.width))
            if block.more:
                self._last = "listing"

    def _end_answer(self) -> None:
        self._thinking = False
        self._add_blocks(self._answer.finish())

    def _recorded_over(self, over: CallEnded | BackgroundEnded, call: RunningCall | None) -> None:
        if isinstance(over, BackgroundEnded):
            self.note("note", harmless(background_over(call, over)))
        elif call is not None:
            result = over.result
            self._call_over(call.name, result.status, result.summary, result.unsuccessful, call)

    def _call_over(
        self,
        name: str,
        status: CallStatus,
        summary: str,
        unsuccessful: bool,
        call: RunningCall | None,
    ) -> None:
        self._end_answer()
        came = Called(name, call.title if call is not None else "", status, summary, unsuccessful)
        ran_s = self._now() - call.began_at if call is not None else 0.0
        elapsed = f"{ran_s:.1f} s" if call is None or call.ran else ""
        lines = self._call_lines(came, elapsed)
        if call is not None and call.output.strip():
            lines += self._output(call, TOOL_LINES_KEPT)
        self._item("call", "\n".join(lines))

    def _call_lines(self, call: Called, elapsed: str = "") -> list[str]:
        """What a call did, and what came of it. Why it did not go well is told whole, on lines of
        its own if it does not fit beside."""
        symbols = self._painter.symbols
        status = call.status
        mark, style = {
            None: (" ", "dim"),
            CallStatus.FINISHED: (symbols.good, "good"),
            CallStatus.DETACHED: (symbols.good, "good"),
            CallStatus.STOPPED: (symbols.stopped, "warn"),
        }.get(status, (symbols.bad, "bad"))
        if call.unsuccessful:
            mark, style = symbols.bad, "bad"
        went_badly = mark == symbols.bad
        title = beside(call.name, harmless(call.title))
        # How it was stopped is told by the receipt.
        told = "" if status == "stopped" else one_line(call.summary.removeprefix(title))
        if told in ("", status):
            told = worded(status) if status is not None and went_badly else ""
        why: list[str] = []
        if went_badly and len(elapsed) + len(told) + 6 > self.width // 2:
            why, told = folded(told, self.width - 4)[:WHY_LINES], ""
        parts = [each for each in (elapsed, told) if each]
        ending = "".join(f" {symbols.dot} {each}" for each in parts)
        ending = clipped(ending, self.width // 2)
        room = max(10, self.width - len(ending) - 3)
        words = clipped(f"{call.name}  {one_line(title)}".rstrip(), room)
        rest = self._painter.styled("dim", ending)
        head = self._painter.styled(style, mark) + f" {words}{rest}"
        return [head, *(self._painter.styled("dim", f"  {line}") for line in why)]

    def _turn_over(self, settled: TurnSettled) -> None:
        self._end_answer()
        self._model_asked = False
        if settled.receipt is not None:
            words = f"{self._painter.symbols.stopped} {harmless(in_words(settled.receipt))}"
            self.note("warn", words)
        if settled.outcome is TurnOutcome.FAILED:
            self.note("bad", harmless(self._doings.failed_in_words(settled.error)))
            if self._doings.unanswered:
                self.note("dim", "/retry asks again")
        elif settled.outcome is TurnOutcome.CRASHED:
            self.note("bad", "the program ended before this was answered; /retry asks again")

    def replay(self, pieces: Iterable[Piece]) -> None:
        """What was said in an earlier life of the session."""
        for piece in pieces:
            match piece:
                case UserSpoke(words=words):
                    self._user(words)
                case Answered(words=words):
                    self._add_blocks([*self._answer.add(words), *self._answer.finish()])
                case Called():
                    self._item("call", "\n".join(self._call_lines(piece)))
                case Noted(style=style, words=words):
                    self.note(style, harmless(words))
        for asked in self._doings.questions.values():
            self._keep_question(asked.question)

    # What stays at the bottom

    def bottom(self, state: SessionState | None, height: int) -> list[str]:
        """The lines between what scrolls and the input: the open answer, calls, what waits."""
        room = max(3, height // 2)
        lines = self._open_answer(room)
        for call in self._doings.calls.values():
            lines.append(self._spinning(str(call), call.began_at))
            if call.output.strip():
                lines += self._output(call, TOOL_LINES)
        for child in self._doings.children.values():
            words = f"{self._painter.symbols.child} {one_line(child.task)}"
            lines.append(self._spinning(words, child.began_at))
        if self.shell is not None:
            lines.append(self._spinning(str(self.shell), self.shell.began_at))
            if self.shell.output.strip():
                lines += self._output(self.shell, TOOL_LINES)
        if not lines and state is not None and state.busy and not self._doings.questions:
            began_at = self._doings.turn_began_at
            doing = "stopping" if self._doings.stopping else "thinking"
            lines.append(self._spinning(doing, self._now() if began_at is None else began_at))
        lines += self._questions()
        lines += self._waiting(state)
        if lines and self._last:
            lines.insert(0, "")
        return lines[-max(3, height - 4) :]

    def _open_answer(self, room: int) -> list[str]:
        block = self._answer.tail
        if not block.text.strip():
            return []
        if len(block.text) > OPEN_BLOCK_CHARACTERS_MAX:
            return last_lines(block.text, room, self.width)
        if self._drawn is None or self._drawn[:2] != (block, self.width):
            # Drawn as it will stay, so that nothing jumps when it is finished.
            lines = self._painter.block(block, self.width).split("\n")
            self._drawn = (block, self.width, lines)
        return self._drawn[2][-room:]

    def _spinning(self, words: str, since: float) -> str:
        elapsed_s = self._now() - since
        spinner = self._painter.symbols.spinner
        spin = spinner[int(elapsed_s * 8) % len(spinner)]
        shown = clipped(harmless(words), max(10, self.width - 10))
        elapsed = self._painter.styled("dim", f" {elapsed_s:.0f} s")
        return self._painter.styled("note", spin) + f" {shown}{elapsed}"

    def _output(self, call: RunningCall, count: int) -> list[str]:
        bar = self._painter.symbols.bar
        tail = last_lines(call.output, count, max(10, self.width - 4))
        return [self._painter.styled("dim", f"  {bar} {line}") for line in tail]

    def _questions(self) -> list[str]:
        lines: list[str] = []
        asked = list(self._doings.questions.values())
        for each in asked[:1]:
            question = each.question
            text, how = self._asked(question), self._choices(question)
            if len(text) + len(how) - 1 > self._question_lines:
                more = "  [all of it stands above]"
                text = [*text[: self._question_lines - 1], self._painter.styled("dim", more)]
                how = [clipped(_beside(question), self.width)]
            lines += [*text, *how]
        if len(asked) > 1:
            lines.append(self._painter.styled("dim", f"  and {len(asked) - 1} more"))
        return lines

    def _asked(self, question: Question) -> list[str]:
        lines = asked_in_lines(question, max(WIDTH_MIN, self.width - 2))
        marks = ["? ", *["  "] * (len(lines) - 1)]
        return [
            self._painter.styled("ask", mark + line)
            for mark, line in zip(marks, lines, strict=True)
        ]

    def _choices(self, question: Question) -> list[str]:
        """Beside each other, or below each other if there is no room for that."""
        beside = _beside(question)
        if clipped(beside, self.width) == beside:
            return [beside]
        below = []
        for each in _numbered(question):
            first, *more = folded(each, self.width - 4)
            below += [f"  {first}", *(f"    {line}" for line in more)]
        return below

    @property
    def _question_lines(self) -> int:
        """How many there is room for, with the call, the choices and the line."""
        return max(2, min(QUESTION_LINES, self.height - 8))

    def _keep_question(self, question: Question) -> None:
        """What there is no room for above the line is read where it scrolls."""
        lines, how = self._asked(question), self._choices(question)
        if len(lines) + len(how) - 1 > self._question_lines:
            self._end_answer()
            self._item("asked", "\n".join(lines if len(how) == 1 else [*lines, *how]))

    def _waiting(self, state: SessionState | None) -> list[str]:
        lines = []
        keys = self._keys
        waiting = state.waiting if state is not None else ()
        fates = {
            Lane.STEER: f"after this step · {keys['stop']} stops and holds it",
            Lane.NEXT: "next",
            Lane.QUEUE: "queued",
        }
        for each in waiting[:WAITING_LINES]:
            fate = fates[each.lane]
            if each is waiting[-1] and each.lane is Lane.QUEUE:
                fate += f" · {keys['edit_last']} edits"
            if state is not None and state.held:
                fate = f"held · {keys['send']} continues"
            words = one_line(each.message.text)
            words = clipped(words, max(10, self.width - len(fate) - 6))
            line = clipped(f"{self._painter.symbols.waiting} {words}  {fate}", self.width)
            lines.append(self._painter.styled("dim", line))
        if len(waiting) > WAITING_LINES:
            more = f"  and {len(waiting) - WAITING_LINES} more · {keys['edit_last']} edits the last"
            lines.append(self._painter.styled("dim", clipped(more, self.width)))
        return lines


def wrapped(line: str, width: int) -> list[str]:
    if len(line) < width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, max(WIDTH_MIN, width - 1), subsequent_indent=indent) or [line]


def _beside(question: Question) -> str:
    return "  " + ("   ".join(_numbered(question)) or "/answer WORDS")


def _numbered(question: Question) -> list[str]:
    return [f"{number} {one_line(each)}" for number, each in enumerate(question.choices, 1)]


def one_line(text: str) -> str:
    return " ".join(harmless(text).split())
