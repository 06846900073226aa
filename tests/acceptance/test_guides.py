"""The guides held against the program: every command, option, variable, route, settings file, request and metric that they name is one it has."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from runguard_process import run_cli

ROOT = Path(__file__).resolve().parents[2]
# coverage.md is held against its places by a test of its own.
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("sdk/*/README.md"))) if path.name != "coverage.md"]
IDS = [str(path.relative_to(ROOT)) for path in PAGES]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SHELL = ("", "sh", "bash", "console")


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for _, language, text in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def inline(page: Path) -> list[str]:
    """What stands between backticks in the text; a line may end within."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))]


def lines(page: Path) -> Iterator[str]:
    """The lines of what is typed, those that go on in the next one put together."""
    for text in blocks(page, *SHELL):
        for line in text.replace("\\\n", " ").splitlines():
            yield line.strip().removeprefix("$ ")


def words(line: str) -> list[str]:
    """Words and the operators between commands; nothing of a line that is no shell's."""
    parts = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    parts.whitespace_split = True
    try:
        return list(parts)
    except ValueError:
        return []


# --- what the program has ---------------------------------------------------------------------------------------------------


@cache
def help_of(*verbs: str) -> str:
    told = run_cli(*verbs, "--help")
    assert told.returncode == 0, f"runguard {' '.join(verbs)}: {told.stderr}"
    return told.stdout


@cache
def verbs_of(*verbs: str) -> frozenset[str]:
    listed = re.search(r"^Commands:\n(.*?)(?:\n\n\S|\Z)", help_of(*verbs), re.DOTALL | re.MULTILINE)
    return frozenset(re.findall(r"^  ([a-z][a-z-]*)", listed[1], re.MULTILINE)) - {"help"} if listed else frozenset()


@cache
def options_of(*verbs: str) -> frozenset[str]:
    shown = re.findall(r"^ +(-[^\s,]*(?:, --[a-z][a-z-]*)?)", help_of(*verbs), re.MULTILINE)
    return frozenset(option for each in shown for option in each.split(", "))


@cache
def every_option(*verbs: str) -> frozenset[str]:
    return options_of(*verbs).union(*(every_option(*verbs, verb) for verb in verbs_of(*verbs)))


@cache
def openapi() -> dict:
    return json.loads((ROOT / "docs/openapi.json").read_text())


@cache
def source() -> str:
    files = [path for folder in ("crates", "sdk/python/python", "sdk/typescript/src", "deploy", "tests") for path in (ROOT / folder).rglob("*")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix in (".rs", ".py", ".ts", ".yaml", ".example") and "node_modules" not in path.parts)


# --- commands ---------------------------------------------------------------------------------------------------------------


def commands(page: Path) -> Iterator[list[str]]:
    """What follows the program's name, wherever in a line it is called: by its path, in an image, behind another program."""
    for line in [*lines(page), *(code for code in inline(page) if code.startswith("runguard "))]:
        found = words(line)
        for place, word in enumerate(found):
            if re.fullmatch(r"(?:\S*/)?runguard(?:-breaker)?(?::[0-9.]+)?", word) and found[place + 1 : place + 2] and found[place + 1] in verbs_of():
                rest = found[place + 1 :]
                end = next((at for at, part in enumerate(rest) if re.fullmatch(r"[|&;<>()]+", part)), len(rest))
                yield rest[:end]


def unknown(command: list[str]) -> str | None:
    verbs: list[str] = []
    for word in command:
        if word == "--":
            break
        if word.startswith("-") and len(word) > 1:
            if (name := word.split("=")[0]) not in options_of(*verbs) | options_of():
                return f"runguard {' '.join(verbs)} has no {name}"
        elif word in verbs_of(*verbs):
            verbs.append(word)
        elif verbs_of(*verbs) and re.fullmatch(r"[a-z][a-z-]*", word) and f"{' '.join(verbs)}" in ONLY_VERBS:
            return f"runguard {' '.join(verbs)} has no {word}"
    return None


# What takes a verb and nothing else behind it.
ONLY_VERBS = {"key", "settings"}


def test_the_program_tells_what_it_has():
    """Else nothing below would be found to be wrong."""
    assert {"serve", "demo", "replay", "settings"} <= verbs_of() and {"set", "show", "check"} <= verbs_of("settings")
    assert {"--listen", "--port", "-h"} <= options_of("serve") and "--follow" in options_of("decisions")
    assert unknown(["serve", "--lisen", "x"]) and unknown(["settings", "shwo"]) and not unknown(["run", "--max-usd", "1", "--", "python", "--x"])
    assert sum(1 for page in PAGES for _ in commands(page)) > 100


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_is_one_the_program_has(page):
    assert [told for command in commands(page) if (told := unknown(command))] == []


