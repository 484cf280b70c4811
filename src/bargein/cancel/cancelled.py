"""What a cancelled token raises."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bargein.cancel.token import Token


class Cancelled(BaseException):
    """Raised where a cancelled token is checked. Not an error: `except Exception` lets it pass."""

    def __init__(self, token: "Token") -> None:
        super().__init__(token)
        self.token = token

    def __str__(self) -> str:
        return f"{self.token.name} was cancelled ({self.token.reason})"
