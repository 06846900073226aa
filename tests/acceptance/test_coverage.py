"""`docs/coverage.md` says where each thing of the designs stands. It is made from `docs/coverage.toml`, and every place in it must exist.

Needs no service. After a change of the data: `UPDATE_DOCS=1 ./test acceptance test_coverage.py`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs/coverage.toml"
PAGE = ROOT / "docs/coverage.md"
STATES = ("as described", "otherwise", "in part", "not")


class Item(NamedTuple):
    design: str
    part: str
    says: str
    status: str
    places: list[str]
    why: str


@cache
def text_of(file: str) -> str:
    """A file of the repository, or nothing if there is none."""
    path = ROOT / file
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@cache
def designs() -> list[dict[str, Any]]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))["design"]


def items() -> Iterator[Item]:
    for design in designs():
        for part in design["part"]:
            for item in part["item"]:
                yield Item(design["title"], part["title"], item["says"], item["status"], item.get("places", []), item.get("why", ""))


# --- what there is ------------------------------------------------------------------------------------------------------


@cache
def openapi() -> dict[str, Any]:
    return json.loads(text_of("docs/openapi.json"))


def fields(schema: Any) -> Iterator[str]:
    """The names of all fields of a schema, those of its parts too."""
    if isinstance(schema, list):
        for part in schema:
            yield from fields(part)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield from fields(openapi()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
        yield from schema.get("properties", {})
        for part in schema.values():
            yield from fields(part)


@cache
def fields_of(path: str) -> frozenset[str]:
    found: set[str] = set()
    for operation in openapi()["paths"].get(path, {}).values():
        bodies = [operation.get("requestBody", {}), *operation.get("responses", {}).values()]
        for content in (content for body in bodies for content in body.get("content", {}).values()):
            found.update(fields(content.get("schema", {})))
    return frozenset(found)


@cache
def table(file: str, heading: str) -> frozenset[str]:
    """What stands first in the rows of the tables under a heading: the names in code."""
    section = re.split(r"^## ", text_of(file).split(f"## {heading}\n", 1)[-1], maxsplit=1, flags=re.M)[0]
    return frozenset(name for row in re.findall(r"^\| (`[^|]*)\|", section, re.M) for name in re.findall(r"`([^`]+)`", row))


@cache
def settings() -> frozenset[str]:
    found, section = set(), ""
    for line in text_of("docs/settings.md").splitlines():
        if heading := re.match(r"## `\[(.+)\]`", line):
            section = heading[1] + "."
        elif key := re.match(r"\| `([^`]+)` \|", line):
            found.add(section + key[1])
    return frozenset(found)


def slug(heading: str) -> str:
    """The name of a heading in a link, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def headings(file: str) -> frozenset[str]:
    without_code = re.sub(r"^```.*?^```", "", text_of(file), flags=re.M | re.S)
    return frozenset(slug(heading) for heading in re.findall(r"^#+ (.+)$", without_code, re.M))


@cache
def corrections() -> list[int]:
    return [int(number) for number in re.findall(r"^(\d+)\. ", text_of("docs/corrections.md"), re.M)]


def python_names(nodes: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
            if node.name == "__init__":
                own = (part for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store))
                yield from ((attribute.attr, node) for attribute in own if isinstance(attribute.value, ast.Name) and attribute.value.id == "self")
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, (ast.If, ast.Try)):
            yield from python_names(node.body)


