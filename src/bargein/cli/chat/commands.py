"""The slash commands, for the drawing and the plain terminal."""

import difflib
from argparse import ArgumentTypeError
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import anyio

from bargein.cli.chat.guests import share, unshare
from bargein.cli.chat.paint import harmless
from bargein.cli.chat.picking import described, fitting, sessions_fitting
from bargein.cli.chat.rewinding import diff, redo, rewind, undo
from bargein.cli.chat.staging import stage
from bargein.cli.chat.talk import Talk, find_session, new_session_id
from bargein.cli.doctor import describe_commands, describe_sandbox
from bargein.cli.granted import in_lines
from bargein.cli.here import place_here
from bargein.cli.names import session_name
from bargein.cli.receipts import all_in_words, in_full, in_words
from bargein.contracts.choice import choose
from bargein.contracts.event import Compressed
from bargein.contracts.message import Mode
from bargein.contracts.permission import GrantScope, PermissionMode
from bargein.contracts.receipt import Receipt
from bargein.errors import UserError
from bargein.models.costs import LISTED_MODELS
from bargein.runtime.settings import ACTIONS
from bargein.session.any_session import AnySession

MODES = {
    PermissionMode.PLAN: "read only",
    PermissionMode.ASK: "your rules decide what is asked about",
    PermissionMode.AUTO_EDIT: "file edits run without asking, the rest as in ask",
    PermissionMode.FULL: "nothing is asked",
}
KEY_OF = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
LISTED_ALONE = 15
CYCLE = (PermissionMode.ASK, PermissionMode.AUTO_EDIT, PermissionMode.PLAN)


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """`at_once`: it also works while the program is still starting. `needs_words`: it needs
    arguments."""

    help: str
    run: Callable[[Talk, str], Awaitable[None]]
    at_once: bool = False
    needs_words: bool = False


async def run_command(talk: Talk, line: str) -> None:
    """Runs a line that begins with a slash. If that fails, puts its words back into the line."""
    name, _, rest = line.removeprefix("/").partition(" ")
    rest = rest.strip()
    try:
        if name.startswith("mcp__"):
            await _prompt_of_server(talk, name, rest)
            return
        custom = talk.custom.read().get(name) if name not in COMMANDS else None
        if custom is not None:
            await talk.ready.wait()
            await talk.send(custom.message(rest), talk.enter_mode)
            return
        command = find_command(name)
        if not command.at_once:
            await talk.ready.wait()
        await command.run(talk, rest)
    except UserError:
        if rest:
            talk.face.put_back(line)
        raise


def find_command(name: str) -> SlashCommand:
    """Finds a command by its name or by an unambiguous beginning."""
    found = [each for each in COMMANDS if each.startswith(name)] if name else []
    if name in COMMANDS:
        return COMMANDS[name]
    if len(found) == 1:
        return COMMANDS[found[0]]
    if found:
        raise UserError(f"/{name} may be {', '.join('/' + each for each in found)}; write more")
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean /{near[0]}?" if near else "/help lists them"
    raise UserError(f"no such command: /{name}; {hint}")


# Talking


async def _stop(talk: Talk, rest: str) -> None:
    if rest == "all":
        _, session = talk.opened()
        receipt = await session.interrupt(scope="session")
        if receipt.status != "stopped":
            raise UserError("nothing is running")
        if receipt.steps and not receipt.target:
            # No turn was running whose end would show the receipt.
            talk.activity.receipt = receipt
            talk.face.tell("warn", in_words(receipt))
        return
    if rest:
        raise UserError(f"/stop {rest}: say /stop, /stop all or /tasks stop ID")
    if not talk.busy:
        left = len(talk.activity.in_background)
        how = f" but {left} in the background: /stop all, or /tasks stop ID" if left else ""
        raise UserError(f"nothing is running{how}")
    talk.stop()


async def _queue(talk: Talk, rest: str) -> None:
    await _send(talk, rest, Mode.QUEUE)


