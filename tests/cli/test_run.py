"""`bargein run` as a shell knows it: exit codes, pipes, Ctrl-C, JSON."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bargein.cli.run import read_output
from bargein.errors import UserError
from tests.cli.screen import PROGRAM

SCRIPT = """
repeat = true
[[answers]]
when = "work"
steps = [{ do = "call", name = "nothing" }]
[[answers]]
when = "look"
steps = [
    { do = "say", text = "Let me look." },
    { do = "call", name = "read_file", arguments = { path = "." } },
]
[[answers]]
when = "lines"
steps = [{ do = "say", text = "one line\\n" }]
[[answers]]
when = "wait"
steps = [{ do = "say", text = "waiting " }, { do = "pause", seconds = 600 }]
[[answers]]
when = "fail"
steps = [{ do = "fail", status = 400 }]
[[answers]]
steps = [{ do = "say", text = "the answer" }]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "script.toml").write_text(SCRIPT)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BARGEIN_HOME": str(tmp_path / "data"),
        "BARGEIN_MODEL": f"scripted:{tmp_path / 'script.toml'}",
    }


# The events come only when the turn's result is known.
LATE_EVENTS = """
import sys, anyio
from bargein.cli.main import main
from bargein.session.session import Sent, Session

watch, result, known = Session.watch, Sent.result, []

async def late_watch(self, **given):
    gate = anyio.Event()
    known.append(gate)
    async for event in watch(self, **given):
        await gate.wait()
        yield event

async def early_result(self, *given):
    ended = await result(self, *given)
    known[0].set()
    return ended

Session.watch, Sent.result = late_watch, early_result
sys.exit(main())
"""


def start(environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [PROGRAM, "run", *arguments],
        env=environment,
        cwd=environment["HOME"],
        stdin=subprocess.DEVNULL if arguments else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child: "subprocess.Popen[str]", given: str = "") -> tuple[int, str, str]:
    out, err = child.communicate(given or None, timeout=30)
    return child.returncode, out, err


def test_the_answer_and_nothing_else_is_on_stdout(environment: dict[str, str]) -> None:
    assert finish(start(environment, "hello"))[:2] == (0, "the answer\n")


def test_the_prompt_may_come_from_a_pipe(environment: dict[str, str]) -> None:
    assert finish(start(environment), "hello")[:2] == (0, "the answer\n")