def parameters(node: ast.stmt) -> frozenset[str]:
    if isinstance(node, ast.ClassDef):
        made = [function for name, function in python_names(node.body) if name in ("__new__", "__init__")]
        return frozenset().union(*(parameters(function) for function in made), (name for name, _ in python_names(node.body)))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return frozenset(argument.arg for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
    return frozenset()


def has_python(module: str, symbol: str) -> bool:
    """`name`, `Class.member`, and either with `(parameter)`."""
    base = "sdk/python/python/" + module.replace(".", "/")
    source = text_of(base + ".py") or text_of(base + ".pyi") or text_of(base + "/__init__.py")
    named = re.fullmatch(r"([\w.]+)(?:\((\w+)\))?", symbol)
    body: Iterable[ast.stmt] = ast.parse(source).body
    node: ast.stmt | None = None
    for name in named[1].split(".") if named else [""]:
        node = dict(python_names(body)).get(name)
        body = getattr(node, "body", [])
    return node is not None and (named[2] is None or named[2] in parameters(node))


def has_typescript(module: str, symbol: str) -> bool:
    """An exported `name`, or `name.member` of a class or an interface."""
    name, _, member = symbol.partition(".")
    source = text_of(f"sdk/typescript/src/adapters/{module}.ts") or text_of(f"sdk/typescript/src/{module}.ts")
    found = re.search(rf"^export (?:async )?(?:function|class|interface|const|type) {name}\b.*?^(?:}}|\S.*\n(?=\n))", source, re.M | re.S)
    if found is None:
        return False
    return not member or re.search(rf"^  (?:(?:async|static|readonly|get) )*{member}\b[?(:<]", found[0], re.M) is not None


def has_rust(file: str, symbol: str) -> bool:
    """An item, a field, a variant, or a name in quotes."""
    defined = rf"\b(?:fn|struct|enum|const|static|type|trait) {symbol}\b|^\s+(?:pub )?{symbol}\b\s*[:,({{]|\"{symbol}\""
    return re.search(defined, text_of(file), re.M) is not None


def has_command(command: str) -> bool:
    """`runguard NAME`, with a subcommand or an option."""
    words = command.split()
    variant = "".join(word.capitalize() for word in words[1].split("-")) if words[0] == "runguard" and len(words) > 1 else ""
    if not variant or not re.search(rf"^    {variant}\(commands::", text_of("crates/runguard-cli/src/main.rs"), re.M):
        return False
    module = ROOT / "crates/runguard-cli/src/commands" / words[1].replace("-", "_")
    sources = [module.with_suffix(".rs"), *sorted(module.glob("**/*.rs"))]
    source = "".join(text_of(str(path.relative_to(ROOT))) for path in sources)
    for word in words[2:]:
        is_option = word.startswith("--")
        name = word.removeprefix("--").replace("-", "_") if is_option else word.capitalize()
        if not re.search(rf"^\s+(?:pub(?:\(crate\))? )?{name}: " if is_option else rf"^\s+{name}\b\s*[,({{]", source, re.M):
            return False
    return True


@cache
def agent_settings() -> frozenset[str]:
    def paths(tree: dict[str, Any], above: str = "") -> Iterator[str]:
        for key, value in tree.items():
            yield above + key
            if isinstance(value, dict):
                yield from paths(value, f"{above}{key}.")

    return frozenset(paths(tomllib.loads(text_of("agents/everything.toml"))))


@cache
def examples_of_estimate() -> frozenset[str]:
    files = ("crates/runguard-insight/src/estimate.rs", "crates/runguard-insight/src/estimate/tokens.rs")
    return frozenset(name for file in files for name in re.findall(r'name: "([^"]+)"', text_of(file)))


def is_file(path: str) -> bool:
    return (ROOT / path).is_file() and not path.startswith(("/", ".."))


# --- places -------------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    exists: Callable[[str], bool]
    shown: Callable[[str], str]


def code(name: str) -> str:
    return f"`{name}`"


def linked(path: str) -> str:
    """A file, as seen from `docs/`."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"


def parts(name: str) -> tuple[str, str]:
    first, _, second = name.partition(":")
    return first, second


KINDS = {
    "guard": Kind(lambda name: name in headings("docs/reasons.md"), lambda name: f"guard [`{name}`](reasons.md#{name})"),
    "reason": Kind(
        lambda name: name.split("/")[-1] in table("docs/reasons.md", f"`{name.split('/')[0]}`"),
        lambda name: f"reason [`{name.split('/')[-1]}`](reasons.md#{name.split('/')[0]})",
    ),
    "route": Kind(lambda name: name.split()[0].lower() in openapi()["paths"].get(name.split()[-1], {}), code),
    "field": Kind(
        lambda name: name.split("#")[-1] in fields_of(name.split("#")[0]),
        lambda name: f"`{name.split('#')[-1]}` of `{name.split('#')[0]}`",
    ),
    "setting": Kind(lambda name: name in settings(), lambda name: f"setting `{name}`"),
    "agent": Kind(lambda name: name in agent_settings(), lambda name: f"agent's setting `{name}`"),
    "command": Kind(has_command, code),
    "estimate": Kind(lambda name: name in examples_of_estimate(), lambda name: f"`runguard estimate --example {name}`"),
    "advice": Kind(
        lambda name: name in table("docs/insights.md", "Kinds of advice, and the least they need"),
        lambda name: f"advice [`{name}`](insights.md#kinds-of-advice-and-the-least-they-need)",
    ),
    "alert": Kind(lambda name: name in table("docs/alerts.md", "Rules"), lambda name: f"alert [`{name}`](alerts.md#rules)"),
    "python": Kind(lambda name: has_python(*parts(name)), lambda name: f"Python `{'.'.join(parts(name))}`"),
    "typescript": Kind(lambda name: has_typescript(*parts(name)), lambda name: f"TypeScript `{parts(name)[1]}` (`{parts(name)[0]}`)"),
    "rust": Kind(lambda name: has_rust(*parts(name)), lambda name: f"[`{parts(name)[1]}`](../{parts(name)[0]})"),
    "doc": Kind(
        lambda name: is_file(name.split("#")[0]) and ("#" not in name or name.split("#")[1] in headings(name.split("#")[0])),
        lambda name: f"[{name.removeprefix('docs/')}]({linked(name)})",
    ),
    "example": Kind(is_file, lambda name: f"[{name}]({linked(name)})"),
    "test": Kind(is_file, lambda name: f"tested in [{name.rsplit('/', 1)[1]}]({linked(name)})"),
    "correction": Kind(lambda name: name.isdigit() and int(name) in corrections(), lambda name: f"[correction {name}](corrections.md)"),
}


def kind_of(place: str) -> tuple[Kind | None, str]:
    kind, _, name = place.partition(":")
    return KINDS.get(kind), name


def problems(item: Item) -> Iterator[str]:
    """What is wrong with an item of the data."""
    if item.status not in STATES:
        yield f"the status is one of {', '.join(STATES)}, not {item.status!r}"
    if not item.places and item.status != "not":
        yield "no place is named"
    for place in item.places:
        kind, name = kind_of(place)
        if kind is None:
            yield f"{place}: a place begins with one of {', '.join(KINDS)}"
        elif not kind.exists(name):
            yield f"{place} does not exist"
    is_corrected = any(place.startswith("correction:") for place in item.places)
    if item.status != "as described" and not (is_corrected or item.why):
        yield "it is not as described, and neither a correction nor `why` says why"
    if item.why and not re.fullmatch(r"[A-Z`\"].*\.", item.why, re.S):
        yield "`why` is a sentence"


# --- the page -----------------------------------------------------------------------------------------------------------


def rendered() -> str:
    lines = [
        "# What became of the designs",
        "",
        "RunGuard comes from five published designs. Here is each thing they describe, in our own words, and where it stands or why it does not.",
        "What is otherwise is so on purpose, for the reasons in [corrections.md](corrections.md) or beside it; what is there in part, or not, says what",
        "is missing. (Made from `coverage.toml` by a test that fails when a place named here does not exist.)",
        "",
        "| design | things | " + " | ".join(STATES) + " |",
        "|---|" + "---|" * (len(STATES) + 1),
    ]
    by_design = Counter((item.design, item.status) for item in items())
    names = [design["title"] for design in designs()]
    for name in [*names, None]:
        counts = [sum(by_design[design, state] for design in names if name in (design, None)) for state in STATES]
        shown = "all" if name is None else f"[{name}](#{slug(name)})"
        lines.append(f"| {shown} | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
    place = (None, None)
    for item in items():
        if item.design != place[0]:
            lines += ["", f"## {item.design}"]
        if (item.design, item.part) != place:
            lines += ["", f"### {item.part}", "", "| the design | here | where |", "|---|---|---|"]
            place = (item.design, item.part)
        where = ", ".join(kind.shown(name) for kind, name in map(kind_of, item.places) if kind is not None)
        lines.append(f"| {item.says} | {item.status} | {'. '.join(text for text in (where, item.why) if text)} |")
    return "\n".join(lines) + "\n"


# --- tests --------------------------------------------------------------------------------------------------------------


def test_every_thing_has_its_place():
    wrong = [f"{item.design}, {item.part}: {item.says}: {problem}" for item in items() for problem in problems(item)]
    assert not wrong, "docs/coverage.toml:\n" + "\n".join(wrong)


def test_nothing_is_named_twice():
    twice = [key for key, count in Counter((item.design, item.part, item.says) for item in items()).items() if count > 1]
    assert not twice


def test_every_correction_belongs_to_something():
    assert corrections() == list(range(1, len(corrections()) + 1)), "docs/corrections.md is numbered in order"
    named = {place for item in items() for place in item.places}
    assert not [number for number in corrections() if f"correction:{number}" not in named], "corrections that nothing in docs/coverage.toml names"


def test_the_page_is_made_from_the_data():
    if os.environ.get("UPDATE_DOCS") == "1":
        PAGE.write_text(rendered(), encoding="utf-8")
    stale = "docs/coverage.md is stale; run UPDATE_DOCS=1 ./test acceptance test_coverage.py"
    assert (PAGE.read_text(encoding="utf-8") if PAGE.exists() else "") == rendered(), stale


@pytest.mark.parametrize(
    "place",
    [
        "guard:nothing",
        "reason:handoff/retry_cap_reached",
        "route:GET /guard/handoff",
        "field:/guard/handoff#task_name",
        "setting:guards.handoff.max_retries",
        "agent:guardrails.max_handoffs",
        "command:runguard forget",
        "command:runguard estimate --nothing",
        "command:runguard alerts forget",
        "estimate:nothing",
        "advice:nothing",
        "alert:nothing",
        "python:runguard.detectors:LoopDetectors",
        "python:runguard.detectors:LoopDetector(nothing)",
        "python:runguard.nothing:LoopDetector",
        "typescript:loop:LoopDetectors",
        "typescript:loop:LoopDetector.nothing",
        "rust:crates/runguard-core/src/ledger.rs:nothing_of_the_kind",
        "doc:docs/nothing.md",
        "doc:docs/alerts.md#nothing",
        "example:examples/nothing.js",
        "test:tests/nothing.py",
        "correction:0",
        "correction:1000",
        "place:anywhere",
    ],
)
def test_a_place_that_is_not_there_is_found(place):
    item = Item("design", "part", "says", "as described", [place], "")
    assert list(problems(item))


def test_an_item_without_a_place_or_a_reason_is_found():
    assert list(problems(Item("design", "part", "says", "as described", [], "")))
    assert list(problems(Item("design", "part", "says", "otherwise", ["guard:handoff"], "")))
    assert list(problems(Item("design", "part", "says", "not", [], "")))
    assert list(problems(Item("design", "part", "says", "done", ["guard:handoff"], "")))
    assert not list(problems(Item("design", "part", "says", "not", [], "It is another's to do.")))
