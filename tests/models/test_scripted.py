"""The scripted model, on every loop, and the files it is written in."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest

from bargein.calls import words
from bargein.cancel import Cancelled, CancelSource, Cause
from bargein.contracts.model import (
    AssistantMessage,
    CallPart,
    EndPart,
    ModelRequest,
    Part,
    ReasoningPart,
    StopReason,
    Text,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSchema,
    Usage,
    UsagePart,
    UserMessage,
)
from bargein.models.errors import ModelTimeout, ScriptError
from bargein.models.retry import RetryPolicy
from bargein.models.script import (
    Answer,
    Call,
    Check,
    Count,
    Expect,
    Fail,
    Pause,
    Say,
    Script,
    Stop,
    Think,
    Wait,
    load_script,
)
from bargein.models.scripted import ScriptedModel
from tests.conftest import BACKENDS, Backend
from tests.models.harness import HELLO, collect, joined, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=list(BACKENDS))
def anyio_backend(request: pytest.FixtureRequest) -> Backend:
    name: str = request.param
    return BACKENDS[name]


def asking(text: str) -> ModelRequest:
    return ModelRequest((UserMessage((Text(text),)),))


async def test_an_answer_with_everything() -> None:
    model = ScriptedModel(
        [
            [
                Think("hm", signature="proof"),
                Say("Let me look."),
                Call("read", {"path": "a"}),
                Call("read", '{"broken', id="mine"),
                Count(input_tokens=7, output_tokens=3, cached_input_tokens=2),
            ]
        ]
    )
    assert joined(await collect(model)) == [
        ReasoningPart("hm", "proof"),
        TextPart("Let me look."),
        CallPart(0, "call_1_0", "read", '{"path":"a"}'),
        CallPart(1, "mine", "read", '{"broken'),
        UsagePart(Usage(7, 3, 2)),
        EndPart(StopReason.TOOL_CALLS),
    ]
    assert model.plays[0].outcome == "ended"
    assert model.requests == [HELLO]


async def test_text_comes_word_by_word_at_its_pace() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    model = ScriptedModel([[Say("One two  three", pace_s=0.5)]], sleep=sleep)
    parts = await collect(model)
    assert [p.text for p in parts if isinstance(p, TextPart)] == ["One ", "two  ", "three"]
    assert slept == [0.5, 0.5, 0.5]


async def test_a_gate_holds_it_at_an_exact_place() -> None:
    model = ScriptedModel([[Say("before"), Wait("gate"), Say("after")]])
    seen: list[Part] = []

    async def consume() -> None:
        seen.extend(await collect(model))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await model.gate("gate").reached()
            assert model.plays[0].parts == [TextPart("before")]
            model.gate("gate").open()
    assert text_of(seen) == "beforeafter"


@pytest.mark.parametrize("step", [Wait("never"), Pause(3600), Say("slow", pace_s=3600)])
async def test_a_cancel_ends_every_kind_of_wait(step: Wait | Pause | Say) -> None:
    model = ScriptedModel([[Say("x"), step, Say("never")], [Say("nor this")]])
    source = CancelSource("request")
    async with model.open(HELLO, source.token) as stream:
        assert await anext(stream) == TextPart("x")
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(cancel_soon, source)
                with pytest.raises(Cancelled) as caught:
                    await _drain(stream)
        assert caught.value.token is source.token
    assert model.plays[0].outcome == "cancelled"
    assert len(model.plays) == 1
    assert stream.usage.estimated


async def _drain(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined]
        pass


async def cancel_soon(source: CancelSource) -> None:
    await anyio.lowlevel.checkpoint()
    source.cancel(Cause.USER_STOP)


async def test_the_callers_own_time_out_passes_through() -> None:
    model = ScriptedModel([[Wait("never")]])
    scope = anyio.CancelScope()

    async def be_out_of_time() -> None:
        await model.gate("never").reached()
        scope.deadline = anyio.current_time()

    async with anyio.create_task_group() as group:
        group.start_soon(be_out_of_time)
        with scope:
            await collect(model)
    assert scope.cancelled_caught
    assert model.plays[0].outcome == "closed"


async def test_faults_are_retried_like_any() -> None:
    model = ScriptedModel(
        [[Fail(fault="timeout", retry_after_s=0)], [Say("there")]],
        policy=RetryPolicy(delay_first_s=0),
    )
    assert text_of(await collect(model)) == "there"
    broken = ScriptedModel([[Fail(fault="timeout")]], policy=RetryPolicy(attempts_max=1))
    with pytest.raises(ModelTimeout, match="as the script says"):
        await collect(broken)


async def test_expectations_are_checked() -> None:
    conversation = ModelRequest(
        messages=(
            UserMessage((Text("What is in a?"),)),
            AssistantMessage((ToolCall("c", "read", "{}"),)),
            ToolMessage((ToolResult("c", (Text("forty-two"),)),)),
        ),
        system="Be brief.",
        tools=(ToolSchema("read", "", msgspec.Raw(b"{}")),),
    )
    right = Expect(user="in a", result="two", system="brief", tools=("read",), messages=3)
    await collect(ScriptedModel([[right, Say("ok")]]), request=conversation)
    for wrong in (
        Expect(user="in b"),
        Expect(result="three"),
        Expect(system="long"),
        Expect(tools=("write",)),
        Expect(messages=2),
    ):
        with pytest.raises(ScriptError, match="expects"):
            await collect(ScriptedModel([[wrong, Say("ok")]]), request=conversation)


async def test_a_check_of_ones_own_may_raise_anything() -> None:
    def check(request: ModelRequest) -> None:
        assert request.temperature == 1, "too cool"

    with pytest.raises(AssertionError, match="too cool"):
        await collect(ScriptedModel([[Check(check)]]))


async def test_answers_are_chosen_by_what_was_said() -> None:
    model = ScriptedModel(
        [Answer([Say("sunny")], when="WEATHER"), Answer([Say("hello")]), Answer([Say("again")])]
    )
    assert text_of(await collect(model, request=asking("hi"))) == "hello"
    assert text_of(await collect(model, request=asking("the weather?"))) == "sunny"
    assert text_of(await collect(model, request=asking("the weather?"))) == "again"
    with pytest.raises(ScriptError, match="no answer for request 4"):
        await collect(model, request=asking("more"))


async def test_what_the_engine_tells_of_a_stop_is_not_what_the_user_said() -> None:
    model = ScriptedModel(
        [Answer([Say("sunny")], when="^weather"), Answer([Say("a note")], when=r"^\[A list\] of")]
    )
    told = f"{words.CUT_OFF}\n[terminal: stopped]\nweather?"
    assert text_of(await collect(model, request=asking(told))) == "sunny"
    assert text_of(await collect(model, request=asking("[A list] of words"))) == "a note"


async def test_a_script_may_start_over() -> None:
    model = ScriptedModel(Script([[Say("a")], [Say("b")]], repeat=True))
    said = [text_of(await collect(model)) for _ in range(5)]
    assert said == ["a", "b", "a", "b", "a"]


async def test_why_it_stopped_can_be_said() -> None:
    parts = await collect(ScriptedModel([[Say("x"), Stop(StopReason.LENGTH)]]))
    assert parts[-1] == EndPart(StopReason.LENGTH)


TOML = """
repeat = true

