"""What the plain `openai` and `anthropic` adapters share: one hook on a copy of the client, and what was said so far.

Both clients send every call through their public `request` method, which does the retrying inside. A hook around it therefore sees
each model call once, however often it is retried, and sees `create`, `parse`, `stream`, `beta` and `with_raw_response` alike.
"""

from __future__ import annotations

import inspect
import json
import logging
import threading
import weakref
from collections import OrderedDict
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Dict,
    Generator,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)
from urllib.parse import urlsplit

from runguard import _core
from runguard.errors import InvalidInputError, TripError

from ._usage import Tokens, broken_off, failed, settle

if TYPE_CHECKING:
    from runguard import Run
    from runguard.run import ModelCall, Told

log = logging.getLogger("runguard")

Client = TypeVar("Client")

# A conversation that keeps more open or nudged calls than this has lost their results long ago; the oldest are forgotten.
REMEMBERED_CALLS = 10_000


class ToolCall(NamedTuple):
    """A call the model asked for."""

    id: str
    tool: str
    args: Any


class ToolResult(NamedTuple):
    """What the caller sends back for a call."""

    result: Any
    error: Optional[str] = None


class Transcript(NamedTuple):
    """The part of a request that matters here: this turn's calls in order, and every result by the id of its call."""

    calls: List[ToolCall]
    results: Dict[str, ToolResult]


class Reader:
    """Puts one streamed answer together. `take` returns the calls that an event completes."""

    model: Optional[str] = None
    tokens: Optional[Tokens] = None
    # The tokens are those of the whole answer.
    is_counted = False

    def came(self, event: Any) -> Any:
        """The part of the answer that is in an event."""
        raise NotImplementedError

    def take(self, event: Any) -> List[ToolCall]:
        raise NotImplementedError

    def hides(self, event: Any) -> bool:
        """Whether the event came only because the adapter asked for it."""
        return False


class Route:
    """How one API path writes calls, results and usage."""

    # As it ends, which the core knows it by.
    path: str

    def transcript(self, body: Mapping[str, Any]) -> Transcript:
        raise NotImplementedError

    def with_nudges(self, body: Mapping[str, Any], nudges: Mapping[str, str]) -> Dict[str, Any]:
        """A copy of the body in which each nudge stands behind the result of its call."""
        raise NotImplementedError

    def calls(self, answer: Any) -> List[ToolCall]:
        raise NotImplementedError

    def tokens(self, answer: Any) -> Optional[Tokens]:
        raise NotImplementedError

    def came(self, answer: Any) -> Any:
        """What the model has written."""
        raise NotImplementedError

    def shortened(self, body: Dict[str, Any], max_output: int, bounds: Sequence[str]) -> Dict[str, Any]:
        """The body, asking for no longer answer than this by these members."""
        return {**body, **dict.fromkeys(bounds, max_output)}

    def prepare_stream(self, body: Dict[str, Any]) -> Dict[str, Any]:
        return body

    def reader(self, asked_body: Mapping[str, Any]) -> Reader:
        raise NotImplementedError


def parse_arguments(text: Optional[str]) -> Any:
    """The arguments a model wrote. Broken JSON stays text: a model that repeats it loops all the same."""
    if not text:
        return {}
    try:
        return json.loads(text)
    except ValueError:
        return text


# What is said to a model: nothing in it says how the answer is to be.
_SAID = ("messages", "input", "system", "instructions")


