"""Larger samples of recorded runs in formats of which there are only small ones: each run many times over under names of its own, with
texts as long as those that tools give."""

import functools
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMATS = ROOT / "crates" / "runguard-replay" / "tests" / "formats"
SAMPLES = ("claude-code.jsonl", "claude-code-parallel.jsonl", "otlp.jsonl", "langfuse-observations.jsonl", "langsmith.jsonl", "bedrock.jsonl")
BYTES = 8 << 20
# What a tool gives: lines of a program, with quotes and indents, which JSON escapes.
TEXT = pathlib.Path(__file__).read_text()
ID = re.compile(r"(^|[_.])(id|uuid)$|Id$|Uuid$")


def ids(value, key=""):
    """What things are called in a record."""
    if isinstance(value, dict):
        for name, member in value.items():
            # An attribute of OpenTelemetry has its name beside it.
            yield from ids(member, value["key"] if name == "value" and isinstance(value.get("key"), str) else key if name == "stringValue" else name)
    elif isinstance(value, list):
        for item in value:
            yield from ids(item, key)
    elif isinstance(value, str) and value[:1] in ("{", "["):
        try:
            yield from ids(json.loads(value), key)
        except ValueError:
            pass
    elif isinstance(value, str) and len(value) >= 4 and ID.search(key) and any(map(str.isdigit, value)):
        yield value


def grown(value, number):
    """A record whose texts are long."""
    if isinstance(value, dict):
        return {name: grown(member, number) for name, member in value.items()}
    if isinstance(value, list):
        return [grown(item, number) for item in value]
    if not isinstance(value, str):
        return value
    if value[:1] in ("{", "["):
        try:
            return json.dumps(grown(json.loads(value), number))
        except ValueError:
            pass
    if " " in value and len(value) > 15 and not value[0].isdigit():
        start = number * 97 % len(TEXT)
        return f"{value}\n{TEXT[start:start + 1500]}"
    return value


def enlarge(folder):
    """Writes the samples into a folder, about 8 MB of each."""
    for name in SAMPLES:
        text = (FORMATS / name).read_text()
        lines = [line for line in text.splitlines() if line.strip()]
        names = {found for line in lines for found in ids(json.loads(line))}
        named = re.compile("|".join(re.escape(found) for found in sorted(names, key=len, reverse=True)))
        written, number = 0, 0
        with open(folder / name, "w") as out:
            while written < BYTES:
                # Names of things that come together stay together; hex digits stay hex digits.
                another = functools.partial(lambda beginning, found: beginning + found[0][len(beginning) if len(found[0]) > 12 else 0:], f"{number:06x}")
                for line in lines:
                    written += out.write(json.dumps(grown(json.loads(named.sub(another, line)), number)) + "\n")
                number += 1
