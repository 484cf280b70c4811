"""`local` and `local:PATH.gguf` as an endpoint: a model that runs on this machine.

The first request starts the child process, or `warm_up` does, for instance while the user types;
later requests find it running. A request leases the child and then makes one HTTP request to it,
over its own connection. A cancel ends the wait for the lease or closes the connection, and the
child stops computing. If the child dies, the request fails with a retryable error, and the next
attempt starts another child.
"""

import os
from collections.abc import Sequence
from typing import Final

from bargein.cancel import Token
from bargein.contracts.model import ModelRequest, Part, Usage
from bargein.models.costs import FREE, Price
from bargein.models.endpoint import Attempt
from bargein.models.errors import (
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    ModelUnreachable,
    StreamBroken,
)
from bargein.models.http_endpoint import HttpEndpoint
from bargein.models.local.errors import RuntimeFailed
from bargein.models.local.handshake import Facts
from bargein.models.local.life import Lease
from bargein.models.local.notices import LocalNotices, Reading, TooSmall
from bargein.models.local.options import LocalOptions, plan_embedded, plan_own_file
from bargein.models.local.packages import without_keys
from bargein.models.local.request import LocalDialect, fit
from bargein.models.local.runtime import Runtime
from bargein.models.retrying import RetryingModel
from bargein.models.settings import ModelSettings
from bargein.process import Containment, Hiding, Process, open_containment

DEATH_PATIENCE_S: Final = 1.0
# The errors of a request whose child may have died.
_MAY_BE_DEATH: Final = (ModelUnavailable, ModelUnreachable, StreamBroken)


class LocalEndpoint:
    """An `Endpoint` for one event loop. `path` names the user's own file; without it, this is the
    embedded model. Raises `ModelFileError` if the file cannot be a model."""

    def __init__(
        self,
        settings: ModelSettings | None = None,
        *,
        path: str | None = None,
        options: LocalOptions | None = None,
    ) -> None:
        settings = settings or ModelSettings()
        options = options or LocalOptions()
        if path is None:
            plan = plan_embedded(settings, options)
        else:
            plan = plan_own_file(path, settings, options)
        self.name = plan.name
        self.notices = LocalNotices(options.on_notice)
        self.timeouts = settings.timeouts
        self._reads_tools = plan.reads_tools
        hidden = path is not None and options.hiding.covers(os.path.realpath(path))
        self._home = _Home(options.containment, Hiding() if hidden else options.hiding)
        self._told: set[str] = set()
        environment = without_keys(options.child_environment())
        # Otherwise a crash would start a debugger, if installed, to write a backtrace.
        environment["GGML_NO_BACKTRACE"] = "1"
        self.runtime = Runtime(
            plan.name,
            plan.source,
            command=options.command,
            environment=environment,
            containment=self._home.get,
            notices=self.notices,
            settings=plan.runtime,
        )

    @property
    def price(self) -> Price | None:
        return FREE

    @property
    def context_tokens(self) -> int | None:
        return self.runtime.settings.context_tokens

    @property
    def reads_tools(self) -> bool | None:
        """Whether the model gets tools. None: not known until it has been loaded."""
        facts = self.runtime.facts
        return facts.reads_tools if facts is not None else self._reads_tools

    @property
    def process(self) -> Process | None:
        """The child, while it serves."""
        return self.runtime.process

    async def warm_up(self, token: Token) -> None:
        """Starts the child, unless it runs; it stays as long as it would after a request.

        Raises what a request would raise. A cancel ends a start that nobody else waits for.
        """
        lease = await self.runtime.lease(token)
        lease.release()

    def attempt(self, request: ModelRequest, token: Token) -> Attempt:
        return LocalAttempt(self, request, token)

    async def aclose(self) -> None:
        await self.runtime.aclose()
        await self._home.aclose()

    def tell_left_out(self, left_out: tuple[str, ...]) -> None:
        for what in left_out:
            if what not in self._told:
                self._told.add(what)
                self.notices(TooSmall(self.name, what))


class _Home:
    """The given containment, or our own, opened on first use."""

    def __init__(self, given: Containment | None, hiding: Hiding) -> None:
        self._given = given
        self._hiding = hiding
        self._own: Containment | None = None

    async def get(self) -> Containment:
        """Called for one child at a time, so it never opens two."""
        if self._given is not None:
            return self._given
        if self._own is None:
            for folder in self._hiding.kept:
                os.makedirs(folder, exist_ok=True)  # only existing folders can stay visible
            self._own = await open_containment(hiding=self._hiding)
        return self._own

    async def aclose(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            await own.aclose()


class LocalAttempt:
    """An `Attempt`: a lease, then a request to the child."""

    def __init__(self, endpoint: LocalEndpoint, request: ModelRequest, token: Token) -> None:
        self._endpoint = endpoint
        self._request = request
        self._token = token
        self._lease: Lease | None = None
        self._inner: Attempt | None = None

    @property
    def usage(self) -> Usage:
        return self._inner.usage if self._inner is not None else Usage()

    async def read(self) -> Sequence[Part]:
        if self._lease is None:
            self._lease = await self._endpoint.runtime.lease(self._token)
        if self._inner is None:
            self._inner = self._ask(self._lease)
        try:
            return await self._inner.read()
        except ModelError as error:
            problem = error
        raise await self._explained(problem, self._lease)

    async def aclose(self) -> None:
        try:
            if self._inner is not None:
                await self._inner.aclose()
        finally:
            if self._lease is not None:
                self._lease.release()

    def _ask(self, lease: Lease) -> Attempt:
        endpoint = self._endpoint
        facts: Facts = lease.facts
        request, left_out = fit(self._request, facts)
        endpoint.tell_left_out(left_out)

        def on_progress(done: int, total: int) -> None:
            endpoint.notices(Reading(done, total))

        return HttpEndpoint(
            name=endpoint.name,
            model=endpoint.name,
            base_url=f"{facts.address}/v1",
            dialect=LocalDialect(on_progress),
            key=lease.key,
            context_tokens=facts.context_tokens,
            timeouts=endpoint.timeouts,
        ).attempt(request, self._token)

    async def _explained(self, problem: ModelError, lease: Lease) -> ModelError:
        """Replaces the error with our own words if the child is to blame."""
        if isinstance(problem, ModelTimeout) and lease.alone:
            lease.condemn()
        if isinstance(problem, _MAY_BE_DEATH) and problem.status is None:
            with self._token.scope():
                death = await lease.died(DEATH_PATIENCE_S)
                if death is not None:
                    problem = RuntimeFailed(
                        f"{self._endpoint.name}: its process died while answering ({death})",
                        retryable=True,
                        model=self._endpoint.name,
                    )
        self._token.check()
        return problem


class LocalModel(RetryingModel):
    """`LocalModel()` is the embedded model, `LocalModel(path="x.gguf")` your own file.

    The embedded model is real, and tiny: it talks but cannot use tools, and a notice says so.
    """

    def __init__(
        self,
        settings: ModelSettings | None = None,
        *,
        path: str | None = None,
        options: LocalOptions | None = None,
    ) -> None:
        settings = settings or ModelSettings()
        self.endpoint = LocalEndpoint(settings, path=path, options=options)
        super().__init__([self.endpoint], policy=settings.policy)

    @property
    def process(self) -> Process | None:
        return self.endpoint.process

    async def warm_up(self, token: Token) -> None:
        await self.endpoint.warm_up(token)
