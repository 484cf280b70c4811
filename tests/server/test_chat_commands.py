import pytest

from bargein.contracts.chat_commands import ChatCommand, chat_command_of, command_line_of


@pytest.mark.parametrize(
    "text", ["stop", "Stop", "STOP!", "stop.", " /stop \n", "/STOP", "стоп", "停止。", "¡Alto!"]
)
def test_these_mean_stop(text: str) -> None:
    assert chat_command_of(text) is ChatCommand.STOP


@pytest.mark.parametrize(
    "text", ["stop it", "please stop", "status", "help", "/stopp", "/", "", "!", "/etc", "s" * 999]
)
def test_these_are_words_for_the_model(text: str) -> None:
    assert chat_command_of(text) is None


def test_status_and_help_are_commands_only_with_a_slash() -> None:
    assert (chat_command_of("/status"), chat_command_of("/help")) == (
        ChatCommand.STATUS,
        ChatCommand.HELP,
    )


@pytest.mark.parametrize(
    "text", ["/undo", "/new", "/continue", "/queue", "/queue tea", "/redirect tea"]
)
def test_these_are_commands_where_a_person_has_only_words(text: str) -> None:
    line = command_line_of(text)
    assert line is not None
    assert f"/{line.command} {line.words}".strip() == text
    assert chat_command_of(text) is None


def test_only_queue_and_redirect_take_words() -> None:
    assert command_line_of("/undo the last line") is None
    assert command_line_of("/stop it") is None