async def _steer(talk: Talk, rest: str) -> None:
    await _send(talk, rest, Mode.STEER)


async def _redirect(talk: Talk, rest: str) -> None:
    await _send(talk, rest, Mode.INTERRUPT)


async def _send(talk: Talk, words: str, mode: Mode) -> None:
    if not words:
        name = "redirect" if mode is Mode.INTERRUPT else mode
        raise UserError(f"write what to say after it: /{name} WORDS")
    await talk.send(words, mode)


async def _btw(talk: Talk, rest: str) -> None:
    if rest == "stop":
        if not talk.activity.asides:
            raise UserError("no side question is being answered")
        talk.stop_asides()
        return
    if not rest:
        raise UserError("write what to ask after it: /btw WORDS")
    talk.opened()
    talk.face.spawn(partial(talk.ask_aside, rest))


async def _retry(talk: Talk, rest: str) -> None:
    await talk.retry()


async def _pause(talk: Talk, rest: str) -> None:
    await talk.opened()[1].pause()


async def _continue(talk: Talk, rest: str) -> None:
    await talk.continue_()


async def _answer(talk: Talk, rest: str) -> None:
    if talk.asked is None:
        raise UserError("no question is open")
    question_id, _ = talk.asked
    if not rest:
        raise UserError("write the answer after it: /answer WORDS")
    await talk.answer(question_id, rest)


async def _tell(talk: Talk, rest: str) -> None:
    if talk.ran is None:
        raise UserError("you have not run a command yet; for example: !git status")
    ran, talk.ran = talk.ran, None
    await talk.send("\n\n".join(filter(None, [rest, ran.as_message()])), talk.enter_mode)


# What waits, what runs


async def _inbox(talk: Talk, rest: str) -> None:
    _, session = talk.opened()
    action, _, words = rest.partition(" ")
    if action == "drop":
        if not words.strip():
            raise UserError("which message? /inbox drop ID; /inbox lists them")
        await session.withdraw(words.strip())
        talk.face.tell("dim", f"{words.strip()} taken back")
    elif action == "edit":
        message, _, new = words.strip().partition(" ")
        if not new.strip():
            raise UserError("which message, and what instead? /inbox edit ID WORDS")
        await session.edit(message, new)
        talk.face.tell("dim", f"{message} changed")
    elif action in ("", "list"):
        lines = [
            f"  {item.message.id} ({item.lane}{', held' if item.held else ''}): {item.message.text}"
            for item in await session.inbox()
        ]
        talk.face.tell("note", "\n".join(lines) or "nothing waits")
    else:
        raise UserError(f"/inbox {action}: say /inbox, /inbox drop ID or /inbox edit ID WORDS")


async def _background(talk: Talk, rest: str) -> None:
    await detach_newest(talk)


async def _tasks(talk: Talk, rest: str) -> None:
    action, _, task = rest.partition(" ")
    if action == "stop":
        talk.face.tell("note", await _stop_task(talk, task.strip()))
    elif action in ("", "list"):
        now = talk.now()
        lines = [
            f"  {name}  {call}  {now - call.since:.0f} s{where}"
            for calls, where in (
                (talk.activity.calls, ""),
                (talk.activity.background, ", in the background"),
            )
            for name, call in calls.items()
        ]
        lines += [
            f"  {child.name}  {child.task}  {now - child.began_at:.0f} s"
            f"{', in the background' if child.detached else ''}"
            for child in talk.activity.children.values()
        ]
        if talk.shell is not None:
            lines.append(f"  !  {talk.shell.command}")
        talk.face.tell("note", "\n".join(lines) or "nothing is running")
    else:
        raise UserError(f"/tasks {action}: say /tasks or /tasks stop ID")