class Asked(NamedTuple):
    """What a request asks for, as the core reads it."""

    model: Optional[str]
    # The longest answer, of several each; None where that is left to the model.
    max_output: Optional[int] = None
    choices: int = 1
    # The members by which an answer is made shorter.
    bounds: Sequence[str] = ()
    # Why no limit in dollars can hold it.
    unmetered: Optional[str] = None

    @classmethod
    def of(cls, route: Route, body: Mapping[str, Any]) -> Asked:
        given = body.get("model")
        model = given if isinstance(given, str) else None
        try:
            asked = _core.asked_of_model(route.path, model or "", {name: value for name, value in body.items() if name not in _SAID})
        except InvalidInputError as problem:
            return cls(model, unmetered=str(problem))
        return cls(model, *(asked or ()))

    def allowed(self, run: Run) -> Asked:
        """Raises where nobody could say what it costs, and dollars are limited."""
        if self.unmetered is not None and run._run.limits_dollars():
            raise InvalidInputError(self.unmetered)
        return self


class Conversation:
    """What one guarded client has seen of its run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, ToolCall] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._nudges: OrderedDict[str, str] = OrderedDict()

    def begin(self, route: Route, body: Mapping[str, Any]) -> Exchange:
        """Raises when the run is over."""
        asked = self._asked(route, body)
        body = self._tools_told(route, body)
        call = self.run._begin(asked.model, body, asked.max_output, choices=asked.choices, may_fall_back=True)
        return Exchange(self, route, body, asked, call)

    async def begin_async(self, route: Route, body: Mapping[str, Any]) -> Exchange:
        asked = self._asked(route, body)
        body = await self.run._aside(self._tools_told, route, body)
        call = await self.run._begin_async(asked.model, body, asked.max_output, choices=asked.choices, may_fall_back=True)
        return Exchange(self, route, body, asked, call)

    def _asked(self, route: Route, body: Mapping[str, Any]) -> Asked:
        self.run.check()
        return Asked.of(route, body).allowed(self.run)

    def unread(self, why: str) -> None:
        _unread(self.run, why)

    def _tools_told(self, route: Route, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Tells of the calls and results that are in a request. Gives the body to send."""
        self.run.check()
        said = route.transcript(body)
        with self._lock:
            # Calls that no answer brought come from a run that was stopped and started anew: they count as well.
            fresh = [call for call in said.calls if call.id not in self._known]
            for call in fresh:
                self._remember(self._known, call.id, None)
                self._remember(self._waiting, call.id, call)
            done = [(self._waiting.pop(id_), said.results[id_]) for id_ in list(self._waiting) if id_ in said.results]
        for call in fresh:
            self.run.before_tool(call.tool, call.args)
        for call, outcome in done:
            nudge = self.run.after_tool(call.tool, call.args, outcome.result, error=outcome.error)
            if nudge:
                with self._lock:
                    self._remember(self._nudges, call.id, nudge)
        with self._lock:
            # A nudge is in no transcript of the caller's, so it is put in again every time, or the model would forget it.
            nudges = {id_: text for id_, text in self._nudges.items() if id_ in said.results}
        return route.with_nudges(body, nudges) if nudges else body

    def asked(self, calls: Sequence[ToolCall]) -> None:
        """Counts the calls of an answer; raises before the caller can run one that must not run."""
        for call in calls:
            self.run.before_tool(call.tool, call.args)
            with self._lock:
                self._remember(self._known, call.id, None)
                self._remember(self._waiting, call.id, call)

    @staticmethod
    def _remember(table: OrderedDict[str, Any], key: str, value: Any) -> None:
        table[key] = value
        table.move_to_end(key)
        if len(table) > REMEMBERED_CALLS:
            table.popitem(last=False)


