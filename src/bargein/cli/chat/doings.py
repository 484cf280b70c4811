"""What is going on in a session, kept up from its events: what runs, what is asked, what was told.

Both faces of the terminal program, the drawn and the plain one, look at this. Pure.
"""

from collections.abc import Callable, Iterable

import msgspec

from bargein.contracts.budget import Spent
from bargein.contracts.event import (
    AssistantSaid,
    BackgroundEnded,
    CallDetached,
    CallEnded,
    CallStarted,
    ChildEnded,
    ChildStarted,
    Event,
    MessageAccepted,
    MessageEdited,
    MessagesTaken,
    MessageWithdrawn,
    ModelUsed,
    QuestionAsked,
    QuestionClosed,
    Recorded,
    TurnHidden,
    TurnOutcome,
    TurnSettled,
    TurnStarted,
)
from bargein.contracts.live import (
    AnswerSoFar,
    CallOutput,
    OutputSoFar,
    StepBegan,
    StepOver,
    Stopping,
    TextDelta,
)
from bargein.contracts.model import Text, ToolCall
from bargein.contracts.receipt import Receipt, StepKind
from bargein.contracts.tool import CallStatus, Question
from bargein.contracts.visible import visible
from bargein.session.broadcast import Watched

OUTPUT_CHARACTERS_MAX = 4000
TITLE_CHARACTERS_MAX = 200


class RunningCall:
    """`title` says what it does in the user's words: the command, the file, the address. `ran` is
    False for a call that was over before it began: refused, or not started."""

    def __init__(self, name: str, title: str, began_at: float, *, ran: bool = True) -> None:
        self.name = name
        self.title = title
        self.began_at = began_at
        self.ran = ran
        self.output = ""

    def add(self, text: str) -> None:
        self.output = end_of(self.output + text, OUTPUT_CHARACTERS_MAX)

    def __str__(self) -> str:
        title = beside(self.name, self.title)
        return f"{self.name}  {title}" if title else self.name


def end_of(text: str, characters_max: int) -> str:
    """The end of a text, beginning with a whole line where there is one."""
    if len(text) <= characters_max:
        return text
    end = text[-characters_max:]
    if text[-characters_max - 1] == "\n":
        return end
    return end.partition("\n")[2] or end


def beside(name: str, title: str) -> str:
    """A title that stands beside the name of the tool, which many begin with."""
    return title.removeprefix(f"{name}: ").removeprefix(f"{name} ")


class RunningChild:
    """A sub-agent, by the id of its session. `detached`: it is in the background."""

    def __init__(
        self, child_id: str, task: str, began_at: float, *, detached: bool = False
    ) -> None:
        self.id = child_id
        self.task = task
        self.began_at = began_at
        self.detached = detached

    @property
    def name(self) -> str:
        """Its id without that of the session it belongs to."""
        return short_id(self.id)


class Asked:
    """An open question. What was begun to be typed before it could be read is no answer to it."""

    def __init__(self, question: Question, asked_at: float) -> None:
        self.question = question
        self.asked_at = asked_at


