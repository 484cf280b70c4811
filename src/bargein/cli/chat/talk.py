"""A conversation at a terminal, independent of how it is shown: keys and commands act on it.

`Talk` opens the engine, follows one session at a time and can switch to another. Its `Face` shows
things: `bargein.cli.chat.app` draws, `bargein.cli.plain` writes line by line.
"""

import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Protocol

import anyio
import msgspec
from anyio import to_thread

from bargein.cli.chat.activity import Activity, Aside, QuestionOnScreen
from bargein.cli.chat.any_engine import AnyEngine, ListedSession
from bargein.cli.chat.before import Piece, said_before
from bargein.cli.chat.file_index import FileIndex
from bargein.cli.chat.guests import invite
from bargein.cli.chat.mentions import mentioned_files
from bargein.cli.chat.paint import harmless
from bargein.cli.chat.picking import SESSIONS_LISTED
from bargein.cli.chat.shell import EndedCommand, ShellCommand
from bargein.cli.default_agent import describe_found_model
from bargein.cli.granted import STAGED_NOW, obey_mode_flag, obey_staged_flag
from bargein.cli.here import lent_environment, place_here
from bargein.cli.joining import OpenEngine, hosted_engine, note_place
from bargein.cli.receipts import in_words
from bargein.contracts.chat_commands import chat_command_of
from bargein.contracts.choice import answer_of
from bargein.contracts.event import Recorded, TurnOutcome
from bargein.contracts.live import Notice
from bargein.contracts.message import Mode
from bargein.contracts.permission import PermissionMode
from bargein.contracts.receipt import ReceiptStatus
from bargein.contracts.tool import Question
from bargein.errors import BargeinError, UserError
from bargein.runtime.config import Config
from bargein.runtime.custom_commands import CustomCommands
from bargein.session.any_session import AnySession, AskedStop
from bargein.session.broadcast import TooSlow, Watched
from bargein.session.session import TooLate
from bargein.session.state import SessionState
from bargein.view import ShownCall

READ_S = 0.5
"""How long a question must have been visible before typed input can be meant for it."""
TURNS_SHOWN_AGAIN = 3
COME_BACK = "bargein"
SESSIONS_LOOKED_AT = 1000

Work = Callable[[], Coroutine[object, object, None]]


