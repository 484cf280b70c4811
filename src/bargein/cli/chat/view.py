"""What is on the screen, as data: from the session's events to lines that scroll away and lines
that stay at the bottom. Draws nothing itself, so that it is tested without a terminal."""

from collections.abc import Callable

from msgspec import structs

from bargein.cli.chat.markdown import OpenMarkdown
from bargein.cli.chat.paint import Painter, harmless, last_lines
from bargein.cli.receipts import in_words
from bargein.contracts.event import (
    AssistantSaid,
    BackgroundEnded,
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
    AnswerVoid,
    CallOutput,
    ReasoningDelta,
    StepBegan,
    StepOver,
    Stopping,
    TextDelta,
)
from bargein.contracts.message import Message
from bargein.contracts.receipt import Receipt, StepKind
from bargein.contracts.tool import Question
from bargein.session.broadcast import Watched
from bargein.session.state import Lane, Phase, SessionState

OUTPUT_CHARACTERS_MAX = 4000
TOOL_LINES = 4
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FATES = {
    Lane.STEER: "after this step · Esc sends it now",
    Lane.NEXT: "next",
    Lane.QUEUE: "queued · Alt-Up edits",
}


class RunningTool:
    def __init__(self, name: str, began_at: float) -> None:
        self.name = name
        self.began_at = began_at
        self.output = ""

    def add(self, text: str) -> None:
        self.output = (self.output + text)[-OUTPUT_CHARACTERS_MAX:]


