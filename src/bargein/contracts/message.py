"""Messages of people to a session, and what may become of them."""

from enum import StrEnum

from bargein.contracts.model import Image, Text
from bargein.contracts.output import Output
from bargein.contracts.tool import OpenQuestion
from bargein.contracts.value import Value

__all__ = [
    "Attachment",
    "Disposition",
    "Message",
    "Mode",
    "QuestionPolicy",
]


class Mode(StrEnum):
    """What a message asks for if a turn is running. When idle, each of them starts a turn."""

    STEER = "steer"
    """Join the running turn: a model request in flight ends, its text is kept."""
    INTERRUPT = "interrupt"
    """Stop the turn, then answer this."""
    QUEUE = "queue"
    """A turn of its own, later."""
    ROLLBACK = "rollback"
    """Stop the turn and hide it from the model, then answer this."""
    REJECT = "reject"
    """Refuse it if a turn is running."""


class Disposition(StrEnum):
    """Where an accepted message went, told to its sender at once."""

    STARTED = "started"
    STEERING = "steering"
    INTERRUPTING = "interrupting"
    QUEUED = "queued"
    DUPLICATE = "duplicate"


class QuestionPolicy(StrEnum):
    """What becomes of a question of the agent, or a call to approve, when nobody may be there to
    answer: said by a message for the turn that takes it."""

    WAIT = "wait"
    """It stays open until somebody answers it by its id."""
    ERROR = "error"
    """The turn is stopped, and the question is closed without an answer."""
    REFUSE = "refuse"
    """A call is denied; the model is told that nobody can answer, and goes on."""
    ALLOW = "allow"
    """A call runs; to a question the model is told that nobody can answer."""


class Attachment(Value, frozen=True):
    """Something that came with a message and may have to be described before a model sees it."""

    name: str
    media_type: str
    data: bytes


class Message(Value, frozen=True):
    """As it was accepted. `sender` and `client_id` make a repeated delivery recognisable; `group`
    gathers an album into one message. `allows` is the approval that it gives, to a call of a turn
    that a restart had ended. `output` is what the answer must be; None for words as they come.
    `questions` says what becomes of questions; None is to wait for an answer."""

    id: str
    sender: str
    mode: Mode
    content: tuple[Text | Image, ...]
    attachments: tuple[Attachment, ...] = ()
    client_id: str | None = None
    group: str | None = None
    allows: OpenQuestion | None = None
    output: Output | None = None
    questions: QuestionPolicy | None = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content if isinstance(part, Text))