class Face(Protocol):
    @property
    def keys(self) -> Mapping[str, str]:
        """The key for each action, as it is written on the keyboard."""
        ...

    def tell(self, style: str, words: str) -> None:
        """Shows a message of the program itself."""
        ...

    def show(self, event: Watched) -> None: ...

    def show_again(self, pieces: list[Piece]) -> None:
        """Shows the end of another session, to which the user has switched."""
        ...

    def show_whole(self, call: ShownCall) -> None:
        """Shows all that a call changed or gave back."""
        ...

    def notice(self, words: str) -> None:
        """Shows the progress of something slow."""
        ...

    def put_back(self, text: str) -> None:
        """Gives words back to the user that the session did not take."""
        ...

    def leave(self) -> None: ...

    @property
    def can_draw(self) -> bool:
        """Whether a picture made of characters makes sense here."""
        ...

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there to answer a question of the program itself."""
        ...

    def ask(self, question: Question) -> None:
        """Shows a question of the program itself."""
        ...

    def pick(self, command: str) -> bool:
        """Opens the menu of a command. Returns False if that is not possible: there are no menus,
        or the user is writing something else."""
        ...

    def changed(self) -> None:
        """Redraws, because something on the screen has changed."""
        ...

    def spawn(self, work: Work) -> None:
        """Starts work that waits. Shows the user its `BargeinError`s."""
        ...


class Talk:
    def __init__(
        self,
        config: Config,
        face: Face,
        *,
        resume: str | None = None,
        go_on: bool = False,
        any_folder: bool = False,
        share: bool = False,
        come_back: str = COME_BACK,
        open_engine: OpenEngine = hosted_engine,
    ) -> None:
        self.config = config
        self.face = face
        self.now = time.monotonic
        self.activity = Activity(self.now)
        self.engine: AnyEngine | None = None
        self.session: AnySession | None = None
        self.shell: ShellCommand | None = None
        self.ran: EndedCommand | None = None
        self.custom = CustomCommands(config.environment, Path.cwd())
        self.files = FileIndex(Path.cwd(), self._read_files)
        self._children_seen: set[str] = set()
        self.ready = anyio.Event()
        self._sending = anyio.Lock()
        self._resume = resume
        self._go_on = go_on
        self._any_folder = any_folder
        self._share = share
        self._come_back = come_back
        self._asked_here = 0
        self._answers: dict[str, Callable[[str], object]] = {}
        self._open_engine = open_engine
        self._watching: anyio.CancelScope | None = None
        self._seq = 0
        self._warming = 0
        self.said = False

    # Looking

    @property
    def state(self) -> SessionState | None:
        if self.engine is None or self.session is None:
            return None
        return self.engine.state(self.session.id)

    @property
    def busy(self) -> bool:
        """Whether a stop would stop something."""
        state = self.state
        runs = state is not None and state.busy
        return self.shell is not None or runs or bool(self.activity.asides)

    @property
    def goes_on(self) -> bool:
        """Whether what runs goes on when this terminal leaves."""
        return self.engine is not None and bool(self.engine.attached_to)

    @property
    def come_back(self) -> str:
        """Returns the command that opens this session again, from this folder."""
        engine, session = self.engine, self.session
        elsewhere = (
            engine is not None
            and knows_folders(engine)
            and engine.workspace not in ("", place_here(self.config).workspace)
        )
        named = f"--resume {session.id}" if elsewhere and session is not None else "-c"
        return f"{self._come_back} {named}"

    def running_in_words(self) -> str:
        """Describes what runs, in all sessions: calls, background, the user's command."""
        running = [str(call) for call in self.activity.calls.values()]
        running += [f"{each} (background)" for each in self.activity.in_background]
        if self.engine is not None:
            here = self.session.id if self.session is not None else ""
            running += [f"{title} (background)" for title in self.engine.in_background(but=here)]
        if self.shell is not None:
            running.append(self.shell.command)
        if not running and self.busy:
            running.append("the answer")
        return harmless(", ".join(running))

    @property
    def can_go_on(self) -> bool:
        """Whether an empty line means something: messages are held, or a turn was left unanswered.
        Held messages can continue even while the stop that holds them is still settling."""
        state = self.state
        if state is None:
            return False
        return state.held or (not state.busy and bool(self.activity.unanswered))

    @property
    def stopping(self) -> bool:
        if self.shell is not None:
            return self.shell.stopping
        return self.activity.stopping

    @property
    def enter_mode(self) -> Mode:
        return Mode(self.config.text("chat.enter"))

    def opened(self) -> tuple[AnyEngine, AnySession]:
        if self.engine is None or self.session is None:
            raise UserError("still starting; try again in a moment")
        return self.engine, self.session

    # Acting

    async def send(self, text: str, mode: Mode) -> None:
        """Sends a message; if the session does not take it, the user gets it back."""
        await self.ready.wait()
        _, session = self.opened()
        try:
            # One after the other: reading one message's files must not let the next one pass it.
            async with self._sending:
                files = await to_thread.run_sync(mentioned_files, text, Path.cwd())
                await session.send(text, mode=mode, attachments=files)
            self.said = True
        except BargeinError as error:
            self.face.tell("bad", f"not sent: {error}")
            self.face.put_back(text)
        self.face.changed()

    def stop(self) -> None:
        """Stops what runs, now. Everything that waits is held, steers included."""
        if self.shell is not None:
            self.shell.stop()
            self.face.changed()
            return
        if self.engine is None or self.session is None or self.state is None:
            return
        if self.activity.asides and not self.state.busy:
            self.stop_asides()
            return
        stop = self.session.interrupt_now()
        # Until the end of the turn is shown; the session itself may already be further.
        self.activity.stopping = stop.landed
        self.face.spawn(lambda: self._show_if_unstored(stop))
        self.face.changed()

    async def ask_aside(self, question: str) -> None:
        """Has a side question answered, and shows the answer."""
        _, session = self.opened()
        name = f"btw-{token_hex(4)}"
        self.activity.asides[name] = Aside(question, self.now())
        self.face.changed()
        try:
            answer = await session.side_question(question, question_id=name)
        finally:
            del self.activity.asides[name]
            self.face.changed()
        self.face.tell("dim", f"btw: {harmless(question)}")
        self.face.tell("plain", harmless(answer.text) or "(the model said nothing)")
        how = "stopped; " if answer.stopped else ""
        self.face.tell("dim", f"[{how}beside the conversation: the model will not remember it]")

    def stop_asides(self) -> None:
        _, session = self.opened()
        for name in self.activity.asides:
            self.face.spawn(partial(_stop_aside, session, name))

    async def _show_if_unstored(self, stop: AskedStop) -> None:
        """The end of the turn shows a stop. If the store did not accept it, the log has no such end
        yet, so this shows the receipt instead."""
        receipt = await stop.receipt()
        if receipt.status is ReceiptStatus.TOO_LATE:
            self.activity.stopping = False
            if self.goes_on:
                # Somebody at another screen may have been faster.
                self.face.tell("dim", "already over; nothing was left to stop")
            self.face.changed()
        if receipt.status is ReceiptStatus.STOPPED and not receipt.stored:
            self.activity.stopping = False
            self.face.tell("bad", in_words(receipt))
            self.face.changed()

    def hurry(self) -> None:
        """Goes straight to the kill in a stop that is under way."""
        if self.shell is not None:
            self.shell.stop()
        elif self.engine is not None:
            self.face.spawn(self.engine.hurry)

    async def continue_(self) -> None:
        """Continues after a pause, with what is held, or with what was never answered."""
        _, session = self.opened()
        state = self.state
        if state is not None and state.phase == "paused":
            await session.resume()
        elif self.activity.unanswered:
            # Held messages go along.
            await self.retry()
        else:
            await session.continue_()

    async def retry(self) -> None:
        """Asks again what a failure, or the end of the program, left unanswered."""
        words = self.activity.unanswered
        if not words:
            raise UserError(
                "the last turn neither failed nor crashed; there is nothing to ask again"
            )
        self.activity.unanswered = ""
        await self.send(words, Mode.STEER)

    async def run_shell(self, command: str) -> None:
        await self.ready.wait()
        engine, _ = self.opened()
        if self.shell is not None:
            raise UserError(f"a command of yours is running; {self.face.keys['stop']} stops it")
        if not command.strip():
            raise UserError("write a command after the !, such as !git status")
        self.shell = shell = ShellCommand(command, self.now)
        self.face.changed()
        try:
            ran = await shell.run(engine, self.config.environment, self.face.changed)
        finally:
            self.shell = None
        self.ran = ran
        words = [f"$ {ran.command}", *([ran.output] if ran.output else [])]
        self.face.tell("plain", "\n".join(words))
        self.face.tell("dim", f"[{ran.ending} · only you have seen this; /tell sends it]")

    async def warm_up(self) -> None:
        """Loads a local model before it is needed. If a turn is waiting for it, that turn reports
        a failure."""
        engine, _ = self.opened()
        self._warming += 1
        try:
            await engine.warm_up()
        except BargeinError as error:
            if self.state is not None and self.state.busy:
                return
            self.activity.failure = str(error)
            raise
        finally:
            self._warming -= 1

    def _notice(self, words: str) -> None:
        """Shows a model's progress only if this session waits for it: the model may be at work for
        a title or for another session."""
        if self.session is None or self._warming or self.busy:
            self.face.notice(words)

    # Questions

    @property
    def asked(self) -> tuple[str, QuestionOnScreen] | None:
        """The question that has been open longest."""
        return next(iter(self.activity.questions.items()), None)

    def answer_meant(
        self, line: str, begun_at: float, *, freely: bool = True
    ) -> tuple[str, str] | None:
        """Returns the question and its answer, if the line is one that was begun after the question
        could be read: exactly the number, the first letter or the whole of a choice; yes or no to
        an approval; or, if the question has no choices, any words that are no command. `freely` is
        False for a line that was sent as a message on purpose. Nothing else ever answers by
        accident."""
        if self.asked is None:
            return None
        question_id, asked = self.asked
        if begun_at < asked.asked_at + READ_S:
            return None
        if not asked.question.choices:
            is_command = line.startswith(("/", "!")) or chat_command_of(line) is not None
            means_it = freely and bool(line.strip()) and not is_command
            return (question_id, line.strip()) if means_it else None
        choice = answer_of(line, asked.question)
        return (question_id, choice) if choice in asked.question.choices else None

    async def answer(self, question_id: str, text: str) -> None:
        given = self._answers.get(question_id)
        if given is not None:
            question = self.activity.questions[question_id].question
            choice = answer_of(text, question)
            if choice not in question.choices:
                raise UserError(f"{text!r} is none of the choices; type a number")
            given(choice)
            return
        _, session = self.opened()
        try:
            await session.answer(question_id, text)
        except TooLate:
            asked = self.activity.picture.questions.get(question_id)
            words = "answered or stopped"
            if asked is not None and asked.answer is not None:
                words = self.activity.answered_in_words(asked)
            self.face.tell("dim", f"already {words}")
            if asked is not None and not asked.question.choices:
                self.face.put_back(text)

    async def ask(self, text: str, choices: Sequence[str]) -> str:
        """Asks the person at this terminal, and nobody else, and returns the choice."""
        self._asked_here += 1
        question_id = f"here-{self._asked_here}"
        question = Question(text, choices=tuple(choices))
        chosen: list[str] = []
        answered = anyio.Event()

        def answer(choice: str) -> None:
            chosen.append(choice)
            answered.set()

        self._answers[question_id] = answer
        self.activity.questions[question_id] = QuestionOnScreen(question, self.now())
        self.face.ask(question)
        try:
            await answered.wait()
        finally:
            del self._answers[question_id]
            self.activity.questions.pop(question_id, None)
            self.face.changed()
        return chosen[0]

    # Sessions

    @property
    def mode(self) -> PermissionMode | None:
        """The permission mode of the open session."""
        if self.engine is None or self.session is None:
            return None
        return self.engine.mode(self.session.id)

    async def sessions(self) -> Sequence[ListedSession]:
        """Returns the last sessions, those of this folder first."""
        engine, _ = self.opened()
        here = place_here(self.config).workspace
        found = await engine.sessions(limit=SESSIONS_LISTED)
        return sorted(found, key=lambda each: engine.workspace_of(each) != here)

    async def open_session(self, session_id: str) -> None:
        """Switches to another session; this one keeps running."""
        engine, _ = self.opened()
        await self._begin(engine, session_id)
        if self._watching is not None:
            self._watching.cancel()

    async def run(self) -> None:
        """Runs the whole conversation, until the engine ends. Raises what the user must know."""
        async with self._open_engine(self.config, self._notice) as engine:
            self.engine = engine
            self.activity.own_senders = engine.own_senders
            await self._begin(engine, await self._first_session(engine))
            for words in introduction(engine, self.config):
                self.face.tell("dim", words)
            self.ready.set()
            self.face.changed()
            if self._share:
                self.face.spawn(partial(invite, self, ""))
            self.face.spawn(self.warm_up)
            self.files.known()
            while True:
                await self._watch(self.opened()[1])

    async def _first_session(self, engine: AnyEngine) -> str:
        if self._resume is not None:
            return await find_session(engine, self._resume)
        if self._go_on:
            found = await last_session(engine, self.config, any_folder=self._any_folder)
            if found:
                return found
            where = "" if self._any_folder or not knows_folders(engine) else " of this folder"
            how = "; -c --all goes on with one of another" if where else ""
            words = f"there is no session{where} yet to go on with{how}; this is a new one"
            self.face.tell("dim", words)
        return new_session_id()

    async def _at_its_place(self, engine: AnyEngine, session: AnySession) -> AnySession:
        """A session without a place gets this terminal's. One of another folder stays there, unless
        the user moves it here."""
        if engine.attached_to and not engine.has_places:
            return session
        await note_place(engine, session, self.config)
        here, place = place_here(self.config), await session.place()
        if place is None or place.workspace == here.workspace:
            return session
        if engine.has_places and not await self._moves(place.workspace, here.workspace):
            return session
        await session.set_place(
            msgspec.structs.replace(place, workspace=here.workspace),
            environment=lent_environment(self.config),
        )
        return await engine.session(session.id)

    async def _moves(self, there: str, here: str) -> bool:
        """Asks whether to move a session of another folder here. Unasked it stays."""
        if not self.face.can_ask:
            return False
        moves = f"move it to {here}"
        asked = f"This session works in {there}, and you are in {here}."
        return await self.ask(asked, (f"continue in {there}", moves)) == moves

    async def _begin(self, engine: AnyEngine, session_id: str) -> None:
        session = await self._at_its_place(engine, await engine.session(session_id))
        await obey_mode_flag(self.config, session)
        if await obey_staged_flag(self.config, session):
            self.face.tell("note", STAGED_NOW)
        log = await session.events()
        self.activity.forget()
        self.session = session
        self.said = False
        self._seq = log[-1].seq if log else 0
        self.activity.recall(log, time.time())
        self.face.show_again(said_before(self.activity.picture, turns=TURNS_SHOWN_AGAIN))
        if self.activity.unanswered:
            last = list(self.activity.picture.turns.values())[-1]
            crashed = last.outcome is TurnOutcome.CRASHED
            why = "the program ended before this was answered" if crashed else "this failed"
            self.face.tell("bad", f"{why}: {self.face.keys['send']} asks again")

    async def _watch(self, session: AnySession) -> None:
        with anyio.CancelScope() as scope:
            self._watching = scope
            self.activity.picture.rejoin()
            try:
                async with aclosing(session.watch(after=self._seq)) as events:
                    async for event in events:
                        self._see(event)
            except TooSlow as error:
                self.face.tell("bad", str(error))
                return
        if not scope.cancelled_caught and session is self.session:
            raise UserError(f"session {session.id} has ended")

    def _see(self, event: Watched) -> None:
        if isinstance(event, Notice):
            self._notice(event.text)
            return
        if isinstance(event, Recorded):
            self._seq = event.seq
        self.face.show(event)
        self.face.changed()
        for child in self.activity.children:
            if child not in self._children_seen:
                self._children_seen.add(child)
                self.face.spawn(partial(self._watch_child, child))

    async def _watch_child(self, child: str) -> None:
        """Follows what a sub-agent does, for as long as it runs; its own sub-agents not."""
        engine, _ = self.opened()
        below = self.activity.picture.below(child)
        try:
            async with aclosing(engine.child(child).watch(after=0)) as events:
                async for event in events:
                    below.apply(event, self.now())
                    self.face.changed()
                    if child not in self.activity.children:
                        return
        except BargeinError:
            # It is shown without what it does.
            return

    def _read_files(self, index: FileIndex) -> None:
        self.face.spawn(partial(to_thread.run_sync, index.read))


