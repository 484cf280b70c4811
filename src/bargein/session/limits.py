"""Every bound of a session in one place."""

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """`settle_s`: an agent's grace after a cancel, and then its calls'. `call_grace_s`: a
    call's; a tool's own ladder fits into it. `store_s`: how long a receipt waits for the store."""

    settle_s: float = 2.0
    call_grace_s: float = 1.5
    hook_s: float = 5.0
    enrich_s: float = 30.0
    store_s: float = 5.0
    gather_s: float = 0.25
    checkpoint_s: float = 1.0
    idle_s: float = 300.0
    bring_back_first_s: float = 0.05
    bring_back_max_s: float = 5.0
    calls_at_once_max: int = 16
    waiting_max: int = 1000
    message_bytes_max: int = 32 * 1024 * 1024
    agent_state_bytes_max: int = 256 * 1024
    watcher_events_max: int = 10_000
    remembered_ids_max: int = 1024

    @property
    def receipt_s(self) -> float:
        """A receipt is there within this, whatever the agent, its tools and the store do."""
        return 2 * self.settle_s + self.store_s