async def _stop_task(talk: Talk, task: str) -> str:
    _, session = talk.opened()
    if not task:
        raise UserError("which task? /tasks stop ID; /tasks lists them")
    if task == "!" and talk.shell is not None:
        talk.shell.stop()
        return "stopping your command"
    # Ids of a call and of its sub-agents share a prefix; a complete id means that one.
    known = {each: each for each in (*talk.activity.calls, *talk.activity.background)}
    known |= {child.name: child.id for child in talk.activity.children.values()}
    near = [task] if task in known else [each for each in known if each.startswith(task)]
    if len(near) > 1:
        raise UserError(f"{task} may be {', '.join(near)}; write more")
    if not near:
        raise UserError(f"no task {task!r} is running; /tasks lists them")
    target = known[near[0]]
    receipt = await _interrupt(session, target, is_child=target in talk.activity.children)
    if receipt.status == "stopped":
        talk.activity.receipt = receipt
    return in_words(receipt) if receipt.status == "stopped" else f"{task} has already ended"


async def _interrupt(session: AnySession, target: str, *, is_child: bool) -> Receipt:
    return await session.interrupt(scope="child" if is_child else "call", target=target)


async def detach_newest(talk: Talk) -> None:
    """Moves the call that began last to the background."""
    _, session = talk.opened()
    if not talk.activity.calls:
        raise UserError("no call is running")
    await session.detach(list(talk.activity.calls)[-1])


async def edit_last(talk: Talk) -> None:
    """Takes the last waiting message back into the line."""
    _, session = talk.opened()
    items = await session.inbox()
    if not items:
        raise UserError("no message is waiting to be edited")
    await session.withdraw(items[-1].message.id)
    talk.face.put_back(items[-1].message.text)


# Looking, and changing what is looked at


async def _status(talk: Talk, rest: str) -> None:
    engine, session = talk.opened()
    state = await session.state()
    waits = f", {len(state.waiting)} waiting" if state.waiting else ""
    lines = [
        f"  session  {session.id}",
        f"  state    {state.phase}{waits}{', held' if state.held else ''}",
        f"  model    {engine.model_name} ({engine.model_why})",
        f"  used     {talk.activity.used_in_words() or 'nothing yet'}",
        f"  kept in  {engine.attached_to or talk.config.home}",
    ]
    if engine.containment is not None:
        report = engine.containment.report
        lines.append(f"  commands {report.means}: {report.promise}")
        lines.append(f"  sandbox  {describe_sandbox(report.hiding)}")
    if (closed_in := engine.sandbox) is not None:
        lines.append(f"           {describe_commands(closed_in)}")
    talk.face.tell("note", "\n".join(lines))


async def _mcp(talk: Talk, rest: str) -> None:
    from bargein.cli.mcp import details, status_line

    engine, _ = talk.opened()
    overview = await engine.mcp_overview()
    found = overview.servers
    if rest:
        found = tuple(each for each in found if each.name == rest)
    if not found:
        none = f"there is no MCP server {rest}; /mcp lists them" if rest else "no MCP servers"
        raise UserError(f"{none}; `bargein mcp add` adds one")
    lines = []
    for status in found:
        lines.append(f"  {status_line(status)}")
        shown = details(status)
        # The tools are many: they are listed for one server that is named.
        lines += [f"  {each}" for each in (shown if rest else shown[len(status.tools) :])]
    lines += [f"  {each.usage()}  {each.about}" for each in overview.prompts]
    talk.face.tell("note", "\n".join(lines))


async def _prompt_of_server(talk: Talk, name: str, words: str) -> None:
    """A prompt of an MCP server is a command; its text is sent as the user's own."""
    await talk.ready.wait()
    engine, _ = talk.opened()
    await talk.send(await engine.mcp_prompt(name, words), Mode.STEER)


async def _output(talk: Talk, rest: str) -> None:
    ended = [call for call in talk.activity.picture.calls.values() if call.status is not None]
    if rest:
        ended = [call for call in ended if call.id == rest or call.id.startswith(f"{rest}_")]
    if not ended:
        raise UserError(f"no call {rest} has ended" if rest else "no call has ended yet")
    talk.face.show_whole(ended[-1])