async def _stop_aside(session: AnySession, name: str) -> None:
    await session.interrupt(scope="side", target=name)


def introduction(engine: AnyEngine, config: Config) -> list[str]:
    """Says which model is in use, why, and how to choose another."""
    if engine.attached_to and not engine.has_places:
        folder = f" · it works in {engine.workspace}" if engine.workspace else ""
        return [f"attached to {engine.attached_to} · {engine.model_name} · /help{folder}"]
    elsewhere = ""
    if engine.has_places and engine.workspace != os.path.realpath(os.getcwd()):
        elsewhere = f" · it works in {engine.workspace}"
    if config.models.model is not None or elsewhere:
        return [f"{engine.model_name} · /help{elsewhere}"]
    return [
        *describe_found_model(engine.model_name, engine.model_why),
        "another: /model NAME, or BARGEIN_MODEL=openai:NAME, anthropic:NAME, local:PATH · /help",
    ]


def knows_folders(engine: AnyEngine) -> bool:
    """Whether sessions are of one folder or another; those of a server elsewhere are of none."""
    return not engine.attached_to or engine.has_places


async def last_session(engine: AnyEngine, config: Config, *, any_folder: bool) -> str | None:
    """Returns the last session: of this folder, unless of any."""
    everywhere = any_folder or not knows_folders(engine)
    here = place_here(config).workspace
    for head in await engine.sessions(limit=20 if everywhere else SESSIONS_LOOKED_AT):
        if everywhere or engine.workspace_of(head) == here:
            return head.id
    return None


async def find_session(
    engine: AnyEngine, name: str, *, listed_by: str = "`bargein sessions`"
) -> str:
    """Returns the session with that id, or the only one whose id begins so."""
    ids = [head.id for head in await engine.sessions(limit=1000)]
    if name in ids:
        return name
    near = [each for each in ids if each.startswith(name)]
    if len(near) == 1:
        return near[0]
    found = f"{len(near)} sessions begin with" if near else "there is no session"
    raise UserError(f"{found} {name!r}; {listed_by} lists them")


def new_session_id() -> str:
    return f"chat-{token_hex(4)}"