def test_what_is_said_before_and_after_a_call_are_lines_of_their_own(
    environment: dict[str, str],
) -> None:
    child = subprocess.run(
        [PROGRAM, "run", "look"],
        env=environment,
        cwd=environment["HOME"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=True,
    )
    first, *calls, last = child.stdout.splitlines()
    assert (first, last) == ("Let me look.", "the answer")
    assert calls
    assert all(each.startswith("read_file") for each in calls)


def test_an_answer_that_ends_its_line_gets_no_empty_one(environment: dict[str, str]) -> None:
    assert finish(start(environment, "lines"))[:2] == (0, "one line\n")


def test_no_prompt_at_all_is_wrong_usage(environment: dict[str, str]) -> None:
    code, out, err = finish(start(environment))
    assert (code, out) == (2, "")
    assert "nothing to do" in err


def test_ctrl_c_stops_the_turn_and_exits_with_130(environment: dict[str, str]) -> None:
    child = start(environment, "wait")
    assert child.stdout is not None
    assert child.stdout.read(7) == "waiting"
    child.send_signal(signal.SIGINT)
    code, _, err = finish(child)
    assert code == 130
    assert "stopped in" in err
    assert "Traceback" not in err


def test_in_the_background_of_a_script_it_is_not_ended_by_ctrl_c(
    environment: dict[str, str],
) -> None:
    """A shell without job control has the signal ignored there: Ctrl-C is for what is in front.
    Here it comes all the time, from before the first line to the last. The shell ignores it too,
    because a child of its own hears it for an instant before it is the program."""
    line = (
        "trap '' INT; "
        '"$0" run hello & while kill -INT $! 2>/dev/null; do sleep 0.01; done; wait $!'
    )
    done = subprocess.run(
        ["bash", "-c", line, PROGRAM],
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (0, "the answer\n")


def test_out_of_time_exits_with_124(environment: dict[str, str]) -> None:
    code, _, err = finish(start(environment, "--timeout", "0.3", "wait"))
    assert code == 124
    assert "out of time" in err


def test_out_of_time_is_told_once_and_as_such(environment: dict[str, str]) -> None:
    _, _, told = finish(start(environment, "--timeout", "0.5", "wait"))
    assert told.count("out of time: 0.5 s") == 1
    assert "bargein run" not in told


def test_a_closed_pipe_is_not_a_traceback(environment: dict[str, str]) -> None:
    child = start(environment, "hello")
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    err = child.stderr.read()
    assert child.wait(30) == 141
    assert "Traceback" not in err
    child.stderr.close()


def test_json_is_one_event_a_line(environment: dict[str, str]) -> None:
    code, out, _ = finish(start(environment, "--json", "hello"))
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [e["seq"] for e in events if "seq" in e] == list(
        range(1, 1 + sum("seq" in e for e in events))
    )
    assert events[-1]["event"]["type"] == "turn_settled"


def test_a_failing_model_exits_with_1_and_says_why(environment: dict[str, str]) -> None:
    code, _, err = finish(start(environment, "fail"))
    assert code == 1
    assert err.startswith("bargein run: scripted:")
    assert "answered 400" in err
    assert err.count("\n") == 1


def test_a_disk_that_takes_no_more_is_told_in_a_sentence(environment: dict[str, str]) -> None:
    assert finish(start(environment, "hello"))[0] == 0
    # Room for the index of SQLite's log, in blocks of 512 bytes, and for next to nothing in it:
    # whichever write comes first is told of.
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 64; exec "$0" run hello', PROGRAM],
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert told.startswith("bargein run: ")
    assert "Check the free space, the quota and the health of the disk" in told
    assert "Traceback" not in done.stderr


def test_a_session_is_gone_on_with(environment: dict[str, str]) -> None:
    assert finish(start(environment, "--session", "mine", "one"))[0] == 0
    assert finish(start(environment, "--session", "mine", "two"))[0] == 0
    done = subprocess.run(
        [PROGRAM, "sessions", "show", "mine"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("the answer") == 2


def test_an_unknown_model_says_what_to_write(environment: dict[str, str]) -> None:
    code, _, err = finish(start({**environment, "BARGEIN_MODEL": "dance"}, "hello"))
    assert code == 2
    assert "dance" in err
    assert "openai:NAME" in err


def test_a_home_that_is_a_file_says_so(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = finish(start({**environment, "BARGEIN_HOME": str(tmp_path / "file")}, "hi"))
    assert code == 2
    assert "BARGEIN_HOME" in err


def test_a_budget_that_is_used_up_is_told(environment: dict[str, str]) -> None:
    (Path(environment["HOME"]) / "bargein.toml").write_text("[budget]\nsteps = 2")
    code, _, told = finish(start(environment, "look"))
    assert code == 1
    assert "the turn has used its 2 steps; send a message to go on" in told
    code, _, told = finish(start({**environment, "BARGEIN_BUDGET_TIME_S": "0.3"}, "wait"))
    assert code == 124
    assert "the turn has used its 0.3 s" in told


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
TYPED = """
[[answers]]
when = "city"
steps = [
    { do = "say", text = "Let me look." },
    { do = "call", name = "read_file", arguments = { path = "." } },
]
[[answers]]
when = "city"
steps = [{ do = "say", text = "Paris" }]
[[answers]]
steps = [{ do = "say", text = '''
{
  "name": "Paris"
}''' }]
"""


@pytest.fixture
def typed(environment: dict[str, str]) -> dict[str, str]:
    home = Path(environment["HOME"])
    (home / "script.toml").write_text(TYPED)
    (home / "city.json").write_text(json.dumps(SCHEMA))
    return environment


def test_with_a_schema_one_json_object_is_all_that_is_on_stdout(typed: dict[str, str]) -> None:
    code, out, err = finish(start(typed, "--output-schema", "city.json", "Which city?"))
    assert (code, out) == (0, '{"name":"Paris"}\n')
    assert "read_file" in err


def test_with_a_schema_and_json_the_events_come_and_the_last_answer_fits(
    typed: dict[str, str],
) -> None:
    code, out, _ = finish(start(typed, "--json", "--output-schema", "city.json", "Which city?"))
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    said = [e["event"] for e in events if e.get("event", {}).get("type") == "assistant_said"]
    assert len(said) == 3
    assert json.loads(said[-1]["message"]["content"][0]["text"]) == {"name": "Paris"}


def test_an_answer_that_never_fits_is_a_failure_with_nothing_on_stdout(
    environment: dict[str, str],
) -> None:
    (Path(environment["HOME"]) / "city.json").write_text(json.dumps(SCHEMA))
    code, out, err = finish(start(environment, "--output-schema", "city.json", "hello"))
    assert (code, out) == (1, "")
    assert "does not fit what was asked for, after 2 repairs" in err


def test_a_stopped_run_with_a_schema_prints_nothing(environment: dict[str, str]) -> None:
    (Path(environment["HOME"]) / "city.json").write_text(json.dumps(SCHEMA))
    code, out, _ = finish(
        start(environment, "--output-schema", "city.json", "--timeout", "0.5", "wait")
    )
    assert (code, out) == (124, "")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("{", "truncated"),
        ("[]", "give an object"),
        ('{"patternProperties": {}}', "'patternProperties', which is not checked here"),
        ('{"$ref": "http://elsewhere/schema"}', "only what is inside it can be referred to"),
        (" " * 70_000, "more than 65536 bytes"),
        ("[" * 5000, "recursion"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, content: str | None, words: str
) -> None:
    file = tmp_path / "schema.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError) as raised:
        read_output(str(file))
    assert str(raised.value).startswith(f"--output-schema {file}: ")
    assert words in str(raised.value)


def test_a_schema_that_cannot_be_used_is_wrong_usage_before_anything_is_asked(
    environment: dict[str, str],
) -> None:
    code, out, err = finish(start(environment, "--output-schema", "no.json", "hello"))
    assert (code, out) == (2, "")
    assert err == "bargein run: --output-schema no.json: No such file or directory\n"
    assert not (Path(environment["HOME"]) / "data").exists()


def test_what_a_project_sets_is_left_out_and_said(environment: dict[str, str]) -> None:
    (Path(environment["HOME"]) / "bargein.toml").write_text('instructions = "Obey."\n')
    code, _, told = finish(start(environment, "look"))
    assert code == 0
    assert "bargein.toml: 1 of the settings is left out until you approve" in told
    assert "bargein config trust" in told


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["words", "json"])
def test_an_answer_that_comes_after_its_result_is_written(
    environment: dict[str, str], form: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE_EVENTS, "run", *form, "hello"],
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    if form:
        assert "turn_settled" in last
    else:
        assert last == "the answer"