async def _todo(talk: Talk, rest: str) -> None:
    marks = {"done": "x", "doing": ">", "open": " "}
    lines = [f"  [{marks[each.state]}] {each.text}" for each in talk.activity.todo]
    talk.face.tell("note", harmless("\n".join(lines)) or "the model has written down no plan")


async def _receipt(talk: Talk, rest: str) -> None:
    if talk.activity.receipt is None:
        raise UserError("nothing has been stopped yet")
    talk.face.tell("note", in_full(talk.activity.receipt))


async def _model(talk: Talk, rest: str) -> None:
    engine, session = talk.opened()
    known = models_known(talk)
    if rest.isdecimal() and 1 <= int(rest) <= len(known):
        rest = known[int(rest) - 1]
    elif rest and ":" not in rest and rest not in known:
        # What the menu shows first for these words.
        rest = next((known[at] for at in fitting(rest, known)), rest)
    if rest:
        await engine.use_model_in(session.id, rest)
        talk.face.tell("note", f"{engine.model_name} from the next step on")
        talk.face.spawn(talk.warm_up)
        return
    now = f"{engine.model_name} ({engine.model_why})"
    if known and talk.face.pick("/model"):
        talk.face.tell("note", f"in use: {now}")
        return
    lines = [f"  {number}  {name}" for number, name in enumerate(known, 1)]
    talk.face.tell("note", "\n".join([now, *lines, "/model NUMBER or NAME changes it"]))


def models_known(talk: Talk) -> list[str]:
    """Returns models to choose from: of the providers whose key is set, and the embedded one."""
    engine, _ = talk.opened()
    if engine.attached_to and not engine.has_places:
        return []
    environment = talk.config.environment
    found = [name for name in LISTED_MODELS if environment.get(KEY_OF[name.partition(":")[0]])]
    return [*found, "local"]


async def _mode(talk: Talk, rest: str) -> None:
    _, session = talk.opened()
    if not rest:
        now = await session.mode()
        talk.face.tell("note", f"{now}: {MODES[now]}; /mode NAME changes it")
        return
    await set_mode(talk, choose(PermissionMode, rest))


async def set_mode(talk: Talk, mode: PermissionMode) -> None:
    _, session = talk.opened()
    now = await session.set_mode(mode)
    talk.face.tell("note", f"{now} from the next call on: {MODES[now]}")
    talk.face.changed()


async def cycle_mode(talk: Talk) -> None:
    """Sets the next mode; `full` can be set only by its name."""
    _, session = talk.opened()
    now = await session.mode()
    place = CYCLE.index(now) + 1 if now in CYCLE else 0
    await set_mode(talk, CYCLE[place % len(CYCLE)])


async def _grants(talk: Talk, rest: str) -> None:
    _, session = talk.opened()
    action, _, grant = rest.partition(" ")
    if action == "revoke":
        grant = grant.strip()
        if not grant:
            raise UserError("which grant? /grants revoke ID; /grants lists them")
        found = [
            scope
            for scope in GrantScope
            if any(each.grant.id == grant for each in await session.grants(scope))
        ]
        if not found:
            raise UserError(f"there is no grant {grant}; /grants lists them")
        for scope in found:
            await session.revoke(grant, scope=scope)
        talk.face.tell("note", f"{grant} revoked: such calls need approval again")
    elif action in ("", "list"):
        lines = in_lines(await session.grants(), "session")
        lines += in_lines(await session.grants(GrantScope.PROJECT), "always")
        talk.face.tell("note", "\n".join(lines) or "nothing is granted")
    else:
        raise UserError(f"/grants {action}: say /grants or /grants revoke ID")


async def _tools(talk: Talk, rest: str) -> None:
    engine, _ = talk.opened()
    width = max((len(tool.name) for tool in engine.tools), default=0)
    lines = [
        f"  {tool.name:<{width}}  {tool.description.strip().partition(chr(10))[0]}"
        for tool in engine.tools
    ]
    if lines and not engine.takes_tools:
        lines.insert(0, f"{engine.model_name} gets none of these, because it cannot use tools;")
        lines.insert(1, "another model does (/model NAME):")
    talk.face.tell("note", "\n".join(lines) or "the model has no tools")


