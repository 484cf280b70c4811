from pathlib import Path

import anyio
import pytest

from bargein.models.script import Call, Say, Step, Wait
from bargein.server.sessions import new_id
from bargein.tools import ToolContext, tool
from tests.server.stage import Json, Script, Stage, serving
from tests.session.world import until

pytestmark = pytest.mark.anyio

HOLD: list[Step] = [Say("One "), Wait("hold"), Say("two.")]


async def test_a_message_is_answered_and_its_turn_can_be_read(tmp_path: Path) -> None:
    async with serving([[Say("Hello.")]], tmp_path) as stage:
        session = await stage.new_session()
        sent = await stage.post(f"{session}/messages", {"text": "hi"})
        assert sent["disposition"] == "started"
        turn = await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
        assert (turn["state"], turn["outcome"], turn["text"]) == ("settled", "completed", "Hello.")
        assert turn["messages"] == [sent["message"]]
        transcript = await stage.get(f"{session}/transcript")
        assert [each["type"] for each in transcript["messages"]] == ["user", "assistant"]


async def test_a_turn_that_runs_is_told_as_it_stands_when_the_wait_is_over(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session, turn = await started(stage)
        view = await stage.get(f"{session}/turns/{turn}?wait=true&wait_s=0")
        assert view["state"] == "running"
        stage.model.gate("hold").open()
        view = await stage.get(f"{session}/turns/{turn}?wait=true")
        assert view["text"] == "One two."


async def test_an_interrupt_gives_the_receipt(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session, turn = await started(stage)
        receipt = await stage.post(f"{session}/interrupt")
        assert (receipt["status"], receipt["target"]) == ("stopped", turn)
        assert receipt["by"] == "operator"
        again = await stage.post(f"{session}/interrupt", {"expected_turn_id": turn})
        assert again["status"] == "too_late"


async def test_an_interrupt_holds_a_steer_that_was_not_taken(tmp_path: Path) -> None:
    begun: list[str] = []

    @tool
    async def waits(context: ToolContext) -> str:
        """Wait."""
        begun.append(context.call_id)
        await context.token.wait_async()
        return "stopped"

    script: Script = [[Call("waits", {})], [Say("that way")]]
    async with serving(script, tmp_path, tools=[waits]) as stage:
        session = await stage.new_session()
        await stage.post(f"{session}/messages", {"text": "go"})
        await until(lambda: begun)
        steer = await stage.post(f"{session}/messages", {"text": "another way"})
        assert steer["disposition"] == "steering"
        receipt = await stage.post(f"{session}/interrupt")
        assert (receipt["status"], receipt["held"]) == ("stopped", [steer["message"]])
        inbox = await stage.get(f"{session}/inbox")
        assert (inbox["held"], len(inbox["messages"])) == (True, 1)
        await stage.post(f"{session}/continue")
        turn = await stage.get(f"{session}/turns/t2?wait=true")
        assert (turn["messages"], turn["text"]) == ([steer["message"]], "that way")


async def test_an_interrupt_without_waiting_stops_all_the_same(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session, turn = await started(stage)
        status, answer = await stage.ask("POST", f"{session}/interrupt?wait=false")
        assert (status, answer["status"]) == (202, "accepted")
        view = await stage.get(f"{session}/turns/{turn}?wait=true")
        assert view["outcome"] == "stopped"
        assert view["receipt"]["by"] == "operator"


async def test_the_inbox_can_be_read_changed_and_let_go(tmp_path: Path) -> None:
    script: Script = [HOLD, [Say("b")], [Say("a, changed")]]
    async with serving(script, tmp_path) as stage:
        session, turn = await started(stage)
        ids = []
        for text in ("a", "b", "c"):
            sent = await stage.post(f"{session}/messages", {"text": text, "mode": "queue"})
            assert sent["disposition"] == "queued"
            ids.append(sent["message"])
        first, second, third = ids
        await change(stage, f"{session}/inbox/{first}", {"text": "a!"})
        await change(stage, f"{session}/inbox/{second}", {"before": first})
        status, _ = await stage.ask("DELETE", f"{session}/inbox/{third}")
        assert status == 200
        inbox = await stage.get(f"{session}/inbox")
        told = [(each["message"]["id"], text_of(each)) for each in inbox["messages"]]
        assert told == [(second, "b"), (first, "a!")]
        await stage.post(f"{session}/interrupt", {"expected_turn_id": turn})
        inbox = await stage.get(f"{session}/inbox")
        assert (inbox["held"], len(inbox["messages"])) == (True, 2)
        await stage.post(f"{session}/continue")
        async with stage.events(f"{session}/events?after=0") as events:
            for _ in range(3):
                await events.until("turn_settled")
        assert (await stage.get(f"{session}/inbox"))["messages"] == []
        late = await stage.ask("PATCH", f"{session}/inbox/{first}", {"text": "x"})
        assert (late[0], late[1]["status"]) == (200, "too_late")
        status, _ = await stage.ask("PATCH", f"{session}/inbox/m99", {"text": "x"})
        assert status == 404


async def test_news_of_the_background_can_be_taken_out_of_the_inbox(tmp_path: Path) -> None:
    begun: list[str] = []

    @tool
    async def waits(context: ToolContext) -> str:
        """Wait."""
        begun.append(context.call_id)
        await context.token.wait_async()
        return "stopped"

    async with serving([[Call("waits", {})], HOLD], tmp_path, tools=[waits]) as stage:
        session = await stage.new_session()
        await stage.post(f"{session}/messages", {"text": "go"})
        await until(lambda: begun)
        await stage.post(f"{session}/calls/{begun[0]}/detach")
        await stage.model.gate("hold").reached()
        await stage.post(f"{session}/messages", {"text": "later", "mode": "queue"})
        await stage.post(f"{session}/interrupt")
        await stage.post(f"{session}/calls/{begun[0]}/interrupt")
        inbox = await stage.get(f"{session}/inbox")
        (news,) = (
            each["message"]["id"]
            for each in inbox["messages"]
            if each["message"]["sender"] == "background"
        )
        status, answer = await stage.ask("DELETE", f"{session}/inbox/{news}")
        assert (status, answer["status"]) == (200, "done")
        assert len((await stage.get(f"{session}/inbox"))["messages"]) == 1


async def test_reject_is_refused_while_a_turn_runs(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session, _ = await started(stage)
        status, answer = await stage.ask(
            "POST", f"{session}/messages", {"text": "x", "mode": "reject"}
        )
        assert (status, answer["code"]) == (409, "busy")


async def test_a_turn_is_paused_and_resumed(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session, turn = await started(stage)
        assert (await stage.post(f"{session}/pause"))["status"] == "done"
        view = await stage.get(session)
        assert (view["session"]["phase"], view["session"]["turn"]) == ("paused", turn)
        assert (await stage.post(f"{session}/resume"))["status"] == "done"
        assert (await stage.get(session))["session"]["phase"] == "running"
        await stage.post(f"{session}/interrupt")
        assert (await stage.post(f"{session}/pause"))["status"] == "too_late"


@tool
async def ask_first(context: ToolContext) -> str:
    """Ask before doing anything."""
    return await context.ask("Shall I?")


async def test_a_question_is_listed_and_answered_by_its_id(tmp_path: Path) -> None:
    script: Script = [[Call("ask_first")], [Say("done")]]
    async with serving(script, tmp_path, tools=[ask_first]) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events?after=0") as events:
            sent = await stage.post(f"{session}/messages", {"text": "go"})
            asked = await events.until("question_asked")
            view = await stage.get(session)
            (question,) = view["questions"]
            assert view["session"]["asking"] == 1
            assert question["id"] == asked["event"]["id"]
            assert question["question"]["text"] == "Shall I?"
            (call,) = view["calls"]
            assert (call["id"], call["name"]) == (question["call_id"], "ask_first")
            path = f"{session}/questions/{question['id']}/answer"
            assert (await stage.post(path, {"text": "yes"}))["status"] == "done"
            closed = await events.until("question_closed")
            assert (closed["event"]["answer"], closed["event"]["by"]) == ("yes", "operator")
            await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
            assert (await stage.post(path, {"text": "no"}))["status"] == "too_late"


@tool
async def terminal(command: str) -> str:
    """Only say what would have run."""
    return f"ran {command}"


@pytest.mark.parametrize(
    ("said", "meant", "told"),
    [
        ("allow", "allow", "ran rm -rf build"),
        ("yes", "allow", "ran rm -rf build"),
        (" Y ", "allow", "ran rm -rf build"),
        ("no", "deny", "did not allow this call"),
        ("yes, but not that one", "yes, but not that one", "not that one"),
    ],
)
async def test_an_approval_is_answered_in_the_words_of_the_terminal(
    tmp_path: Path, said: str, meant: str, told: str
) -> None:
    script: Script = [[Call("terminal", {"command": "rm -rf build"})], [Say("done")]]
    async with serving(script, tmp_path, tools=[terminal]) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events?after=0") as events:
            sent = await stage.post(f"{session}/messages", {"text": "go"})
            question = (await events.until("question_asked"))["event"]["id"]
            path = f"{session}/questions/{question}/answer"
            assert (await stage.post(path, {"text": said}))["status"] == "done"
            assert (await events.until("question_closed"))["event"]["answer"] == meant
            await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
        transcript = str(await stage.get(f"{session}/transcript"))
        assert told in transcript


async def test_a_choice_that_is_given_whole_is_that_one_and_not_a_number(tmp_path: Path) -> None:
    """As the page gives it."""
    asked = Call("how_many")
    async with serving([[asked], [Say("done")]], tmp_path, tools=[how_many]) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events?after=0") as events:
            await stage.post(f"{session}/messages", {"text": "go"})
            question = (await events.until("question_asked"))["event"]["id"]
            await stage.post(f"{session}/questions/{question}/answer", {"text": "2"})
            assert (await events.until("question_closed"))["event"]["answer"] == "2"


@tool
async def how_many(context: ToolContext) -> str:
    """Ask how many."""
    return await context.ask("How many?", choices=("4", "3", "2"))


@tool
async def wait_long() -> str:
    """Wait until stopped."""
    await anyio.sleep_forever()
    raise AssertionError


async def test_one_call_is_stopped_and_the_turn_goes_on(tmp_path: Path) -> None:
    script: Script = [[Call("wait_long")], [Say("went on")]]
    async with serving(script, tmp_path, tools=[wait_long]) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events?after=0") as events:
            sent = await stage.post(f"{session}/messages", {"text": "go"})
            call = (await events.until("call_started"))["event"]["call"]["id"]
            receipt = await stage.post(f"{session}/calls/{call}/interrupt")
            assert (receipt["status"], receipt["scope"]) == ("stopped", "call")
            turn = await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
            assert (turn["outcome"], turn["text"]) == ("completed", "went on")


async def test_a_call_is_moved_to_the_background(tmp_path: Path) -> None:
    script: Script = [[Call("wait_long")], [Say("went on")]]
    async with serving(script, tmp_path, tools=[wait_long]) as stage:
        session = await stage.new_session()
        async with stage.events(f"{session}/events?after=0") as events:
            sent = await stage.post(f"{session}/messages", {"text": "go"})
            running = (await events.until("call_started"))["event"]["call"]["id"]
            assert (await stage.post(f"{session}/calls/{running}/detach"))["status"] == "done"
            turn = await stage.get(f"{session}/turns/{sent['turn']}?wait=true")
            assert turn["outcome"] == "completed"
            (call,) = (await stage.get(session))["calls"]
            assert (call["id"], call["detached"]) == (running, True)
            receipt = await stage.post(f"{session}/interrupt", {"scope": "session"})
            assert receipt["status"] == "stopped"
            assert (await stage.post(f"{session}/calls/{running}/detach"))["status"] == "too_late"


async def test_sessions_are_listed_a_page_at_a_time(tmp_path: Path) -> None:
    async with serving([], tmp_path) as stage:
        made = {await stage.new_session() for _ in range(5)}
        seen: list[str] = []
        path: str | None = "/v1/sessions?limit=2"
        while path is not None:
            page = await stage.get(path)
            assert len(page["sessions"]) <= 2
            seen += [f"/v1/sessions/{each['id']}" for each in page["sessions"]]
            path = f"/v1/sessions?limit=2&before={page['next']}" if page["next"] else None
        assert len(seen) == 5
        assert set(seen) == made


async def test_a_deleted_session_is_gone_with_all_that_ran(tmp_path: Path) -> None:
    async with serving([HOLD], tmp_path) as stage:
        session, _ = await started(stage)
        status, _ = await stage.ask("DELETE", session)
        assert status == 204
        assert stage.model.plays[0].outcome == "cancelled"
        for method, path in (("GET", session), ("POST", f"{session}/interrupt")):
            status, answer = await stage.ask(method, path)
            assert (status, answer["code"]) == (404, "not_found")
        assert (await stage.get("/v1/sessions"))["sessions"] == []


async def test_words_that_are_commands_are_obeyed(tmp_path: Path) -> None:
    async with serving([HOLD, [Say("I will not.")]], tmp_path) as stage:
        session, turn = await started(stage)
        status = await stage.post(f"{session}/messages", {"text": "/status"})
        assert (status["command"], status["message"]) == ("status", None)
        assert status["reply"] == f"running, {turn}"
        helped = await stage.post(f"{session}/messages", {"text": "/help"})
        assert "/stop" in helped["reply"]
        stopped = await stage.post(f"{session}/messages", {"text": " Stop! "})
        assert (stopped["disposition"], stopped["command"]) == ("obeyed", "stop")
        assert (stopped["receipt"]["status"], stopped["receipt"]["target"]) == ("stopped", turn)
        nothing = await stage.post(f"{session}/messages", {"text": "/stop"})
        assert nothing["receipt"]["status"] == "too_late"
        literal = await stage.post(f"{session}/messages", {"text": "stop", "literal": True})
        assert literal["disposition"] == "started"


async def test_what_waits_and_who_runs_is_told_to_admins_who_may_stop_it(tmp_path: Path) -> None:
    async with serving([HOLD, HOLD], tmp_path) as stage:
        one, turn = await started(stage)
        bob = await stage.person("bob")
        running = await stage.get("/v1/admin/running")
        (entry,) = running["sessions"]
        assert (entry["turn"], entry["owner"], entry["phase"]) == (turn, "operator", "running")
        for method, path in (("GET", "running"), ("POST", "stop"), ("GET", "audit")):
            status, _ = await stage.ask(method, f"/v1/admin/{path}", token=bob)
            assert status == 403
        stopped = await stage.post("/v1/admin/stop", {"reason": "too loud"})
        assert [each["target"] for each in stopped["receipts"]] == [turn]
        assert (await stage.get("/v1/admin/running"))["sessions"] == []
        entries = (await stage.get("/v1/admin/audit"))["entries"]
        actions = [(each["principal"], each["action"], each["status"]) for each in entries]
        assert ("operator", "send_message", 202) in actions
        assert ("bob", "stop_running", 403) in actions
        assert ("operator", "stop_running", 200) in actions
        assert "too loud" in [each["detail"] for each in entries]
        assert [each["number"] for each in entries] == sorted(each["number"] for each in entries)
        assert one.rpartition("/")[2] in {each["session"] for each in entries}


async def test_a_child_is_seen_by_its_own_id_and_by_whoever_sees_its_root(
    tmp_path: Path,
) -> None:
    async with serving([], tmp_path, start_token=None) as stage:
        alice, bob = await stage.person("alice"), await stage.person("bob")
        session = await stage.new_session(token=alice)
        root = session.rpartition("/")[2]
        head = await stage.engine.store.head(root)
        assert head is not None
        child = f"{root}/t1_1_1.1"
        await stage.engine.store.create(child, root=root, at=1.0, epoch=head.epoch)
        for name in (child, child.replace("/", "%2F")):
            view = await stage.get(f"/v1/sessions/{name}", token=alice)
            assert view["session"]["id"] == child
            assert (await stage.get(f"/v1/sessions/{name}/inbox", token=alice))["messages"] == []
            assert (await stage.ask("GET", f"/v1/sessions/{name}", token=bob))[0] == 404
        for path in (f"{root}/t9_9.1", f"{root}/inbox.1", f"{root}/"):
            assert (await stage.ask("GET", f"/v1/sessions/{path}", token=alice))[0] == 404
        status, answer = await stage.ask("DELETE", f"/v1/sessions/{child}", token=alice)
        assert (status, answer["code"]) == (400, "bad_request")


async def started(stage: Stage) -> tuple[str, str]:
    """A session whose turn has said "One " and waits."""
    session = await stage.new_session()
    sent = await stage.post(f"{session}/messages", {"text": "count"})
    await stage.model.gate("hold").reached()
    return session, str(sent["turn"])


async def change(stage: Stage, path: str, body: Json) -> None:
    status, answer = await stage.ask("PATCH", path, body)
    assert (status, answer["status"]) == (200, "done"), answer


def text_of(entry: Json) -> str:
    text: str = entry["message"]["content"][0]["text"]
    return text


def test_no_id_is_taken_for_an_option_on_a_command_line() -> None:
    ids = {new_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert {each for each in ids if each.startswith("-")} == set()


async def test_the_permission_mode_is_changed_and_shown_and_a_wrong_one_refused(
    tmp_path: Path,
) -> None:
    async with serving([], tmp_path) as stage:
        session = await stage.new_session()
        assert (await stage.get(session))["mode"] == "ask"
        status, changed = await stage.ask("PATCH", session, {"mode": "plan"})
        assert (status, changed["mode"]) == (200, "plan")
        assert (await stage.get(session))["mode"] == "plan"
        assert (await stage.ask("PATCH", session, {"mode": "reckless"}))[0] in (400, 422)
