"""Model clients that tell the run around them, without being asked to: what `guard(…)` hooks, and puts back.

The classes of the clients are hooked, not their objects, and what is hooked looks for `current_run()` at every call: code outside of a
run, in this thread or another, goes its way as if nothing were there. Hooks stay as long as any run is open in the process.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import importlib.util
import inspect
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from .run import Run, current_run

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

log = logging.getLogger("runguard")

# A hooked call is under way: what it calls in turn (litellm calls openai) is the same model call.
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("runguard_inside_model_call", default=False)

Put = Callable[[Any, str, Any], None]


def _openai(put: Put) -> None:
    from .adapters.openai import routes

    _stainless("openai", routes(), put)


def _anthropic(put: Put) -> None:
    from .adapters.anthropic import routes

    _stainless("anthropic", routes(), put)


def _stainless(package: str, routes: Any, put: Put) -> None:
    """Both clients send every call through `request` of two classes."""
    from .adapters._client import Spending, is_guarded, sent, sent_async

    base = importlib.import_module(f"{package}._base_client")

    def run_of(client: Any) -> Optional[Run]:
        return None if _inside.get() or is_guarded(client) else current_run()

    send = base.SyncAPIClient.request

    @functools.wraps(send)
    def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_of(self)
        if run is None:
            return send(self, cast_to, options, *args, **kwargs)
        return sent(functools.partial(send, self), Spending(run), routes, cast_to, options, args, kwargs)

    send_async = base.AsyncAPIClient.request

    @functools.wraps(send_async)
    async def request_async(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_of(self)
        if run is None:
            return await send_async(self, cast_to, options, *args, **kwargs)
        return await sent_async(functools.partial(send_async, self), Spending(run), routes, cast_to, options, args, kwargs)

    put(base.SyncAPIClient, "request", request)
    put(base.AsyncAPIClient, "request", request_async)


def _botocore(put: Put) -> None:
    from .adapters._bedrock_models import asked_model, told

    client = importlib.import_module("botocore.client").BaseClient
    call = client._make_api_call

    @functools.wraps(call)
    def make_api_call(self: Any, operation_name: str, api_params: Any) -> Any:
        run = None if _inside.get() else current_run()
        if run is None or not asked_model(self.meta.service_model.service_name, operation_name):
            return call(self, operation_name, api_params)
        return told(run, operation_name, api_params, lambda params: call(self, operation_name, params))

    put(client, "_make_api_call", make_api_call)


def _litellm(put: Put) -> None:
    from .adapters._litellm_calls import hooked, hooked_async

    litellm = importlib.import_module("litellm")
    places = [litellm, sys.modules.get("litellm.main")]
    for name, make in (("completion", hooked), ("acompletion", hooked_async)):
        original = getattr(litellm, name)
        replacement = make(original, _inside)
        for place in places:
            if place is not None and getattr(place, name, None) is original:
                put(place, name, replacement)


_LIBRARIES: Dict[str, Callable[[Put], None]] = {"openai": _openai, "anthropic": _anthropic, "botocore": _botocore, "litellm": _litellm}


class _Hooks:
    """What is hooked while a run is open."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open = 0
        self._put: List[Tuple[Any, str, Any, Any]] = []
        self._hooked: set[str] = set()
        self._finder = _AfterImport(self)

    def enter(self) -> None:
        with self._lock:
            self._open += 1
            if self._open > 1:
                return
            sys.meta_path.insert(0, self._finder)
            self._carry_into_threads()
            for name in _LIBRARIES:
                if name in sys.modules:
                    self.hook(name)

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open > 0:
                return
            if self._finder in sys.meta_path:
                sys.meta_path.remove(self._finder)
            for owner, name, original, replacement in reversed(self._put):
                # Someone else may have put a hook of their own around ours: theirs stays, and ours finds no run.
                if inspect.getattr_static(owner, name, None) is replacement:
                    setattr(owner, name, original)
            self._put.clear()
            self._hooked.clear()

    def hook(self, name: str) -> None:
        with self._lock:
            if self._open == 0 or name in self._hooked:
                return
            self._hooked.add(name)
            try:
                _LIBRARIES[name](self._replace)
            except Exception as problem:
                # A version that looks otherwise inside: the agent goes on, unhooked, and that is said.
                log.warning("runguard could not hook %s (%s: %s): its calls are not counted. An adapter can guard them.", name, type(problem).__name__, problem)
            else:
                log.debug("runguard hooks %s while a run is open", name)

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        self._put.append((owner, name, inspect.getattr_static(owner, name), replacement))
        setattr(owner, name, replacement)

    def _carry_into_threads(self) -> None:
        """Work that a run hands to another thread belongs to it."""
        from concurrent.futures import ThreadPoolExecutor

        submit: Any = ThreadPoolExecutor.submit
        start = threading.Thread.start

        @functools.wraps(submit)
        def submit_in_run(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            if current_run() is None:
                return submit(self, fn, *args, **kwargs)
            return submit(self, contextvars.copy_context().run, fn, *args, **kwargs)

        @functools.wraps(start)
        def start_in_run(self: Any) -> None:
            # A pool's own thread outlives the run that happened to start it.
            if current_run() is not None and not _is_pools_own(self):
                self.run = functools.partial(contextvars.copy_context().run, self.run)
            start(self)

        self._replace(ThreadPoolExecutor, "submit", submit_in_run)
        self._replace(threading.Thread, "start", start_in_run)


def _is_pools_own(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", "") == "concurrent.futures.thread"


class _AfterImport:
    """Hooks a library that is imported while a run is open, once it is there."""

    def __init__(self, hooks: _Hooks) -> None:
        self._hooks = hooks
        self._looking = threading.local()

    def find_spec(self, fullname: str, path: Optional[Sequence[str]], target: Any = None) -> Optional[ModuleSpec]:
        if fullname not in _LIBRARIES or getattr(self._looking, "on", False):
            return None
        self._looking.on = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.on = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._hooks.hook(fullname)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_hooks = _Hooks()


def enter() -> None:
    """A run is opened: the clients in this process tell it."""
    _hooks.enter()


def leave() -> None:
    """It is closed. After the last one everything is as before."""
    _hooks.leave()
