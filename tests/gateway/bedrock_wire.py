"""Bedrock's side of the provider: its paths, its formats and frames, and the check of its signatures with botocore's own signer.

The frames are those of the local agent runtime that the SDKs are tested with.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sdk/python/tests/adapters"))

from bedrock_server import Event  # noqa: E402

# Who may ask: access key ids with their secret and session token.
KEYS = {"AKIDOPERATOR": ("operators/secret+key", "operators-session")}
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKIDOPERATOR", "AWS_SECRET_ACCESS_KEY": "operators/secret+key", "AWS_SESSION_TOKEN": "operators-session",
               "AWS_REGION": "eu-west-1"}
METRICS = "amazon-bedrock-invocationMetrics"


def signature_problem(method: str, path: str, headers: dict[str, str], raw: bytes) -> str | None:
    """What is wrong with a request's signature, as AWS would find it."""
    given = headers.get("authorization", "")
    if given.startswith("Bearer ABSK"):
        return None
    scheme, _, rest = given.partition(" ")
    if scheme != "AWS4-HMAC-SHA256":
        return "Missing Authentication Token"
    parts = dict(part.strip().split("=", 1) for part in rest.split(","))
    identity, _, region, service, _ = parts["Credential"].split("/")
    if identity not in KEYS:
        return "The security token included in the request is invalid."
    secret, token = KEYS[identity]
    if headers.get("x-amz-security-token") != token or service != "bedrock":
        return "The security token included in the request is invalid."
    signed = parts["SignedHeaders"].split(";")
    unsigned = [name for name in headers if name.startswith("x-amz-") and name not in signed]
    if "host" not in signed or unsigned:
        return f"not signed: {unsigned}"
    request = AWSRequest(method, f"http://{headers['host']}{path}", {name: headers[name] for name in signed}, raw)
    request.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(Credentials(identity, secret, token), service, region)
    expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    return None if expected == parts["Signature"] else "The request signature we calculated does not match the signature you provided."


def bound_of(body: dict[str, Any]) -> int | None:
    within = {**body, **(body.get("inferenceConfig") or {}), **(body.get("textGenerationConfig") or {})}
    names = ("max_tokens", "maxTokens", "max_new_tokens", "max_gen_len", "maxTokenCount", "max_completion_tokens")
    return next((within[name] for name in names if within.get(name)), None)


def answer(handler: Any, raw: bytes, word: str) -> None:
    """Answers one POST to `/model/{id}/{operation}`."""
    provider, behaviour = handler.server.provider, handler.server.provider.behaviour
    headers = {name.lower(): value for name, value in handler.headers.items()}
    problem = signature_problem("POST", handler.path, headers, raw)
    if problem:
        handler._json(403, {"message": problem}, {"x-amzn-errortype": "InvalidSignatureException"})
        return
    if behaviour.status != 200:
        kind = {429: "ThrottlingException", 400: "ValidationException"}.get(behaviour.status, "InternalServerException")
        handler._json(behaviour.status, {"message": "scripted"}, {"x-amzn-errortype": kind})
        return
    _, _, model, operation = handler.path.split("/")
    body, model = json.loads(raw), unquote(model)
    read = behaviour.input_tokens if behaviour.input_tokens is not None else len(raw) // 4
    bound = bound_of(body)
    is_cut = bound is not None and behaviour.tokens > bound and not behaviour.ignores_bound
    write = bound if is_cut and bound else behaviour.tokens
    with provider.lock:
        provider.written += write
    if operation == "count-tokens":
        handler._json(200, {"inputTokens": read})
    elif operation == "converse":
        handler._json(200, converse(behaviour, word, read, write, is_cut, len(provider.asked)))
    elif operation == "converse-stream":
        events = converse_events(behaviour, word, read, write, is_cut, len(provider.asked))
        stream(handler, (Event(name, {**data, "p": "abcdefghij"}).encode() for name, data in events))
    elif operation == "invoke":
        counted = {"x-amzn-bedrock-input-token-count": str(read), "x-amzn-bedrock-output-token-count": str(write)} if behaviour.counts else {}
        handler._json(200, invoked(handler, body, model, word, read, write, is_cut), counted)
    else:
        pieces = (piece(data) for data in invoked_pieces(handler, body, model, word, read, write, is_cut))
        stream(handler, pieces, {"x-amzn-bedrock-content-type": "application/json"})