class Spending:
    """What a hooked client tells of its run: that a model is asked, and what it used. Tools are counted where they run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def begin(self, route: Route, body: Mapping[str, Any]) -> Exchange:
        told, asked = self._told(route, body)
        call = None if told else self.run._begin(asked.model, body, asked.max_output, choices=asked.choices, may_fall_back=True)
        return Exchange(self, route, body, asked, call, told)

    async def begin_async(self, route: Route, body: Mapping[str, Any]) -> Exchange:
        told, asked = self._told(route, body)
        call = None if told else await self.run._begin_async(asked.model, body, asked.max_output, choices=asked.choices, may_fall_back=True)
        return Exchange(self, route, body, asked, call, told)

    def _told(self, route: Route, body: Mapping[str, Any]) -> Tuple[Optional[Told], Asked]:
        told, asked = self.run._told_above(body.get("model")), Asked.of(route, body)
        # An adapter sees less of a request than is in it; an agent that tells of its calls itself knows what they cost.
        return told, asked if self.run._is_told else asked.allowed(self.run)

    def unread(self, why: str) -> None:
        if self.run._told_above(None) is None:
            _unread(self.run, why)

    def asked(self, calls: Sequence[ToolCall]) -> None:
        # An answer that broke the budget must not have its calls run; one without calls is the caller's to keep.
        if calls:
            self.run.check()


class Exchange:
    """One request to a model, and its answer."""

    # Its stream is read event by event, so its bytes need not be.
    is_watched = False

    def __init__(
        self, teller: Teller, route: Route, body: Mapping[str, Any], asks: Asked, call: Optional[ModelCall], told: Optional[Told] = None
    ) -> None:
        self.teller, self.route, self.asked, self.call, self._told = teller, route, body, call, told
        self._bounds = asks.bounds

    def body(self, is_stream: bool) -> Mapping[str, Any]:
        """What is sent."""
        body = self.asked
        if self.call is not None and self.call.model != (body.get("model") or "unknown"):
            body = {**body, "model": self.call.model}
        longest = None if self.call is None else self.call.max_tokens
        if longest is not None:
            body = self.route.shortened(dict(body), longest, self._bounds)
        return self.route.prepare_stream(dict(body)) if is_stream else body

    def sent(self) -> None:
        if self.call is not None:
            self.call._is_sent = True

    def failed(self, error: BaseException) -> None:
        failed(self.call, error, self._told)

    def answered(self, answer: Any) -> None:
        # Usage first: an answer that breaks the budget must not have its calls run.
        calls = self.bill(answer)
        self.teller.asked(calls)

    def bill(self, answer: Any) -> List[ToolCall]:
        """Tells what an answer used. Gives the calls in it."""
        answer = _readable(answer)
        try:
            tokens, calls = self.route.tokens(answer), self.route.calls(answer)
            came = 0 if tokens is not None else _core.answer_size(self.route.came(answer))
        except (AttributeError, LookupError, TypeError, ValueError) as problem:
            # A caller may ask for another form (`cast_to=`), and a proxy may answer in one of its own. It is paid for all the same.
            log.warning("an answer cannot be read (%s): its cost is an estimate, by its size", problem)
            tokens, calls, came = None, [], _core.answer_size(answer)
        self.used(getattr(answer, "model", None), tokens, came)
        return calls

    def used(self, model: Optional[str], tokens: Optional[Tokens], came: int) -> None:
        self._note(tokens)
        settle(self.call, model, tokens, came)

    def broken_off(self, tokens: Optional[Tokens]) -> None:
        """The provider had counted this much by then."""
        self._note(tokens)
        broken_off(self.call)

    def _note(self, tokens: Optional[Tokens]) -> None:
        if tokens is not None and isinstance(self.teller, Spending):
            self.teller.run._hooked.append(tokens.counts)


Teller = Union[Conversation, Spending]


def guard_client(client: Client, run: Run, routes: Mapping[str, Route]) -> Client:
    """A copy of the client (same connections, same settings) whose calls belong to the run."""
    original: Any = client
    guarded: Client = _hook(original.copy(), Conversation(run), routes)
    return guarded


def is_guarded(client: Any) -> bool:
    """Whether the client tells a run of its own."""
    return "_runguard" in vars(client)


def _hook(client: Any, conversation: Conversation, routes: Mapping[str, Route]) -> Any:
    send, copy = client.request, client.copy

    def request(cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        return sent(send, conversation, routes, cast_to, options, args, kwargs)

    async def request_async(cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        return await sent_async(send, conversation, routes, cast_to, options, args, kwargs)

    def copy_guarded(*args: Any, **kwargs: Any) -> Any:
        return _hook(copy(*args, **kwargs), conversation, routes)

    client.request = request_async if inspect.iscoroutinefunction(send) else request
    # `client.with_options(timeout=…)` makes a new client; without this it would be an unguarded one.
    client.copy = client.with_options = copy_guarded
    client._runguard = True
    return client


def sent(
    send: Callable[..., Any], teller: Teller, routes: Mapping[str, Route], cast_to: Any, options: Any, args: Any, kwargs: Dict[str, Any]
) -> Any:
    """Sends a request of a client; one that asks a model is told to the run, before and after."""
    route = _route_of(options, routes)
    if route is None:
        why = _unmetered(options)
        if why is not None:
            teller.unread(why)
        return send(cast_to, options, *args, **kwargs)
    body = _body_of(options, _bytes_of(_raw_of(options)))
    if body is None:
        teller.unread(_UNREADABLE)
        return send(cast_to, options, *args, **kwargs)
    is_stream = bool(kwargs.get("stream"))
    exchange = teller.begin(route, body)
    _put(options, body, exchange.body(is_stream))
    try:
        answer = send(cast_to, options, *args, **kwargs)
    except BaseException as error:
        exchange.failed(error)
        raise
    exchange.sent()
    if _is_read_by_hand(options):
        _read_bytes(answer, exchange, is_stream)
        return _watched_when_parsed(answer, exchange) if is_stream else answer
    parsed = answer.parse() if hasattr(answer, "http_response") else answer
    if is_stream and hasattr(parsed, "_iterator"):
        _read_bytes(answer, exchange, is_stream)
        _attach(parsed, _Watch(exchange))
    else:
        exchange.answered(parsed)
    return answer


async def sent_async(
    send: Callable[..., Any], teller: Teller, routes: Mapping[str, Route], cast_to: Any, options: Any, args: Any, kwargs: Dict[str, Any]
) -> Any:
    route = _route_of(options, routes)
    if route is None:
        why = _unmetered(options)
        if why is not None:
            await teller.run._aside(teller.unread, why)
        return await send(cast_to, options, *args, **kwargs)
    raw = _raw_of(options)
    body = _body_of(options, b"".join([part async for part in raw]) if hasattr(raw, "__aiter__") else _bytes_of(raw))
    if body is None:
        await teller.run._aside(teller.unread, _UNREADABLE)
        return await send(cast_to, options, *args, **kwargs)
    is_stream = bool(kwargs.get("stream"))
    exchange = await teller.begin_async(route, body)
    _put(options, body, exchange.body(is_stream))
    try:
        answer = await send(cast_to, options, *args, **kwargs)
    except BaseException as error:
        await teller.run._aside(exchange.failed, error)
        raise
    exchange.sent()
    if _is_read_by_hand(options):
        _read_bytes(answer, exchange, is_stream)
        return _watched_when_parsed(answer, exchange) if is_stream else answer
    parsed = answer.parse() if hasattr(answer, "http_response") else answer
    if inspect.isawaitable(parsed):
        parsed = await parsed
    if is_stream and hasattr(parsed, "_iterator"):
        _read_bytes(answer, exchange, is_stream)
        _attach_async(parsed, _Watch(exchange))
    else:
        await teller.run._aside(exchange.answered, parsed)
    return answer


def _route_of(options: Any, routes: Mapping[str, Route]) -> Optional[Route]:
    """Of a request that asks a model."""
    path = urlsplit(str(options.url)).path
    is_sent = any(given is not None for given in (options.json_data, options.extra_json, _raw_of(options)))
    is_answer = options.method.lower() == "post" and is_sent
    return next((route for end, route in routes.items() if path.endswith(end)), None) if is_answer else None


def _unmetered(options: Any) -> Optional[str]:
    """Of a request that is paid for, though no answer says how much: why a run with a budget cannot have it."""
    return _core.unmetered(str(options.url)) if options.method.lower() == "post" else None


def _raw_of(options: Any) -> Any:
    """A body that the caller has written itself (`content=`); None where it is the client that writes it."""
    content = getattr(options, "content", None)
    return options.json_data if content is None and isinstance(options.json_data, (bytes, bytearray)) else content


def _bytes_of(raw: Any) -> Optional[bytes]:
    if raw is None or isinstance(raw, (bytes, bytearray)):
        return None if raw is None else bytes(raw)
    written = raw if isinstance(raw, str) else raw.read() if hasattr(raw, "read") else b"".join(raw)
    return written.encode() if isinstance(written, str) else bytes(written)


def _body_of(options: Any, raw: Optional[bytes]) -> Optional[Dict[str, Any]]:
    """All that is sent: `extra_body` stands over the rest, so what it says of the model, its answers and their length holds. None: it is
    written in a way that nothing can be read of it."""
    if raw is not None:
        if getattr(options, "content", None) is not None:
            # What comes piece by piece comes once.
            options.content = raw
        try:
            read = json.loads(raw)
        except ValueError:
            return None
        return read if isinstance(read, dict) else None
    if not isinstance(options.json_data or {}, Mapping):
        return None
    body = {**(options.json_data or {}), **(options.extra_json or {})}
    return {name: value for name, value in body.items() if type(value).__name__ != "Omit"}


def _put(options: Any, asked: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """What is sent in place of what was asked. What the caller wrote itself and nothing changes goes as it is."""
    if _raw_of(options) is None or sent != asked:
        options.json_data, options.extra_json = sent, None
        if getattr(options, "content", None) is not None:
            options.content = None


_UNREADABLE = (
    "The body of this request to a model cannot be read, so what it may cost cannot be set aside, and the run has a budget. "
    "Send JSON (body=…, or content= with the bytes of an object that are not compressed), or send it outside of the run."
)


def _unread(run: Run, why: str) -> None:
    """A model is asked something that cannot be read or metered. Under a budget that must not be: nobody could say what it costs."""
    if run.budget is not None:
        raise InvalidInputError(why)
    run._model_asked()


def _is_read_by_hand(options: Any) -> bool:
    """`with_streaming_response`: the caller reads the bytes, so nothing is there yet to look at."""
    headers = options.headers if isinstance(options.headers, Mapping) else {}
    return any(name.lower() == "x-stainless-raw-response" and value == "stream" for name, value in headers.items())


def _watched_when_parsed(answer: Any, exchange: Exchange) -> Any:
    """A stream that its caller takes out of the raw response by `parse`."""
    parse = answer.parse
    attached: List[Any] = []

    def attach(stream: Any) -> Any:
        # Parsing again gives the same stream.
        if hasattr(stream, "_iterator") and not any(stream is one for one in attached):
            attached.append(stream)
            watch = _Watch(exchange)
            _attach_async(stream, watch) if hasattr(stream, "__aiter__") else _attach(stream, watch)
        return stream

    async def parse_async(*args: Any, **kwargs: Any) -> Any:
        return attach(await parse(*args, **kwargs))

    answer.parse = parse_async if inspect.iscoroutinefunction(parse) else lambda *args, **kwargs: attach(parse(*args, **kwargs))
    return answer


class _Watch:
    """One streamed answer. A trip is raised at its end only, because the usage comes last."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._reader = exchange, exchange.route.reader(exchange.asked)
        self._came = 0
        self._trip: Optional[TripError] = None
        self._has_calls = False

    def take(self, event: Any) -> List[ToolCall]:
        """Notes what is in an event. Gives the calls that it completes."""
        try:
            calls = self._reader.take(event)
            came = _core.answer_size(self._reader.came(event))
        except (AttributeError, LookupError, TypeError, ValueError) as problem:
            # A proxy's own: the caller may know what it is.
            log.debug("an event of a stream cannot be read: %s", problem)
            calls, came = [], _core.answer_size(event)
        self._came += came
        self._has_calls = self._has_calls or bool(calls)
        call = self._exchange.call
        if call is not None:
            call._has_come = self._came
            if self._reader.tokens is not None:
                call._counted = (self._reader.model, *self._reader.tokens)
        return calls

    def asked(self, calls: Sequence[ToolCall]) -> None:
        if self._trip is None:
            try:
                self._exchange.teller.asked(calls)
            except TripError as trip:
                self._trip = trip

    def shows(self, event: Any) -> bool:
        """Whether the caller may see the event. From the call that trips on, it sees nothing more."""
        try:
            return self._trip is None and not self._reader.hides(event)
        except (AttributeError, TypeError):
            return True

    @property
    def run(self) -> Run:
        return self._exchange.teller.run

    def begins(self) -> None:
        self._exchange.is_watched = True
        if self._exchange.call is not None:
            self._exchange.call._measure = None

    def record_usage(self) -> None:
        if self._reader.is_counted:
            self._exchange.used(self._reader.model, self._reader.tokens, self._came)
        else:
            self._exchange.broken_off(self._reader.tokens)

    def end(self) -> None:
        if self._trip is not None:
            raise self._trip
        # An answer that breaks the budget must not have its calls run; one without calls is the caller's to keep.
        if self._has_calls:
            self._exchange.teller.run.check()


