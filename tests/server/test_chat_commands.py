import pytest

from bargein.contracts.chat_commands import ChatCommand, chat_command_of


@pytest.mark.parametrize("text", ["stop", "Stop", "STOP!", "stop.", " /stop \n", "/STOP"])
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