[[answers]]
when = "weather"
steps = [
    { do = "think", text = "hm" },
    { do = "say", text = "Let me look." },
    { do = "call", name = "web", arguments = { url = "https://example.com" } },
]

[[answers]]
steps = [
    { do = "expect", user = "hi" },
    { do = "count", input_tokens = 3, output_tokens = 1 },
    { do = "say", text = "Hello." },
    { do = "stop", reason = "length" },
]
"""


class TestFiles:
    async def test_toml(self, tmp_path: Path) -> None:
        path = tmp_path / "script.toml"
        path.write_text(TOML)
        model = ScriptedModel.from_file(path)
        assert joined(await collect(model, request=asking("the weather"))) == [
            ReasoningPart("hm"),
            TextPart("Let me look."),
            CallPart(0, "call_1_0", "web", '{"url":"https://example.com"}'),
            UsagePart(Usage(3, 11, estimated=True)),
            EndPart(StopReason.TOOL_CALLS),
        ]
        assert joined(await collect(model, request=asking("hi"))) == [
            TextPart("Hello."),
            UsagePart(Usage(3, 1)),
            EndPart(StopReason.LENGTH),
        ]

    def test_json_is_read_the_same(self, tmp_path: Path) -> None:
        path = tmp_path / "script.json"
        path.write_text('{"answers": [{"steps": [{"do": "pause", "seconds": 1}]}]}')
        assert load_script(path).take(HELLO).steps == [Pause(1)]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("answers = []", "no answers"),
            ("not toml at all", "is invalid"),
            ('[[answers]]\nsteps = [{ do = "dance" }]', "dance"),
            ('[[answers]]\nsteps = [{ do = "say", txt = "x" }]', "txt"),
            ('[[answers]]\nsteps = [{ do = "say", text = 5 }]', "text"),
            ('[[answers]]\nwhen = "("\nsteps = []', "regular expression"),
            ("[[answers]]\nwhen = 3\nsteps = []", "when"),
        ],
    )
    def test_a_wrong_file_says_what_is_wrong(self, tmp_path: Path, text: str, words: str) -> None:
        path = tmp_path / "script.toml"
        path.write_text(text)
        with pytest.raises(ScriptError, match=words):
            load_script(path)