def _attach(stream: Any, watch: _Watch) -> None:
    """Puts the watch between a stream and its reader. A weak reference, so that a stream that is dropped is closed at once."""
    events, alive = _watched(stream._iterator, watch), weakref.ref(stream)

    def close() -> None:
        events.close()
        own = alive()
        if own is not None:
            type(own).close(own)

    stream._iterator, stream.close = events, close


def _watched(events: Iterator[Any], watch: _Watch) -> Generator[Any, None, None]:
    try:
        for event in events:
            watch.begins()
            watch.asked(watch.take(event))
            if watch.shows(event):
                yield event
    finally:
        if hasattr(events, "close"):
            events.close()
        watch.record_usage()
    watch.end()


def _attach_async(stream: Any, watch: _Watch) -> None:
    events, alive = _watched_async(stream._iterator, watch), weakref.ref(stream)

    async def close() -> None:
        await events.aclose()
        own = alive()
        if own is not None:
            await type(own).close(own)

    stream._iterator, stream.close = events, close


async def _watched_async(events: AsyncIterator[Any], watch: _Watch) -> AsyncGenerator[Any, None]:
    try:
        async for event in events:
            watch.begins()
            calls = watch.take(event)
            if calls:
                await watch.run._aside(watch.asked, calls)
            if watch.shows(event):
                yield event
    finally:
        if hasattr(events, "aclose"):
            await events.aclose()
        await watch.run._aside(watch.record_usage)
    watch.end()


