"""The screen as data: turns changes of a session's picture into lines that scroll away and lines
that stay at the bottom. It draws nothing itself, so tests need no terminal."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from bargein.cli.chat.activity import Activity
from bargein.cli.chat.before import (
    Answered,
    Called,
    Noted,
    Piece,
    UserSpoke,
    background_over,
    budget_in_words,
    heard_in_words,
)
from bargein.cli.chat.edits import LINES_MAX as EDIT_LINES_MAX
from bargein.cli.chat.edits import StyledLine, edit_lines, whole_result
from bargein.cli.chat.markdown import Block, OpenMarkdown
from bargein.cli.chat.paint import WIDTH_MIN, Painter, clipped, folded, harmless, last_lines
from bargein.cli.chat.restored import rollback_in_words
from bargein.cli.receipts import in_words, worded
from bargein.contracts.event import TurnOutcome
from bargein.contracts.receipt import StepKind
from bargein.contracts.tool import Approval, CallStatus, Question, QuestionKind
from bargein.contracts.visible import visible
from bargein.session.broadcast import Watched
from bargein.session.state import Lane, SessionState
from bargein.tools.todo import NAME as TODO
from bargein.tools.todo import TodoItem, todo_of
from bargein.view import (
    AnswerCutShort,
    AnswerEnded,
    AnswerReplaced,
    AnswerVoided,
    BackgroundClosed,
    BudgetWarned,
    CallClosed,
    CallMoved,
    CallOpened,
    CallResulted,
    Change,
    ChildClosed,
    ChildOpened,
    FilesCameBack,
    MessageTaken,
    QuestionOpened,
    QuestionSettled,
    Shortened,
    ShownCall,
    ShownChild,
    ShownTurn,
    StepClosed,
    StepOpened,
    TurnClosed,
    WordsAdded,
    beside,
)

TOOL_LINES = 4
TOOL_LINES_KEPT = 6
WHY_LINES = 4
TODO_LINES = 6
WAITING_LINES = 4
QUESTION_LINES = 8
UNKEPT_LINES = 3
OPEN_BLOCK_CHARACTERS_MAX = 6000
LONGER: dict[str, str] = {
    Approval.SESSION: "for this session",
    Approval.ALWAYS: "always in this project",
}


class View:
    """`scroll` receives finished lines, which the terminal then keeps. `keys` maps actions to the
    keys that hints name."""

    def __init__(
        self,
        painter: Painter,
        scroll: Callable[[str], None],
        activity: Activity,
        now: Callable[[], float],
        keys: Mapping[str, str],
    ) -> None:
        self._painter = painter
        self._scroll = scroll
        self._activity = activity
        self._now = now
        self._keys = keys
        self.width = 80
        self.height = 24
        self.shell: ShownCall | None = None
        self.on_change: Callable[[Change], None] | None = None
        self.forget()

    def forget(self) -> None:
        """Starts over for another session."""
        self._answer = OpenMarkdown()
        self._last = ""
        self._drawn: tuple[Block, int, list[str]] | None = None

    # What scrolls

    def show(self, event: Watched) -> None:
        for change in self._activity.see(event):
            self._show(change)
            if self.on_change is not None:
                self.on_change(change)

    def _show(self, change: Change) -> None:
        match change:
            case WordsAdded(text=text, late=False):
                self._add_blocks(self._answer.add(text))
            case WordsAdded(text=text):
                self._end_answer()
                self._add_blocks([*self._answer.add(text), *self._answer.finish()])
            case AnswerReplaced():
                self._answer = OpenMarkdown()
            case AnswerVoided(cause=cause, delay_s=delay_s, model=model):
                self._answer.finish()
                self.note("warn", f"asking {model} again in {delay_s:.1f} s: {cause}")
            case StepOpened(step=step) if step.kind == StepKind.MODEL:
                pass
            case StepOpened() | StepClosed() | CallOpened():
                self._end_answer()
            case CallClosed(call=call) if call.name != TODO:
                self._call_over(call)
            case MessageTaken(message=message) if not message.is_news:
                # Shown where the model reads them: at the start of a turn, or where they join it.
                self._end_answer()
                files = [each.name for each in message.message.attachments]
                self._user(message.text, files, sender=message.message.sender)
            case TurnClosed(turn=turn):
                self._turn_over(turn)
            case QuestionOpened(question=asked):
                self._keep_question(asked.question)
            case QuestionSettled(question=asked) if asked.answer is not None:
                self.note("dim", self._activity.answered_in_words(asked))
            case _:
                self._show_aside(change)

    def ask(self, question: Question) -> None:
        """Shows a question of the program itself."""
        self._keep_question(question)

    def _show_aside(self, change: Change) -> None:
        """Shows what happens beside the turn."""
        match change:
            case ChildOpened(child=child):
                self._end_answer()
                self._child(child, f": {one_line(child.task)}")
            case ChildClosed(child=child):
                summary, outcome = one_line(child.summary), str(child.outcome)
                summary = (
                    summary if summary.startswith(outcome) else f"{outcome}: {summary}".rstrip(": ")
                )
                self._child(child, f" {summary}")
            case AnswerEnded(answer=answer) if answer.unkept:
                # What is in the scrollback stays, so this says from where on it is not in the log.
                self._end_answer()
                lost = clipped(one_line(answer.unkept), UNKEPT_LINES * self.width)
                self.note("warn", f"shown, but not stored: {harmless(lost)}")
            case AnswerCutShort(turn=turn):
                self._end_answer()
                self.note("dim", harmless(heard_in_words(turn)))
            case CallResulted(call=call) if call.name == TODO:
                # The items are known only now, from the log.
                self._call_over(call)
            case BudgetWarned(low=low):
                self._end_answer()
                self.note("warn", budget_in_words(low))
            case Shortened(compression=compression):
                before, after = compression.tokens_before, compression.tokens_after
                self.note("dim", f"shortened what the model sees: {before} to {after} tokens")
            case FilesCameBack(told=told):
                self._end_answer()
                for style, words in rollback_in_words(told):
                    self.note(style, words)
            case CallMoved(call=call):
                self._end_answer()
                words = f"{call} goes on in the background as {call.id}"
                self.note("note", harmless(words), kind="call")
            case BackgroundClosed(call=call):
                self.note("note", harmless(background_over(call)))
            case _:
                pass

    def _child(self, child: ShownChild, words: str) -> None:
        symbol = self._painter.symbols.child
        self._item("call", self._painter.styled("note", f"{symbol} {child.name}{words}"))

    def _user(self, text: str, files: Sequence[str] = (), *, sender: str = "") -> None:
        lines = harmless(text).split("\n")
        if author := self._activity.author_of(sender):
            lines[0] = f"{author}: {lines[0]}"
        if len(lines) > 12:
            lines = [*lines[:8], f"[{len(lines) - 9} more lines]", lines[-1]]
        shown = self._painter.styled("user", "\n".join(f"> {line}" for line in lines))
        if files:
            sent = clipped(f"  with {', '.join(map(one_line, files))}", self.width)
            shown += "\n" + self._painter.styled("dim", sent)
        self._item("user", shown)

    def note(self, style: str, words: str, *, kind: str = "note") -> None:
        """Shows a message of the program itself, wrapped."""
        lines = [part for line in words.split("\n") for part in wrapped(line, self.width)]
        self._item(kind, "\n".join(self._painter.styled(style, line) for line in lines))

    def _item(self, kind: str, text: str) -> None:
        """Scrolls one finished thing. Things of one kind stand together, others are spaced."""
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
        self._add_blocks(self._answer.finish())

    def _call_over(self, call: ShownCall) -> None:
        self._end_answer()
        came = Called(call.name, call.title, call.status, call.summary, call.unsuccessful)
        # A call that was refused before it began took no time.
        elapsed = f"{self._now() - call.since:.1f} s" if call.began_at is not None else ""
        lines = self._call_lines(came, elapsed)
        changed = edit_lines(call)
        if call.name == TODO and call.status is CallStatus.FINISHED:
            lines += [self._todo_line(each) for each in todo_of(call.arguments)]
        elif changed:
            lines += self._edit(changed)
        elif str(call.output).strip():
            lines += self._output(call, TOOL_LINES_KEPT)
        self._item("call", "\n".join(lines))

    def _edit(self, changed: Sequence[StyledLine]) -> list[str]:
        """Returns the lines that an edit changed, coloured; the first of them if there are
        many."""
        bar = self._painter.styled("dim", f"  {self._painter.symbols.bar} ")
        room = max(10, self.width - 4)
        lines = [
            bar + self._painter.styled(style, clipped(line, room))
            for style, line in changed[:EDIT_LINES_MAX]
        ]
        if len(changed) > EDIT_LINES_MAX:
            more = f"{len(changed) - EDIT_LINES_MAX} more lines; {self._keys['expand']} shows all"
            lines.append(bar + self._painter.styled("dim", more))
        return lines

    def show_whole(self, call: ShownCall) -> None:
        """Scrolls a call with all that it changed or gave back."""
        head = self._painter.styled("note", clipped(str(call), self.width))
        changed = edit_lines(call)
        body = [self._painter.styled(style, f"  {line}") for style, line in changed]
        told = whole_result(call).split("\n")
        body = body or [f"  {piece}" for line in told for piece in folded(line, self.width - 3)]
        self._item("whole", "\n".join([head, *body]))

    def _call_lines(self, call: Called, elapsed: str = "") -> list[str]:
        """Returns what a call did and how it ended. A failure is shown in full, on its own lines if
        it does not fit beside."""
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
        # The receipt says how it was stopped.
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

    def _turn_over(self, turn: ShownTurn) -> None:
        self._end_answer()
        if turn.receipt is not None:
            words = f"{self._painter.symbols.stopped} {harmless(in_words(turn.receipt))}"
            if author := self._activity.author_of(turn.receipt.by):
                words += f" · by {author}"
            self.note("warn", words)
        if turn.outcome is TurnOutcome.FAILED:
            self.note("bad", harmless(self._activity.failed_in_words(turn.error)))
            if self._activity.unanswered:
                self.note("dim", "/retry asks again")
        elif turn.outcome is TurnOutcome.CRASHED:
            self.note("bad", "the program ended before this was answered; /retry asks again")

    def replay(self, pieces: Iterable[Piece]) -> None:
        """Shows the past of a reopened session."""
        for piece in pieces:
            match piece:
                case UserSpoke(words=words, sender=sender):
                    self._user(words, sender=sender)
                case Answered(words=words):
                    self._add_blocks([*self._answer.add(words), *self._answer.finish()])
                case Called():
                    lines = [*self._call_lines(piece), *self._edit(piece.changed)]
                    self._item("call", "\n".join(lines))
                case Noted(style=style, words=words):
                    self.note(style, harmless(words))
        for asked in self._activity.questions.values():
            self._keep_question(asked.question)

    # What stays at the bottom

    def bottom(self, state: SessionState | None, height: int) -> list[str]:
        """Returns the lines between the scrolling text and the input: answer, calls, waiting."""
        room = max(3, height // 2)
        lines = self._open_answer(room)
        for call in self._activity.calls.values():
            lines.append(self._spinning(str(call), call.since))
            if str(call.output).strip():
                lines += self._output(call, TOOL_LINES)
        for child in self._activity.children.values():
            words = f"{self._painter.symbols.child} {one_line(child.task)}"
            lines.append(self._spinning(words, child.began_at))
            doing = child_doing(child)
            if doing:
                lines.append(self._painter.styled("dim", clipped(f"    {doing}", self.width)))
        for aside in self._activity.asides.values():
            lines.append(self._spinning(f"btw: {one_line(aside.question)}", aside.began_at))
        if self.shell is not None:
            lines.append(self._spinning(str(self.shell), self.shell.since))
            if str(self.shell.output).strip():
                lines += self._output(self.shell, TOOL_LINES)
        if not lines and state is not None and state.busy and not self._activity.questions:
            began_at = self._activity.turn_began_at
            doing = "stopping" if self._activity.stopping else "thinking"
            lines.append(self._spinning(doing, self._now() if began_at is None else began_at))
        lines += self._todo(state)
        lines += self._questions()
        lines += self._waiting(state)
        if lines and self._last:
            lines.insert(0, "")
        return lines[-max(3, height - 4) :]

    def _todo(self, state: SessionState | None) -> list[str]:
        """Returns the model's plan while it works on it; of a long one, the part around the step
        that it is at."""
        items = self._activity.todo_of_turn
        if not items or state is None or not state.busy:
            return []
        at = next((n for n, each in enumerate(items) if each.state != "done"), len(items))
        first = max(0, min(at - 2, len(items) - TODO_LINES))
        done = sum(each.state == "done" for each in items)
        head = self._painter.styled("dim", f"the plan, {done} of {len(items)} done")
        return [head, *(self._todo_line(each) for each in items[first : first + TODO_LINES])]

    def _todo_line(self, item: TodoItem) -> str:
        symbols = self._painter.symbols
        mark, style = {
            "done": (symbols.good, "good"),
            "doing": (symbols.waiting, "note"),
        }.get(item.state, (symbols.dot, "dim"))
        words = clipped(one_line(item.text), max(10, self.width - 6))
        return self._painter.styled(style, f"  {mark} {words}")

    def _open_answer(self, room: int) -> list[str]:
        block = self._answer.tail
        if not block.text.strip():
            return []
        if len(block.text) > OPEN_BLOCK_CHARACTERS_MAX:
            return last_lines(block.text, room, self.width)
        if self._drawn is None or self._drawn[:2] != (block, self.width):
            # Drawn as it will scroll, so that nothing jumps when it is finished.
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

    def _output(self, call: ShownCall, count: int) -> list[str]:
        bar = self._painter.symbols.bar
        tail = last_lines(str(call.output), count, max(10, self.width - 4))
        return [self._painter.styled("dim", f"  {bar} {line}") for line in tail]

    def _questions(self) -> list[str]:
        lines: list[str] = []
        asked = list(self._activity.questions.values())
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
        """Returns the choices on one line, or below each other if there is no room."""
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
        """How many lines of a question fit, with the call, the choices and the input line."""
        return max(2, min(QUESTION_LINES, self.height - 8))

    def _keep_question(self, question: Question) -> None:
        """Scrolls a question in full if it does not fit above the line."""
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
            author = self._activity.author_of(each.message.sender)
            words = one_line(f"{author}: {each.message.text}" if author else each.message.text)
            words = clipped(words, max(10, self.width - len(fate) - 6))
            line = clipped(f"{self._painter.symbols.waiting} {words}  {fate}", self.width)
            lines.append(self._painter.styled("dim", line))
        if len(waiting) > WAITING_LINES:
            more = f"  and {len(waiting) - WAITING_LINES} more · {keys['edit_last']} edits the last"
            lines.append(self._painter.styled("dim", clipped(more, self.width)))
        return lines


def child_doing(child: ShownChild) -> str:
    """Says what a sub-agent is doing, as far as its own session is watched."""
    below = child.below
    if below is None or below.turn is None:
        return ""
    calls = below.running_calls
    if calls:
        return one_line(str(calls[-1]))
    said = below.turn.saying[-1].text if below.turn.saying else ""
    return one_line(said[-200:]) or "thinking"


def wrapped(line: str, width: int) -> list[str]:
    if len(line) < width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, max(WIDTH_MIN, width - 1), subsequent_indent=indent) or [line]


def _beside(question: Question) -> str:
    return "  " + ("   ".join(_numbered(question)) or "type your answer")


def _numbered(question: Question) -> list[str]:
    words = LONGER if question.kind is QuestionKind.APPROVAL else {}
    return [
        f"{number} {words.get(each) or one_line(each)}"
        for number, each in enumerate(question.choices, 1)
    ]


def one_line(text: str) -> str:
    return " ".join(harmless(text).split())


_KEPT = 8


@lru_cache(maxsize=_KEPT)
def asked_in_lines(question: Question, width: int) -> tuple[str, ...]:
    """Returns the question and its details.

    The rest of a line that is too long is indented, so that it cannot pass for a line of its own.
    """
    about = question.detail.split("\n") if question.detail else []
    lines = folded(question.text, width)
    for line in about:
        first, *rest = folded(line, max(4, width - 2))
        lines += [first, *(f"  {piece}" for piece in rest)]
    longer = [str(n) for n, each in enumerate(question.choices, 1) if each in LONGER]
    if question.grant is not None and longer:
        allow = "allow" if len(longer) > 1 else "allows"
        lines += folded(f"{' and '.join(longer)} {allow}: {visible(str(question.grant))}", width)
    return tuple(lines)
