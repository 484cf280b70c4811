"""What can be set, in which order it counts, and what a mistake is told."""

import os
from pathlib import Path

import pytest

from bargein.cli.default_agent import policy_of, tool_settings_of
from bargein.cli.program import run
from bargein.errors import UserError
from bargein.runtime.config import Config, load_config, trust_file, unknown_variables
from bargein.runtime.settings import SETTINGS


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / "deep" / "deeper"
    folder.mkdir(parents=True)
    return folder


def loaded(project: Path, **environment: str) -> Config:
    home = project.parents[2]
    return load_config({"HOME": str(home), **environment}, folder=project)


def write(project: Path, text: str, *, own: bool = False) -> Path:
    top = project.parents[2]
    path = top / ".config" / "bargein" / "config.toml" if own else top / "project" / "bargein.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def approve(config: Config) -> None:
    (request,) = config.left_out
    trust_file(config.environment).judge(request, approved=True)


def test_each_place_counts_more_than_the_one_before(project: Path) -> None:
    write(project, 'model = "openai:project"\nbudget.steps = 7\ncontext_tokens = 1000')
    own = write(project, 'model = "openai:own"\nchat.leave_s = 2', own=True)
    approve(loaded(project))
    config = loaded(project)
    assert config["model"] == config.models.model == "openai:own"
    assert config.effective["model"].source == str(own)
    assert (config["budget.steps"], config.models.context_tokens) == (7, 1000)
    assert config.number("chat.leave_s") == 2.0
    assert loaded(project, BARGEIN_MODEL="openai:variable")["model"] == "openai:variable"
    flagged = load_config(
        {"HOME": str(project.parents[2]), "BARGEIN_MODEL": "openai:variable"},
        folder=project,
        flags={"model": "openai:flag"},
    )
    assert flagged.models.model == "openai:flag"
    assert flagged.effective["model"].source == "the command line"


def test_a_library_reads_no_file(project: Path) -> None:
    write(project, 'model = "openai:project"')
    assert load_config({"HOME": str(project.parents[2])})["model"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('modell = "x"', "there is no setting modell; did you mean model?"),
        ('openai_api_key = "x"', "keys are read from the environment only"),
        ("model = 3", "model = 3 is not valid: give some text"),
        ("budget.steps = true", "budget.steps = True is not valid: give a whole number"),
        ("chat.leave_s = -1", "chat.leave_s = -1 is not valid: give a number of seconds"),
        ("chat.escape_wait_ms = 5000", "a whole number of milliseconds from 0 to 1000"),
        ('chat.enter = "dance"', "give one of steer, queue, interrupt"),
        ('chat.plain = "yes"', "give true or false"),
        ("approval.deny = [1]", "give a list of texts"),
        ('home = "/elsewhere"', "home cannot be set by a project"),
        ('approval.allow = ["*"]', "approval.allow cannot be set by a project"),
        ('keys.dance = "f1"', "there is no setting keys.dance"),
        ('keys.stop = "ctrl-dance"', "'ctrl-dance' is no key"),
        ('keys.stop = "x"', "'x' alone is needed for writing"),
        ('keys.stop = "ctrl-i"', "cannot tell ctrl-i from tab"),
        ('keys.stop = "ctrl-c"', "ctrl-c is the key of both"),
        ("keys.stop = []", "give a key such as"),
        ("model = ", "is not TOML"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_to_do(
    project: Path, text: str, told: str
) -> None:
    path = write(project, text)

    def approve_and_load() -> None:
        approve(loaded(project))
        loaded(project)

    with pytest.raises(UserError) as caught:
        approve_and_load()
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_a_variable_that_does_not_fit_is_named(project: Path) -> None:
    with pytest.raises(UserError, match="BARGEIN_BUDGET_STEPS is 'many': give a whole number"):
        loaded(project, BARGEIN_BUDGET_STEPS="many")


def test_networks_are_networks_wherever_they_are_set(project: Path) -> None:
    wrong = "'home' is no network; write it like 10.0.0.0/8 or fd00::/8"
    with pytest.raises(UserError, match=wrong):
        loaded(project, BARGEIN_TOOLS_WEB_NETWORKS_ALLOWED="10.0.0.0/8, home")
    with pytest.raises(UserError, match="has bits beyond its length; did you mean"):
        loaded(project, BARGEIN_TOOLS_WEB_NETWORKS_ALLOWED="10.0.0.1/8")
    path = write(project, 'tools.web_networks_allowed = ["home"]', own=True)
    with pytest.raises(UserError, match=wrong) as caught:
        loaded(project)
    assert str(path) in str(caught.value)
    path.write_text('tools.web_networks_allowed = ["10.0.0.0/8", "192.168.1.7"]')
    assert loaded(project).texts("tools.web_networks_allowed") == ("10.0.0.0/8", "192.168.1.7")


def test_a_list_in_a_variable_may_have_spaces_in_it(project: Path) -> None:
    config = loaded(project, BARGEIN_APPROVAL_DENY="web_*, terminal ^git push ,")
    assert config.texts("approval.deny") == ("web_*", "terminal ^git push")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("BARGEIN_MODELL", "; did you mean BARGEIN_MODEL?"),
        ("BARGEIN_CHAT_LEAVES_S", "; did you mean BARGEIN_CHAT_LEAVE_S?"),
        ("BARGEIN_OPENAI_API_KEY", "; did you mean OPENAI_API_KEY?"),
        ("BARGEIN_SOMETHING", "; `bargein config` lists all settings"),
    ],
)
def test_a_variable_that_sets_nothing_is_told(name: str, hint: str) -> None:
    told = f"${name} sets nothing{hint}"
    assert unknown_variables({name: "1", "PATH": "/bin"}) == [told]