def test_every_command_of_the_program_is_in_a_guide():
    named = {command[0] for page in PAGES for command in commands(page)}
    assert verbs_of() - named == set()


# Options of other programs that are named by themselves.
OF_OTHERS = {"--no-default-features", "--features", "--output-format"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.is_relative_to(ROOT / "docs") or page.parent == ROOT], ids=str)
def test_every_option_in_the_text_is_one_the_program_has(page):
    named = {word.split("=")[0] for code in inline(page) if code.startswith("--") for word in code.split() if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", word)}
    assert named - every_option() - OF_OTHERS == set()


def test_every_variable_is_read_by_something():
    named = {name for page in PAGES for name in re.findall(r"\bRUNGUARD_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8"))}
    # A key of the settings, which settings.md lists by its name in the file.
    keys = {name for name in named if "__" in name}
    assert [name for name in sorted(named - keys) if name not in source()] == []


# --- routes, requests, metrics ----------------------------------------------------------------------------------------------


def known(path: str) -> bool:
    """Whether the document has it: `{id}` stands for any name, and a part in capitals of a guide as well."""
    asked = path.split("?")[0].rstrip("/…").split("/")
    for there in openapi()["paths"]:
        parts = there.split("/")
        if len(parts) == len(asked) and all(part == ask or part.startswith("{") for part, ask in zip(parts, asked, strict=True)):
            return True
    return False


# The agent's own door, which agent-http.md tells of, and beginnings of paths.
OF_THE_AGENT = re.compile(r"/v1/agent/runs\b")


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_route_is_one_the_service_has(page):
    text = "\n".join([*inline(page), *lines(page)])
    named = {path.rstrip(".,;:") for path in re.findall(r"(?<![\w.}/-])(/(?:guard|v1/(?:decisions|sessions|stats|circuits|events|settings|insights|alerts|spend|runs|guards|consumption|preview|keys))\b[\w/{}?=-]*)", text)}
    assert [path for path in sorted(named) if not OF_THE_AGENT.match(path) and not path.endswith("/") and not known(path)] == []


def test_every_request_of_the_guides_is_understood(serve, monkeypatch):
    """As it is typed, but for the address."""
    server = serve(virtual_clock=False)
    flow, asked = server.client(), 0
    for page in PAGES:
        for line in lines(page):
            found = words(line)
            if found[:1] != ["curl"] or not any("localhost:8100/guard" in word for word in found) or "-d" not in found:
                continue
            [path] = [word.split("localhost:8100")[1] for word in found if "localhost:8100" in word]
            answer = flow.request("POST", path, found[found.index("-d") + 1].encode())
            asked += 1
            assert answer.status in (200, 402, 429) and "warnings" not in answer.json, f"{page.name}: {line}\n{answer}"
    assert asked >= 4


# As Rust and Python write the names of packages.
OF_CRATES = {"runguard_breaker", "runguard_agent", "runguard_core"}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_metric_is_one_the_service_counts(page):
    named = {name for name in re.findall(r"\brunguard_[a-z_]+\b", page.read_text(encoding="utf-8")) if name not in OF_CRATES}
    told = {name: re.sub(r"^runguard_|_total$|_info$", "", name) for name in named}
    assert [name for name, short in sorted(told.items()) if f'"{short}"' not in source() and f'"{name}"' not in source()] == []


# --- settings ---------------------------------------------------------------------------------------------------------------


def of_agents(text: str) -> bool:
    return re.search(r"^\[(?:serve|\[mcp\]|guardrails.*|tools.*|context.*|provider.*)\]", text, re.MULTILINE) is not None


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=str)
def test_every_settings_file_is_taken(page, tmp_path):
    entries = ""
    for number, text in enumerate(blocks(page, "toml")):
        if of_agents(text):
            continue
        # Entries of a list are added to those before them: a rule names a target from further up.
        if all(line.startswith("[[") for line in text.splitlines() if line.startswith("[")):
            entries = text = entries + text
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        named = dict.fromkeys(re.findall(r'_env = "([A-Z_]+)"', text), "https://example.com/x")
        told = run_cli("settings", "check", file, env=named)
        assert told.returncode == 0, f"{text}\n{told.stdout}{told.stderr}"
