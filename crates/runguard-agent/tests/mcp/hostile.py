"""An MCP server over standard input and output that misbehaves as its first argument says."""

import json
import os
import signal
import subprocess
import sys
import time

mode = sys.argv[1]


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tool(name, **more):
    return {"name": name, "description": "d", "inputSchema": {"type": "object"}, **more}


def text(value, **more):
    return {"content": [{"type": "text", "text": value}], **more}


def tools(cursor):
    if mode == "endless-list":
        return {"tools": [tool("t%s" % (cursor or "0"))], "nextCursor": str(int(cursor or "0") + 1)}
    if mode == "crowd":
        page = int(cursor or "0")
        more = {"nextCursor": str(page + 1)} if page < 9 else {}
        return {"tools": [tool("t%d" % (page * 60 + n)) for n in range(60)], **more}
    if mode == "pages":
        return {"tools": [tool("second")]} if cursor else {"tools": [tool("first")], "nextCursor": "x"}
    if mode == "names":
        return {
            "tools": [
                tool("a.b", description="\x1b[2Jred\x07 \u202etext\u2066 \U000e0041end", annotations={"readOnlyHint": True}),
                tool("a_b", annotations={"readOnlyHint": False}),
                tool("a b"),
                tool("x" * 100 + "1"),
                tool("x" * 100 + "2"),
                tool("a_b"),
                tool("long", description="é" * 5000),
                tool("string", inputSchema={"type": "string"}),
                tool("typeless", inputSchema={"properties": {"q": {"type": "string"}}}),
                tool("huge", inputSchema={"type": "object", "description": "x" * 200000}),
                tool("bare", description="", title="Bare title"),
                tool("only.one"),
            ]
        }
    return {"tools": [tool("go"), tool("pid"), tool("die")]}


def flood():
    """Asks without end and never reads an answer."""
    number = 0
    while True:
        number += 1
        send({"id": "s%d" % number, "method": "ping"})


def call(identity, name, arguments):
    if name == "pid":
        return text("%d" % os.getpid())
    if name == "die":
        sys.stderr.write("\x1b[31mout of cheese\n")
        sys.stderr.flush()
        os._exit(3)
    if mode == "gigantic":
        while True:
            sys.stdout.write("x" * 65536)
    if mode == "big":
        return text("b" * (2 << 20))
    if mode == "flood":
        flood()
    if mode == "error":
        send({"id": identity, "error": {"code": -32050, "message": "the moon is wrong", "data": {"phase": 3}}})
        return None
    if mode == "batch":
        answer = {"jsonrpc": "2.0", "id": identity, "result": text("in a list")}
        sys.stdout.write(json.dumps([{"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}, answer]) + "\n")
        sys.stdout.flush()
        return None
    if mode == "garbled":
        sys.stdout.write('{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":NaN' % identity + "\n")
        sys.stdout.flush()
        return None
    if mode == "no-result":
        send({"id": identity, "results": []})
        return None
    if mode == "error-without-id":
        send({"id": None, "error": {"code": -32700, "message": "Parse error"}})
        return None
    if mode == "nonsense":
        return {"whatever": [1, 2]}
    if mode == "closes-output":
        os.close(1)
        time.sleep(600)
    if mode == "mixed":
        return {
            "content": [
                {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
                {"type": "resource", "resource": {"uri": "file:///t", "text": "inside"}},
                {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "x/y", "blob": "AAA="}},
                {"type": "resource_link", "uri": "file:///link", "name": "l"},
            ]
        }
    if mode == "structured":
        return {"content": [], "structuredContent": {"answer": 42}}
    if mode == "empty":
        return {"content": []}
    if mode == "cancel":
        # Answers only once it has been told to stop, into the file it was given.
        for line in sys.stdin:
            message = json.loads(line)
            if message.get("method") == "notifications/cancelled":
                with open(sys.argv[2], "w") as file:
                    json.dump({"asked": identity, "cancelled": message["params"]["requestId"]}, file)
                os.rename(sys.argv[2], sys.argv[2] + ".done")
                return None
    return text("arguments: " + json.dumps(arguments))


def main():
    if mode == "silent":
        sys.stderr.write("waiting for nothing\n")
        sys.stderr.flush()
        time.sleep(600)
    if mode == "crash":
        for number in range(100):
            sys.stderr.write("line %d\n" % number)
        sys.stderr.write("no configuration\n")
        sys.exit(7)
    if mode == "family":
        # A grandchild that ignores what an orderly end would do.
        child = subprocess.Popen(
            [sys.executable, "-c", "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"],
            stdin=subprocess.DEVNULL,
        )
        with open(sys.argv[2], "w") as file:
            file.write("%d %d" % (os.getpid(), child.pid))
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        message = json.loads(line)
        method, identity = message.get("method"), message.get("id")
        if method == "initialize":
            if mode == "modern":
                send({"id": identity, "error": {"code": -32601, "message": "Method not found"}})
                continue
            if mode == "noise":
                sys.stdout.write("Welcome to my server!\n{\"half\":\n")
            sys.stderr.write("e" * 100000 + "\nstarted\n")
            send(
                {
                    "id": identity,
                    "result": {
                        "protocolVersion": message["params"]["protocolVersion"],
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "hostile", "version": "1"},
                    },
                }
            )
        elif method == "server/discover":
            send(
                {
                    "id": identity,
                    "result": {
                        "resultType": "complete",
                        "supportedVersions": ["2026-07-28"],
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "modern", "version": "1"},
                        "ttlMs": 0,
                        "cacheScope": "private",
                    },
                }
            )
        elif method == "tools/list":
            if mode == "list-hangs":
                continue
            if mode == "list-nonsense":
                send({"id": identity, "result": {"tools": "none"}})
                continue
            send({"id": identity, "result": tools((message.get("params") or {}).get("cursor"))})
        elif method == "tools/call":
            result = call(identity, message["params"]["name"], message["params"].get("arguments"))
            if result is not None:
                send({"id": identity, "result": result})
    if mode == "stubborn":
        time.sleep(600)


main()
