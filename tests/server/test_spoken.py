import pytest

from bargein.contracts.spoken import Spoken, spoken_of


@pytest.mark.parametrize("text", ["stop", "Stop", "STOP!", "stop.", " /stop \n", "/STOP"])
def test_these_mean_stop(text: str) -> None:
    assert spoken_of(text) is Spoken.STOP


@pytest.mark.parametrize(
    "text", ["stop it", "please stop", "status", "help", "/stopp", "/", "", "!", "/etc", "s" * 999]
)
def test_these_are_words_for_the_model(text: str) -> None:
    assert spoken_of(text) is None


def test_status_and_help_are_commands_only_with_a_slash() -> None:
    assert (spoken_of("/status"), spoken_of("/help")) == (Spoken.STATUS, Spoken.HELP)
