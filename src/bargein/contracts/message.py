"""Messages that people send to a session, and how the session may treat them."""

from enum import StrEnum

from bargein.contracts.model import Image, Text
from bargein.contracts.output import Output
from bargein.contracts.tool import OpenQuestion
from bargein.contracts.value import Value

__all__ = [
    "Attachment",
    "Disposition",
    "HeardSoFar",
    "Message",
    "Mode",
    "QuestionPolicy",
]


class Mode(StrEnum):
    """What a message does to a running turn. In an idle session every mode starts a turn."""

    STEER = "steer"
    """Join the running turn: a model request in flight ends, and its text is kept."""
    INTERRUPT = "interrupt"
    """Stop the turn, then answer this message."""
    QUEUE = "queue"
    """Start a turn of its own later."""
    ROLLBACK = "rollback"
    """Stop the turn, hide it from the model and put its files back, then answer this message."""
    REJECT = "reject"
    """Refuse the message if a turn is running."""


class Disposition(StrEnum):
    """Where an accepted message went; the sender gets it at once."""

    STARTED = "started"
    STEERING = "steering"
    INTERRUPTING = "interrupting"
    QUEUED = "queued"
    DUPLICATE = "duplicate"


class QuestionPolicy(StrEnum):
    """What to do with questions and approvals when perhaps nobody is there to answer. A message
    sets it for the turn that takes the message."""

    WAIT = "wait"
    """The question stays open until somebody answers it by its id."""
    ERROR = "error"
    """The session stops the turn and closes the question without an answer."""
    REFUSE = "refuse"
    """The call is denied. The model reads that nobody can answer, and goes on."""
    ALLOW = "allow"
    """The call runs. The answer to any other question is that nobody can answer. It holds as long
    as all words of the turn are from one sender; then questions wait."""


class Attachment(Value, frozen=True):
    """A file that came with a message. A model may need a description of it instead."""

    name: str
    media_type: str
    data: bytes


HEARD_CHARACTERS_MAX = 2**53 - 1
"""Every program that speaks JSON can read numbers up to here."""


class HeardSoFar(Value, frozen=True):
    """How much of a turn's text the user has heard or seen: the first `characters` code points
    of all its text, without the text that an earlier `HeardSoFar` of the turn cut off."""

    turn: str
    characters: int


class Message(Value, frozen=True):
    """A message as the session accepted it. `sender` and `client_id` identify a repeated delivery;
    `group` gathers an album into one message. `allows` is the approval that the message gives to a
    call whose turn a restart had ended. `output` is the form that the answer must have; None for
    free text. `questions` is the policy for questions; None waits for an answer."""

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