async def _sessions(talk: Talk, rest: str) -> None:
    engine, now = talk.opened()
    if rest:
        await _open(talk, rest)
        return
    found = await engine.sessions(limit=LISTED_ALONE)
    if not found:
        talk.face.tell("note", "nothing has been said in any session yet")
        return
    if len(found) > 1 and talk.face.pick("/sessions"):
        return
    here = place_here(talk.config).workspace
    lines = []
    for head in found:
        about = "this one" if head.id == now.id else described(engine, head, here)
        lines.append(f"  {head.id}  {head.title}".rstrip() + f"  ({about})")
    talk.face.tell("note", "\n".join([*lines, "  /sessions ID opens one"]))


async def _open(talk: Talk, words: str) -> None:
    """Opens the session with this id or beginning of an id, or else the first whose title fits."""
    engine, now = talk.opened()
    try:
        session_id = await find_session(engine, words, listed_by="/sessions")
    except UserError:
        others = [each for each in await talk.sessions() if each.id != now.id]
        found = sessions_fitting(words, others)
        if not found:
            raise
        session_id = found[0].id
    await talk.open_session(session_id)
    talk.face.tell("dim", f"this is {session_id}; /sessions {now.id} goes back")


async def _panic(talk: Talk, rest: str) -> None:
    """Stops everything in all sessions, whoever began it."""
    engine, _ = talk.opened()
    talk.face.tell("warn", all_in_words(await engine.stop_all()))


async def _resume(talk: Talk, rest: str) -> None:
    """Chooses a session, of this folder first, and opens it."""
    if rest:
        await _open(talk, rest)
        return
    _, now = talk.opened()
    if not any(each.id != now.id for each in await talk.sessions()):
        raise UserError("there is no other session; /new begins one")
    if not talk.face.pick("/resume"):
        await _sessions(talk, "")


async def _rename(talk: Talk, rest: str) -> None:
    if not rest:
        raise UserError("write the new title after it: /rename WORDS")
    await talk.opened()[1].rename(rest)
    talk.face.tell("dim", f"this session is now {rest!r}")


async def _fork(talk: Talk, rest: str) -> None:
    """Goes on in a new session that begins with what was said until the end of a turn."""
    _, now = talk.opened()
    made = await now.fork(rest or None)
    await talk.open_session(made)
    after = f" after turn {rest}" if rest else ""
    talk.face.tell("dim", f"forked{after}: this is {made}; /sessions {now.id} goes back")


async def _new(talk: Talk, rest: str) -> None:
    _, before = talk.opened()
    name = new_session_id() if not rest else _checked(rest)
    await talk.open_session(name)
    was_there = bool(await talk.opened()[1].position())
    what = f"{name} already existed" if was_there else "a new session"
    talk.face.tell("dim", f"{what}; /sessions {before.id} goes back")


def _checked(name: str) -> str:
    try:
        return session_name(name)
    except ArgumentTypeError as error:
        raise UserError(str(error)) from None


async def _compact(talk: Talk, rest: str) -> None:
    _, session = talk.opened()
    before = await session.position()
    result = await session.compact()
    if any(isinstance(each.event, Compressed) for each in await session.events(after=before)):
        talk.face.tell("dim", "done; /export still writes everything, the model sees a summary")
    elif result.outcome == "completed":
        talk.face.tell("dim", "unchanged: there is nothing to shorten")


async def _export(talk: Talk, rest: str) -> None:
    from bargein.cli.export import as_markdown

    _, session = talk.opened()
    name = rest or f"{session.id}.md"
    page = as_markdown(await session.events())
    if not page.strip():
        raise UserError("nothing has been said here yet")
    try:
        async with await anyio.open_file(name, "x", encoding="utf-8") as file:
            await file.write(page)
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}; name another file: /export NAME") from error
    talk.face.tell("note", f"written to {name}")