class View:
    """`scroll` takes finished lines, which the terminal then keeps."""

    def __init__(
        self, painter: Painter, scroll: Callable[[str], None], now: Callable[[], float]
    ) -> None:
        self._painter = painter
        self._scroll = scroll
        self._now = now
        self._answer = OpenMarkdown()
        self._thinking = False
        self.width = 80
        self.stopping = False
        self.tools: dict[str, RunningTool] = {}
        self._accepted: dict[str, Message] = {}
        self.questions: dict[str, Question] = {}
        self.receipt: Receipt | None = None
        self.tokens = 0

    def show(self, event: Watched) -> None:
        match event:
            case TextDelta():
                self._thinking = False
                for block in self._answer.add(event.text):
                    self._scroll(self._painter.markdown(block, self.width) + "\n")
            case ReasoningDelta():
                self._thinking = True
            case AnswerVoid():
                self._answer.finish()
                words = f"asking {event.model} again in {event.delay_s:.1f} s: {event.cause}"
                self.note("warn", words)
            case StepBegan() if event.kind == StepKind.TOOL:
                self._end_answer()
                self.tools[event.call_id] = RunningTool(event.name, self._now())
            case CallOutput() if event.call_id in self.tools:
                self.tools[event.call_id].add(event.text)
            case StepOver() if event.kind == StepKind.TOOL:
                self._tool_over(event)
            case StepOver():
                self._end_answer()
            case Stopping():
                self.stopping = True
            case Recorded():
                self._show_recorded(event)

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
            case AssistantSaid(usage=usage):
                self.tokens += usage.input_tokens + usage.output_tokens
            case TurnSettled() as settled:
                self._turn_over(settled)
            case QuestionAsked() as asked:
                self.questions[asked.id] = asked.question
                detail = f"\n  {harmless(asked.question.detail)}" if asked.question.detail else ""
                choices = " / ".join(asked.question.choices)
                how = f"/answer {choices}" if choices else "/answer WORDS"
                self.note("warn", f"? {harmless(asked.question.text)}{detail}\n  {how}")
            case QuestionClosed(id=question):
                self.questions.pop(question, None)
            case MessageWithdrawn(message=withdrawn):
                self._accepted.pop(withdrawn, None)
                self.note("dim", f"{withdrawn} taken back")
            case BackgroundEnded(call_id=call, result=result):
                self.note("note", f"{call} in the background: {result.summary or result.status}")
            case _:
                pass

    def _messages_taken(self, taken: tuple[str, ...]) -> None:
        """Words are shown where they are heard: at the start of a turn, or where they join it."""
        for message in [self._accepted.pop(each) for each in taken if each in self._accepted]:
            self._end_answer()
            quoted = "\n".join(f"> {line}" for line in harmless(message.text).split("\n"))
            self._scroll("\n" + self._painter.styled("user", quoted) + "\n")

    def note(self, style: str, words: str) -> None:
        self._scroll(self._painter.styled(style, words) + "\n")

    def bottom(self, state: SessionState | None, height: int) -> list[str]:
        """The lines between what scrolls and the input: the open answer, tools, what waits."""
        lines: list[str] = []
        for tool in self.tools.values():
            elapsed_s = self._now() - tool.began_at
            spin = SPINNER[int(elapsed_s * 8) % len(SPINNER)]
            lines.append(self._painter.styled("note", f"{spin} {tool.name} {elapsed_s:.0f} s"))
            if tool.output.strip():
                tail = last_lines(tool.output, TOOL_LINES, self.width - 2)
                lines += [self._painter.styled("dim", f"  {line}") for line in tail]
        if self._answer.tail:
            lines += last_lines(self._answer.tail, max(3, height // 3), self.width)
        elif self._thinking and not self.tools:
            lines.append(self._painter.styled("dim", "thinking ..."))
        for waiting in state.waiting if state is not None else ():
            fate = "held · Enter continues" if state is not None and state.held else ""
            words = " ".join(harmless(waiting.message.text).split())[: max(10, self.width - 45)]
            lines.append(self._painter.styled("dim", f"↳ {words}  ({fate or FATES[waiting.lane]})"))
        return lines[-max(3, height - 6) :]

    def status(self, state: SessionState | None, model: str, session: str) -> str:
        if state is None:
            return f" starting … · {session}"
        words = {
            Phase.IDLE: "held" if state.held else "ready",
            Phase.RUNNING: "working · Enter steers, Tab queues, Esc stops",
            Phase.PAUSED: "paused · /continue",
            Phase.STOPPING: "stopping…",
        }
        doing = "stopping…" if self.stopping else words.get(state.phase, str(state.phase))
        parts = [doing]
        if state.waiting:
            parts.append(f"{len(state.waiting)} waiting")
        if state.background:
            parts.append(f"{len(state.background)} in the background")
        if self.tokens:
            parts.append(f"{self.tokens} tokens")
        return " " + " · ".join([*parts, model, session])

    def _tool_over(self, over: StepOver) -> None:
        tool = self.tools.pop(over.call_id, None)
        elapsed_s = self._now() - tool.began_at if tool is not None else 0.0
        good = over.status in ("finished", "detached")
        mark, style = ("✓", "good") if good else ("✗", "bad")
        words = f"{mark} {over.name} ({elapsed_s:.1f} s) {harmless(over.summary)}".rstrip()
        self._scroll(self._painter.styled(style, words) + "\n")
        if tool is not None and tool.output.strip():
            tail = "\n".join(f"  {line}" for line in last_lines(tool.output, 6, self.width - 2))
            self._scroll(self._painter.styled("dim", tail) + "\n")

    def _end_answer(self) -> None:
        self._thinking = False
        rest = self._answer.finish()
        if rest.strip():
            self._scroll(self._painter.markdown(rest, self.width) + "\n")

    def _turn_over(self, settled: TurnSettled) -> None:
        self._end_answer()
        self.tools.clear()
        self.stopping = False
        if settled.receipt is not None:
            self.receipt = settled.receipt
            self.note("warn", in_words(settled.receipt))
        if settled.outcome is TurnOutcome.FAILED:
            self.note("bad", f"failed: {harmless(settled.error)}")
        elif settled.outcome is TurnOutcome.CRASHED:
            words = "the program ended before this was answered; /retry asks again"
            self.note("bad", words)