def _read_bytes(answer: Any, exchange: Exchange, is_stream: bool) -> None:
    """The caller may read the bytes of an answer, or of a stream, and never take it out: then they say what it used, once they have come or
    the caller has had enough of them."""
    response: Any = getattr(answer, "http_response", None) or getattr(answer, "response", None)
    if not hasattr(response, "iter_raw") or not hasattr(response, "aiter_raw"):
        return
    read = _Read(exchange, _Came(exchange.route, exchange.asked, is_stream, response))
    kind: Any = type(response)
    alive = weakref.ref(response)

    def taken(chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            read.take(chunk)
            yield chunk

    async def taken_async(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            read.take(chunk)
            yield chunk

    # They hold the response; what stands in it must not, or it would hold itself.
    def iter_raw(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        return taken(kind.iter_raw(alive(), *args, **kwargs))

    def aiter_raw(*args: Any, **kwargs: Any) -> AsyncIterator[bytes]:
        return taken_async(kind.aiter_raw(alive(), *args, **kwargs))

    # Both are closed by themselves at their end.
    def close() -> None:
        own = alive()
        if own is not None:
            kind.close(own)
        read.bill()

    async def aclose() -> None:
        own = alive()
        try:
            if own is not None:
                await kind.aclose(own)
        finally:
            await exchange.teller.run._aside(read.bill)

    response.iter_raw, response.aiter_raw, response.close, response.aclose = iter_raw, aiter_raw, close, aclose


class _Came:
    """The bytes of an answer that have come so far."""

    def __init__(self, route: Route, asked: Mapping[str, Any], is_stream: bool, response: Any) -> None:
        self._route, self._asked, self.is_stream = route, asked, is_stream
        self.chunks: List[bytes] = []
        try:
            # One of its own; the response makes another when it is read.
            self._decoder = response._get_content_decoder()
            del response._decoder
        except AttributeError:
            self._decoder = None

    def size(self) -> int:
        """Of what the model has written."""
        text = self.text()
        if not self.is_stream:
            return _core.answer_size(text)
        reader, size = self._route.reader(self._asked), 0
        for event in _events(text):
            try:
                size += _core.answer_size(reader.came(event))
            except (AttributeError, LookupError, TypeError, ValueError):
                size += _core.answer_size(event)
        return size

    def text(self) -> str:
        raw = b"".join(self.chunks)
        if self._decoder is None:
            return raw.decode("utf-8", "replace")
        try:
            decoded = _joined(self._decoder.decode(raw))
            if not self.is_stream:
                decoded += _joined(self._decoder.flush())
        except Exception as problem:
            log.debug("an answer cannot be decoded: %s", problem)
            decoded = raw
        return decoded.decode("utf-8", "replace")


class _Read:
    """An answer whose bytes are read by hand."""

    def __init__(self, exchange: Exchange, came: _Came) -> None:
        self._exchange, self._came = exchange, came
        self._is_billed = False
        if exchange.call is not None:
            # Where it is dropped without an end.
            exchange.call._measure = came.size

    def take(self, chunk: bytes) -> None:
        if self._exchange.is_watched:
            self._came.chunks.clear()
        else:
            self._came.chunks.append(chunk)

    def bill(self) -> None:
        if self._is_billed or self._exchange.is_watched:
            return
        self._is_billed = True
        text = self._came.text()
        if self._came.is_stream:
            watch = _Watch(self._exchange)
            for event in _events(text):
                watch.take(event)
            watch.record_usage()
            return
        try:
            self._exchange.bill(json.loads(text))
        except ValueError:
            # It broke off.
            self._exchange.used(None, None, _core.answer_size(text))


def _joined(decoded: Any) -> bytes:
    """Some decoders give their bytes in parts."""
    return decoded if isinstance(decoded, bytes) else b"".join(decoded)


class _Fields:
    """An object of JSON, as clients show theirs. What it does not say is None."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def to_dict(self) -> Dict[str, Any]:
        """How the core reads it."""
        return dict(self.__dict__)


def _readable(answer: Any) -> Any:
    """An answer in whichever form its caller wanted it."""
    if hasattr(answer, "read") and hasattr(answer, "json") and hasattr(answer, "headers"):
        answer = getattr(answer, "text", "")
    if isinstance(answer, (str, bytes)):
        try:
            return json.loads(answer, object_hook=_Fields)
        except ValueError:
            return answer
    return json.loads(json.dumps(answer, default=str), object_hook=_Fields) if isinstance(answer, (dict, list)) else answer


def _events(text: str) -> Iterator[Any]:
    """The events of a stream (server-sent events)."""
    for line in text.splitlines():
        name, _, data = line.partition(":")
        if name != "data" or not data.strip() or data.strip() == "[DONE]":
            continue
        try:
            yield json.loads(data, object_hook=_Fields)
        except ValueError:
            # The last one, in part.
            yield data