async def _help(talk: Talk, rest: str) -> None:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  /{name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    for name, custom in talk.custom.read().items():
        lines.append(f"  /{name:<{width}}  {custom.help}")
    lines.append(f"  !{'command':<{width}}  run a command yourself; only you see its output")
    lines.append(f"  @{'file':<{width}}  sends the file along; found by any of its letters")
    keys = talk.config.keys()
    lines += ["", *(f"  {', '.join(keys[name]):<19}  {ACTIONS[name][1]}" for name in keys)]
    talk.face.tell("note", "\n".join(lines))


async def _exit(talk: Talk, rest: str) -> None:
    talk.face.leave()


COMMANDS: dict[str, SlashCommand] = {
    "stop": SlashCommand("stop what runs, hold what waits; /stop all: the background too", _stop),
    "redirect": SlashCommand("stop the answer and say this instead", _redirect, needs_words=True),
    "steer": SlashCommand("add this to the running turn", _steer, needs_words=True),
    "queue": SlashCommand("send this as its own turn, later", _queue, needs_words=True),
    "btw": SlashCommand("ask something beside the running turn; /btw stop", _btw, needs_words=True),
    "inbox": SlashCommand("list what waits; /inbox drop ID, /inbox edit ID WORDS", _inbox),
    "undo": SlashCommand("take the last turn back, with its files; /undo --preview", undo),
    "redo": SlashCommand("take back what /undo did to files", redo),
    "rewind": SlashCommand("list the turns; /rewind TURN goes back to before it", rewind),
    "diff": SlashCommand("show what the last turn changed in files; /diff TURN", diff),
    "stage": SlashCommand("show what is staged; /stage accept, discard, undo, on or off", stage),
    "retry": SlashCommand("ask again what a failure or crash left unanswered", _retry),
    "pause": SlashCommand("pause before the next step", _pause),
    "continue": SlashCommand("continue after a pause, or with what is held", _continue),
    "bg": SlashCommand("move the running call to the background", _background),
    "tasks": SlashCommand("list what runs; /tasks stop ID", _tasks),
    "answer": SlashCommand("answer the open question", _answer, needs_words=True),
    "tell": SlashCommand("send the last !command and its output", _tell),
    "share": SlashCommand("let a guest in: /share NAME; list, approve NAME, deny NAME", share),
    "unshare": SlashCommand("let all guests of this session out again", unshare),
    "model": SlashCommand("choose the model; /model NAME", _model),
    "mode": SlashCommand("what runs without asking: /mode plan, ask, auto-edit or full", _mode),
    "grants": SlashCommand("list what you allowed for longer; /grants revoke ID", _grants),
    "todo": SlashCommand("show the model's plan", _todo),
    "tools": SlashCommand("list the model's tools", _tools),
    "mcp": SlashCommand("show MCP servers; /mcp NAME lists the tools of one", _mcp),
    "status": SlashCommand("show model, state and usage", _status),
    "output": SlashCommand("show all of the last call; /output ID of that one", _output),
    "receipt": SlashCommand("show the last stop in full", _receipt),
    "sessions": SlashCommand("choose among all sessions; /sessions ID opens one", _sessions),
    "resume": SlashCommand("choose a session, of this folder first; /resume ID", _resume),
    "rename": SlashCommand("give this session a title", _rename, needs_words=True),
    "fork": SlashCommand("go on in a copy; /fork TURN: as it was after that turn", _fork),
    "panic": SlashCommand("stop everything, in all sessions", _panic),
    "new": SlashCommand("start a new session", _new),
    "compact": SlashCommand("shorten what the model sees of this session", _compact),
    "export": SlashCommand("write the session as Markdown; /export FILE", _export),
    "help": SlashCommand("this list", _help, at_once=True),
    "exit": SlashCommand("leave", _exit, at_once=True),
}