def stream(handler: Any, events: Iterator[bytes], headers: dict[str, str] | None = None) -> None:
    behaviour = handler.server.provider.behaviour
    breaking = behaviour.breaking.get(unquote(handler.path.split("/")[2]))
    handler.send_response(200)
    for name, value in {"content-type": "application/vnd.amazon.eventstream", "transfer-encoding": "chunked", **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    try:
        for number, event in enumerate(events):
            if breaking and number == breaking[0]:
                handler.write_event(Event(breaking[1], {"message": "scripted"}).encode())
                break
            if behaviour.breaks_after is not None and number >= behaviour.breaks_after:
                handler.close_connection = True
                return
            handler.write_event(event)
        handler.wfile.write(b"0\r\n\r\n")
    except OSError:
        with handler.server.provider.lock:
            handler.server.provider.left += 1
        handler.close_connection = True


def piece(data: dict[str, Any]) -> bytes:
    return Event("chunk", {"bytes": b64encode(json.dumps(data).encode()).decode(), "p": "abcdefghijklmnopqrstu"}).encode()


def usage(read: int, write: int) -> dict[str, int]:
    return {"inputTokens": read, "outputTokens": write, "totalTokens": read + write}


def converse(behaviour: Any, word: str, read: int, write: int, is_cut: bool, number: int) -> dict[str, Any]:
    content: list[Any] = [{"text": word * write}]
    reason = "max_tokens" if is_cut else "end_turn"
    if behaviour.call:
        name, arguments = behaviour.call
        content, reason = [{"toolUse": {"toolUseId": f"tooluse_{number}", "name": name, "input": arguments}}], "tool_use"
    said = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": reason, "metrics": {"latencyMs": 1}}
    return {**said, "usage": usage(read, write)} if behaviour.counts else said


def converse_events(behaviour: Any, word: str, read: int, write: int, is_cut: bool, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "messageStart", {"role": "assistant"}
    reason = "max_tokens" if is_cut else "end_turn"
    if behaviour.call:
        name, arguments = behaviour.call
        reason = "tool_use"
        yield "contentBlockStart", {"start": {"toolUse": {"toolUseId": f"tooluse_{number}", "name": name}}, "contentBlockIndex": 0}
        yield "contentBlockDelta", {"delta": {"toolUse": {"input": json.dumps(arguments)}}, "contentBlockIndex": 0}
    else:
        for _ in range(write):
            yield "contentBlockDelta", {"delta": {"text": word}, "contentBlockIndex": 0}
    yield "contentBlockStop", {"contentBlockIndex": 0}
    yield "messageStop", {"stopReason": reason}
    if behaviour.counts:
        yield "metadata", {"usage": usage(read, write), "metrics": {"latencyMs": 1}}


def invoked(handler: Any, body: dict[str, Any], model: str, word: str, read: int, write: int, is_cut: bool) -> dict[str, Any]:
    """A whole answer in the words of the model's maker."""
    behaviour = handler.server.provider.behaviour
    if "embed" in model:
        return {"embedding": [0.1, 0.2], "inputTextTokenCount": read} if "titan" in model else {"embeddings": [[0.1, 0.2]], "id": "1"}
    if "anthropic." in model:
        return handler._message({**body, "model": model}, read, write, "length" if is_cut else "stop")
    if "nova" in model:
        said = converse(behaviour, word, read, write, is_cut, 0)
        return {name: said[name] for name in ("output", "stopReason", "usage") if name in said}
    text = word * write
    if "llama" in model:
        counts = {"prompt_token_count": read, "generation_token_count": write} if behaviour.counts else {}
        return {"generation": text, **counts, "stop_reason": "length" if is_cut else "stop"}
    if "titan" in model:
        result = {"tokenCount": write, "outputText": text, "completionReason": "LENGTH" if is_cut else "FINISH"}
        return {"inputTextTokenCount": read, "results": [result]}
    if "mistral" in model:
        return {"outputs": [{"text": text, "stop_reason": "length" if is_cut else "stop"}]}
    return {"generations": [{"id": "1", "text": text, "finish_reason": "MAX_TOKENS" if is_cut else "COMPLETE"}], "id": "1", "prompt": ""}


def invoked_pieces(handler: Any, body: dict[str, Any], model: str, word: str, read: int, write: int, is_cut: bool) -> Iterator[dict[str, Any]]:
    behaviour = handler.server.provider.behaviour
    pieces = list(family_pieces(handler, body, model, word, read, write, is_cut))
    for data in pieces[:-1]:
        yield data
    metrics = {METRICS: {"inputTokenCount": read, "outputTokenCount": write, "invocationLatency": 9, "firstByteLatency": 2}}
    yield {**pieces[-1], **(metrics if behaviour.counts else {})}


def family_pieces(handler: Any, body: dict[str, Any], model: str, word: str, read: int, write: int, is_cut: bool) -> Iterator[dict[str, Any]]:
    behaviour = handler.server.provider.behaviour
    if "anthropic." in model:
        for _, data in handler._message_events({**body, "model": model}, read, write, "length" if is_cut else "stop"):
            yield data
    elif "nova" in model:
        for name, data in converse_events(behaviour, word, read, write, is_cut, 0):
            yield {name: data}
    elif "llama" in model:
        for number in range(write):
            yield {"generation": word, "prompt_token_count": None if number else read, "generation_token_count": number + 1, "stop_reason": None}
        yield {"generation": "", "prompt_token_count": None, "generation_token_count": write, "stop_reason": "length" if is_cut else "stop"}
    elif "titan" in model:
        yield {"outputText": word * write, "index": 0, "totalOutputTextTokenCount": write, "completionReason": "FINISH", "inputTextTokenCount": read}
    elif "mistral" in model:
        for _ in range(write):
            yield {"outputs": [{"text": word, "stop_reason": None}]}
        yield {"outputs": [{"text": "", "stop_reason": "length" if is_cut else "stop"}]}
    else:
        for _ in range(write):
            yield {"text": word, "is_finished": False}
        yield {"is_finished": True, "finish_reason": "MAX_TOKENS" if is_cut else "COMPLETE"}