class Doings:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.forget()

    def forget(self) -> None:
        """Another session is looked at."""
        self.calls: dict[str, RunningCall] = {}
        self.background: dict[str, RunningCall] = {}
        self.questions: dict[str, Asked] = {}
        self.receipt: Receipt | None = None
        self.stopping = False
        self.turn_began_at: float | None = None
        self.unanswered = ""
        self.children: dict[str, RunningChild] = {}
        self.spent = Spent()
        self.failure = ""
        self._heard: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}
        self._titles: dict[str, str] = {}
        self._told_over: set[str] = set()
        self._waiting_words: dict[str, str] = {}
        self._turn_words: list[str] = []

    def recall(self, log: Iterable[Recorded], wall_now: float) -> None:
        """What is under way in a session that was at work before anybody looked."""
        for recorded in log:
            began_at = self._now() - max(0.0, wall_now - recorded.at)
            self._follow_words(recorded.event)
            match recorded.event:
                case TurnStarted():
                    self.turn_began_at = began_at
                case TurnSettled():
                    self.calls.clear()
                    self.turn_began_at = None
                case AssistantSaid(message=message):
                    asked = [part for part in message.content if isinstance(part, ToolCall)]
                    for call in asked:
                        self.calls[call.id] = RunningCall(call.name, "", began_at)
                        self._know(call)
                case ChildStarted(child=child, task=task, detached=detached):
                    begun = RunningChild(child, task, began_at, detached=detached)
                    self.children[child] = begun
                case ChildEnded(child=child):
                    self.children.pop(child, None)
                case BackgroundEnded(call_id=call_id):
                    self.background.pop(call_id, None)
                case event:
                    self._see_call(event)

    @property
    def in_background(self) -> list[str]:
        """What goes on without the turn: calls, and detached sub-agents."""
        children = [each for each in self.children.values() if each.detached]
        return [str(call) for call in self.background.values()] + [
            f"sub-agent  {' '.join(child.task.split())}" for child in children
        ]

    def see(self, event: Watched) -> RunningCall | None:
        """Take note of what happened; gives the call that ended with it, if one did."""
        match event:
            case StepBegan(kind=StepKind.TOOL):
                title = event.title or self._titles.get(event.call_id, "")
                self.calls[event.call_id] = RunningCall(event.name, title, self._now())
            case CallOutput() | OutputSoFar():
                call = self.calls.get(event.call_id) or self.background.get(event.call_id)
                if call is not None:
                    call.add(event.text)
            case TextDelta() | AnswerSoFar():
                self._heard.setdefault(event.turn, []).append(event.text)
            case StepOver(kind=StepKind.TOOL):
                self._told_over.add(event.call_id)
                return self.calls.pop(event.call_id, None)
            case Stopping():
                self.stopping = True
            case Recorded(event=BackgroundEnded(call_id=call_id)):
                return self.background.pop(call_id, None)
            case Recorded(event=CallEnded() as ended):
                return self._see_call(ended)
            case Recorded():
                self._see_recorded(event)
            case _:
                pass
        return None

    def _follow_words(self, event: Event) -> None:
        """Know what the user said in a turn that failed, to ask it again."""
        match event:
            case MessageAccepted(message=message) if message.sender != "background":
                self._waiting_words[message.id] = message.text
            case MessageEdited(message=edited, content=content) if edited in self._waiting_words:
                words = [part.text for part in content if isinstance(part, Text)]
                self._waiting_words[edited] = "\n".join(words)
            case MessageWithdrawn(message=withdrawn):
                self._waiting_words.pop(withdrawn, None)
            case TurnStarted(messages=taken):
                self.unanswered = ""
                self._turn_words = self._taken(taken)
            case MessagesTaken(messages=taken):
                self._turn_words += self._taken(taken)
            case TurnSettled(outcome=outcome):
                failed = outcome in (TurnOutcome.FAILED, TurnOutcome.CRASHED)
                self.unanswered = "\n".join(self._turn_words) if failed else ""
                self._turn_words = []
            case TurnHidden():
                self.unanswered = ""
            case _:
                pass

    def _taken(self, messages: tuple[str, ...]) -> list[str]:
        return [self._waiting_words.pop(each) for each in messages if each in self._waiting_words]

    def _see_recorded(self, recorded: Recorded) -> None:
        self._follow_words(recorded.event)
        match recorded.event:
            case TurnStarted():
                self.turn_began_at = self._now()
            case ModelUsed(usage=usage):
                self.spent = self.spent.with_request(usage)
            case AssistantSaid(message=message):
                for part in message.content:
                    if isinstance(part, ToolCall):
                        self._know(part)
            case ChildStarted(child=child, task=task, detached=detached):
                begun = RunningChild(child, task, self._now(), detached=detached)
                self.children[child] = begun
            case ChildEnded(child=child):
                self.children.pop(child, None)
            case QuestionAsked(id=question_id, question=question):
                self.questions[question_id] = Asked(question, self._now())
            case QuestionClosed(id=question_id):
                self.questions.pop(question_id, None)
            case TurnSettled() as settled:
                self._turn_over(settled)
            case event:
                self._see_call(event)

    def _see_call(self, event: Event) -> RunningCall | None:
        match event:
            case CallStarted(call=call, title=title) if title:
                self._name(call.id, title)
            case CallDetached(call_id=call_id):
                call_now = self.calls.pop(call_id, None)
                title = self._titles.get(call_id, "")
                self.background[call_id] = call_now or RunningCall("call", title, self._now())
            case CallEnded(call_id=call_id, result=result):
                name = self._names.pop(call_id, None)
                title = self._titles.pop(call_id, "")
                if call_id in self.calls:
                    # Its end was told live, unless that was before anybody looked.
                    return self.calls.pop(call_id)
                told = call_id in self._told_over or result.status is CallStatus.DETACHED
                if name is not None and not told:
                    return RunningCall(name, title, self._now(), ran=False)
            case _:
                pass
        return None

    def unheard(self, said: AssistantSaid) -> list[str]:
        """What the model said while nobody listened yet: between the reading of the log and the
        first event that is watched."""
        heard = "".join(self._heard.get(said.turn, ()))
        texts = [part.text for part in said.message.content if isinstance(part, Text)]
        return [text for text in texts if text not in heard]

    def used_in_words(self) -> str:
        """Tokens, and what they cost where the price is known."""
        spent = self.spent
        if not spent.tokens:
            return ""
        tokens = f"{spent.tokens}" if spent.tokens < 10_000 else f"{spent.tokens / 1000:.0f}k"
        if not spent.priced:
            return f"{tokens} tokens"
        at_least = "at least " if spent.unpriced else ""
        return f"{tokens} tokens · {at_least}${spent.priced:.{2 if spent.priced >= 1 else 4}f}"

    def failed_in_words(self, error: str) -> str:
        """Why something failed, and what to do about it; if that was the last failure that was
        told, the short of it."""
        before, self.failure = self.failure, error
        if error != before:
            return f"failed: {error}"
        return f"failed, as before: {error.partition('. ')[0]}"

    def _know(self, call: ToolCall) -> None:
        self._names[call.id] = call.name
        self._name(call.id, title_of(call))

    def _name(self, call_id: str, title: str) -> None:
        self._titles[call_id] = title
        if call_id in self.calls:
            self.calls[call_id].title = title

    def _turn_over(self, settled: TurnSettled) -> None:
        self.calls.clear()
        self._told_over.clear()
        self._heard.pop(settled.turn, None)
        self.stopping = False
        self.turn_began_at = None
        if settled.receipt is not None:
            self.receipt = settled.receipt


def short_id(child_id: str) -> str:
    return child_id.partition("/")[2] or child_id


def title_of(call: ToolCall) -> str:
    """The first text among a call's arguments, in one line: the command, the path, the address."""
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, object])
    except msgspec.DecodeError:
        return ""
    first = next((each for each in arguments.values() if isinstance(each, str)), "")
    shown = visible(first[: 4 * TITLE_CHARACTERS_MAX])
    return " ".join(shown.split())[:TITLE_CHARACTERS_MAX]
