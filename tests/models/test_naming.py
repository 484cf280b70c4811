from __future__ import annotations

from pathlib import Path

import pytest

from bargein.errors import UserError
from bargein.models.errors import MissingKey, ScriptError, Secret, UnknownModel
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.naming import resolve_model
from bargein.models.scripted import ScriptedEndpoint
from bargein.models.settings import ModelSettings, is_loopback, settings_from_environment

BOTH = ModelSettings(openai_key=Secret("ok"), anthropic_key=Secret("ak"))


def http(name: str, settings: ModelSettings = BOTH) -> HttpEndpoint:
    endpoint = resolve_model(name, settings).endpoints[0]
    assert isinstance(endpoint, HttpEndpoint)
    return endpoint


@pytest.mark.parametrize(
    ("name", "url", "key"),
    [
        ("openai:gpt-5", "https://api.openai.com/v1/chat/completions", "ok"),
        ("openai-responses:gpt-5", "https://api.openai.com/v1/responses", "ok"),
        ("anthropic:claude-x", "https://api.anthropic.com/v1/messages", "ak"),
    ],
)
def test_each_kind_is_asked_at_its_own_place(name: str, url: str, key: str) -> None:
    endpoint = http(name)
    assert endpoint.url == url
    assert endpoint.name == name
    assert endpoint.model == name.partition(":")[2]
    assert endpoint.key == Secret(key)


def test_a_server_of_ones_own_needs_no_key() -> None:
    settings = ModelSettings(openai_base_url="http://127.0.0.1:8000/v1/")
    endpoint = http("openai:llama", settings)
    assert endpoint.url == "http://127.0.0.1:8000/v1/chat/completions"
    assert endpoint.key is None


@pytest.mark.parametrize("base", ["https://proxy.example", "https://proxy.example/v1/"])
def test_the_version_may_stand_in_the_address(base: str) -> None:
    settings = ModelSettings(anthropic_base_url=base, anthropic_key=Secret("k"))
    assert http("anthropic:c", settings).url == "https://proxy.example/v1/messages"


def test_an_address_in_the_name_gets_the_key_only_on_its_own_host() -> None:
    there = http("openai:org/llama@http://127.0.0.1:11434/v1")
    assert there.model == "org/llama"
    assert there.url == "http://127.0.0.1:11434/v1/chat/completions"
    assert there.key is None
    same = http("openai:x@https://api.openai.com/v2")
    assert same.key == Secret("ok")
    assert http("openai:@cf/meta/llama").model == "@cf/meta/llama"


def test_a_chain_keeps_its_order() -> None:
    model = resolve_model("openai:a, anthropic:b", BOTH)
    assert [endpoint.name for endpoint in model.endpoints] == ["openai:a", "anthropic:b"]
    assert model.name == "openai:a,anthropic:b"


@pytest.mark.parametrize(
    ("name", "variable"), [("openai:x", "OPENAI_API_KEY"), ("anthropic:x", "ANTHROPIC_API_KEY")]
)
def test_a_missing_key_names_the_variable(name: str, variable: str) -> None:
    with pytest.raises(MissingKey, match=variable):
        resolve_model(name, ModelSettings())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-5", "did you mean openai:gpt-5"),
        ("claude-x", "did you mean anthropic:claude-x"),
        ("my.gguf", "local:my.gguf"),
        ("bard:x", "openai:NAME"),
        ("openai:", "lacks the name of the model"),
        ("", "names no model"),
        ("openai:a,,b", "names no model"),
        ("scripted", "scripted:PATH"),
    ],
)
def test_a_wrong_name_says_what_exists(name: str, words: str) -> None:
    with pytest.raises(UnknownModel, match=words):
        resolve_model(name, BOTH)


def test_a_script_is_read_when_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text('[[answers]]\nsteps = [{ do = "say", text = "hi" }]\n')
    model = resolve_model(f"scripted:{path}", ModelSettings())
    assert isinstance(model.endpoints[0], ScriptedEndpoint)
    with pytest.raises(ScriptError, match="cannot be read"):
        resolve_model(f"scripted:{tmp_path / 'none.toml'}", ModelSettings())


@pytest.mark.parametrize(
    "url", ["api.openai.com/v1", "ftp://x", "http://", "http://x:port", "http://x/?a=1", "nonsense"]
)
def test_an_address_that_is_none_names_the_variable(url: str) -> None:
    with pytest.raises(UserError, match="OPENAI_BASE_URL"):
        resolve_model("openai:x", ModelSettings(openai_base_url=url))


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    settings = ModelSettings(openai_key=Secret("sk-sécret"))
    with pytest.raises(UserError, match="OPENAI_API_KEY") as caught:
        resolve_model("openai:x", settings)
    assert "sécret" not in str(caught.value)


def test_known_models_know_their_context() -> None:
    assert http("openai:gpt-4o-mini").context_tokens == 128_000
    assert http("openai:somebody/gpt-5").context_tokens == 272_000
    assert http("openai:unheard-of").context_tokens is None
    settings = ModelSettings(openai_key=Secret("k"), context_tokens=5000)
    assert http("openai:unheard-of", settings).context_tokens == 5000


class TestEnvironment:
    def test_everything_that_can_be_set(self) -> None:
        settings = settings_from_environment(
            {
                "BARGEIN_MODEL": "openai:x",
                "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
                "OPENAI_API_KEY": " sk-1\n",
                "ANTHROPIC_API_KEY": "ak-1",
                "ANTHROPIC_BASE_URL": "http://127.0.0.1:2",
                "BARGEIN_CONTEXT_TOKENS": "4096",
                "HTTPS_PROXY": "proxy.example:3128",
                "NO_PROXY": "internal.example, .corp.example:8080",
            }
        )
        assert settings.model == "openai:x"
        assert settings.openai_base_url == "http://127.0.0.1:1/v1"
        assert settings.openai_key == Secret("sk-1")
        assert settings.anthropic_key == Secret("ak-1")
        assert settings.anthropic_base_url == "http://127.0.0.1:2"
        assert settings.context_tokens == 4096
        assert settings.proxy_for("https://api.openai.com/v1") == "http://proxy.example:3128"
        assert settings.proxy_for("http://api.openai.com/v1") is None
        for direct in (
            "https://127.0.0.1:9/v1",
            "https://localhost/v1",
            "https://internal.example/v1",
            "https://deep.internal.example/v1",
            "https://a.corp.example:8080/v1",
        ):
            assert settings.proxy_for(direct) is None
        assert settings.proxy_for("https://a.corp.example/v1") is not None

    def test_empty_is_as_good_as_unset(self) -> None:
        names = ("BARGEIN_MODEL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
        assert settings_from_environment(dict.fromkeys(names, " ")) == ModelSettings()
        assert settings_from_environment({}) == ModelSettings()

    @pytest.mark.parametrize("value", ["many", "0", "-5", "²"])
    def test_a_wrong_number_is_named(self, value: str) -> None:
        with pytest.raises(UserError, match="BARGEIN_CONTEXT_TOKENS"):
            settings_from_environment({"BARGEIN_CONTEXT_TOKENS": value})

    def test_a_proxy_of_another_kind_is_refused(self) -> None:
        with pytest.raises(UserError, match="ALL_PROXY"):
            settings_from_environment({"all_proxy": "socks5://user:pass@x:1"})


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("127.evil.example", False),
        ("localhost.example", False),
        ("10.0.0.1", False),
    ],
)
def test_what_is_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
