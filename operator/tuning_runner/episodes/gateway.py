"""The gateway: an OpenAI-compatible HTTP server over the policy in training, one address for each try of an episode.

It runs in the trainer's process and event loop. Any client that is given base URL and key works unchanged,
because the address says which episode a request belongs to. Not here: batching and sampling (the engine's
`Policy`), templates (its `Renderer`), what an episode does (the workers).
"""

import hashlib
import hmac
import logging
import secrets
from dataclasses import dataclass

from aiohttp import web

from tuning_runner.episodes.chat_response import completion, events
from tuning_runner.episodes.gateway_errors import EPISODE_CLOSED, HEADER, INVALID_KEY, GatewayError
from tuning_runner.episodes.policy import Policy, Renderer
from tuning_runner.episodes.session import Model, ModelLimits, Session, SessionSpec

_LOG = logging.getLogger(__name__)
_MAX_BODY = 64 << 20


@dataclass(frozen=True)
class GatewaySettings:
    """Where it listens and what it allows."""

    run_attempt: int
    limits: ModelLimits
    model_name: str = "policy"
    host: str = "127.0.0.1"
    """Address to listen on, which is also the one that workers are given: only those on this machine reach the
    default."""
    port: int = 0
    """0: any free port."""


class Gateway:
    """Start it, open a session for each try, close the session, stop the gateway; all in one event loop."""

    def __init__(self, policy: Policy, renderer: Renderer, settings: GatewaySettings) -> None:
        self._model = Model(policy, renderer, settings.limits)
        self._settings = settings
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[tuple[str, int], Session] = {}
        self._runner: web.AppRunner | None = None
        self._port = settings.port

    @property
    def url(self) -> str:
        """`http://host:port`, once started."""
        host = self._settings.host
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    @property
    def open_sessions(self) -> int:
        """Episodes that may still ask for a turn; a batching policy need not wait for more."""
        return len(self._sessions)

    async def start(self) -> None:
        """Listen."""
        application = web.Application(client_max_size=_MAX_BODY)
        base = "/ep/{run_attempt}/{episode}/{attempt}/v1"
        application.router.add_post(f"{base}/chat/completions", self._chat_completions)
        application.router.add_get(f"{base}/models", self._models)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._settings.host, self._settings.port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close all sessions and stop listening."""
        for session in list(self._sessions.values()):
            self.close(session)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def open(self, spec: SessionSpec) -> Session:
        """A session for one try; its address answers until it is closed."""
        address = (spec.episode, spec.attempt)
        if address in self._sessions:
            raise ValueError(f"try {spec.attempt} of episode {spec.episode} is open already")
        path = f"/ep/{self._settings.run_attempt}/{spec.episode}/{spec.attempt}/v1"
        session = Session(spec, self._model, self.url + path, self._key(path), self._settings.model_name)
        self._sessions[address] = session
        return session

    def close(self, session: Session) -> None:
        """Refuse all further requests of a session; closing twice is harmless."""
        self._sessions.pop((session.spec.episode, session.spec.attempt), None)
        session.close()

    def _key(self, path: str) -> str:
        # Derived, so that a closed try's key is still known to be genuine without keeping every try.
        return hmac.new(self._secret, path.encode(), hashlib.sha256).hexdigest()

    def _session(self, request: web.Request) -> Session:
        path = request.path.partition("/v1/")[0] + "/v1"
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), self._key(path).encode()):
            raise GatewayError(INVALID_KEY, "the bearer key does not belong to this try of this episode")
        attempt = request.match_info["attempt"]
        address = (request.match_info["episode"], int(attempt) if attempt.isdecimal() else 0)
        if address not in self._sessions:
            raise GatewayError(EPISODE_CLOSED, "this try of the episode is over")
        return self._sessions[address]

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        try:
            session = self._session(request)
            repeated = request.headers.get("x-stainless-retry-count", "0") != "0"
            answer = await session.answer(await request.read(), repeated)
        except GatewayError as error:
            return _error_response(error)
        renderer = self._model.renderer
        if not answer.request.stream:
            return web.json_response(completion(answer, session.model_name, renderer))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events(answer, session.model_name, renderer):
            await response.write(event)
        await response.write_eof()
        return response

    async def _models(self, request: web.Request) -> web.Response:
        try:
            name = self._session(request).model_name
        except GatewayError as error:
            return _error_response(error)
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "run"}]})


def _error_response(error: GatewayError) -> web.Response:
    return web.json_response(error.body(), status=error.status, headers={HEADER: error.failure.code})