def test_what_sets_something_or_is_of_others_making_is_not_told() -> None:
    ours = {setting.variable: "1" for setting in SETTINGS}
    # What a cluster tells of a service with our name.
    theirs = {
        "BARGEIN_SERVICE_HOST": "10.0.0.1",
        "BARGEIN_SERVICE_PORT": "8484",
        "BARGEIN_SERVICE_PORT_HTTP": "8484",
        "BARGEIN_PORT": "tcp://10.0.0.1:8484",
        "BARGEIN_PORT_8484_TCP": "tcp://10.0.0.1:8484",
        "BARGEIN_PORT_8484_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_variables({**ours, **theirs, "BARGEIN_TYPO": ""}) == []
    assert len(unknown_variables({"BARGEIN_PORT": "8080"})) == 1


@pytest.mark.parametrize(
    ("command", "warned"), [("sessions", True), ("completion bash", False), ("config", False)]
)
def test_a_command_warns_of_it_once_and_goes_on(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    warned: bool,
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(project.parents[2]))
    monkeypatch.setenv("BARGEIN_HOME", str(project / "data"))
    monkeypatch.setenv("BARGEIN_MODELL", "local")
    assert run(command.split()) == 0
    told = capsys.readouterr().err
    warning = "bargein: $BARGEIN_MODELL sets nothing; did you mean BARGEIN_MODEL?\n"
    assert told.count(warning) == warned


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_file_that_is_none_is_told(project: Path, own: bool, kind: str) -> None:
    path = write(project, "", own=own)
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    with pytest.raises(UserError, match="is not a file") as caught:
        loaded(project)
    assert str(path) in str(caught.value)


def test_every_setting_has_a_variable_of_its_own() -> None:
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)


def test_tools_and_approvals_are_as_they_are_set(project: Path) -> None:
    write(project, 'tools.command_timeout_s = 5\napproval.deny = ["terminal ^git push"]')
    write(project, 'approval.allow = ["web_*"]', own=True)
    config = loaded(project)
    assert tool_settings_of(config).command_timeout_s == 5.0
    policy = policy_of(config)
    assert policy.decide("terminal", {"command": "git push origin"}).decision == "deny"
    assert policy.decide("terminal", {"command": "git status"}).decision == "allow"


def test_it_is_shown_with_its_sources_and_without_secrets(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(project, 'model = "openai:x@http://me:hunter2@host.example/v1"', own=True)
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(project.parents[2]))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:hunter2@proxy.example/v1")
    monkeypatch.setenv("BARGEIN_TYPO", "1")
    assert run(["config"]) == 0
    shown = capsys.readouterr().out
    assert "hunter2" not in shown
    assert "sk-very" not in shown
    assert "OPENAI_API_KEY" in shown
    assert "https://proxy.example/v1" in shown
    assert str(path) in shown
    assert "$BARGEIN_TYPO sets nothing" in shown


def test_the_page_names_every_setting_and_the_example_on_it_is_good(project: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert [each.key for each in SETTINGS if f"`{each.key}`" not in page] == []
    write(project, page.partition("```toml\n")[2].partition("```")[0])
    approve(loaded(project))
    config = loaded(project)
    assert config.keys()["background"] == ("ctrl-b", "f5")
    assert policy_of(config).decide("web_fetch", {"url": "x"}).decision == "deny"


@pytest.mark.parametrize(
    ("project", "own", "counts"),
    [
        ("plan", None, "plan"),
        ("ask", None, "ask"),
        ("plan", "full", "plan"),
        ("ask", "plan", "plan"),
        (None, "full", "full"),
        ("ask", "auto-edit", "ask"),
    ],
)
def test_a_project_can_only_tighten_the_mode(
    tmp_path: Path, project: str | None, own: str | None, counts: str
) -> None:
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "own")}
    folder = tmp_path / "project"
    folder.mkdir()
    if project is not None:
        (folder / "bargein.toml").write_text(f'mode = "{project}"\n')
    if own is not None:
        (tmp_path / "own" / "bargein").mkdir(parents=True)
        (tmp_path / "own" / "bargein" / "config.toml").write_text(f'mode = "{own}"\n')
    assert load_config(environment, folder=folder)["mode"] == counts
    asked = load_config({**environment, "BARGEIN_MODE": "full"}, folder=folder)
    assert asked["mode"] == "full"


@pytest.mark.parametrize("mode", ["full", "auto-edit"])
def test_a_project_cannot_loosen_the_mode(tmp_path: Path, mode: str) -> None:
    (tmp_path / "bargein.toml").write_text(f'mode = "{mode}"\n')
    with pytest.raises(UserError, match="may only tighten it to plan or ask"):
        load_config({"HOME": str(tmp_path)}, folder=tmp_path)
